"""Pushes, tried: what is shown by content, what is not, and what follows (DESIGN §4, I3)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import Malformed
from keyhole.model.glob import Glob, fold
from keyhole.policy import denied_paths, push_trial
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushFinding, PushUnjudged, QuestionPurpose, UpstreamQuestion
from keyhole.policy.schema import DEFAULT_DENY_PATHS
from keyhole.wire.git_object import ObjectKind, object_id
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.policy.trying import (
    BASE,
    BRANCH,
    CI,
    asks,
    globs,
    is_sound,
    try_all,
    try_one,
    update,
)
from tests.rigs.wire.packing import (
    FILE,
    LINK,
    MODULE,
    PROGRAM,
    TREE,
    History,
    PackWriter,
    Upstream,
    delta,
    git,
    git_affirms,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


# ── ancestry ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_commit_on_a_tip_is_a_fast_forward(object_format: str) -> None:
    history = History(object_format)
    main = history.commit(BASE)
    new = history.commit({**BASE, "src": {"a": "changed"}}, main)
    assert is_sound(try_one(history, new, main, old=main), RefChange.FAST_FORWARD)
    assert is_sound(try_one(history, new, main), RefChange.CREATE)


def test_the_common_push_takes_two_questions() -> None:
    """The tip's commit and its tree; `.github` is equal there, so it is not fetched."""
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "src": {}}, main)
    upstream = Upstream(history, main)
    deny = globs(DEFAULT_DENY_PATHS)
    (found,) = try_all([update(main, new)], history.push([new], [main]), upstream, deny)
    assert is_sound(found, RefChange.FAST_FORWARD)
    assert asks(upstream) == [QuestionPurpose.OBJECTS, QuestionPurpose.OBJECTS]


def test_an_amended_commit_is_a_force() -> None:
    history = History()
    main = history.commit(BASE)
    old = history.commit({**BASE, "x": "1"}, main)
    new = history.commit({**BASE, "x": "2"}, main)
    assert is_sound(try_one(history, new, main, old, old=old), RefChange.FORCE)


def test_going_back_is_a_force() -> None:
    history = History()
    first = history.commit(BASE)
    second = history.commit(BASE, first)
    assert is_sound(try_one(history, first, second, old=second), RefChange.FORCE)


def test_another_history_is_a_force_that_no_question_is_needed_for() -> None:
    history = History()
    old, new = history.commit({"a": "1"}), history.commit({"b": "1"})
    upstream = Upstream(history, old)
    (found,) = try_all([update(old, new)], history.push([new]), upstream)
    assert is_sound(found, RefChange.FORCE)
    assert upstream.asked == []


def test_a_branch_goes_on_to_where_another_is_without_a_pack() -> None:
    """Nothing is sent, and everything is proven by what upstream says of itself."""
    history = History()
    commits = [history.commit(BASE)]
    for _ in range(5):
        commits.append(history.commit(BASE, commits[-1]))
    found = try_one(history, commits[5], commits[2], commits[5], old=commits[2])
    assert is_sound(found, RefChange.FAST_FORWARD)
    found = try_one(history, commits[3], commits[5], commits[2], old=commits[2])
    assert is_sound(found, RefChange.FAST_FORWARD)


def test_a_branch_made_at_a_tip_takes_no_question() -> None:
    history = History()
    main = history.commit(BASE)
    upstream = Upstream(history, main)
    for pushed in (None, PackWriter().done()):
        (found,) = try_all([update(None, main)], pushed, upstream)
        assert is_sound(found, RefChange.CREATE)
    assert upstream.asked == []


def test_ancestry_that_upstream_does_not_tell_is_unknown() -> None:
    history = History()
    main = history.commit(BASE)
    old = history.commit({**BASE, "x": "1"}, main)
    new = history.commit({**BASE, "x": "2"}, main)
    upstream = Upstream(history, main, old)
    upstream.deaf = True
    (found,) = try_all([update(old, new)], history.push([new], [main]), upstream, deny=())
    assert found == PushFinding(BRANCH, RefChange.UNKNOWN, None)


def test_old_is_met_through_any_parent() -> None:
    history = History()
    root = history.commit(BASE)
    left, right = history.commit(BASE, root), history.commit(BASE, root)
    for parents in ((left, right), (right, left)):
        new = history.commit(BASE, *parents)
        assert is_sound(try_one(history, new, left, right, old=left), RefChange.FAST_FORWARD)


