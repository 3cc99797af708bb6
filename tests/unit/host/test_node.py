"""The preset `node`."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.host import node
from keyhole.model.errors import Refused
from tests.rigs.host.building import (
    PASSWORD,
    grants,
    host,
    injections,
    needs,
    program,
    revealed,
    shown,
    this_host,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment

HOSTILE = "registry=https://hostile.example/\n"
AUDIT = "POST /-/npm/v1/security/**"


def npm_host(
    tmp_path: Path,
    settings: Mapping[str, object] | None = None,
    *,
    rc: str = "",
    env: Mapping[str, str] | None = None,
    writable: tuple[Path, ...] = (),
) -> HostEnvironment:
    """A host whose npm prints these settings."""
    tree = {
        "registry": "https://npm.corp.example/",
        "userconfig": str(tmp_path / "home" / ".npmrc"),
        "globalconfig": str(tmp_path / "etc" / "npmrc"),
        **(settings or {}),
    }
    said = write(tmp_path / "said", json.dumps(tree))
    path = program(tmp_path / "bin" / "npm", f"cat {said}").parent
    variables = {"PATH": f"{path}:/bin", **(env or {})}
    return host(tmp_path, home={".npmrc": rc}, env=variables, writable=writable)


# ── the real npm ─────────────────────────────────────────────────────────────────────────────────


def npm_says(surroundings: HostEnvironment, directory: str, key: str) -> str:
    run = [needs("npm"), "config", "get", key]
    env = {"PATH": surroundings.env["PATH"], "HOME": str(surroundings.home)}
    said = subprocess.run(run, capture_output=True, text=True, check=True, cwd=directory, env=env)
    return said.stdout.strip()


def test_the_registry_of_the_real_npm_is_learnt(tmp_path: Path) -> None:
    needs("npm")
    here = this_host(tmp_path)
    preset = node.learn(here)
    assert [p for p in here.home.rglob("*") if p.is_file()] == []  # npm left no log behind
    assert dict(preset.env)["npm_config_registry"] == npm_says(here, "/", "registry")
    assert list(grants(preset).values()) == [["GET /**", AUDIT]]
    assert preset.sources == ("npm's built-in default",)


def test_a_projects_npmrc_has_no_influence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloned repository would name the host that its secrets are sent to."""
    needs("npm")
    project = tmp_path / "project"
    write(project / ".npmrc", HOSTILE)
    write(project / "package.json", "{}")
    monkeypatch.chdir(project)
    here = this_host(tmp_path)
    assert "hostile.example" not in grants(node.learn(here))
    # controls: npm itself would follow it there, and the user's own file is followed.
    assert npm_says(here, str(project), "registry") == "https://hostile.example/"
    write(here.home / ".npmrc", HOSTILE)
    assert "hostile.example" in grants(node.learn(here))


def test_the_users_own_files_and_variables_speak_through_the_real_npm(tmp_path: Path) -> None:
    needs("npm")
    here = this_host(tmp_path, env={"NPM_CONFIG_REGISTRY": "https://variable.corp.example/"})
    write(
        here.home / ".npmrc",
        "registry=https://file.corp.example/\n@acme:registry=https://scope.corp.example/npm/\n"
        f"//scope.corp.example/npm/:_authToken={PASSWORD}\n",
    )
    preset = node.learn(here)
    assert grants(preset) == {
        "variable.corp.example": ["GET /**", AUDIT],
        "scope.corp.example": ["GET /npm/**", "POST /npm/-/npm/v1/security/**"],
    }
    assert preset.files == ((".npmrc", "@acme:registry=https://scope.corp.example/npm/\n"),)
    assert preset.sources == ("NPM_CONFIG_REGISTRY", "~/.npmrc")
    assert revealed(preset, "scope.corp.example") == PASSWORD
    assert PASSWORD not in shown(preset)


# ── a stand-in that prints what a case needs ─────────────────────────────────────────────────────


def test_a_token_is_written_as_npm_writes_it_and_narrows_the_grant(tmp_path: Path) -> None:
    rc = "//npm.corp.example/feeds/:_authToken=${TOKEN}\n"
    settings = {"registry": "https://npm.corp.example/feeds/one/"}
    preset = node.learn(npm_host(tmp_path, settings, rc=rc, env={"TOKEN": PASSWORD}))
    assert injections(preset) == {"npm.corp.example": "header Authorization: Bearer {secret}"}
    assert grants(preset) == {
        "npm.corp.example": ["GET /feeds/**", "POST /feeds/one/-/npm/v1/security/**"]
    }
    assert revealed(preset, "npm.corp.example") == PASSWORD
    assert preset.sources == ("npm's built-in default", "~/.npmrc")
    assert PASSWORD not in shown(preset)


def test_yarn_is_told_the_same_registry(tmp_path: Path) -> None:
    assert dict(node.learn(npm_host(tmp_path)).env) == {
        "npm_config_registry": "https://npm.corp.example/",
        "YARN_NPM_REGISTRY_SERVER": "https://npm.corp.example/",
    }


