"""What the tests of trials share: pushes, and a trial that runs to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.glob import Glob
from keyhole.policy.push_trial import PushCase, PushFinding, PushTrial, QuestionPurpose
from keyhole.policy.schema import DEFAULT_DENY_PATHS
from keyhole.wire.pack import MemorySource, Pack
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.wire.packing import History, Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.push import RefChange

DENIED = (*DEFAULT_DENY_PATHS, "**/Makefile", "tools/**/run.sh", "ci/*.yml")
BRANCH = "refs/heads/agent/x"
CI = {".github": {"workflows": {"ci.yml": "as it is"}}}
BASE = {**CI, "src": {"a": "1", "b": "2"}}


def globs(patterns: Iterable[str] = DENIED) -> tuple[Glob, ...]:
    return tuple(Glob(tuple(pattern.split("/"))) for pattern in patterns)


def update(old: bytes | None, new: bytes, ref: str = BRANCH) -> RefCommand:
    return RefCommand(old.hex() if old else "0" * 2 * len(new), new.hex(), ref)


def try_all(
    commands: Iterable[RefCommand],
    pushed: bytes | None,
    upstream: Upstream,
    deny: tuple[Glob, ...] | None = None,
    shallow: Iterable[bytes] = (),
) -> tuple[PushFinding, ...]:
    """Run a trial to its end, with an upstream that answers."""
    form = upstream.history.format
    tips = frozenset(tip.hex() for tip in upstream.tips)
    ends = tuple(oid.hex() for oid in shallow)
    case = PushCase(tuple(commands), tips, globs() if deny is None else deny, form, ends)
    running = PushTrial(case, None if pushed is None else Pack(MemorySource(pushed), form)).run()
    answer = None
    while True:
        try:
            question = running.send(answer)
        except StopIteration as end:
            findings: tuple[PushFinding, ...] = end.value
            return findings
        answer = upstream.answer(question)


def try_one(
    history: History,
    new: bytes,
    *tips: bytes,
    old: bytes | None = None,
    deny: tuple[Glob, ...] | None = None,
) -> PushFinding:
    """Push one branch with what a client would send that knows all tips."""
    pushed = history.push([new], tips)
    (found,) = try_all([update(old, new)], pushed, Upstream(history, *tips), deny)
    return found


def is_sound(found: PushFinding, change: RefChange) -> bool:
    return found == PushFinding(found.ref, change, None)


def asks(upstream: Upstream) -> list[QuestionPurpose]:
    return [question.ask for question in upstream.asked]
