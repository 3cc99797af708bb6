"""What `git submodule init` would write, found without writing."""

from __future__ import annotations

import pytest

from keyhole.app.setup.submodules import submodule_settings
from keyhole.host.git_config import parse

OWN = '[remote "origin"]\nurl = https://git.example/acme/widgets.git\n'


def found(modules: str, own: str = OWN) -> dict[str, str]:
    lines = submodule_settings(parse(modules), parse(own))
    assert {line[0] for line in lines} <= {"submodule"}
    return {f"{line[1]}.{line[2]}": line[3] for line in lines}


def module(url: str, more: str = "") -> str:
    return f'[submodule "vendor/lib"]\n\tpath = vendor/lib\n\turl = "{url}"\n{more}'


@pytest.mark.parametrize(
    ("remote", "written", "address"),
    [
        (
            "https://git.example/acme/widgets.git",
            "https://git.example/x/y",
            "https://git.example/x/y",
        ),
        ("https://git.example/acme/widgets.git", "../lib.git", "https://git.example/acme/lib.git"),
        ("https://git.example/acme/widgets/", "../../x/lib/", "https://git.example/x/lib"),
        ("https://git.example/acme/widgets", "./lib", "https://git.example/acme/widgets/lib"),
        ("git@git.example:widgets.git", "../lib.git", "git@git.example:lib.git"),
        ("git@git.example:acme/widgets.git", "../../x/lib", "git@git.example:x/lib"),
        ("/srv/widgets", "../lib", "/srv/lib"),
    ],
)
def test_an_address_is_what_git_would_make_of_it(remote: str, written: str, address: str) -> None:
    own = f'[remote "origin"]\nurl = {remote}\n'
    assert found(module(written), own) == {"vendor/lib.url": address}


def test_what_the_repository_knows_already_is_left_to_it() -> None:
    """Control: another submodule is registered."""
    own = OWN + '[submodule "vendor/lib"]\n\turl = https://mirror.example/lib\n'
    more = '[submodule "second"]\n\turl = https://git.example/s\n'
    assert found(module("https://git.example/l", more), own) == {
        "second.url": "https://git.example/s"
    }


def test_without_a_remote_that_is_meant_a_relative_address_is_left_to_git() -> None:
    two = '[remote "a"]\nurl = https://a.example/x\n[remote "b"]\nurl = https://b.example/x\n'
    for own in ("", two, '[remote "origin"]\nurl\n', '[remote "origin"]\nurl = widgets\n'):
        assert found(module("../lib"), own) == {}
    only = '[remote "upstream"]\nurl = https://a.example/x/y\n'
    assert found(module("../lib"), only) == {"vendor/lib.url": "https://a.example/x/lib"}


def test_commands_and_credentials_do_not_come_along() -> None:
    """I1. Attack: `.gitmodules` of a clone. Control: the plain address does."""
    assert found(module("ext::sh -c evil")) == {}
    assert found(module("https://me:hunter2@git.example/l")) == {
        "vendor/lib.url": "https://git.example/l"
    }
    assert found(module("https://git.example/l", "\tupdate = !evil\n\tbranch = x\n")) == {
        "vendor/lib.url": "https://git.example/l"
    }
    assert "vendor/lib.update" in found(module("https://git.example/l", "\tupdate = rebase\n"))


def test_settings_of_no_submodule_are_passed_over() -> None:
    assert found('[core]\nfsmonitor = evil\n[submodule]\nurl = x\n[submodule "a"]\nurl\n') == {}