def test_settings_that_npm_took_from_a_projects_script_are_not_passed_on(tmp_path: Path) -> None:
    """`npm run` puts the project's .npmrc into the environment of what it starts."""
    program(
        tmp_path / "bin" / "npm",
        'printf \'{"registry": "%s"}\' "${npm_config_registry:-https://npm.corp.example/}"',
    )
    env = {"PATH": f"{tmp_path}/bin:/bin", "npm_config_registry": "https://hostile.example/"}
    assert "hostile.example" in grants(node.learn(host(tmp_path, env=env)))  # control
    for mark in ("npm_lifecycle_event", "npm_command"):
        preset = node.learn(host(tmp_path, env={**env, mark: "start"}))
        assert list(grants(preset)) == ["npm.corp.example"]


def test_what_npm_read_from_a_tree_of_the_sandbox_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path / "project" / "rc", HOSTILE)
    settings = {"userconfig": str(tmp_path / "project" / "rc")}
    with pytest.raises(Refused, match="the sandbox can write"):
        node.learn(npm_host(tmp_path, settings, writable=(tmp_path / "project",)))
    assert node.learn(npm_host(tmp_path, settings))


def test_a_client_certificate_is_said_not_to_be_used(tmp_path: Path) -> None:
    preset = node.learn(npm_host(tmp_path, rc="//npm.corp.example/:certfile=/x\n"))
    assert preset.notes == ("npm.corp.example: npm's client certificate is not used",)


def test_a_registry_without_a_name_is_left_out(tmp_path: Path) -> None:
    settings = {
        "@x:registry": "https://192.0.2.7/",
        "@y:registry": 7,
        "x:registry": "https://z.example/",
    }
    preset = node.learn(npm_host(tmp_path, settings))
    assert list(grants(preset)) == ["npm.corp.example"]
    assert "IP address" in preset.notes[0]
    assert preset.files == ()


def test_without_npm_the_person_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"name your registry under \[egress\] allow"):
        node.learn(host(tmp_path, env={"PATH": "/nowhere"}))


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "echo []"])
def test_an_npm_that_does_not_answer_is_said_so(tmp_path: Path, script: str) -> None:
    program(tmp_path / "bin" / "npm", script)
    with pytest.raises(Refused, match="npm config list --json"):
        node.learn(host(tmp_path, env={"PATH": f"{tmp_path}/bin:/bin"}))


# ── the answer that is kept ──────────────────────────────────────────────────────────────────────


def asked(tmp_path: Path, **more: object) -> tuple[HostEnvironment, Path]:
    """A host whose npm notes each time that it is asked, and that note."""
    here = npm_host(tmp_path, **more)  # type: ignore[arg-type]
    note = tmp_path / "asked"
    npm = tmp_path / "bin" / "npm"
    npm.write_text(npm.read_text().replace("cat ", f"echo >>{note}; cat "))
    return replace(here, answers=tmp_path / "answers"), note


def test_npm_is_asked_again_only_when_something_has_changed(tmp_path: Path) -> None:
    here, note = asked(tmp_path)
    first = node.learn(here)
    assert grants(node.learn(here)) == grants(first)
    assert len(note.read_text()) == 1
    changes: tuple[Callable[[], object], ...] = (
        lambda: write(tmp_path / "home" / ".npmrc", "audit=false\n"),
        lambda: write(tmp_path / "etc" / "npmrc", "audit=false\n"),  # it was missing
        lambda: (tmp_path / "bin" / "npm").touch(),
        lambda: write(tmp_path / "answers" / "npm", "{}"),
        lambda: write(tmp_path / "answers" / "npm", "not JSON"),
    )
    for number, change in enumerate(changes, 2):
        change()
        assert grants(node.learn(here)) == grants(first)
        assert len(note.read_text()) == number
    other = replace(here, env={**here.env, "npm_config_registry": "https://other.example/"})
    node.learn(other)
    assert len(note.read_text()) == len(changes) + 2


def test_a_password_in_an_address_is_not_kept(tmp_path: Path) -> None:
    """I1. Control: the same address without one is kept."""
    here, note = asked(tmp_path, settings={"registry": f"https://me:{PASSWORD}@npm.corp.example/"})
    node.learn(here)
    node.learn(here)
    assert len(note.read_text()) == 2
    assert not (tmp_path / "answers").exists()


def test_settings_that_a_sandbox_could_write_are_refused_in_a_kept_answer_too(
    tmp_path: Path,
) -> None:
    """I11. Control: while they lie elsewhere, the kept answer is used."""
    here, _ = asked(tmp_path)
    node.learn(here)
    with pytest.raises(Refused, match="which lies in a tree that the sandbox can write"):
        node.learn(replace(here, writable=(tmp_path / "home",)))


def test_where_nothing_can_be_written_npm_is_asked_each_time(tmp_path: Path) -> None:
    here, note = asked(tmp_path)
    here = replace(here, answers=write(tmp_path / "file", "") / "answers")
    node.learn(here)
    node.learn(here)
    assert len(note.read_text()) == 2