def test_many_ends_of_history_leave_ancestry_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question has a bound (I9); beyond it nothing is known."""
    history = History()
    tips = [history.commit(BASE, text=str(n)) for n in range(3)]
    new = history.commit(BASE, *tips[:2])
    pushed = history.push([new], tips)
    for bound, change in ((2, RefChange.FORCE), (1, RefChange.UNKNOWN)):
        monkeypatch.setattr(push_trial, "MAX_WANTS", bound)
        (found,) = try_all([update(tips[2], new)], pushed, Upstream(history, *tips), deny=())
        assert found.change is change


# ── modes ─────────────────────────────────────────────────────────────────────────────────────────

EVIL = {"workflows": {"evil.yml": "on: push"}}


def _kinds(history: History) -> dict[str, bytes]:
    """An object of each kind."""
    tree = history.tree(EVIL)
    commit = history.commit(EVIL)
    return {
        "tree": tree,
        "commit": commit,
        "tag": history.tag(commit),
        "blob": history.put(ObjectKind.BLOB, b"x"),
    }


WRONG_MODES = [
    (mode, kind)
    for mode, right in ((FILE, "blob"), (PROGRAM, "blob"), (b"100664", "blob"), (LINK, "blob"),
                        (TREE, "tree"), (MODULE, "commit"))
    for kind in ("tree", "commit", "tag", "blob")
    if kind != right
    and (mode, kind) != (MODULE, "blob")  # nobody looks for what it names in this repository
]  # fmt: skip


@pytest.mark.parametrize(("mode", "kind"), WRONG_MODES)
@pytest.mark.parametrize("name", [".github", "src", "zz"])
def test_an_entry_that_says_another_kind_than_its_object_has_is_refused(
    mode: bytes, kind: str, name: str
) -> None:
    """I3: `.github` as a file, for an object that is a directory with a workflow in it, was a file
    that nobody looked into. Wherever it stands, once its tree is read."""
    history = History()
    main = history.commit({"src": {"a": "1"}})
    oid = _kinds(history)[kind]
    new = history.commit({"src": {"a": "1"}, name: (mode, oid)}, main)
    pushed = history.pack({*history.below(new), *history.below(oid), oid})
    assert _is_refused(history, main, new, pushed)


def _is_refused(history: History, main: bytes, new: bytes, pushed: bytes) -> bool:
    try:
        (found,) = try_all([update(main, new)], pushed, Upstream(history, main))
    except Malformed as error:
        return "mode" in error.message
    return found.unproven or found.denied_path == ".github"


@pytest.mark.parametrize("mode", [FILE, PROGRAM, b"100664", LINK])
def test_a_directory_that_upstream_has_is_no_file(mode: bytes) -> None:
    """I3: first pushed under a name that is not denied, and then named as a file where it is."""
    history = History()
    old = {"src": {"a": "1"}, "lib": EVIL}
    main = history.commit(old)
    for name in (".github", "z"):
        files = {**old, name: (mode, history.tree(EVIL))}
        new = history.commit(files, main)
        pushed = history.pack([new, history.tree(files)])
        assert _is_refused(history, main, new, pushed)
        upstream = Upstream(history, main)
        (control,) = try_all([update(main, new)], pushed, upstream, deny=globs(["other/**"]))
        assert is_sound(control, RefChange.FAST_FORWARD), "no denied path leads there"


def test_a_file_that_upstream_has_elsewhere_is_asked_for() -> None:
    """A copy is not in the pack; a file that moves is seen in a parent's tree."""
    history = History()
    main = history.commit({**BASE, "docs": {"text": "long"}})
    copy = history.commit({**BASE, "docs": {"text": "long"}, "copy": "long"}, main)
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, copy)], history.push([copy], [main]), upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)
    assert upstream.asked[-1].wants == (history.put(ObjectKind.BLOB, b"long").hex(),)
    moved = history.commit({**BASE, "elsewhere": {"text": "long"}}, main)
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, moved)], history.push([moved], [main]), upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)
    files = history.put(ObjectKind.BLOB, b"long").hex()
    assert not [question for question in upstream.asked if files in question.wants]


def test_a_file_that_nobody_shows_is_not_one() -> None:
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "x": (FILE, b"\x11" * 20)}, main)
    pushed = history.push([new], [main])
    (found,) = try_all([update(main, new)], pushed, Upstream(history, main))
    assert found.unproven
    assert "could not be compared" in found.why
    control = history.commit({**BASE, "x": "new"}, main)
    assert is_sound(try_one(history, control, main, old=main), RefChange.FAST_FORWARD)


def test_a_file_may_be_a_delta() -> None:
    history = History()
    main = history.commit(BASE)
    old, text = b"some words " * 20, b"some words " * 20 + b"and more"
    files = {**BASE, "x": old, "y": text}
    new = history.commit(files, main)
    writer = PackWriter()
    place = writer.add(ObjectKind.BLOB, old)
    writer.on_place(place, delta(old, text))
    for oid in (new, history.tree(files)):
        writer.add(*history.objects[oid])
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, new)], writer.done(), upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)
    assert asks(upstream) == [QuestionPurpose.OBJECTS, QuestionPurpose.OBJECTS]


def test_a_merge_needs_no_proof_of_what_a_parent_has() -> None:
    """Files of the other side are not in the pack, and nobody has to ask for them."""
    history = History()
    base = history.commit(BASE)
    one = history.commit({**BASE, "one": "1st"}, base)
    two = history.commit({**BASE, "two": "2nd"}, base)
    merge = history.commit({**BASE, "one": "1st", "two": "2nd"}, one, two)
    upstream = Upstream(history, one, two)
    (found,) = try_all([update(one, merge)], history.push([merge], [one, two]), upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)
    blobs = {history.put(ObjectKind.BLOB, text).hex() for text in (b"1st", b"2nd")}
    assert not [q for q in upstream.asked if blobs & set(q.wants)]


def test_a_submodule_may_name_a_commit_of_the_push() -> None:
    history = History()
    main = history.commit(BASE)
    below = history.commit({**BASE, "x": "new"}, main)
    new = history.commit({**BASE, "x": "new", "self": (MODULE, below)}, below)
    assert is_sound(try_one(history, new, main, old=main), RefChange.FAST_FORWARD)


def test_a_name_of_many_marks_is_refused() -> None:
    """I12: it would take long to compare without regard to case; the control has thirty."""
    history = History()
    main = history.commit(BASE)
    fine = history.commit({**BASE, "e" + "\u0301" * 30: "new"}, main)
    assert is_sound(try_one(history, fine, main, old=main), RefChange.FAST_FORWARD)
    odd = history.commit({**BASE, "e" + "\u0301" * 31: "new"}, main)
    with pytest.raises(Malformed, match="marks in a row"):
        try_one(history, odd, main)


# ── trust ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_commit_below_a_tip_is_trusted() -> None:
    """The tip moved on since the clone; its history names the commit that the push is on."""
    history = History()
    below = history.commit(BASE)
    tip = history.commit(BASE, history.commit(BASE, below))
    new = history.commit({**BASE, "x": "new"}, below)
    upstream = Upstream(history, tip)
    (found,) = try_all([update(None, new)], history.push([new], [below]), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert asks(upstream) == [
        QuestionPurpose.HISTORY,
        QuestionPurpose.OBJECTS,
        QuestionPurpose.OBJECTS,
    ]


def test_a_commit_that_upstream_merely_has_is_not_trusted() -> None:
    """Forks share their objects: anyone may have put it there, with any workflow (I3)."""
    history = History()
    main = history.commit(BASE)
    evil = history.commit({".github": {"workflows": {"ci.yml": "evil"}}}, main)
    upstream = Upstream(history, main, also=[evil])
    (found,) = try_all([update(None, evil)], PackWriter().done(), upstream)
    assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)
    new = history.commit({".github": {"workflows": {"ci.yml": "evil"}}, "x": "1"}, evil)
    (found,) = try_all([update(None, new)], history.push([new], [evil]), upstream)
    assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)
    assert evil.hex()[:12] in found.why
    # Control: a branch of the repository that reaches it makes it the repository's own.
    (found,) = try_all([update(None, evil)], None, Upstream(history, main, evil))
    assert is_sound(found, RefChange.CREATE)


