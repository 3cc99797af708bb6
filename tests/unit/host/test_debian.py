"""The preset `debian`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from keyhole.host import debian
from keyhole.model.errors import Refused
from tests.rigs.host.building import (
    PASSWORD,
    grants,
    host,
    injections,
    needs,
    revealed,
    shown,
    this_host,
)

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.inject.preset import Preset

D = "/etc/apt/sources.list.d"


def learn(tmp_path: Path, **files: str) -> Preset:
    names = {
        "list": "/etc/apt/sources.list",
        "auth": "/etc/apt/auth.conf",
        "more_auth": "/etc/apt/auth.conf.d/corp.conf",
        "mirrors": "/etc/apt/mirrors.txt",
    }
    return debian.learn(host(tmp_path, system={names[k]: text for k, text in files.items()}))


def test_the_sources_of_this_machine_are_the_ones_that_apt_itself_names(tmp_path: Path) -> None:
    run = [needs("apt-get"), "indextargets", "--format", "$(REPO_URI)"]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    sites = {urlsplit(uri).hostname for uri in said if uri.startswith("http")}
    if not sites:
        pytest.skip("apt has no sources here")
    assert {h.pattern.host.name for h in debian.learn(this_host(tmp_path)).hosts} == sites


def test_both_forms_and_both_schemes_are_read(tmp_path: Path) -> None:
    system = {
        "/etc/apt/sources.list": "deb http://one.corp.example/debian s m\n",
        f"{D}/a.list": "deb https://two.corp.example/debian s m\n",
        f"{D}/b.sources": "URIs: https://three.corp.example:8443/\n",
        f"{D}/c.sources.disabled": "URIs: https://off.corp.example/\n",
    }
    preset = debian.learn(host(tmp_path, system=system))
    assert grants(preset) == {
        "one.corp.example:80": ["GET /**"],
        "two.corp.example": ["GET /**"],
        "three.corp.example:8443": ["GET /**"],
    }
    assert preset.sources == ("/etc/apt/sources.list", f"{D}/a.list", f"{D}/b.sources")
    assert (preset.env, preset.files, preset.notes) == ((), (), ())


def test_sources_on_this_machine_are_no_hosts(tmp_path: Path) -> None:
    lines = "".join(
        f"deb {uri} s m\n"
        for uri in ("cdrom:[X]/", "file:/opt/debs", "copy:/opt/debs", "https://a.example/")
    )
    preset = learn(tmp_path, list=lines)
    assert list(grants(preset)) == ["a.example"]
    assert preset.notes == ()


def test_a_list_of_mirrors_is_followed(tmp_path: Path) -> None:
    mirrors = (
        "# mirrors\nhttps://one.corp.example/debian\tpriority:1\n\nhttp://two.corp.example/debian\n"
        "file:/opt/debs\n"
    )
    preset = learn(tmp_path, list="deb mirror+file:/etc/apt/mirrors.txt s m\n", mirrors=mirrors)
    assert list(grants(preset)) == ["one.corp.example", "two.corp.example:80"]


def test_mirrors_that_are_not_known_here_are_said_to_be(tmp_path: Path) -> None:
    lines = (
        "deb mirror+https://list.corp.example/mirrors.txt s m\n"
        "deb mirror+file:/missing s m\ndeb tor+http://x.example/ s m\n"
    )
    preset = learn(tmp_path, list=lines)
    assert list(grants(preset)) == ["list.corp.example"]
    for words in ("a list on another host", "cannot be read", "only an http or https"):
        assert any(words in note for note in preset.notes)


def test_logins_come_from_userinfo_and_from_auth_conf(tmp_path: Path) -> None:
    preset = learn(
        tmp_path,
        list=f"deb https://me:{PASSWORD}@one.corp.example/deb s m\n"
        "deb https://two.corp.example/debian s m\ndeb https://three.corp.example/x s m\n",
        auth=f"machine two.corp.example/debian login you password {PASSWORD}\n",
        more_auth=f"machine three.corp.example/y login you password {PASSWORD}\n",
    )
    assert injections(preset) == {
        "one.corp.example": "header Authorization: Basic me:{secret}",
        "two.corp.example": "header Authorization: Basic you:{secret}",
    }
    assert grants(preset) == {
        "one.corp.example": ["GET /deb/**"],
        "two.corp.example": ["GET /debian/**"],
        "three.corp.example": ["GET /**"],
    }
    assert preset.sources == ("/etc/apt/sources.list", "/etc/apt/auth.conf")
    assert revealed(preset, "two.corp.example") == PASSWORD
    assert PASSWORD not in shown(preset)


def test_a_login_over_plain_http_is_noted_and_not_used(tmp_path: Path) -> None:
    preset = learn(
        tmp_path,
        list="deb http://apt.corp.example/x s m\n",
        auth=f"machine http://apt.corp.example login me password {PASSWORD}\n",
    )
    assert revealed(preset, "apt.corp.example:80") is None
    assert "plain http" in preset.notes[0]
    assert PASSWORD not in shown(preset)


def test_without_apt_the_person_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"name your mirror under \[egress\] allow"):
        debian.learn(host(tmp_path))
