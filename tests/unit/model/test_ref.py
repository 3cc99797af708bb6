"""Of all the refs that git accepts, two namespaces and a plain alphabet exist (I3).

The refused names are those of facts/git-protocol.md §3 and §5: each was accepted by some server.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.ref import MAX_REF_LENGTH, Ref, RefKind, parse_ref_glob, short_ref

SEGMENTS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8).filter(
    lambda segment: segment[0] != "-"
)
NAMES = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("text", "kind", "segments"),
    [
        ("refs/heads/main", RefKind.BRANCH, ("main",)),
        ("refs/heads/agent/fix-1.2", RefKind.BRANCH, ("agent", "fix-1.2")),
        ("refs/heads/JIRA-1_x", RefKind.BRANCH, ("JIRA-1_x",)),
        ("refs/tags/v1.0", RefKind.TAG, ("v1.0",)),
        ("refs/tags/heads/x", RefKind.TAG, ("heads", "x")),
    ],
)
def test_a_branch_or_tag_is_read_from_its_full_name(
    text: str, kind: RefKind, segments: tuple[str, ...]
) -> None:
    ref = Ref.parse(text)
    assert ref == Ref(kind, segments)
    assert str(ref) == text
    assert ref.name == "/".join(segments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "refs/replace/" + "a" * 40,
        *"""refs refs/ refs/heads refs/heads/ refs/tags/ main HEAD heads/main /refs/heads/main
        refs//heads/main Refs/heads/x refs/Heads/x refs/HEADS/x refs/Tags/x refs/pull/1/head
        refs/merge-requests/1/head refs/for/main refs/for-review/main refs/drafts/main
        refs/changes/01/1/1 refs/notes/commits refs/meta/config refs/keep-around/x
        refs/remotes/origin/main refs/stash refs/headsx/main""".split(),
    ],
)
def test_no_other_namespace_exists(text: str) -> None:
    """I3. The control is the table above: the same names below refs/heads are read."""
    with pytest.raises(Unparsable, match="only refs/heads"):
        Ref.parse(text)


@pytest.mark.parametrize(
    "name",
    [
        *"""a..b .. . a/../main a/./main a//b a/ /a .hidden a/.hidden main.lock a.lock/b main. a./b
        -x a/--force a~1 a^ a:b a? a* * a[b] a@{1} @ @{-1} a{b a%2fb a,b a;b a$(id) a`id` a'b a"b
        a+b a#b a!b""".split(),
        "a b",
        "a\tb",
        "a\nb",
        "a\0b",
        "a\x7fb",
        "main\n",
        "a\\b",
        "ma\u0131n",
        "m\u0430in",
        "main\u200b",
        "\u200bmain",
        "main\ufeff",
        "ma\u00adin",
        "café",
        "\ud800",
        "\uff4dain",
    ],
)
def test_a_name_outside_the_plain_alphabet_is_refused(name: str) -> None:
    """I4: no name that a server or a person could take for another one."""
    assert Ref.parse("refs/heads/main").name == "main"
    for namespace in ("heads", "tags"):
        with pytest.raises(Unparsable, match="ref name"):
            Ref.parse(f"refs/{namespace}/{name}")


def test_case_is_kept_for_the_policy_to_compare() -> None:
    assert Ref.parse("refs/heads/MAIN") != Ref.parse("refs/heads/main")


def test_a_ref_name_has_at_most_200_bytes() -> None:
    """I9."""
    longest = "refs/heads/" + "a" * (MAX_REF_LENGTH - len("refs/heads/"))
    assert str(Ref.parse(longest)) == longest
    with pytest.raises(Unparsable, match="at most 200"):
        Ref.parse(longest + "a")


def test_branches_and_tags_sort_together() -> None:
    texts = ["refs/tags/a", "refs/heads/b", "refs/heads/a/x", "refs/heads/a"]
    assert [str(ref) for ref in sorted(map(Ref.parse, texts))] == sorted(texts)


@given(NAMES, st.sampled_from(RefKind))
def test_a_ref_is_written_as_it_is_read(name: str, kind: RefKind) -> None:
    text = f"refs/{kind.value}/{name}"
    assert str(Ref.parse(text)) == text