@pytest.mark.parametrize("deny", [None, ()])
def test_a_commit_that_nobody_has_is_unproven(deny: tuple[Glob, ...] | None) -> None:
    history = History()
    main = history.commit(BASE)
    missing = history.commit(BASE, main)
    new = history.commit(BASE, missing)
    (found,) = try_all([update(main, new)], history.pack([new]), Upstream(history, main), deny)
    assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)


def test_nothing_is_trusted_in_an_empty_repository() -> None:
    history = History()
    first = history.commit({"a": "1"})
    new = history.commit({"a": "2"}, first)
    upstream = Upstream(history)
    (found,) = try_all([update(None, new)], history.push([new]), upstream)
    assert is_sound(found, RefChange.CREATE), "all of it is in the pack, and harmless"
    (found,) = try_all([update(None, new)], history.pack([new]), upstream)
    assert found.unproven
    assert upstream.asked == []


def test_all_history_in_the_pack_is_told_from_what_is_new() -> None:
    """A client that knows no tip sends everything, old changes of workflows included."""
    history = History()
    at = history.commit({"a": "0"})
    for turn in range(300):
        ci = {".github": {"workflows": {"ci.yml": str(turn // 7)}}}
        at = history.commit({"a": str(turn), **ci}, at)
    tip = history.commit({**ci, "b": "new there"}, at)
    new = history.commit({**ci, "a": "new here"}, at)
    pushed = history.push([new])
    upstream = Upstream(history, tip)
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert is_sound(found, RefChange.CREATE)
    assert [(len(q.wants), len(q.haves) <= push_trial.MAX_HAVES) for q in upstream.asked] == [
        (1, True)
    ]
    # And without that branch, it is all new.
    (found,) = try_all([update(None, new)], pushed, Upstream(history))
    assert found.denied_path == ".github/workflows/ci.yml"
    # One more change on top of what is trusted is not.
    evil = history.commit({".github": {"workflows": {"ci.yml": "evil"}}}, new)
    (found,) = try_all([update(None, evil)], history.push([evil]), Upstream(history, tip))
    assert found.denied_path == ".github/workflows/ci.yml"
    assert evil.hex()[:12] in found.why


def test_a_shallow_client_brings_a_commit_without_its_parents() -> None:
    """It packs the commit that its clone ends at, since it cannot know that upstream has it."""
    history = History()
    root = history.commit({**BASE, "old": "1"})
    end = history.commit(BASE, root)
    tip = history.commit(BASE, end)
    new = history.commit({**BASE, "x": "1"}, end)
    pushed = history.pack(history.below(new, end))
    for upstream in (Upstream(history, tip), Upstream(history, end)):
        (found,) = try_all([update(None, new)], pushed, upstream)
        assert is_sound(found, RefChange.CREATE)


def test_several_ends_on_one_line_are_all_shown() -> None:
    """A branch that merged from main again and again; each time at another commit of main."""
    history = History()
    main = [history.commit(BASE)]
    for _ in range(40):
        main.append(history.commit(BASE, main[-1]))
    new = history.commit({**BASE, "x": "0"}, main[3])
    mine = [new]
    for at in (9, 14, 30):
        new = history.commit({**BASE, "x": str(at)}, new, main[at])
        mine.append(new)
    upstream = Upstream(history, main[40])
    pushed = history.pack(oid for oid in history.below(*mine) if oid not in history.below(*main))
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert is_sound(found, RefChange.CREATE)
    assert asks(upstream).count(QuestionPurpose.HISTORY) == 2


def test_criss_cross_merges_are_walked() -> None:
    history = History()
    root = history.commit(BASE)
    left, right = history.commit({**BASE, "l": "1"}, root), history.commit({**BASE, "r": "1"}, root)
    for _ in range(30):
        both = {**BASE, "l": "1", "r": "1"}
        left, right = history.commit(both, left, right), history.commit(both, right, left)
    new = history.commit(both, left, right)
    assert is_sound(try_one(history, new, root, old=root), RefChange.FAST_FORWARD)


def test_an_upstream_with_many_tips_is_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_trial, "MAX_WANTS", 3)
    history = History()
    below = history.commit(BASE)
    tips = [history.commit(BASE, below, text=str(n)) for n in range(2)]
    tips += [history.commit(BASE, text=f"other {n}") for n in range(8)]
    new = history.commit({**BASE, "x": "1"}, below)
    upstream = Upstream(history, *tips)
    (found,) = try_all([update(None, new)], history.push([new], [below]), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert 1 <= asks(upstream).count(QuestionPurpose.HISTORY) <= 4


def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a trial ends, and what it does not know it does not grant (I9)."""
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "x": "new"}, main)
    pushed = history.push([new], [main])
    for bound, sound in ((2, True), (1, False), (0, False)):
        monkeypatch.setattr(push_trial, "MAX_QUESTIONS", bound)
        upstream = Upstream(history, main)
        (found,) = try_all([update(main, new)], pushed, upstream)
        assert found.unproven is not sound
        assert len(upstream.asked) == bound


def test_an_answer_that_is_no_commit_or_tree_shows_nothing() -> None:
    """Upstream may hold odd objects of old; what cannot be read was not seen."""
    history = History()
    tree = history.put(ObjectKind.TREE, b"040000 .github\0" + b"\x11" * 20)
    main = history.commit(tree)
    new = history.commit({"x": "1"}, main)
    found = try_one(history, new, main)
    assert (found.change, found.denied_path, found.unproven) == (RefChange.UNKNOWN, None, True)
    odd = history.put(ObjectKind.COMMIT, history.objects[main][1].replace(b"author", b"Author"))
    found = try_one(history, history.commit({"x": "1"}, main), main)
    assert found.unproven
    content = history.objects[new][1].replace(main.hex().encode(), odd.hex().encode())
    new = history.put(ObjectKind.COMMIT, content)
    pushed = history.pack(history.below(new))
    upstream = Upstream(history)
    upstream.tips, upstream.has = (odd,), {odd: None}
    (found,) = try_all([update(None, new)], pushed, upstream)
    assert found.unproven


def test_a_tree_that_comes_late_is_asked_for_again() -> None:
    """Git leaves out a tree that is also within another one that was asked for."""
    history = History()
    inner = {"workflows": {"a.yml": "1"}}
    left = history.commit({".github": inner, "l": "1"})
    right = history.commit({".github": {"workflows": {"a.yml": "2"}}, "r": "1"})
    new = history.commit(
        {".github": {"workflows": {"a.yml": "2"}, "x": "1"}, "n": "1"}, left, right
    )

    class Sparing(Upstream):
        def pack(self, question: UpstreamQuestion) -> bytes | None:
            one = UpstreamQuestion(question.ask, question.wants[:1], question.haves)
            return super().pack(one if question.ask is QuestionPurpose.OBJECTS else question)

    upstream = Sparing(history, left, right)
    (found,) = try_all([update(None, new)], history.push([new], [left, right]), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert len(upstream.asked) > 4


# ── denied paths ──────────────────────────────────────────────────────────────────────────────────


def nested(path: str, value: object) -> dict[str, Any]:
    for segment in reversed(path.split("/")):
        value = {segment: value}
    assert isinstance(value, dict)
    return value


HIT = [
    ".github/workflows/new.yml", ".github/workflows/deep/er/new.yml", ".github/actions/x/a.yml",
    ".gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "Makefile", "deep/er/Makefile",
    "tools/run.sh", "tools/a/b/run.sh", "ci/x.yml",
    ".GitHub/Workflows/new.yml", ".GITHUB/workflows/new.yml", "jenkinsFILE", "src/makefile",
    ".github/workflow\u017f/new.yml", ".\uff27ithub/workflows/x",
    "Jenkinsfile/below", "deep/Makefile/below/it", ".gitlab-ci.yml/x",
    ".woodpecker.yaml", ".cirrus.yml", ".teamcity/settings.kts", ".appveyor.yml", ".builds/a.yml",
    ".build.yml", ".semaphore/semaphore.yml", "buildkite/pipeline.json", ".tekton/pull.yaml",
    "action.yml", "Action.yaml", "vercel.json", "netlify.toml", "wrangler.jsonc", ".gitpod.yml",
    ".readthedocs.yaml", ".devcontainer/post.sh", ".forgejo/actions/x/action.yml", "render.yaml",
]  # fmt: skip
MISS = [
    ".github/CODEOWNERS", ".github/workflow/x.yml", "workflows/x.yml", "a/.github/workflows/x.yml",
    "src/Jenkinsfile", "Jenkinsfile2", "ci/deep/x.yml", "ci/x.yaml", "tools/run.sh2", "makefiles/x",
    "\udcff\udcfe", "buildkite/readme", "builds/a.yml", "docs/appveyor.yml",
    "src/action.yml", "docs/netlify.toml", ".github/dependabot.yml", "app.json",
]  # fmt: skip


@pytest.mark.parametrize("path", HIT)
def test_a_denied_path_that_is_added_changed_or_removed_is_found(path: str) -> None:
    """Deleting what checks a push is a change of it; modes count, too (I3)."""
    history = History()
    without = history.commit({"README": "1"})
    given = history.commit({"README": "1", **nested(path, "1")})
    for old, files in (
        (without, nested(path, "1")),
        (given, nested(path, "2")),
        (given, nested(path, (b"100755", history.put(ObjectKind.BLOB, b"1")))),
        (given, nested(path, (LINK, history.put(ObjectKind.BLOB, b"1")))),
        (given, nested(path, (MODULE, b"\x11" * 20))),
        (given, {}),
    ):
        new = history.commit({"README": "2", **files}, old)
        found = try_one(history, new, old, old=old)
        assert found.denied_path is not None
        shown = path.encode("ascii", "replace").decode()
        assert (found.denied_path, found.change) == (shown, RefChange.FAST_FORWARD)
        assert not found.unproven
    # Controls: left as it is, also behind a commit that is new itself.
    new = history.commit({"README": "2", **nested(path, "1")}, given)
    assert is_sound(try_one(history, new, given, old=given), RefChange.FAST_FORWARD)
    new = history.commit({"README": "3", **nested(path, "1")}, new)
    assert is_sound(try_one(history, new, given, old=given), RefChange.FAST_FORWARD)


@pytest.mark.parametrize("path", MISS)
def test_a_path_beside_denied_ones_is_free(path: str) -> None:
    history = History()
    without = history.commit(BASE)
    new = history.commit({"README": "1", **BASE, **nested(path, "1"), **CI}, without)
    if path.startswith(".github"):
        (segment,) = nested(path, "1").values()
        new = history.commit({**BASE, ".github": {**CI[".github"], **segment}}, without)
    assert is_sound(try_one(history, new, without, old=without), RefChange.FAST_FORWARD)
    back = history.commit(BASE, new)
    assert is_sound(try_one(history, back, new, old=new), RefChange.FAST_FORWARD)
    found = try_one(history, new, without, deny=globs([".github/workflows/**", "ci/*.yml"]))
    assert is_sound(found, RefChange.CREATE)


@pytest.mark.parametrize("old", [BASE, {"README": "1"}])
@pytest.mark.parametrize("mode", [LINK, MODULE])
def test_no_link_takes_the_place_of_a_guarded_directory(
    old: Mapping[str, Any], mode: bytes
) -> None:
    """A link at `.github` leads to workflows that no path of theirs would show."""
    history = History()
    main = history.commit(old)
    link = (mode, history.put(ObjectKind.BLOB, b"elsewhere"))
    for path in (".github", ".GitHub", ".circleci", "tools", "ci", "tools/any", ".gitlab"):
        new = history.commit({**old, **nested(path, link)}, main)
        assert try_one(history, new, main).denied_path in (path, ".github/workflows/ci.yml")
        # One that is there already stays, and may not be turned elsewhere.
        more = history.commit({**old, **nested(path, link), "x": "1"}, new)
        assert is_sound(try_one(history, more, new), RefChange.CREATE)
        other = (mode, history.put(ObjectKind.BLOB, b"nowhere"))
        turned = history.commit({**old, **nested(path, other)}, new)
        assert try_one(history, turned, new).denied_path == path
    # Control: where `**` is in front, what a link leads to is matched itself.
    new = history.commit({**old, "src": {"link": link}}, main)
    assert is_sound(try_one(history, new, main), RefChange.CREATE)


def test_a_directory_that_becomes_a_file_removes_what_was_in_it() -> None:
    history = History()
    main = history.commit(BASE)
    values: tuple[Any, ...] = ("a file", {"workflows": "a file"}, {}, {"workflows": {}})
    for value in values:
        new = history.commit({**BASE, ".github": value}, main)
        found = try_one(history, new, main)
        assert found.denied_path in (".github/workflows/ci.yml", ".github/workflows")
    plain = history.commit({"src": {"a": "1"}})
    new = history.commit({"src": {"a": "1"}, ".github": "a file"}, plain)
    assert is_sound(try_one(history, new, plain), RefChange.CREATE), "nothing can be in a file"


def test_a_first_commit_has_no_denied_path() -> None:
    history = History()
    found = try_one(history, history.commit(BASE))
    assert found.denied_path == ".github/workflows/ci.yml"
    assert is_sound(try_one(history, history.commit({"src": {"a": "1"}})), RefChange.CREATE)
    assert is_sound(try_one(history, history.commit({})), RefChange.CREATE)


def test_a_change_that_is_taken_back_is_a_change() -> None:
    """Each commit can be checked out and run, so each is compared with its parents."""
    history = History()
    main = history.commit(BASE)
    evil = history.commit({**BASE, "Jenkinsfile": "evil"}, main)
    new = history.commit(BASE, evil)
    found = try_one(history, new, main, old=main)
    assert (found.denied_path, found.change) == ("Jenkinsfile", RefChange.FAST_FORWARD)
    assert new.hex()[:12] in found.why, "the last one that has to be made again"


def test_a_merge_chooses_between_its_parents() -> None:
    """Each denied file on its own: what two branches of the repository changed comes together."""
    history = History()
    root = history.commit({".github": {"workflows": {"a.yml": "0", "b.yml": "0"}}})
    left = history.commit({".github": {"workflows": {"a.yml": "1", "b.yml": "0"}}}, root)
    right = history.commit({".github": {"workflows": {"a.yml": "0", "b.yml": "1"}}}, root)
    third = history.commit({".github": {"workflows": {"a.yml": "0"}}, "Makefile": "3"}, root)
    for parents in ((left, right), (left, right, third)):
        for a, b in (("0", "0"), ("1", "1"), ("1", "0"), ("0", "1")):
            files = {".github": {"workflows": {"a.yml": a, "b.yml": b}}, "x": "1"}
            new = history.commit(files, *parents)
            assert is_sound(try_one(history, new, *parents), RefChange.CREATE)
        new = history.commit({".github": {"workflows": {"a.yml": "2", "b.yml": "1"}}}, *parents)
        assert try_one(history, new, *parents).denied_path == ".github/workflows/a.yml"
    gone = {".github": {"workflows": {"a.yml": "1"}}, "Makefile": "3"}
    new = history.commit(gone, left, right, third)
    assert is_sound(try_one(history, new, left, right, third), RefChange.CREATE)
    new = history.commit(gone, left, right)
    assert try_one(history, new, left, right).denied_path in ("Makefile", ".github/workflows/b.yml")


def test_a_merge_takes_nothing_from_a_parent_that_is_not_shown() -> None:
    history = History()
    main = history.commit(BASE)
    evil = history.commit({**BASE, "Jenkinsfile": "evil"}, main)
    new = history.commit({**BASE, "Jenkinsfile": "evil"}, main, evil)
    # All of it is in the pack: the evil one is found where it enters.
    assert try_one(history, new, main).denied_path == "Jenkinsfile"
    # It is hidden: then it is not known where it leads.
    pushed = history.pack([new, *history.below(new)][1:])
    (found,) = try_all([update(main, new)], pushed, Upstream(history, main, also=[evil]))
    assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)


def test_only_differing_trees_are_asked_for() -> None:
    """With `**` in front all trees count, but equal ones are equal altogether."""
    history = History()
    files = {f"d{n}": {f"e{m}": {"f": f"{n} {m}"} for m in range(5)} for n in range(5)}
    main = history.commit(files)
    changed = {**files, "d3": {**files["d3"], "e2": {"f": "changed"}}}
    new = history.commit(changed, main)
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, new)], history.push([new], [main]), upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)
    assert [len(question.wants) for question in upstream.asked] == [1, 1, 1, 1]
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, new)], history.push([new], [main]), upstream, globs(["a/b"]))
    assert [len(question.wants) for question in upstream.asked] == [1, 1]


def test_all_that_many_commits_need_is_one_question() -> None:
    history = History()
    tips = [history.commit({"n": str(n), "Makefile": str(n)}) for n in range(20)]
    new = history.commit({"Makefile": "7"}, *tips)
    upstream = Upstream(history, *tips)
    (found,) = try_all([update(None, new)], history.push([new], tips), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert [len(question.wants) for question in upstream.asked] == [20, 20]


def test_commits_trees_and_files_are_asked_for_apart() -> None:
    """One branch lacks its parent's commit, the other a tree that upstream has, and both are of
    files that upstream has elsewhere."""
    history = History()
    main, other = history.commit(BASE), history.commit({**BASE, "x": "1"})
    new = history.commit({**BASE, "x": "2"}, main)
    again = history.commit(history.tree({**BASE, "x": "1"}), new)
    below = [oid for oid in history.below(new) if oid not in history.below(main)]
    upstream = Upstream(history, main, other)
    (found,) = try_all([update(None, again)], history.pack([again, *below]), upstream)
    assert is_sound(found, RefChange.CREATE)
    assert [len(question.wants) for question in upstream.asked] == [1, 2, 2]


def test_a_tree_that_nobody_shows_is_unproven() -> None:
    """A delta on an object of the server's is seen by git and not here (I3)."""
    history = History()
    main = history.commit(BASE)
    new = history.commit({".github": {"workflows": {"ci.yml": "evil"}}, "pad": "x" * 50}, main)
    tree = bytes.fromhex(history.objects[new][1][5:45].decode())
    base = history.objects[main][1][5:45]
    writer = PackWriter()
    writer.add(*history.objects[new])
    before = history.objects[bytes.fromhex(base.decode())][1]
    writer.on_oid(bytes.fromhex(base.decode()), delta(before, history.objects[tree][1]))
    (found,) = try_all([update(main, new)], writer.done(), Upstream(history, main))
    assert (found.change, found.denied_path, found.unproven) == (RefChange.UNKNOWN, None, True)
    # Control: with the base in the pack, it is seen for what it is.
    writer.add(ObjectKind.TREE, before)
    pushed = writer.done()
    rest = [oid for oid in history.below(new) if oid not in (new, tree)]
    for oid in rest:
        writer.add(*history.objects[oid])
    assert pushed != writer.done()
    (found,) = try_all([update(main, new)], writer.done(), Upstream(history, main))
    assert found.denied_path == ".github/workflows/ci.yml"


def test_a_tree_that_upstream_merely_has_is_compared_all_the_same() -> None:
    history = History()
    main = history.commit(BASE)
    evil = history.tree({".github": {"workflows": {"ci.yml": "evil"}}})
    new = history.commit(evil, main)
    upstream = Upstream(history, main)
    upstream.has |= history.below(evil)
    (found,) = try_all([update(main, new)], history.pack([new]), upstream)
    assert found.denied_path == ".github/workflows/ci.yml"


def test_without_denied_paths_no_tree_is_looked_at() -> None:
    history = History()
    main = history.commit(BASE)
    new = history.commit(b"\x11" * 20, main)
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, new)], history.pack([new]), upstream, deny=())
    assert is_sound(found, RefChange.FAST_FORWARD)
    assert upstream.asked == []


def test_the_empty_tree_need_not_be_sent() -> None:
    """Git knows it without having it, and so do we, by its name."""
    history = History()
    empty = object_id(ObjectKind.TREE, b"", "sha1")
    main = history.commit(empty)
    new = history.commit(history.tree({"a": "1"}), history.commit(empty, main))
    assert empty not in history.objects
    upstream = Upstream(history, main)
    pushed = history.pack(oid for oid in history.below(new, *history.parents(new)))
    (found,) = try_all([update(main, new)], pushed, upstream)
    assert is_sound(found, RefChange.FAST_FORWARD)


def test_a_glob_of_everything_freezes_everything() -> None:
    history = History()
    main = history.commit({"a": "1"})
    new = history.commit({"a": "2"}, main)
    assert try_one(history, new, main, deny=globs(["**"])).denied_path == "a"
    new = history.commit({"a": "1"}, main)
    assert is_sound(try_one(history, new, main, deny=globs(["**"])), RefChange.CREATE)


def test_a_path_is_shown_as_plain_text() -> None:
    """Who pushes chose the name; it goes to a terminal and a log (I8)."""
    history = History()
    name = "\x1b[2J\n\u202e" + "x" * 300
    new = history.commit({".circleci": {name: "1"}})
    shown = try_one(history, new).denied_path
    assert shown is not None
    assert shown.startswith(".circleci/?[2J??xxx")
    assert len(shown) == 200


# ── bombs (I9) ────────────────────────────────────────────────────────────────────────────────────


def test_a_tree_that_names_one_tree_many_times_is_looked_at_once() -> None:
    """Ten levels of ten entries are ten thousand million paths, in eleven small objects."""
    history = History()
    main = history.commit({"a": "1"})
    oid = history.tree({"Makefile2": "1"})
    for _ in range(10):
        oid = history.tree({f"d{n}": (b"40000", oid) for n in range(10)})
    new = history.commit(oid, main)
    assert is_sound(try_one(history, new, main), RefChange.CREATE)
    oid = history.tree({"Makefile": "1"})
    for _ in range(10):
        oid = history.tree({f"d{n}": (b"40000", oid) for n in range(10)})
    assert str(try_one(history, history.commit(oid, main), main).denied_path).endswith("/Makefile")


def test_what_is_compared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    main = history.commit({"a": "1"})
    new = history.commit({f"f{n}": "1" for n in range(100)}, main)
    needed = 2 * (100 + 1)
    for bound in (needed, needed - 1):
        monkeypatch.setattr(denied_paths, "MAX_COMPARED", bound)
        if bound == needed:
            assert is_sound(try_one(history, new, main), RefChange.CREATE)
        else:
            with pytest.raises(Malformed, match="too long to compare"):
                try_one(history, new, main)


def test_the_depth_of_directories_is_bounded() -> None:
    history = History()
    for depth in (denied_paths.MAX_DEPTH, denied_paths.MAX_DEPTH + 1):
        oid = history.tree({"a": "1"})
        for _ in range(depth):
            oid = history.tree({"d": (b"40000", oid)})
        new = history.commit(oid)
        if depth == denied_paths.MAX_DEPTH:
            assert is_sound(try_one(history, new), RefChange.CREATE)
        else:
            with pytest.raises(Malformed, match="deep"):
                try_one(history, new)


def test_what_is_remembered_of_trees_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denied_paths, "_MAX_REMEMBERED", 2)
    history = History()
    at = history.commit(BASE)
    tip = at
    for turn in range(20):
        at = history.commit({**BASE, "x": {"y": {"z": str(turn)}}}, at)
    assert is_sound(try_one(history, at, tip, old=tip), RefChange.FAST_FORWARD)


