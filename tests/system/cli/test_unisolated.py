"""`keyhole run --unsafe-no-isolation`: what is lost is said, and no secret is handed over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.unisolated import FLAG, LOST
from tests.rigs.cli.terminals import PROGRAM

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

SECRET = "sk-of-the-store-0123456789abcdef"
POLICY = """
[services.anthropic]
secret = "store:anthropic"
[services.own]
hosts  = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "exec:touch asked"
allow  = ["GET /**"]
env    = ["OWN_KEY"]
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -TERM $$"), 143), (("nowhere",), 127),
        (("/etc/passwd",), 126),
    ],
)  # fmt: skip
def test_it_ends_as_a_shell_says_and_tells_a_quiet_person_what_is_lost(
    keyhole: Keyhole, command: tuple[str, ...], code: int
) -> None:
    """It needs no policy, since none holds."""
    ran = keyhole("run", "-q", FLAG, "--", *command)
    assert ran.code == code
    for line in LOST:
        assert line.partition("{")[0] in ran.err
    events = json.loads(keyhole("log", "--json").out)
    reasons = [event["reason"] for event in events if event["session"]]
    assert reasons == ["unsafe-no-isolation", "ended"]  # I8


def test_it_has_the_persons_own_variables_and_streams_and_no_secret(keyhole: Keyhole) -> None:
    """I1: the policy, which nobody accepted, is not read: its command does not run, its names are
    not set. Control: in a sandbox, the placeholder is, and the store would be asked."""
    assert keyhole("secret", "set", "--plain", "anthropic", stdin=SECRET).code == 0
    keyhole.policy(POLICY)
    keyhole.env["MINE"] = "mine"
    ran = keyhole("run", FLAG, "--", "sh", "-c", "cat; echo bad >&2; env", stdin="typed\n")
    assert ran.code == 0
    assert ran.out.startswith("typed\n")
    assert "bad\n" in ran.err
    given = dict(line.split("=", 1) for line in ran.out.splitlines()[1:])
    assert given["MINE"] == "mine"
    assert {name for name in given if name not in keyhole.env} <= {"PWD", "OLDPWD", "SHLVL", "_"}
    assert SECRET not in ran.out + ran.err
    assert not (keyhole.project / "asked").exists()
    refused = keyhole("run", "--", "env")
    assert (refused.code, refused.out) == (125, "")  # control: else nothing runs before consent


@pytest.mark.parametrize(
    "words",
    [("--runtime", "docker"), ("--policy", "x"), ("--trust",), ("--self-test",), ("--image", "x")],
)
def test_what_is_about_a_sandbox_is_refused_beside_it(
    keyhole: Keyhole, words: tuple[str, ...]
) -> None:
    ran = keyhole("run", FLAG, *words, "--", "sh", "-c", "touch ran")
    assert ran.code == 125
    assert f"goes without {words[0]}" in ran.err
    assert not (keyhole.project / "ran").exists()


@pytest.mark.parametrize("text", ["unsafe_no_isolation = true", 'runtime = "none"'])
def test_a_policy_cannot_ask_for_it(keyhole: Keyhole, text: str) -> None:
    """I11: only a person who types it. Control: the same file without that line is valid."""
    keyhole.policy(f"[sandbox]\n{text}\n")
    assert keyhole("check").code == 2
    keyhole.policy("[sandbox]\n")
    assert keyhole("check").code == 0


@pytest.mark.parametrize("word", ["--u", "--unsafe", "--unsafe-no-isolatio"])
def test_it_is_typed_in_full_or_not_at_all(keyhole: Keyhole, word: str) -> None:
    """Danger is spelled: a flag that begins like it is a slip. Control: the first test."""
    ran = keyhole("run", word, "--", "sh", "-c", "touch ran")
    assert ran.code == 2
    assert f"unrecognized arguments: {word}" in ran.err
    assert not (keyhole.project / "ran").exists()


def test_without_a_log_nothing_runs(keyhole: Keyhole) -> None:
    """I8. Control: the first test."""
    keyhole.env["XDG_STATE_HOME"] = "/proc/nowhere"
    ran = keyhole("run", FLAG, "--", "sh", "-c", "touch ran")
    assert ran.code == 125
    assert not (keyhole.project / "ran").exists()


def test_a_signal_is_the_commands(keyhole: Keyhole) -> None:
    script = "trap 'echo heard; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    words = [PROGRAM, "run", "-q", FLAG, "--"]
    with subprocess.Popen(
        [*words, "sh", "-c", script],
        cwd=keyhole.project, env=keyhole.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "heard\n"
        assert process.wait(30) == 9
