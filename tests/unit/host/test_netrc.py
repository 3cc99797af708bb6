"""Logins of netrc and apt's auth.conf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.host.fetch_location import FetchLocation
from keyhole.host.netrc import NetrcLogin, login_for, logins, user_logins
from keyhole.host.preset_draft import PresetDraft
from tests.rigs.host.building import PASSWORD, host, write

if TYPE_CHECKING:
    from pathlib import Path

FILE = f"""\
# machine commented.corp.example login me password no
machine one.corp.example
  login me
  password {PASSWORD}
machine two.corp.example login you account x password two
macdef init
machine macro.corp.example login me password no

machine password login login password login
machine bare.corp.example login me
default login anyone password everywhere
"""


@pytest.fixture
def known(tmp_path: Path) -> tuple[NetrcLogin, ...]:
    return user_logins(PresetDraft("test", host(tmp_path, home={".netrc": FILE})))


def test_machines_are_read_in_their_order(known: tuple[NetrcLogin, ...]) -> None:
    assert [login.machine for login in known] == [
        "one.corp.example", "two.corp.example", "password",
    ]  # fmt: skip


def test_a_machine_gives_its_credential(known: tuple[NetrcLogin, ...]) -> None:
    found = login_for(FetchLocation.parse("https://one.corp.example/x"), known)
    assert found is not None
    assert found.secret.reveal() == PASSWORD
    assert found.where == "~/.netrc"
    assert PASSWORD not in repr(known)


def test_a_machine_that_is_not_named_has_none(known: tuple[NetrcLogin, ...]) -> None:
    assert login_for(FetchLocation.parse("https://three.corp.example/"), known) is None
    assert login_for(FetchLocation.parse("https://x.one.corp.example/"), known) is None


def test_a_login_that_cannot_be_written_gives_none() -> None:
    at = FetchLocation.parse("https://one.corp.example/")
    assert login_for(at, [NetrcLogin("one.corp.example", "me", "a\x07b", "")]) is None


@pytest.mark.parametrize(
    ("machine", "url", "speaks"),
    [
        ("apt.corp.example", "https://apt.corp.example/debian", True),
        ("APT.corp.example", "https://apt.corp.example/debian", True),
        ("apt.corp.example/debian", "https://apt.corp.example/debian/", True),
        ("apt.corp.example/ubuntu", "https://apt.corp.example/debian/", False),
        ("apt.corp.example:8443", "https://apt.corp.example:8443/", True),
        ("apt.corp.example:8443", "https://apt.corp.example/", False),
        ("apt.corp.example", "https://apt.corp.example:8443/", True),
        ("https://apt.corp.example/", "https://apt.corp.example/debian", True),
        ("http://apt.corp.example/", "https://apt.corp.example/debian", False),
    ],
)
def test_apts_machines_may_name_scheme_port_and_path(machine: str, url: str, speaks: bool) -> None:
    assert NetrcLogin(machine, "me", "x", "").speaks_of(FetchLocation.parse(url)) is speaks


def test_a_variable_names_another_file_and_files_follow_one_another(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "machine one.corp.example login a password b")
    here = host(tmp_path, env={"NETRC": str(one)})
    assert [login.where for login in user_logins(PresetDraft("test", here))] == [str(one)]
    assert len(logins(PresetDraft("test", here), one, tmp_path / "missing", one)) == 2
