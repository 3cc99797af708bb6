"""Runs `approvals.command`: a command of the host that is given a question and may answer it.

Used by a run with its own gateway and by the keeper, never by a data plane. The program is the one
that the person accepted with the policy; no shell reads its words, and its environment is small.
The question is JSON on its standard input, and everything in it that the sandbox chose is escaped.
Its standard output is an answer, or nothing: then a person answers.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.policy_acceptance import COMMAND_ROLE, find_changed_command
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.system.child import Children
from keyhole.vault.command_source import minimal_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.setup.policy_acceptance import ExaminedPolicy

MAX_PRINTED = 4096
"""Bytes of an answer."""


def run_approval_command(
    examined: ExaminedPolicy, home: Path, env: Mapping[str, str], ask: Mapping[str, Any]
) -> bytes:
    """What the command printed. This takes as long as the question waits. Raises Refused."""
    approvals = examined.file.loaded.policy.approvals
    program = next((r.path for r in examined.referred if r.role == COMMAND_ROLE), None)
    if not approvals.command or program is None or not program.is_absolute():
        raise Refused("the command of approvals.command was not found")
    changed = find_changed_command(examined, home)
    if changed is not None:
        # Attack: the accepted program is replaced, and runs at the next question (I11).
        raise Refused(f"{visible(str(changed))} has changed since it was accepted")
    argv = [str(program), *(_located(word, examined, home) for word in approvals.argv[1:])]
    given = json.dumps(dict(ask)).encode() + b"\n"
    try:
        ended = Children(approvals.wait).run(
            argv, minimal_environment(env, home), MAX_PRINTED, given=given
        )
    except OSError as error:
        raise Refused(f"{visible(argv[0])}: {error.strerror}") from None
    if ended.stopped:
        raise Refused(f"the command {ended.stopped}")
    if ended.status:
        raise Refused(f"the command ended with {ended.status}")
    return ended.printed


def _located(word: str, examined: ExaminedPolicy, home: Path) -> str:
    """The file that a word names by a path, as it was accepted: relative to the policy."""
    if "/" not in word:
        return word
    path = home / word[2:] if word.startswith("~/") else examined.file.directory / word
    return str(path) if os.path.isfile(path) else word