def test_a_long_history_is_walked_without_recursion() -> None:
    history = History()
    tip = at = history.commit({"a": "1"})
    for _ in range(3000):
        at = history.commit({"a": "1"}, at)
    assert is_sound(try_one(history, at, tip, old=tip), RefChange.FAST_FORWARD)


# ── malformed objects, tags, deletes ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "tree",
    [
        b"100644 Jenkinsfile\0" + b"\x11" * 20 + b"100644 Jenkinsfile\0" + b"\x22" * 20,
        b"40000 b\0" + b"\x11" * 20 + b"40000 .github\0" + b"\x22" * 20,
        b"040000 .github\0" + b"\x11" * 20,
        b"40000 .github/workflows\0" + b"\x11" * 20,
        b"40000 .git\0" + b"\x11" * 20,
    ],
)
def test_a_pushed_tree_that_two_servers_read_differently_is_refused(tree: bytes) -> None:
    history = History()
    main = history.commit(BASE)
    with pytest.raises(Malformed) as caught:
        try_one(history, history.commit(history.put(ObjectKind.TREE, tree), main), main)
    assert caught.value.message


def test_a_pushed_commit_that_two_servers_read_differently_is_refused() -> None:
    history = History()
    main = history.commit(BASE)
    content = history.objects[history.commit(BASE, main)][1]
    odd = content.replace(b"\ncommitter", b"\nparent " + main.hex().encode() + b"\ncommitter")
    pushed = history.pack([history.put(ObjectKind.COMMIT, odd)])
    with pytest.raises(Malformed, match="behind its author"):
        try_all([update(main, list(history.objects)[-1])], pushed, Upstream(history, main))


