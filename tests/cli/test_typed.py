"""What a person types, as a person types it: on a terminal, and through a pipe.

A crash on every terminal lived through a suite that only ever piped. So each verb, and each note
that `keyhole run` can say before its command starts, is seen both ways.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.parser import build_parser
from tests.cli.terminals import on_terminal

if TYPE_CHECKING:
    from tests.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

PROGRAM = str(Path(sys.executable).with_name("keyhole"))
FAULT = 125
NOT_A_FAULT = range(125)

Way = Callable[..., tuple[int, str]]


def typed(keyhole: Keyhole, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """On a terminal."""
    env = keyhole.env | (env or {})
    return on_terminal([PROGRAM, *words], env, keyhole.project, whenever=("[y/N] ", "\r"))


def piped(keyhole: Keyhole, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Through pipes."""
    keyhole.env.update(env or {})
    ran = keyhole(*words)
    return ran.code, ran.out + ran.err


WAYS = (typed, piped)


def sound(said: str) -> bool:
    return "Traceback" not in said and "error in Keyhole itself" not in said


# ── verbs ───────────────────────────────────────────────────────────────────────────────────────


def verbs() -> list[str]:
    actions = build_parser()._actions
    (found,) = (each for each in actions if isinstance(each, argparse._SubParsersAction))
    return list(found.choices)


LONG = {"demo", "doctor"}
"""They make sandboxes for a while; tests of their own see them both ways."""

TYPED: dict[str, tuple[str, ...]] = {
    "run": ("run", "--trust", "--", "true"),
    "why": ("why", "https://api.github.com/user"),
    "policy": ("policy", "schema"),
    "secret": ("secret", "list"),
    "completion": ("completion", "bash"),
    "new": ("new", "box"),
    "init": ("init", "--print"),
    "up": ("up", "--json"),
}
"""Words after which a verb has something to do; the others are typed bare."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", sorted({*verbs()} - LONG))
def test_every_verb_ends_in_words(keyhole: Keyhole, verb: str, way: Way) -> None:
    keyhole.policy("")
    env = {"XDG_RUNTIME_DIR": str(keyhole.home)}
    keyhole.home.chmod(0o700)
    try:
        for words in ((verb, "--help"), TYPED.get(verb, (verb,)), (verb, "--no-such-flag")):
            code, said = way(keyhole, *words, env=env)
            assert code in NOT_A_FAULT or words[0] == "run", (words, said)
            assert said.strip(), words
            assert sound(said), said
    finally:
        way(keyhole, "down", env=env)


@pytest.mark.parametrize("way", WAYS)
def test_a_verb_without_a_policy_says_what_to_type(keyhole: Keyhole, way: Way) -> None:
    for words in (("run", "--", "true"), ("check",), ("why", "https://x.example/")):
        code, said = way(keyhole, *words)
        assert code in (2, 125), said
        assert "keyhole init" in said, said
        assert sound(said)


# ── notes ───────────────────────────────────────────────────────────────────────────────────────


def plain_file(name: str, text: str) -> Callable[[Keyhole], None]:
    def make(keyhole: Keyhole) -> None:
        path = keyhole.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return make


def listening(keyhole: Keyhole) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(keyhole.project / "s"))
    sock.close()


NOTES: dict[str, tuple[str, Callable[[Keyhole], None], str]] = {
    "a masked .env": ("", plain_file(".env", "KEY=value\n"), "masked, credentials"),
    "a masked socket": ("", listening, "masked"),
    "unsafe_paths": (
        '[sandbox]\nunsafe_paths = [".env"]\n', plain_file(".env", "KEY=value\n"), ".env",
    ),
    "unsafe-env": (
        '[services.anthropic]\nsecret = "unsafe-env:MADE_UP"\n', lambda _: None, "MADE_UP",
    ),
    "a preset without its program": (
        '[egress]\npresets = ["go", "cargo"]\n', lambda _: None, "preset.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("note", NOTES)
def test_every_note_of_a_run_is_told(keyhole: Keyhole, note: str, way: Way) -> None:
    policy, make, words = NOTES[note]
    keyhole.policy(policy)
    make(keyhole)
    env = {"MADE_UP": "made-up-for-this-test-0123456789", "PATH": "/usr/bin:/bin"}
    code, said = way(keyhole, "run", "--trust", "--", "echo", "here", env=env)
    assert code == 0, said
    assert sound(said), said
    assert words in said
    assert "here" in said
