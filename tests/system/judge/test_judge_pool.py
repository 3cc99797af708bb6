"""The jail: what it judges, how it ends, and what is left of it (I3, I9)."""

from __future__ import annotations

import asyncio
import functools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.judge import judge_pool
from keyhole.judge.judge_pool import JudgePool
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import UpstreamFailed
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushFinding, PushUnjudged, QuestionPurpose, UpstreamQuestion
from keyhole.wire.git_object import ObjectKind
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.sandbox.court import BASE, BRANCH, asker, case_of, children, judged, simple, update
from tests.rigs.waiting import PATIENCE, until_in_loop
from tests.rigs.wire.packing import History, PackWriter, Upstream, delta, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SOURCES = Path(judge_pool.__file__).parents[2]


# ── judging ───────────────────────────────────────────────────────────────────────────────────────


def test_a_push_is_judged(play: Callable[..., None]) -> None:
    """Beside what is sound, what is not: each is found, by the same process."""

    async def test() -> None:
        history, main, new, pushed = simple()
        evil = history.commit({**BASE, "Makefile": "1"}, main)
        ask = asker(Upstream(history, main))
        (found,) = await judged(pushed, case_of(update(main, new), tips=(main,)), ask)
        assert found == PushFinding(BRANCH, RefChange.FAST_FORWARD, None)
        pushed = history.push([evil], [main])
        (found,) = await judged(pushed, case_of(update(None, evil), tips=(main,)), ask)
        assert (found.change, found.denied_path) == (RefChange.CREATE, "Makefile")
        assert evil.hex()[:12] in found.why

    play(test)


def test_where_a_push_says_that_history_ends_is_judged_too(play: Callable[..., None]) -> None:
    """I3: not at a commit of its own. Control: at one of the repository's."""

    async def test() -> None:
        history, main, new, pushed = simple()
        ask = asker(Upstream(history, main))
        case = case_of(update(main, new), tips=(main,))
        for end, unproven in ((main, False), (new, True)):
            (found,) = await judged(pushed, replace(case, shallow=(end.hex(),)), ask)
            assert found.unproven is unproven

    play(test)


def test_the_pack_may_begin_anywhere_in_its_file(play: Callable[..., None]) -> None:
    """The push is kept as it came, its commands before the pack."""

    async def test() -> None:
        history, main, new, pushed = simple()
        ask = asker(Upstream(history, main))
        case = case_of(update(main, new), tips=(main,))
        for before in (b"", b"0123commands0000", bytes(5000)):
            (found,) = await judged(before + pushed, case, ask, offset=len(before))
            assert found.change is RefChange.FAST_FORWARD

    play(test)


