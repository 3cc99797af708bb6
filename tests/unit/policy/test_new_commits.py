"""Merges and clones that end: which parents of a commit count, and what a push may cut off (I3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.errors import Malformed
from keyhole.policy import ancestry, push_trial
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushFinding, QuestionPurpose, UpstreamQuestion
from keyhole.wire.receive_pack import PushReader
from tests.rigs.policy.trying import BASE, CI, asks, is_sound, try_all, try_one, update
from tests.rigs.wire.packing import History, Upstream, git, git_affirms

if TYPE_CHECKING:
    from pathlib import Path


def ci(version: str, **others: str) -> dict[str, Any]:
    """Files with a workflow of this version."""
    return {".github": {"workflows": {"ci.yml": version}}, **others}


WORKFLOW = ".github/workflows/ci.yml"


def test_a_first_commit_of_ones_own_is_no_parent_to_take_from() -> None:
    """It has no denied file, and so would remove them all by a merge that moves forward (I3)."""
    history = History()
    main = history.commit(BASE)
    bare = {"src": BASE["src"]}
    mine = history.commit(BASE, main, text="mine")
    orphan = history.commit({"o": "1"})
    later = history.commit({"o": "2"}, orphan, history.commit({"o": "3"}))
    for base in (main, mine):
        for other in (orphan, later):
            for parents in ((base, other), (other, base), (base, other, later)):
                new = history.commit(bare, *parents)
                found = try_one(history, new, main, old=main)
                assert (found.denied_path, found.change) == (WORKFLOW, RefChange.FAST_FORWARD)
                # Control: another history may be merged in, as long as nothing is lost by it.
                new = history.commit({**BASE, "o": {"o": "2"}}, *parents)
                assert is_sound(try_one(history, new, main, old=main), RefChange.FAST_FORWARD)
    # And what is on none but new roots, has none of them.
    assert is_sound(try_one(history, later, main), RefChange.CREATE)
    new = history.commit(CI, orphan, later)
    assert try_one(history, new, main).denied_path == WORKFLOW


def test_a_parent_that_turns_out_to_be_trusted_counts_from_then_on() -> None:
    """What was compared before that was known is compared again."""
    history = History()
    root = history.commit({"a": "1"})
    main = history.commit({"a": "1", **CI}, root)
    other = history.commit({"b": "1"})
    side = history.commit({"a": "2"}, other)
    tip = history.commit({"a": "3"}, side)
    new = history.commit({"a": "2"}, main, side)
    # The pack has `side` and all behind it, as if it were a history of one's own.
    pushed = history.pack(history.below(new, side, other))
    (found,) = try_all([update(None, new)], pushed, Upstream(history, main, tip))
    assert is_sound(found, RefChange.CREATE)
    (found,) = try_all([update(None, new)], pushed, Upstream(history, main))
    assert found.denied_path == WORKFLOW
    # The other way round: what looked like two histories of its own is one and a trusted one.
    root = history.commit({"b": "1"})
    low = history.commit({"b": "2"}, root)
    tip = history.commit({"b": "2", **CI}, low)
    evil = history.commit({"b": "2", "Makefile": "evil"}, history.commit({"z": "1"}), low)
    (found,) = try_all([update(None, evil)], history.push([evil]), Upstream(history, tip))
    assert found.denied_path == "Makefile"


def versions() -> tuple[History, list[bytes]]:
    """A main branch whose workflow was changed, and changed again."""
    history = History()
    main = [history.commit(ci("0", n="0"))]
    for number, version in enumerate("0112223"):
        main.append(history.commit(ci(version, n=str(number + 1)), main[-1]))
    return history, main


def test_a_merge_does_not_take_what_is_older_from_its_own_past() -> None:
    """`merge(main, main~1)` would bring back the workflow that was repaired since (I3)."""
    history, main = versions()
    tip = main[-1]
    for old in (1, 2, 4, 6):
        for parents in ((tip, main[old]), (main[old], tip), (tip, main[old], main[3])):
            for tips in ((tip,), (tip, main[old]), (tip, main[old - 1])):
                upstream = Upstream(history, *tips)
                new = history.commit(history.tree(ci(str((0, 0, 1, 1, 2, 2, 2)[old]))), *parents)
                pushed = history.push([new], [tip])
                (found,) = try_all([update(tip, new)], pushed, upstream)
                assert (found.denied_path, found.change) == (WORKFLOW, RefChange.FAST_FORWARD)
                # Control: the same merge with what is newer.
                new = history.commit(ci("3", x="1"), *parents)
                pushed = history.push([new], [tip])
                (found,) = try_all([update(tip, new)], pushed, upstream)
                assert is_sound(found, RefChange.FAST_FORWARD)
                assert len(upstream.asked) < 16


def test_an_older_parent_that_the_push_brings_along_is_older_all_the_same() -> None:
    """In the pack, on a commit that a tag has: nothing shows yet that main follows it."""
    history, main = versions()
    tip, old, tag = main[-1], main[-2], main[-3]
    new = history.commit(ci("2", x="1"), tip, old)
    pushed = history.push([new, old], [tag])
    pushed = history.pack(
        o for o in history.below(new, old) if o != tip and o not in history.below(tag)
    )
    upstream = Upstream(history, tip, tag)
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert found.denied_path == WORKFLOW
    # Control: one that is like it, and that main does not follow.
    other = history.commit(ci("2", n="7"), tag)
    new = history.commit(ci("2", x="1"), tip, other)
    (found,) = try_all([update(None, new)], history.push([new], [tip]), Upstream(history, tip, tag))
    assert is_sound(found, RefChange.CREATE)


def test_main_is_merged_into_a_branch_that_began_before_its_workflow_changed() -> None:
    """The common merge, with what main has; few questions, whoever is known of the two."""
    history, main = versions()
    tip = main[-1]
    began = history.commit(ci("0", n="1", mine="1"), main[1])
    more = history.commit(ci("0", n="1", mine="2"), began)
    for mine in (main[1], began, more):
        for tips in ((tip,), (tip, main[1]), (tip, began)):
            for parents in ((mine, tip), (tip, mine)):
                new = history.commit(ci("3", n="7", mine="1"), *parents)
                last = history.commit(ci("3", n="7", mine="2"), new)
                upstream = Upstream(history, *tips)
                pushed = history.push([last], [tip, tips[-1]])
                (found,) = try_all([update(None, last)], pushed, upstream)
                assert is_sound(found, RefChange.CREATE)
                assert len(upstream.asked) <= 8
                assert asks(upstream).count(QuestionPurpose.HISTORY) <= 2


def test_main_is_merged_again_and_again() -> None:
    """Each time with another workflow: the order of all is known by what is asked anyway."""
    history, main = versions()
    new = history.commit(ci("0", n="0", mine="0"), main[0])
    for at in (2, 4, 7):
        new = history.commit(ci(str((0, 0, 1, 1, 2, 2, 2, 3)[at]), mine=str(at)), new, main[at])
    upstream = Upstream(history, main[-1])
    below = history.below(*main)
    pushed = history.pack(o for o in history.below(*history.reach(new)) if o not in below)
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert is_sound(found, RefChange.CREATE)
    assert asks(upstream).count(QuestionPurpose.HISTORY) <= 3


def test_branches_that_went_apart_are_merged_either_way() -> None:
    """None of two is the older one, which takes a question where both are tips."""
    history, main = versions()
    side = history.commit(ci("side"), main[4])
    for version in ("3", "side"):
        new = history.commit(ci(version, x="1"), main[-1], side)
        upstream = Upstream(history, main[-1], side)
        pushed = history.push([new], [main[-1], side])
        (found,) = try_all([update(main[-1], new)], pushed, upstream)
        assert is_sound(found, RefChange.FAST_FORWARD)
        assert asks(upstream).count(QuestionPurpose.HISTORY) == 1


def test_an_octopus_takes_each_file_from_another_arm() -> None:
    """No arm by itself has all of it, so it must be known of each that none follows it."""
    history = History()
    root = history.commit({"Makefile": "0", "Jenkinsfile": "0", "a": "0"})
    base = history.commit({"Makefile": "0", "Jenkinsfile": "0"}, root)
    arms = [
        history.commit({"Makefile": one, "Jenkinsfile": two}, history.commit({}, base, text=one))
        for one, two in ("10", "01", "22")
    ]
    new = history.commit({"Makefile": "1", "Jenkinsfile": "1", "x": "1"}, *arms)
    pushed = history.push([new], arms)
    upstream = Upstream(history, *arms)
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert is_sound(found, RefChange.CREATE)
    assert asks(upstream).count(QuestionPurpose.HISTORY) == 2
    later = history.commit({"Makefile": "2", "Jenkinsfile": "2"}, arms[0])
    new = history.commit({"Makefile": "1", "Jenkinsfile": "1", "x": "1"}, *arms, later)
    found = try_one(history, new, *arms, later)
    assert found.denied_path == "Makefile"


def test_an_order_that_is_not_told_is_unproven() -> None:
    """Only where it matters: a merge that has what the newer one has, whichever it is, passes."""
    history, main = versions()
    side = history.commit(ci("side"), main[4])

    class Forgetful(Upstream):
        def pack(self, question: UpstreamQuestion) -> bytes | None:
            if question.ask is QuestionPurpose.HISTORY:
                self.asked.append(question)
                return None
            return super().pack(question)

    new = history.commit(ci("3", x="1"), main[-1], side)
    pushed = history.push([new], [main[-1], side])
    (found,) = try_all([update(None, new)], pushed, Forgetful(history, main[-1], side))
    assert (found.change, found.denied_path, found.unproven) == (RefChange.UNKNOWN, None, True)
    assert new.hex()[:12] in found.why
    same = history.commit(ci("3", y="1"), main[4])
    upstream = Forgetful(history, main[-1], same)
    new = history.commit(ci("3", x="1"), main[-1], same)
    (found,) = try_all([update(None, new)], history.push([new], [main[-1], same]), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert QuestionPurpose.HISTORY not in asks(upstream)


def test_an_order_that_takes_too_large_a_question_is_unproven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History()
    tips = []
    for number in range(3):
        deep = history.commit(ci(str(number)), text="deep")
        tips.append(history.commit(ci(str(number)), deep))
    new = history.commit(ci("1", x="1"), *tips)
    pushed = history.push([new], tips)
    for bound, unproven in ((2, False), (1, True)):
        monkeypatch.setattr(push_trial, "MAX_WANTS", bound)
        (found,) = try_all([update(None, new)], pushed, Upstream(history, *tips))
        assert found.unproven is unproven


def test_what_is_followed_to_find_an_order_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: each merge of many could have all of a long history walked."""
    history, main = versions()
    side = history.commit(ci("side"), main[4])
    new = history.commit(ci("3", x="1"), main[-1], side)
    assert is_sound(try_one(history, new, main[-1], side), RefChange.CREATE)
    monkeypatch.setattr(ancestry, "MAX_FOLLOWED", 4)
    with pytest.raises(Malformed, match="too long to put in order"):
        try_one(history, new, main[-1], side)


