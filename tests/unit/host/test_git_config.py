"""A reader of git's config files that reads what git reads."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.host.git_config import GitSetting, parse
from keyhole.model.errors import Malformed
from tests.rigs.host.building import needs

ODD = """\
; a comment
[user]
\tname = Ada  King \t # of Lovelace
\temail="ada@corp.example";work
[branch "a b\\"c\\\\d"] merge = one \\
   two
[core] bare
[Remote.Old]
Url = "a\\tb\\n" c"d  e"
empty =
"""


def listed(text: str) -> list[tuple[str, str | None]] | None:
    """What git itself reads, by key; None where it refuses."""
    done = subprocess.run(
        [needs("git"), "config", "--file", "-", "--no-includes", "--null", "--list"],
        input=text.encode(),
        capture_output=True,
        cwd="/",
        env={"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"},
        check=False,
        timeout=60,
    )
    if done.returncode:
        return None
    records = done.stdout.decode().split("\0")[:-1]
    pairs = [record.partition("\n") for record in records]
    return [(key, value if newline else None) for key, newline, value in pairs]


def ours(text: str) -> list[tuple[str, str | None]] | None:
    """The same of our reader."""
    try:
        found = parse(text)
    except Malformed:
        return None
    return [
        (".".join(p for p in (s.section, s.subsection, s.name) if p is not None), s.value)
        for s in found
    ]


def test_every_notation_is_read_as_git_reads_it() -> None:
    found = ours(ODD)
    assert found == [
        ("user.name", "Ada  King"),
        ("user.email", "ada@corp.example"),
        ('branch.a b"c\\d.merge', "one    two"),
        ("core.bare", None),
        ("remote.old.url", "a\tb\n cd  e"),
        ("remote.old.empty", ""),
    ]
    assert found == listed(ODD)


def test_a_subsection_is_told_from_a_name() -> None:
    assert parse('[a "b.c"]\nd = e')[0] == GitSetting("a", "b.c", "d", "e")
    assert parse("[A]\nD = e")[0] == GitSetting("a", None, "d", "e")


@pytest.mark.parametrize(
    "text",
    ["a = b", "[a", "[a]\n1 = b", "[a]\nb c", '[a "b]', '[a "b" ]', "[a b]", '[a "b\\\n"]',
     '[a]\nb = "c', "[a]\nb = \\x", "[a?]", '[a "b"]x y', "[a]\nb = c\nd\x0b = e"],
)  # fmt: skip
def test_what_git_refuses_is_refused_whole(text: str) -> None:
    """Half of a config may mean its opposite. Control: the notations above."""
    assert ours(text) is None
    # To git a setting of no section is well-formed; no key is called so.
    assert text == "a = b" or listed(text) is None


_PIECES = st.sampled_from(
    ["[a]", '[a "b"]', "[a.B]", "x", "Y-1", " = ", "=", '"', "\\", "\n", "\r\n", " ", "#", ";", "é",
     "\\n", "\\\n", "[", "]", "'", "1", "\ufeff"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12))
def test_pieces_in_any_order_are_read_as_git_reads_them(pieces: list[str]) -> None:
    text = "[s]\n" + "".join(pieces)
    assert ours(text) == listed(text)