def test_a_branch_names_a_commit_and_nothing_else() -> None:
    history = History()
    main = history.commit(BASE)
    tag = history.tag(main)
    tree = history.tree({"a": "1"})
    for oid in (tag, tree):
        pushed = history.pack([oid])
        (found,) = try_all([update(None, oid)], pushed, Upstream(history, main))
        assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)
        assert "commit" in found.why


def test_a_parent_that_is_no_commit_is_unproven() -> None:
    history = History()
    tree = history.tree({"a": "1"})
    new = history.commit(tree, tree)
    (found,) = try_all([update(None, new)], history.pack([new, tree]), Upstream(history))
    assert found.unproven


def test_a_tag_is_followed_to_its_commit() -> None:
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "x": "1"}, main)
    evil = history.commit({**BASE, "Jenkinsfile": "1"}, main)
    upstream = Upstream(history, main)
    for target, path in ((main, None), (new, None), (evil, "Jenkinsfile")):
        for oid in (target, history.tag(target), history.tag(history.tag(target), "tag")):
            pushed = history.pack(
                [*(o for o in history.objects if history.objects[o][0] is ObjectKind.TAG)]
                + [o for o in history.below(target) if o not in history.below(main)]
            )
            (found,) = try_all([update(None, oid, "refs/tags/v1")], pushed, upstream)
            assert (found.change, found.denied_path) == (RefChange.CREATE, path)
            assert not found.unproven


