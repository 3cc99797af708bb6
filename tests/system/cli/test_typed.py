"""What a person types, as a person types it: on a terminal, and through a pipe.

A crash on every terminal lived through a suite that only ever piped. So each verb, and each note
that `keyhole run` can say before its command starts, is seen both ways.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.parser import build_parser
from tests.rigs.cli.terminals import PROGRAM, on_terminal

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

FAULT = 125
NOT_A_FAULT = range(125)

Way = Callable[..., tuple[int, str]]


def typed(keyhole: Keyhole, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    env = keyhole.env | (env or {})
    return on_terminal([PROGRAM, *words], env, keyhole.project, whenever=("[y/N] ", "\r"))


def piped(keyhole: Keyhole, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
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

SERVING = {"watch", "web"}
"""They run until the person ends them; typed bare, tests of their own see them both ways."""

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
        bare = () if verb in SERVING else (TYPED.get(verb, (verb,)),)
        for words in ((verb, "--help"), *bare, (verb, "--no-such-flag")):
            code, said = way(keyhole, *words, env=env)
            assert code in NOT_A_FAULT or words[0] == "run", (words, said)
            assert said.strip(), words
            assert sound(said), said
    finally:
        if verb == "up":
            way(keyhole, "down", env=env)


@pytest.mark.parametrize(
    ("words", "shown", "end"),
    [
        (("web",), "Ctrl-C ends the server", "\x03"),
        (("watch",), "Decisions", "q"),
        (("watch", "--plain"), "watching", "q\r"),
    ],
)
def test_a_verb_that_serves_is_ended_by_its_terminal(
    keyhole: Keyhole, words: tuple[str, ...], shown: str, end: str
) -> None:
    code, said = on_terminal([PROGRAM, *words], keyhole.env, keyhole.project, [(shown, end)])
    assert code == 0, said
    assert sound(said), said


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


TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"

NOTES: dict[str, tuple[str, Callable[[Keyhole], None], str]] = {
    "a masked .env": ("", plain_file(".env", "KEY=value\n"), "masked, credentials"),
    "a masked token": ("", plain_file(".mcp.json", f'{{"t": "{TOKEN}"}}'), "a token is in it"),
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


@pytest.mark.parametrize("way", WAYS)
def test_a_notice_is_said_once_in_a_project_and_again_when_it_changes(
    keyhole: Keyhole, way: Way
) -> None:
    keyhole.policy("")
    (keyhole.project / ".env").write_text("KEY=value\n")

    def run(*flags: str) -> str:
        code, said = way(keyhole, "run", "--trust", *flags, "--", "echo", "here")
        assert code == 0, said
        return said

    assert ".env" not in run("--quiet")  # what nobody was told is news
    assert "masked, credentials" in run()
    assert "masked" not in run()
    assert "masked, credentials" in run("--verbose")
    (keyhole.project / ".netrc").write_text("machine x login y password z\n")
    assert ".netrc" in run()
    assert "masked" not in run()


def test_a_warning_about_a_secret_is_said_each_time(keyhole: Keyhole) -> None:
    keyhole.policy('[services.anthropic]\nsecret = "unsafe-env:MADE_UP"\n')
    for _ in range(2):
        _, said = piped(
            keyhole,
            "run",
            "--trust",
            "--",
            "true",
            env={"MADE_UP": "made-up-0123456789-0123456789"},
        )
        assert "MADE_UP" in said