def test_no_pack_is_needed_for_what_the_repository_has(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, _, _ = simple()
        for data in (None, PackWriter().done()):
            found = await judged(data, case_of(update(None, main), tips=(main,)))
            assert found == (PushFinding(BRANCH, RefChange.CREATE, None),)

    play(test)


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_no_way_through_a_trial_needs_what_the_jail_forbids(
    play: Callable[..., None], form: str
) -> None:
    """Every kind of object, delta, question and refusal; a forbidden call would end the process."""

    async def test() -> None:
        history = History(form)
        root = history.commit({**BASE, "big": {str(n): str(n) for n in range(3000)}})
        below = history.commit({**BASE, "\udcff": {"\u212a": "1"}}, root)
        tip = history.commit(BASE, below)
        left = history.commit({**BASE, "l\u00e4": "1" * 100_000}, below)
        new = history.commit({**BASE, "src": {"b": {"c": "1"}}}, left, root)
        tag = history.tag(new)
        evil = history.commit({**BASE, "Makefile": "\u2028"}, tip)
        upstream = Upstream(history, tip)
        old = history.below(*history.reach(tip))
        writer = PackWriter(form)
        writer.add(*history.objects[tag])
        rest = [oid for oid in history.below(left, new, evil) if oid not in old]
        for oid in rest:
            kind, content = history.objects[oid]
            base = b"a base of its own " * 9
            if kind is ObjectKind.BLOB:
                writer.add(kind, content)
                continue
            writer.on_oid(name_of(kind, base + oid, form), delta(base + oid, content))
            writer.on_place(writer.add(kind, base + oid), delta(base + oid, base + oid + b"x"))
        commands = [
            update(tip, new), update(None, tag, "refs/tags/v1"), update(tip, evil, "refs/heads/e"),
            RefCommand(tip.hex(), "0" * 2 * len(tip), "refs/heads/gone"),
        ]  # fmt: skip
        case = case_of(*commands, tips=(tip,), form=form)
        found = await judged(writer.done(), case, asker(upstream, 7000))
        assert [f.change.name for f in found] == ["FORCE", "CREATE", "FAST_FORWARD", "DELETE"]
        assert [f.denied_path for f in found] == [None, None, "Makefile", None]
        assert {q.ask for q in upstream.asked} == set(QuestionPurpose)
        # No answers, and answers that are none.
        found = await judged(writer.done(), case)
        assert [f.unproven for f in found] == [True, True, True, False]

        async def nonsense(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            yield b"PACK, or not"

        found = await judged(writer.done(), case, nonsense)
        assert [f.unproven for f in found] == [True, True, True, False]
        for wrong in (b"", b"PACK", writer.done()[:-30], writer.done().replace(b"x", b"y")):
            with pytest.raises(PushUnjudged) as caught:
                await judged(wrong, case)
            assert caught.value.reason is Reason.PUSH_MALFORMED
            assert caught.value.message

    play(test)


def test_a_pack_that_is_none_is_unsound_and_says_why(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()
        case = case_of(update(main, new), tips=(main,))
        with pytest.raises(PushUnjudged) as caught:
            await judged(pushed + b"more", case)
        assert caught.value.message == "a pack does not end behind its last object"

    play(test)


def test_an_answer_has_a_bound(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the question counts as unanswered, and whoever answers is told to stop (I9)."""

    async def test() -> None:
        history, main, new, pushed = simple()
        case = case_of(update(main, new), tips=(main,))
        largest = max(len(history.pack([oid])) for oid in history.objects)
        closed = []

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            try:
                async for piece in asker(Upstream(history, main))(question):
                    yield piece
            finally:
                closed.append(question)

        for name in ("MAX_ANSWER", "MAX_ANSWERS"):
            for bound, proven in ((10 * largest, True), (100, False)):
                with monkeypatch.context() as patch:
                    patch.setattr(judge_pool, name, bound)
                    (found,) = await judged(pushed, case, ask)
                assert found.unproven is not proven
        assert len(closed) == 2 * (3 + 1), "three are asked, and none after one without an answer"

    play(test)


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_judge_that_takes_too_long_is_ended(play: Callable[..., None]) -> None:
    """Whoever asks upstream may wait forever; the push does not (I9)."""

    async def test() -> None:
        _, main, new, pushed = simple()
        ended = asyncio.Event()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            try:
                await asyncio.Event().wait()
                yield b""
            finally:
                ended.set()

        # Long enough for a judge to start on a busy machine, and to ask.
        hurried = JudgePool(seconds=4)
        with pytest.raises(PushUnjudged, match="over 4 s"):
            await judged(pushed, case_of(update(main, new), tips=(main,)), ask, within=hurried)
        assert ended.is_set()

    play(test)


def test_a_timeout_of_the_one_who_asks_is_his_own(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            if question.wants:
                raise TimeoutError("of mine")
            yield b""

        with pytest.raises(TimeoutError, match="of mine"):
            await judged(pushed, case_of(update(main, new), tips=(main,)), ask)

    play(test)


def test_whoever_gives_up_leaves_nothing_behind(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()
        asked = asyncio.Event()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            asked.set()
            await asyncio.Event().wait()
            yield b""

        task = asyncio.create_task(judged(pushed, case_of(update(main, new), tips=(main,)), ask))
        await asked.wait()
        assert children()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(test)


def test_a_failure_of_the_one_who_asks_ends_the_judge(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            yield b"PACK"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await judged(pushed, case_of(update(main, new), tips=(main,)), ask)

    play(test)


def test_a_judge_that_dies_judges_nothing(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()
        others = children()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            (pid,) = children() - others
            os.kill(pid, signal.SIGKILL)
            for _ in range(100):
                yield bytes(10_000)

        with pytest.raises(PushUnjudged, match="ended before its verdict"):
            await judged(pushed, case_of(update(main, new), tips=(main,)), ask)

    play(test)


def test_a_judge_that_cannot_be_started_judges_nothing(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nonexistent")
            place = JudgePool()
            place.prepare()
            with pytest.raises(PushUnjudged, match="no judge can be started"):
                await judged(pushed, case_of(update(main, new), tips=(main,)), within=place)

    play(test)


def test_judges_at_work_are_bounded(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, new, pushed = simple()
        case = case_of(update(main, new), tips=(main,))
        place, go, at_work = JudgePool(), asyncio.Event(), 0
        others = children()
        most = 0

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            nonlocal at_work, most
            at_work += 1
            most = max(most, len(children() - others))
            await go.wait()
            at_work -= 1
            if question.wants:
                raise UpstreamFailed(Reason.UPSTREAM_CLOSED, "gone")
            yield b""

        tasks = [
            asyncio.create_task(judged(pushed, case, ask, within=place.for_session(f"s{number}")))
            for number in range(7)
        ]
        await until_in_loop(lambda: at_work == judge_pool.PLACES.total)
        go.set()
        for (found,) in await asyncio.gather(*tasks):
            assert found.unproven
        assert most <= judge_pool.PLACES.total
        place.close()

    play(test)


def test_one_session_cannot_keep_the_judges_from_another(play: Callable[..., None]) -> None:
    """I12: pushes whose judging never ends take a session's share, and no more. What waits beyond
    that is refused. Control: the other session's push is judged meanwhile, twice over."""

    async def test() -> None:
        history, main, new, pushed = simple()
        case = case_of(update(main, new), tips=(main,))
        place, at_work = JudgePool(), 0

        async def never(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            nonlocal at_work
            at_work += 1
            await asyncio.Event().wait()
            yield b""

        hostile, ordinary = place.for_session("hostile"), place.for_session("ordinary")
        count = judge_pool.PLACES.each + judge_pool.PLACES.waiting
        stuck = [
            asyncio.create_task(judged(pushed, case, never, within=hostile)) for _ in range(count)
        ]
        await until_in_loop(lambda: at_work == judge_pool.PLACES.each)
        with pytest.raises(PushUnjudged, match="judges: 16 of this session wait") as caught:
            await judged(pushed, case, never, within=hostile)
        assert caught.value.decision == Decision(reason=Reason.OVER_SHARE, rule="shares.judges")
        ask = asker(Upstream(history, main))
        for _ in range(2):
            (found,) = await judged(pushed, case, ask, within=ordinary)
            assert found.change is RefChange.FAST_FORWARD
        assert at_work == judge_pool.PLACES.each
        for each in stuck:
            each.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        # What it gave back, it can have again.
        (found,) = await judged(pushed, case, ask, within=hostile)
        assert found.change is RefChange.FAST_FORWARD
        place.close()

    play(test)


# ── started ahead ─────────────────────────────────────────────────────────────────────────────────


def test_a_judge_that_was_started_ahead_judges(play: Callable[..., None]) -> None:
    async def test() -> None:
        history, main, new, pushed = simple()
        others = children()
        place = JudgePool()
        place.prepare()
        (waiting,) = children() - others
        seen = set()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            seen.update(children() - others)
            async for piece in asker(Upstream(history, main))(question):
                yield piece

        case = case_of(update(main, new), tips=(main,))
        (found,) = await judged(pushed, case, ask, within=place)
        assert found.change is RefChange.FAST_FORWARD
        assert seen == {waiting}
        (found,) = await judged(pushed, case, ask, within=place)
        assert len(seen) == 2, "each judges once"
        place.close()

    play(test)


def test_those_that_wait_are_bounded_and_end(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        others = children()
        place = JudgePool()
        for _ in range(5):
            place.prepare()
        assert len(children() - others) == judge_pool.MAX_WAITING
        place.close()
        assert children() == others
        with monkeypatch.context() as patch:
            patch.setattr(judge_pool, "WAITING_SECONDS", 0.01)
            place.prepare()
            await until_in_loop(lambda: children() == others)
        place.close()

    play(test)


def test_one_that_died_waiting_is_replaced(play: Callable[..., None]) -> None:
    async def test() -> None:
        _, main, _, _ = simple()
        others = children()
        place = JudgePool()
        case = case_of(update(None, main), tips=(main,))
        for again in (False, True):
            place.prepare()
            (waiting,) = children() - others
            os.kill(waiting, signal.SIGKILL)
            await until_in_loop(functools.partial(_has_ended, waiting))
            if again:
                place.prepare()
                assert waiting not in children()
            (found,) = await judged(None, case, within=place)
            assert found.change is RefChange.CREATE
            place.close()

    play(test)


def _has_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_one_that_waits_dies_with_us() -> None:
    """Killed, nobody is left to end it: it ends by itself (PDEATHSIG)."""
    program = f"""
import asyncio, os, sys
sys.path[:0] = {[str(SOURCES), *sys.path]!r}
from keyhole.judge.judge_pool import JudgePool
async def main():
    JudgePool().prepare()
    task = "/proc/self/task/%d/children" % os.getpid()
    print(open(task).read(), flush=True)
    sys.stdin.read()
asyncio.run(main())
"""
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        parent.kill()
        ended, _, _ = select.select([handle], [], [], PATIENCE)
        os.close(handle)
    assert ended