def test_a_tag_of_something_else_is_unproven() -> None:
    history = History()
    main = history.commit(BASE)
    tree = history.tree({"a": "1"})
    cases = [history.tag(tree, "tree"), history.tag(tree), history.tag(b"\x11" * 20, "blob")]
    cases += [history.tag(b"\x11" * 20), history.tag(b"\x11" * 20, "tag")]
    deep = main
    for _ in range(push_trial.MAX_PEELS + 1):
        deep = history.tag(deep, "tag" if history.objects[deep][0] is ObjectKind.TAG else "commit")
    for tag in (*cases, deep):
        tags = [o for o in history.objects if history.objects[o][0] is ObjectKind.TAG]
        pushed = history.pack([*tags, tree])
        (found,) = try_all([update(None, tag, "refs/tags/v1")], pushed, Upstream(history, main))
        assert (found.change, found.unproven) == (RefChange.UNKNOWN, True)
    above = bytes.fromhex(history.objects[deep][1][7:47].decode())
    pushed = history.pack([o for o in history.objects if history.objects[o][0] is ObjectKind.TAG])
    (found,) = try_all([update(None, above, "refs/tags/v1")], pushed, Upstream(history, main))
    assert is_sound(found, RefChange.CREATE), "one level less is followed"


def test_a_tag_of_a_tag_that_the_repository_has_is_trusted() -> None:
    history = History()
    main = history.commit(BASE)
    theirs = history.tag(main)
    mine = history.tag(theirs, "tag")
    upstream = Upstream(history, main, theirs)
    (found,) = try_all([update(None, mine, "refs/tags/v1")], history.pack([mine]), upstream)
    assert is_sound(found, RefChange.CREATE)


