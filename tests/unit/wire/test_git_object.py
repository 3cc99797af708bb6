"""Commits, trees and tags in one spelling."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.git_object import (
    MAX_PARENTS,
    OID_BYTES,
    Commit,
    ObjectKind,
    Tag,
    kind_of_mode,
    object_id,
    parse_commit,
    parse_tag,
    parse_tree,
)
from tests.rigs.wire.packing import History, name_of

TREE, ONE, TWO = "aa" * 20, "bb" * 20, "cc" * 20
WHO = "A <a@example.com> 1 +0000"


def commit(*parents: str, more: str = "", text: str = "\nwords\n", who: str = WHO) -> bytes:
    lines = [f"tree {TREE}\n", *(f"parent {p}\n" for p in parents)]
    return ("".join(lines) + f"author {who}\ncommitter {who}\n{more}{text}").encode()


def entry(name: bytes, mode: bytes = b"100644", oid: bytes = b"\x11" * 20) -> bytes:
    return mode + b" " + name + b"\0" + oid


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("kind", list(ObjectKind))
def test_an_object_is_named_by_kind_size_and_content(object_format: str, kind: ObjectKind) -> None:
    assert object_id(kind, b"content", object_format) == name_of(kind, b"content", object_format)


def test_the_empty_tree_has_the_name_that_git_knows() -> None:
    assert (
        object_id(ObjectKind.TREE, b"", "sha1").hex() == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    )


@pytest.mark.parametrize("parents", [(), (ONE,), (ONE, TWO), (ONE,) * MAX_PARENTS])
def test_a_commit_is_its_tree_and_its_parents(parents: tuple[str, ...]) -> None:
    found = parse_commit(commit(*parents), 20)
    assert found == Commit(bytes.fromhex(TREE), tuple(map(bytes.fromhex, parents)))


def test_a_commit_of_sha256_has_longer_names() -> None:
    history = History("sha256")
    first = history.commit({"a": "1"})
    second = history.commit({"a": "2"}, first)
    assert parse_commit(history.objects[second][1], OID_BYTES["sha256"]).parents == (first,)
    with pytest.raises(Malformed, match="does not begin"):
        parse_commit(history.objects[second][1], OID_BYTES["sha1"])


def test_what_stands_behind_the_header_is_free() -> None:
    """A parent is one in the header alone; a message may quote one, and a signature may fold."""
    signed = "gpgsig -----BEGIN\n parent x\n tree y\n"
    for content in (commit(ONE, more=signed), commit(ONE, text=f"\nparent {TWO}\n\0")):
        assert parse_commit(content, 20).parents == (bytes.fromhex(ONE),)
    assert parse_commit(commit(ONE, text=""), 20).parents == (bytes.fromhex(ONE),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"tree",
        commit()[1:],
        commit().replace(b"tree ", b"tree  "),
        commit().replace(b"aa", b"AA", 1),
        commit().replace(b"aa", b"", 1),
        commit(ONE).replace(b"bb", b"BB", 1),
        commit(ONE).replace(b"parent ", b"Parent "),
        commit(ONE).replace(b"parent ", b"parent\t"),
        commit(ONE).replace(b"\nparent", b"\r\nparent"),
        commit().replace(b"author ", b"writer "),
        b"\n" + commit(),
    ],
)
def test_a_commit_that_begins_otherwise_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed, match="does not begin"):
        parse_commit(content, 20)


@pytest.mark.parametrize("more", [f"parent {ONE}\n", f"tree {ONE}\n", "parent\n", "note a\0b\n"])
def test_a_link_behind_the_author_is_refused(more: str) -> None:
    """Some forges read it as a parent and git does not, so ways would part there (I4)."""
    with pytest.raises(Malformed, match="behind its author"):
        parse_commit(commit(more=more), 20)
    with pytest.raises(Malformed, match="behind its author"):
        parse_commit(commit(more=more, text=""), 20)


def test_parents_are_bounded() -> None:
    with pytest.raises(Malformed, match="parents"):
        parse_commit(commit(*[ONE] * (MAX_PARENTS + 1)), 20)


def test_a_tag_is_its_target_and_what_it_says_of_it() -> None:
    content = f"object {ONE}\ntype tag\ntag v1\ntagger {WHO}\n\nwords\n".encode()
    assert parse_tag(content, 20) == Tag(bytes.fromhex(ONE), ObjectKind.TAG)
    for wrong in (
        content[1:],
        content.replace(b"bb", b"BB"),
        content.replace(b"type t", b"type x"),
    ):
        with pytest.raises(Malformed, match="tag"):
            parse_tag(wrong, 20)


def test_a_tree_is_its_entries_in_order() -> None:
    modes = (b"100644", b"100755", b"120000", b"160000", b"100664", b"40000")
    names = (b"A", b"b", b"c d", b"\xff", b"\xff\n", b"\xff\xff")
    content = b"".join(entry(n, m) for n, m in zip(names, modes, strict=True))
    found = parse_tree(content, 20)
    assert found == [(m, n, b"\x11" * 20) for n, m in zip(names, modes, strict=True)]
    assert parse_tree(b"", 20) == []


def test_a_mode_says_what_its_object_is() -> None:
    for mode in (b"100644", b"100755", b"100664", b"120000"):
        assert kind_of_mode(mode) is ObjectKind.BLOB
    assert kind_of_mode(b"40000") is ObjectKind.TREE
    assert kind_of_mode(b"160000") is ObjectKind.COMMIT


def test_a_directory_is_sorted_as_if_it_ended_in_a_slash() -> None:
    file, directory = entry(b"a.b"), entry(b"a", b"40000")
    assert len(parse_tree(file + directory, 20)) == 2
    with pytest.raises(Malformed, match="order"):
        parse_tree(directory + file, 20)


def test_an_oid_may_be_any_bytes() -> None:
    for oid in (b"\n" * 20, b"\0" * 20, b"100644 x\0" + b"\x11" * 11):
        assert parse_tree(entry(b"a", oid=oid) + entry(b"b"), 20)[0][2] == oid


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        entry(b""),
        entry(b"a/b"),
        entry(b"a")[:-1],
        entry(b"a") + b"x",
        b"x" + entry(b"a"),
        entry(b"a") + b"x" + entry(b"b"),
        entry(b"a", b"040000"),
        entry(b"a", b"0100644"),
        entry(b"a", b"100666"),
        entry(b"a", b"100600"),
        entry(b"a", b"1"),
        entry(b"a", b""),
    ],
)
def test_a_tree_with_something_else_in_it_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed, match="plain mode"):
        parse_tree(content, 20)


@pytest.mark.parametrize("name", [b".", b"..", b".git", b".GIT", b".Git"])
def test_a_name_that_is_none_is_refused(name: bytes) -> None:
    with pytest.raises(Malformed, match="named"):
        parse_tree(entry(name), 20)


@pytest.mark.parametrize("name", [b".gitignore", b"git", b"...", b".git2"])
def test_a_name_that_only_looks_like_it_is_read(name: bytes) -> None:
    assert parse_tree(entry(name), 20)[0][1] == name


def test_a_name_stands_once() -> None:
    """One reader would take the first, another the last (I4); a file and a directory too."""
    for content in (
        entry(b"a") + entry(b"a"),
        entry(b"a") + entry(b"a-") + entry(b"a", b"40000"),
        entry(b"a") + entry(b"a", oid=b"\x22" * 20),
    ):
        with pytest.raises(Malformed, match="two entries"):
            parse_tree(content, 20)


def test_entries_are_in_order() -> None:
    with pytest.raises(Malformed, match="order"):
        parse_tree(entry(b"b") + entry(b"a"), 20)


@given(st.binary(max_size=200))
def test_no_bytes_break_a_reader(content: bytes) -> None:
    for parse in (parse_commit, parse_tag, parse_tree):
        for size in OID_BYTES.values():
            with contextlib.suppress(Malformed):
                parse(content, size)
