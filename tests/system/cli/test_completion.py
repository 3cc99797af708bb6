"""Completion in the shells themselves: a person types a few letters and Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.cli.completion import WORDS, _parsers
from keyhole.cli.completion_names import NAMES
from keyhole.cli.parser import build_parser
from tests.rigs.cli.terminals import PROGRAM
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.screens import Screen

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'bind "set enable-bracketed-paste off"; eval "$(keyhole completion bash)"',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit; compinit -u -D; eval "$(keyhole completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "keyhole completion fish | source"),
}

TYPED = {
    "keyhole findi": "ngs",
    "keyhole secret rota": "te",
    "keyhole log --sess": "ion",
    "keyhole run --runtime podm": "an",
    "keyhole services show openrou": "ter",
    "keyhole secret rm bill": "ing",
    "keyhole help destr": "oy",
    "keyhole check --policy my-p": r"olicy\.toml",
    "keyhole check my-p": r"olicy\.toml",
    "keyhole why --policy my-p": r"olicy\.toml",
    "keyhole up --door my-d": "irectory",
    "keyhole run -- printe": "nv",
    "keyhole run openc": "ode",
    "keyhole run -- cat my-p": r"olicy\.toml",
    "keyhole completion fi": "sh",
}
"""What is typed before Tab, and what Tab adds."""

KILL_LINE = "\x15"


@pytest.mark.parametrize("name", SHELLS)
def test_tab_completes_verbs_flags_files_and_names(keyhole: Keyhole, name: str) -> None:
    words, load = SHELLS[name]
    if shutil.which(words[0]) is None:
        give_up(f"{name} is not installed")
    keyhole("secret", "set", "billing", "--plain", stdin="made-up-for-this-test-0123456789")
    (keyhole.project / "my-policy.toml").touch()
    (keyhole.project / "my-directory").mkdir()
    env = keyhole.env | {
        "PATH": f"{Path(PROGRAM).parent}:/usr/bin:/bin",
        "TERM": "xterm",
        "HOME": str(keyhole.home),
        "INPUTRC": os.devnull,
    }

    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        return subprocess.Popen(words, cwd=keyhole.project, env=env, **ends)

    with Screen(start) as screen:
        screen.resize(24, 200)
        screen.type(f"{load}; echo loa''ded\r")
        screen.until("loaded")
        for typed, added in TYPED.items():
            screen.type(f"{typed}\t")
            # A shell may colour what was typed, and redraw it.
            last = typed.split()[-1][-3:]
            screen.until(f"{last}(?:\x1b[^a-zA-Z]*[a-zA-Z]|[\\s\x08\x0f])*{added}")
            screen.type(KILL_LINE)


def test_a_running_session_is_completed(keyhole: Keyhole) -> None:
    keyhole.policy("")
    process = subprocess.Popen(
        [PROGRAM, "run", "--trust", "--", "sh", "-c", "echo here; read -r _"],
        cwd=keyhole.project, env=keyhole.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"here\n"
        (session,) = (each.split()[0] for each in keyhole("ps").out.splitlines()[1:])
        assert keyhole("completion", "--list", "sessions").out == f"{session}\n"
        assert keyhole("completion", "--list", "running").out == f"{session}\n"
        process.stdin.close()
    assert keyhole("completion", "--list", "sessions").out == ""


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_names_that_cannot_be_read_are_none(keyhole: Keyhole, kind: str) -> None:
    """Nothing is printed into the line that somebody is typing."""
    state = keyhole.home / ".local" / "state"
    state.mkdir(parents=True)
    (state / "keyhole").write_text("no directory")
    ran = keyhole("completion", "--list", kind)
    assert (ran.code, ran.err) == (0, "")


FREE = {
    "image", "trust", "target", "method", "path", "host", "since", "last", "head", "duration",
    "uses", "stray", "publish", "take", "port", "workers", "listen", "gateway", "tools", "names",
    "node", "data", "namespace", "own_namespace", "secret", "otlp", "header",
    "certificate_lifetime", "exempt",
}  # fmt: skip
"""Arguments that only the person knows."""

MADE = {"keyhole new name"}
"""A name that does not exist yet."""


def test_every_argument_is_completed_or_known_to_be_the_persons_own() -> None:
    every, unknown = set(), set()
    for parser in _parsers(build_parser()):
        for action in parser._actions:
            name = f"{parser.prog} {action.dest}"
            if action.nargs == 0 or action.choices or action.help == "==SUPPRESS==":
                continue
            every.add(name)
            is_file = str(action.metavar) in ("FILE", "PATH", "DIR")
            if not (name in WORDS or is_file or action.dest in FREE):
                unknown.add(name)
    assert unknown == MADE
    assert set(WORDS) <= every


def test_a_shell_is_named(keyhole: Keyhole) -> None:
    ran = keyhole("completion")
    assert ran.code == 2
    assert 'eval "$(keyhole completion bash)"' in ran.err