def test_a_tag_that_moves_is_a_force_wherever_it_goes() -> None:
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "x": "1"}, main)
    pushed = history.push([new], [main])
    upstream = Upstream(history, main)
    (found,) = try_all([update(main, new, "refs/tags/v1")], pushed, upstream)
    assert is_sound(found, RefChange.FORCE)


def test_commands_are_found_apart_and_in_order() -> None:
    history = History()
    main = history.commit(BASE)
    good = history.commit({**BASE, "x": "1"}, main)
    evil = history.commit({**BASE, "Jenkinsfile": "1"}, good)
    lost = history.commit(BASE, b"\x11" * 20)
    commands = [
        update(main, good, "refs/heads/agent/good"),
        update(main, evil, "refs/heads/agent/evil"),
        RefCommand(main.hex(), "0" * 40, "refs/heads/agent/gone"),
    ]
    pushed = history.push([good, evil], [main])
    upstream = Upstream(history, main)
    first, second, third = try_all(commands, pushed, upstream)
    assert is_sound(first, RefChange.FAST_FORWARD)
    assert (second.denied_path, second.change) == ("Jenkinsfile", RefChange.FAST_FORWARD)
    assert is_sound(third, RefChange.DELETE)
    assert [f.ref for f in (first, second, third)] == [c.ref for c in commands]
    pushed = history.pack([*history.below(good, lost)])
    upstream = Upstream(history, main)
    found = try_all([commands[0], update(main, lost, "refs/heads/l")], pushed, upstream)
    assert [f.unproven for f in found] == [False, True]
    assert QuestionPurpose.OBJECTS not in asks(upstream), (
        "one that is lost stops the questions for all"
    )