# ── where a clone ends ────────────────────────────────────────────────────────────────────────────


def test_a_push_may_not_say_that_history_ends_at_a_commit_of_its_own() -> None:
    """A server that takes shallow pushes would forget all before it (I3)."""
    history, main = versions()
    low = history.commit(ci("3", x="1"), main[-1])
    new = history.commit(ci("3", x="2"), low)
    stray = history.commit(ci("3", x="3"), main[-1])
    tree = history.tree({"t": "1"})
    below = history.below(new, low, stray, tree)
    pushed = history.pack(o for o in below if o not in history.below(main[-1]))
    commands = [update(main[-1], new), update(None, low, "refs/heads/agent/y")]
    for end in (new, low, stray, tree):
        for deny in (None, ()):
            for shallow in ([end], [main[-1], end], [end, b"\x11" * 20]):
                upstream = Upstream(history, main[-1])
                found = try_all(commands, pushed, upstream, deny, shallow)
                assert [(f.change, f.unproven) for f in found] == [(RefChange.UNKNOWN, True)] * 2
                assert all("history ends at commit" in f.why for f in found)
                assert len(upstream.asked) <= 8
    # Controls: where the repository has it, or nobody here does.
    for end in (main[-1], main[3], b"\x11" * 20):
        found = try_all(commands, pushed, Upstream(history, main[-1]), shallow=[end])
        assert [f.change for f in found] == [RefChange.FAST_FORWARD, RefChange.CREATE]
        assert not any(f.unproven for f in found)


