"""The preset `python`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.host import pip, python
from keyhole.model.errors import Refused
from tests.rigs.host.building import PASSWORD, grants, host, injections, revealed, shown, this_host

if TYPE_CHECKING:
    from pathlib import Path

BUILTIN = pip.BuiltinIndex("https://default.example.org/simple", "files.example.org")


@pytest.fixture(autouse=True)
def a_known_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of pip's own, which test_pip.py compares with what pip says."""
    monkeypatch.setattr(pip, "builtin", lambda surroundings: BUILTIN)


def test_without_settings_pips_default_and_the_host_of_its_files_are_granted(
    tmp_path: Path,
) -> None:
    preset = python.learn(host(tmp_path))
    assert grants(preset) == {"default.example.org": ["GET /**"], "files.example.org": ["GET /**"]}
    assert (preset.env, preset.files, preset.notes) == ((), (), ())
    assert preset.sources == ("pip's built-in default",)


def test_the_default_of_the_real_pip_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    here = this_host(tmp_path, env={"PIP_CONFIG_FILE": "/dev/null"})
    said = pip.builtin(here)
    if said is None:
        pytest.skip("no pip here")
    index, files = grants(python.learn(here))
    assert (f"https://{index}/simple", files) == (said.index, said.files)


def test_an_index_of_ones_own_replaces_the_default_and_is_told_inside(tmp_path: Path) -> None:
    text = "[global]\nindex-url = https://index.corp.example/team/simple/\n"
    preset = python.learn(host(tmp_path, home={".config/pip/pip.conf": text}))
    assert grants(preset) == {"index.corp.example": ["GET /**"]}
    assert dict(preset.env) == {
        "PIP_INDEX_URL": "https://index.corp.example/team/simple/",
        "UV_DEFAULT_INDEX": "https://index.corp.example/team/simple/",
    }
    assert preset.sources == ("~/.config/pip/pip.conf",)
    assert "index.corp.example may keep its files on another host" in preset.notes[0]


def test_naming_the_default_grants_its_files_too(tmp_path: Path) -> None:
    env = {"PIP_INDEX_URL": "https://default.example.org/simple/"}
    preset = python.learn(host(tmp_path, env=env))
    assert set(grants(preset)) == {"default.example.org", "files.example.org"}


def test_extra_indexes_come_beside_the_default(tmp_path: Path) -> None:
    env = {
        "PIP_EXTRA_INDEX_URL": f"https://me:{PASSWORD}@a.corp.example/x/simple https://b.corp.example/s",
        "PIP_FIND_LINKS": "/opt/wheels https://c.corp.example/links/",
    }
    preset = python.learn(host(tmp_path, env=env))
    assert grants(preset) == {
        "default.example.org": ["GET /**"],
        "files.example.org": ["GET /**"],
        # Files are beside the simple pages.
        "a.corp.example": ["GET /x/**"],
        "b.corp.example": ["GET /**"],
        "c.corp.example": ["GET /**"],
    }
    assert dict(preset.env) == {
        "PIP_EXTRA_INDEX_URL": "https://a.corp.example/x/simple https://b.corp.example/s",
        "PIP_FIND_LINKS": "https://c.corp.example/links/",
        "UV_INDEX": "https://a.corp.example/x/simple https://b.corp.example/s",
    }


def test_uv_keeps_settings_of_its_own(tmp_path: Path) -> None:
    env = {
        "PIP_INDEX_URL": "https://pip.corp.example/simple",
        "UV_INDEX": "corp=https://uv.corp.example/simple",
        "UV_INDEX_CORP_USERNAME": "me",
        "UV_INDEX_CORP_PASSWORD": PASSWORD,
    }
    preset = python.learn(host(tmp_path, env=env))
    assert dict(preset.env) == {
        "PIP_INDEX_URL": "https://pip.corp.example/simple",
        "UV_INDEX": "corp=https://uv.corp.example/simple",
    }
    # uv has no default index of its own setting, so that its built-in one is in use.
    assert set(grants(preset)) == {
        "pip.corp.example", "uv.corp.example", "default.example.org", "files.example.org",
    }  # fmt: skip
    assert revealed(preset, "uv.corp.example") == PASSWORD


def test_netrc_has_the_credential_of_an_index(tmp_path: Path) -> None:
    home = {".netrc": f"machine index.corp.example login me password {PASSWORD}\n"}
    env = {"PIP_INDEX_URL": "https://index.corp.example/feed/simple/"}
    preset = python.learn(host(tmp_path, home=home, env=env))
    assert injections(preset) == {"index.corp.example": "header Authorization: Basic me:{secret}"}
    assert grants(preset) == {"index.corp.example": ["GET /feed/**"]}
    assert preset.sources == ("PIP_INDEX_URL", "~/.netrc")


def test_a_password_in_an_index_url_is_held_and_never_shown(tmp_path: Path) -> None:
    env = {"PIP_INDEX_URL": f"https://me:{PASSWORD}@index.corp.example/simple"}
    preset = python.learn(host(tmp_path, env=env))
    assert revealed(preset, "index.corp.example") == PASSWORD
    assert PASSWORD not in shown(preset)
    assert ("PIP_INDEX_URL", "https://index.corp.example/simple") in preset.env


def test_an_index_without_a_name_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="IP address"):
        python.learn(host(tmp_path, env={"PIP_INDEX_URL": "https://192.0.2.7/simple"}))


def test_without_pip_and_settings_the_person_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip, "builtin", lambda surroundings: None)
    with pytest.raises(Refused, match=r"name your index under \[egress\] allow"):
        python.learn(host(tmp_path))
    env = {"PIP_INDEX_URL": "https://index.corp.example/simple"}
    assert grants(python.learn(host(tmp_path, env=env))) == {"index.corp.example": ["GET /**"]}