# ── beside the real git ───────────────────────────────────────────────────────────────────────────

PATHS = (
    ".github/workflows/a.yml", ".github/workflows/b/c.yml", ".GitHub/workflows/a.yml", ".github/x",
    ".github/workflows", "Jenkinsfile", "src/Jenkinsfile", "src/Jenkinsfile/x", "src/deep/y", "z",
)  # fmt: skip
GLOBS = globs([".github/workflows/**", "**/Jenkinsfile"])


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[dict[str, str], list[int]]]:
    """Commits as files and the numbers of their parents."""
    story: list[tuple[dict[str, str], list[int]]] = []
    for number in range(draw(st.integers(2, 9))):
        parents: list[int] = []
        if number:
            before = st.integers(0, number - 1)
            parents = draw(st.lists(before, max_size=min(number, 3), unique=True))
        goes_on = draw(st.integers(0, 3))
        files = dict(story[parents[0]][0]) if parents and goes_on else {}
        for path in draw(st.lists(st.sampled_from(PATHS), max_size=3)):
            stays = draw(st.booleans())
            if files.pop(path, None) is None or stays:
                clash = [p for p in files if p.startswith(path + "/") or path.startswith(p + "/")]
                for other in clash:
                    del files[other]
                files[path] = draw(st.sampled_from("123"))
        story.append((files, parents))
    return story


def as_tree(files: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, content in files.items():
        *directories, name = path.split("/")
        at = tree
        for directory in directories:
            at = at.setdefault(directory, {})
        at[name] = content
    return tree


def is_denied(path: str) -> bool:
    segments = tuple(fold(segment) for segment in path.split("/"))
    below = [segments[:size] for size in range(1, len(segments) + 1)]
    return any(glob.folded().matches(part) for glob in GLOBS for part in below)


@settings(max_examples=40)
@given(stories(), st.data())
def test_findings_are_what_git_says_of_the_same_history(
    story: list[tuple[dict[str, str], list[int]]], data: st.DataObject
) -> None:
    """Ancestry by `merge-base`, new commits by `rev-list`, paths by `diff-tree`."""
    history = History()
    commits: list[bytes] = []
    for files, parents in story:
        commits.append(history.commit(as_tree(files), *(commits[p] for p in parents)))
    tips: list[bytes] = data.draw(st.lists(st.sampled_from(commits), max_size=3, unique=True))
    new = data.draw(st.sampled_from(commits))
    updates, knows, has_all = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    old = data.draw(st.sampled_from(tips)) if tips and updates else None
    known = tips if knows else []
    dangling = commits if has_all else []
    upstream = Upstream(history, *tips, also=dangling)
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        git(directory, "init", "-q", "--bare", ".")
        git(directory, "unpack-objects", "-q", told=history.pack(history.objects))
        excluded = [f"^{tip.hex()}" for tip in known]
        asked = "\n".join([new.hex(), *excluded]).encode()
        pushed = git(directory, "pack-objects", "--revs", "--stdout", "-q", told=asked)
        (found,) = try_all([update(old, new)], pushed, upstream, GLOBS)
        walk = ["rev-list", new.hex(), "--not", *(tip.hex() for tip in tips)]
        touched = set()
        fresh = git(directory, *walk, "--reverse", "--topo-order").decode().split()
        rooted = {oid.hex() for oid in commits} - set(fresh)
        for commit in fresh:
            parents_of = git(directory, "rev-list", "--parents", "-1", commit).decode().split()[1:]
            if counted := [parent for parent in parents_of if parent in rooted]:
                rooted.add(commit)
                parents_of = (
                    git(directory, "merge-base", "--independent", *counted).decode().split()
                )
            words = ["diff-tree", "-r", "-z", "--name-only", "--no-commit-id", "--no-renames"]
            named = [git(directory, *words, p, commit) for p in parents_of]
            named = named or [git(directory, *words, "--root", commit)]
            changed = set.intersection(*(set(n.decode().split("\0")) - {""} for n in named))
            touched |= {path for path in changed if is_denied(path)}
        assert not found.unproven
        assert (found.denied_path in touched) if touched else found.denied_path is None
        if old is not None:
            is_on = git_affirms(directory, "merge-base", "--is-ancestor", old.hex(), new.hex())
            assert found.change is (RefChange.FAST_FORWARD if is_on else RefChange.FORCE)
        else:
            assert found.change is RefChange.CREATE


def test_modes_of_real_checkouts_are_compared(tmp_path: Path) -> None:
    """A repository that git itself made: a symlink, a program, a submodule's entry."""
    git(tmp_path, "init", "-q", ".")
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "ci.yml").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    main = git(tmp_path, "rev-parse", "HEAD").decode().strip()
    (tmp_path / "link").symlink_to(".github")
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "two")
    fine = git(tmp_path, "rev-parse", "HEAD").decode().strip()
    git(tmp_path, "update-index", "--chmod=+x", ".github/workflows/ci.yml")
    git(tmp_path, "commit", "-qm", "three")
    evil = git(tmp_path, "rev-parse", "HEAD").decode().strip()

    class Real(Upstream):
        def pack(self, question: UpstreamQuestion) -> bytes | None:
            told = "\n".join(question.wants).encode()
            return git(tmp_path, "pack-objects", "--stdout", "-q", told=told)

    for new, path in ((fine, None), (evil, ".github/workflows/ci.yml")):
        told = f"{new}\n^{main}".encode()
        pushed = git(tmp_path, "pack-objects", "--revs", "--stdout", "-q", told=told)
        upstream = Real(History())
        upstream.tips = (bytes.fromhex(main),)
        (found,) = try_all([RefCommand(main, new, BRANCH)], pushed, upstream)
        assert (found.denied_path, found.change) == (path, RefChange.FAST_FORWARD)


def test_a_push_without_a_verdict_is_denied_by_a_decision() -> None:
    """I3."""
    assert not PushUnjudged("no judge").decision.allowed
    assert PushUnjudged("no judge").reason == "push-unjudged"
    over = Decision(reason=Reason.OVER_SHARE, rule="shares.judges")
    assert PushUnjudged("none is free", over).reason == "over-share"