def test_a_clone_that_ends_at_what_the_repository_has_is_pushed_from() -> None:
    """Its end comes along in the pack; that a branch reaches it is asked, and shown."""
    history, main = versions()
    end = main[4]
    new = history.commit(ci("2", n="4", x="1"), end)
    pushed = history.pack(history.below(new, end))
    for tips in ((main[-1],), (main[-1], main[3]), (main[5], main[2]), (end,)):
        upstream = Upstream(history, *tips)
        (found,) = try_all([update(None, new)], pushed, upstream, shallow=[end])
        assert is_sound(found, RefChange.CREATE)
    (found,) = try_all([update(None, new)], pushed, Upstream(history, main[3]), shallow=[end])
    assert found.unproven


def test_two_ends_on_one_line_are_both_shown() -> None:
    """An answer names the upper one; of the lower one it is asked alone."""
    history, main = versions()
    tags = (main[0], main[3])
    low = history.commit(ci("0", n="1", x="1"), main[1])
    new = history.commit(ci("1", n="4", x="1"), main[4], low)
    ends = [main[1], main[4]]
    pushed = history.pack(history.below(new, low, *ends))
    upstream = Upstream(history, main[-1], *tags)
    for shallow in (ends, ends[::-1]):
        (found,) = try_all([update(None, new)], pushed, upstream, (), shallow)
        assert is_sound(found, RefChange.CREATE)


# ── beside the real git ───────────────────────────────────────────────────────────────────────────


