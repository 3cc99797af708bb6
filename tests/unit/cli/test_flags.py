"""Flags before a command, which argparse would take parts of."""

from __future__ import annotations

import pytest

from keyhole.cli.flags import accept_any

VALUED = frozenset({"--policy"})
DIGEST = "sha256:00"


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--trust", "claude", "-p"], ["--trust=any", "claude", "-p"]),
        (["--trust", "--", "claude"], ["--trust=any", "--", "claude"]),
        (["--trust"], ["--trust=any"]),
        (["-q", "--trust", "x"], ["-q", "--trust=any", "x"]),
        (["--policy", "p", "--trust", "x"], ["--policy", "p", "--trust=any", "x"]),
        (["--trust", DIGEST, "x"], ["--trust", DIGEST, "x"]),
        (["x", "--trust", "y"], ["x", "--trust", "y"]),
        (["--", "x", "--trust"], ["--", "x", "--trust"]),
    ],
)
def test_a_command_is_not_taken_for_the_digest_of_trust(words: list[str], read: list[str]) -> None:
    assert accept_any(words, VALUED) == read