@given(st.one_of(st.text(max_size=20), st.text(max_size=20).map("refs/heads/".__add__)))
def test_any_text_is_a_plain_ref_or_refused(text: str) -> None:
    try:
        ref = Ref.parse(text)
    except Unparsable:
        return
    assert text == str(ref)
    assert set(ref.name) <= set(string.ascii_letters + string.digits + "._-/")


# ── globs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("main", ["main"], ["Main", "maine", "a/main"]),
        ("agent/*", ["agent/x"], ["agent", "agent/x/y", "agents/x"]),
        ("agent/**", ["agent", "agent/x", "agent/x/y"], ["agents/x"]),
        ("release-*", ["release-1", "release-"], ["release", "release-1/x"]),
        ("*", ["main"], ["a/b"]),
        ("**", ["main", "a/b"], []),
        ("v*.*", ["v1.2", "v1.2.3"], ["v1"]),
        ("*-wip", ["x-wip"], ["x-wip/y"]),
    ],
)
def test_a_glob_of_branches_is_matched_by_segments(
    glob: str, yes: list[str], no: list[str]
) -> None:
    pattern = parse_ref_glob(glob)
    assert str(pattern) == glob
    for name in yes:
        assert pattern.matches(tuple(name.split("/"))), name
    for name in no:
        assert not pattern.matches(tuple(name.split("/"))), name


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("refs/heads/agent/*", "without 'refs/heads/'", "agent/*"),
        ("refs/tags/v*", "without 'refs/tags/'", "v*"),
        ("refs/pull/*", "only branches and tags", None),
        ("refs/*", "only branches and tags", None),
        ("+agent/*", "refspec", "agent/*"),
        ("main:main", "refspec", "main"),
        ("+a:b", "refspec", "a"),
        ("", "1 to 200", None),
        ("a" * 201, "1 to 200", None),
        ("a**", "stands alone", None),
        ("***", "stands alone", None),
        ("a/**b", "stands alone", None),
        ("/a", "no empty segment", None),
        ("a/", "no empty segment", None),
        ("a//b", "no empty segment", None),
        ("a..b", "no '..'", None),
        ("*.lock", "'.lock'", None),
        ("*.", "ends in '.'", None),
        (".a", "begin with", None),
        ("-a", "begin with", None),
        ("a b", "begin with", None),
        ("a?", "begin with", None),
        ("[ab]", "begin with", None),
        ("!main", "begin with", None),
        ("{a,b}", "begin with", None),
        ("ma\u200bin", "begin with", None),
    ],
)
def test_a_glob_that_git_or_a_person_reads_otherwise_is_refused(
    text: str, why: str, hint: str | None
) -> None:
    with pytest.raises(Unparsable) as refusal:
        parse_ref_glob(text)
    assert why in refusal.value.message
    assert refusal.value.hint == hint


@given(NAMES.filter(lambda name: not name.startswith("refs/")))
def test_a_name_without_stars_is_a_glob_for_itself_alone(name: str) -> None:
    glob = parse_ref_glob(name)
    assert glob == Glob(tuple(name.split("/")))
    assert glob.matches(Ref.parse(f"refs/heads/{name}").segments)
    assert not glob.matches(Ref.parse(f"refs/heads/{name}/x").segments)


@given(st.text(max_size=20))
def test_any_text_is_a_glob_or_refused(text: str) -> None:
    try:
        glob = parse_ref_glob(text)
    except Unparsable:
        return
    assert str(glob) == text


@pytest.mark.parametrize(
    ("ref", "short"),
    [
        ("refs/heads/main", "main"),
        ("refs/tags/v1", "v1"),
        ("refs/heads/refs/tags/main", "refs/tags/main"),
        ("refs/tags/refs/heads/x", "refs/heads/x"),
        ("refs/heads/refs/heads/main", "refs/heads/main"),
        ("refs/notes/x", "refs/notes/x"),
    ],
)
def test_a_short_name_loses_one_namespace_alone(ref: str, short: str) -> None:
    """I3: otherwise an odd branch's rule would be main's."""
    assert short_ref(ref) == short
