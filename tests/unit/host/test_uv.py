"""uv's settings of the user and the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.host import uv
from keyhole.host.package_indexes import PackageIndex, PackageIndexes
from keyhole.host.preset_draft import PresetDraft
from tests.rigs.host.building import PASSWORD, host, write

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment


def read(surroundings: HostEnvironment) -> PackageIndexes:
    return uv.indexes(PresetDraft("python", surroundings))


def test_nothing_set_is_nothing_found(tmp_path: Path) -> None:
    assert read(host(tmp_path)) == PackageIndexes()


def test_indexes_of_a_file_have_names_and_one_is_the_default(tmp_path: Path) -> None:
    text = (
        'extra-index-url = ["https://old.corp.example/simple", 7]\n'
        '[[index]]\nname = "corp"\nurl = "https://extra.corp.example/simple"\n'
        '[[index]]\nurl = "https://main.corp.example/simple"\ndefault = true\n'
        "[[index]]\nurl = 7\n"
        '[pip]\nindex-url = "https://pip.corp.example/simple"\n'
    )
    found = read(host(tmp_path, home={".config/uv/uv.toml": text}))
    where = "~/.config/uv/uv.toml"
    assert found.main == PackageIndex("https://main.corp.example/simple", where)
    assert found.extra == (
        PackageIndex("https://extra.corp.example/simple", where, "corp"),
        PackageIndex("https://old.corp.example/simple", where),
    )


def test_variables_are_stronger_than_the_users_file_and_that_than_the_systems(
    tmp_path: Path,
) -> None:
    home = {".config/uv/uv.toml": 'index-url = "https://user.corp.example/"\n'}
    system = {"/etc/uv/uv.toml": 'index-url = "https://system.corp.example/"\n'}
    env = {
        "UV_DEFAULT_INDEX": "mine=https://variable.corp.example/",
        "UV_INDEX": "https://x.example/ y=https://y.example/",
    }
    found = read(host(tmp_path, home=home, system=system, env=env))
    assert found.main == PackageIndex("https://variable.corp.example/", "UV_DEFAULT_INDEX", "mine")
    assert [(i.name, i.url) for i in found.extra] == [
        ("", "https://x.example/"), ("y", "https://y.example/"),
    ]  # fmt: skip
    user = read(host(tmp_path)).main
    assert user is not None
    assert user.url == "https://user.corp.example/"


def test_an_equals_sign_in_a_url_does_not_make_a_name(tmp_path: Path) -> None:
    env = {"UV_INDEX_URL": "https://x.example/a=b"}
    assert read(host(tmp_path, env=env)).main == PackageIndex(
        "https://x.example/a=b", "UV_INDEX_URL"
    )


def test_files_can_be_chosen_or_switched_off(tmp_path: Path) -> None:
    home = {".config/uv/uv.toml": 'index-url = "https://user.corp.example/"\n'}
    assert read(host(tmp_path, home=home, env={"UV_NO_CONFIG": "1"})).main is None
    chosen = write(tmp_path / "chosen.toml", 'index-url = "https://chosen.corp.example/"\n')
    found = read(host(tmp_path, env={"UV_CONFIG_FILE": str(chosen)})).main
    assert found == PackageIndex("https://chosen.corp.example/", str(chosen))


def test_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    assert read(host(tmp_path, home={".config/uv/uv.toml": "[["})) == PackageIndexes()


def test_variables_hold_the_credential_of_a_named_index(tmp_path: Path) -> None:
    env = {"UV_INDEX_MY_CORP_USERNAME": "me", "UV_INDEX_MY_CORP_PASSWORD": PASSWORD}
    found = uv.credential(
        host(tmp_path, env=env), PackageIndex("https://x.example/", "", "my-corp")
    )
    assert found is not None
    assert found.secret.reveal() == PASSWORD
    assert found.where == "UV_INDEX_MY_CORP_PASSWORD"
    assert uv.credential(host(tmp_path, env=env), PackageIndex("https://x.example/", "")) is None
    env["UV_INDEX_MY_CORP_USERNAME"] = "not:a:user"
    assert (
        uv.credential(host(tmp_path, env=env), PackageIndex("https://x.example/", "", "my-corp"))
        is None
    )
