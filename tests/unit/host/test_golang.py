"""The preset `go`, with a stand-in for go, which is not to be had everywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyhole.host import golang
from keyhole.model.errors import Refused
from tests.rigs.host.building import PASSWORD, grants, host, program, revealed, shown, write

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment

PROXY = "https://proxy.corp.example"


def go_host(tmp_path: Path, home: dict[str, str] | None = None, **settings: str) -> HostEnvironment:
    said = write(tmp_path / "said", json.dumps(settings))
    program(tmp_path / "bin" / "go", f"cat {said}")
    return host(tmp_path, home=home, env={"PATH": f"{tmp_path}/bin:/bin"})


def test_proxies_and_the_checksum_database_are_granted(tmp_path: Path) -> None:
    here = go_host(
        tmp_path, GOPROXY=f"{PROXY},direct", GOSUMDB="sum.example.org", GOPRIVATE="corp.example/*"
    )
    preset = golang.learn(here)
    assert grants(preset) == {"proxy.corp.example": ["GET /**"], "sum.example.org": ["GET /**"]}
    assert dict(preset.env) == {
        "GOPROXY": f"{PROXY},direct",
        "GOSUMDB": "sum.example.org",
        "GOPRIVATE": "corp.example/*",
    }
    assert preset.sources == ("go env GOPROXY", "go env GOSUMDB")
    assert "'direct'" in preset.notes[0]


@pytest.mark.parametrize(
    ("written", "inside"),
    [
        (f"{PROXY}|https://b.example/x,off", f"{PROXY}|https://b.example/x,off"),
        (f"https://192.0.2.7,{PROXY}", PROXY),
        (f"{PROXY},https://192.0.2.7", PROXY),
        (f"{PROXY}|https://192.0.2.7,direct", f"{PROXY},direct"),
        (f"{PROXY}, file:///opt/mods", PROXY),
    ],
)
def test_the_list_keeps_its_order_and_its_signs(tmp_path: Path, written: str, inside: str) -> None:
    assert dict(golang.learn(go_host(tmp_path, GOPROXY=written)).env)["GOPROXY"] == inside


@pytest.mark.parametrize(
    ("written", "pattern", "inside"),
    [
        ("sum.example.org+abc123+AbC/xyz=", "sum.example.org", None),
        ("sum.example.org https://sum.corp.example/db", "sum.corp.example", None),
        (
            "s+k https://me:pw@sum.corp.example/db",
            "sum.corp.example",
            "s+k https://sum.corp.example/db",
        ),
    ],
)
def test_the_database_is_a_name_a_key_and_a_url(
    tmp_path: Path, written: str, pattern: str, inside: str | None
) -> None:
    preset = golang.learn(go_host(tmp_path, GOSUMDB=written))
    assert list(grants(preset)) == [pattern]
    assert dict(preset.env) == {"GOSUMDB": inside or written}


def test_a_database_that_is_off_or_has_no_name_is_left_out(tmp_path: Path) -> None:
    off = golang.learn(go_host(tmp_path, GOPROXY=PROXY, GOSUMDB="off"))
    assert dict(off.env)["GOSUMDB"] == "off"
    assert "no checksum database" in off.notes[0]
    numbered = golang.learn(go_host(tmp_path, GOPROXY=PROXY, GOSUMDB="x https://192.0.2.7/"))
    assert "GOSUMDB" not in dict(numbered.env)


def test_a_password_in_the_list_is_held_and_never_shown(tmp_path: Path) -> None:
    preset = golang.learn(go_host(tmp_path, GOPROXY=f"https://me:{PASSWORD}@proxy.corp.example/go"))
    assert revealed(preset, "proxy.corp.example") == PASSWORD
    assert grants(preset) == {"proxy.corp.example": ["GET /go/**"]}
    assert PASSWORD not in shown(preset)


def test_netrc_has_the_credential_of_a_proxy(tmp_path: Path) -> None:
    home = {".netrc": f"machine proxy.corp.example login me password {PASSWORD}\n"}
    preset = golang.learn(go_host(tmp_path, home, GOPROXY=PROXY))
    assert revealed(preset, "proxy.corp.example") == PASSWORD
    assert preset.sources == ("go env GOPROXY", "~/.netrc")


def test_go_is_asked_in_the_root_without_flags_or_other_toolchains(tmp_path: Path) -> None:
    program(
        tmp_path / "bin" / "go",
        'printf \'{"GOPROXY": "https://p.example%s", "GOPRIVATE": "%s"}\' '
        '"$PWD" "$GOFLAGS,$GOTOOLCHAIN,$GOSUMDB,$*"',
    )
    env = {"PATH": f"{tmp_path}/bin:/bin", "GOFLAGS": "-toolexec=evil", "GOSUMDB": "kept"}
    told = dict(golang.learn(host(tmp_path, env=env)).env)
    assert told["GOPROXY"] == "https://p.example/"
    assert told["GOPRIVATE"].startswith(",local,kept,env -json GOPROXY GOSUMDB GONOSUMDB")


@pytest.mark.parametrize(
    "answer", ['{"GOPROXY": "direct"}', '{"GOPROXY": "off"}', "{}", '{"GOPROXY": 7}']
)
def test_without_a_proxy_the_person_is_told_what_to_do(tmp_path: Path, answer: str) -> None:
    program(tmp_path / "bin" / "go", f"echo '{answer}'")
    with pytest.raises(Refused, match=r"name your proxy under \[egress\] allow"):
        golang.learn(host(tmp_path, env={"PATH": f"{tmp_path}/bin:/bin"}))
    with pytest.raises(Refused, match=r"name your proxy under \[egress\] allow"):
        golang.learn(host(tmp_path, env={"PATH": "/nowhere"}))


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo []"])
def test_a_go_that_does_not_answer_is_said_so(tmp_path: Path, script: str) -> None:
    program(tmp_path / "bin" / "go", script)
    with pytest.raises(Refused, match="go env -json"):
        golang.learn(host(tmp_path, env={"PATH": f"{tmp_path}/bin:/bin"}))