class Real(Upstream):
    """A repository of git's own, which answers with what git itself would send."""

    def __init__(self, directory: Path) -> None:
        super().__init__(History())
        self._directory = directory
        refs = git(directory, "for-each-ref", "--format=%(objectname)").decode().split()
        self.tips = tuple(map(bytes.fromhex, refs))

    def pack(self, question: UpstreamQuestion) -> bytes | None:
        """The bytes that answer a question."""
        self.asked.append(question)
        listed = "\n".join(question.wants).encode()
        if question.ask is QuestionPurpose.HISTORY:
            known = [f"^{o}" for o in question.haves if git_affirms(self._directory, *_has(o))]
            listed = git(self._directory, "rev-list", *question.wants, *known)
        return git(self._directory, "pack-objects", "--stdout", "-q", told=listed)


def _has(oid: str) -> tuple[str, ...]:
    return "cat-file", "-e", oid


class Work:
    """A clone, its server, and what a push of it says."""

    def __init__(self, directory: Path) -> None:
        self.server, self._directory = directory / "server.git", directory
        self.copy = directory / "first"
        hook = directory / "hooks" / "pre-receive"
        hook.parent.mkdir()
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
        git(directory, "init", "-q", "--bare", "-b", "main", "server.git")
        git(directory, "clone", "-q", "server.git", "first")
        git(self.copy, "checkout", "-q", "-B", "main")
        for version in "0112":
            self.commit(version, version)
        git(self.copy, "push", "-q", "origin", "main", "main~3:refs/heads/agent/x")

    def commit(self, content: str, workflow: str | None = None) -> None:
        """One more commit on what is checked out."""
        (self.copy / "file").write_text(content)
        if workflow is not None:
            (self.copy / ".github" / "workflows").mkdir(parents=True, exist_ok=True)
            (self.copy / WORKFLOW).write_text(workflow)
        git(self.copy, "add", ".")
        git(self.copy, "commit", "-qm", "x", "--allow-empty")

    def pushed(self, source: str = "HEAD", branch: str = "agent/x") -> PushFinding:
        """Judge what git sends for a push, which this server does not get."""
        said = self._directory / "said"
        hooks = f"-c core.hooksPath={self._directory / 'hooks'}"
        assert not git_affirms(
            self.copy, "push", "-q", "--no-thin", "origin", f"{source}:refs/heads/{branch}",
            f"--receive-pack=tee {said} | git {hooks} receive-pack",
        )  # fmt: skip
        reader = PushReader()
        request = reader.feed(said.read_bytes())
        assert request is not None
        self.shallow = tuple(map(bytes.fromhex, request.shallow))
        upstream = Real(self.server)
        (found,) = try_all(request.commands, reader.rest, upstream, shallow=self.shallow)
        self.questions = len(upstream.asked)
        return found


def test_git_merges_main_into_a_branch(tmp_path: Path) -> None:
    """Its workflow changed on main, and not on the branch; and nobody may choose the older one."""
    work = Work(tmp_path)
    for mine in ("origin/agent/x", "agent/mine"):
        git(work.copy, "checkout", "-q", "-B", "agent/mine", "origin/agent/x")
        if mine == "agent/mine":
            (work.copy / "mine").write_text("mine")
            work.commit("0")
        git(work.copy, "merge", "-q", "--no-ff", "-m", "m", "main")
        assert is_sound(work.pushed(), RefChange.FAST_FORWARD)
        assert work.questions <= 8
        for old, parents in (
            ("main~1", ("main", "main~1")),
            ("main~1", ("main~1", "main")),
            ("main~3", ("HEAD", "main", "main~3")),
        ):
            words = ["commit-tree", "-m", "m", f"{old}^{{tree}}"]
            merge = git(work.copy, *words, *(f"-p{each}" for each in parents)).decode().strip()
            assert work.pushed(merge).denied_path == WORKFLOW


def test_git_pushes_from_a_clone_that_ends(tmp_path: Path) -> None:
    """`clone --depth 1`, a commit, a push: also when main has moved on, or the clone is deeper."""
    work = Work(tmp_path)
    first = work.copy
    for depth in ("1", "2"):
        copy = tmp_path / f"shallow-{depth}"
        git(tmp_path, "clone", "-q", "--depth", depth, f"file://{work.server}", copy.name)
        work.copy = copy
        work.commit("mine")
        for _ in range(2):
            assert is_sound(work.pushed(branch="agent/new"), RefChange.CREATE)
            assert len(work.shallow) == 1
            work.copy = first
            work.commit("more", "more")
            git(first, "push", "-q", "origin", "main")
            work.copy = copy
        # The same clone, said to end at the commit that is pushed.
        end = git(copy, "rev-parse", "HEAD")
        (copy / ".git" / "shallow").write_bytes(end)
        found = work.pushed(branch="agent/new")
        assert found.unproven
        assert "history ends" in found.why
