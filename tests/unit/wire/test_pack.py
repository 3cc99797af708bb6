"""Packs: made by git, made by hand, and made to hurt."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.git_delta import apply_delta
from keyhole.wire.git_object import ObjectKind
from keyhole.wire.pack import MemorySource, Pack, PackBounds
from tests.rigs.wire import packing
from tests.rigs.wire.packing import PackWriter, delta, git, name_of, size_octets

if TYPE_CHECKING:
    from pathlib import Path

COMMIT, TREE, BLOB, TAG = (kind.value for kind in ObjectKind)
BASE, NEXT = b"a tree that is not one, but long enough " * 3, b"a tree that is not one, changed"


def read(data: bytes, bounds: PackBounds | None = None, object_format: str = "sha1") -> Pack:
    return Pack(MemorySource(data), object_format, bounds=bounds)


def refusal(data: bytes, bounds: PackBounds | None = None) -> str:
    with pytest.raises(Malformed) as caught:
        read(data, bounds)
    return caught.value.why


def repository(directory: Path, *, commits: int = 12, object_format: str = "sha1") -> None:
    """A history in which commits, trees and blobs become deltas."""
    git(directory, "init", "-q", f"--object-format={object_format}", ".")
    chance = random.Random(5)  # noqa: S311 - the same each time
    filler = "\n".join(str(chance.random()) for _ in range(60))
    for turn in range(commits):
        for number in range(30):
            if turn == 0 or number % 10 == turn % 10:
                (directory / f"file{number}").write_text(f"{filler}\n{number} {turn}\n")
        git(directory, "add", ".")
        git(directory, "commit", "-q", "-m", f"{filler}\nturn {turn}")
    git(directory, "tag", "-a", "v1", "-m", "first")


def packed(directory: Path, *words: str) -> bytes:
    return git(directory, "pack-objects", "--stdout", "-q", "--all", "--revs", *words)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("words", [("--delta-base-offset",), (), ("--window=0",)])
def test_every_commit_tree_and_tag_that_git_packed_is_found(
    tmp_path: Path, object_format: str, words: tuple[str, ...]
) -> None:
    """Both kinds of delta, and none; each content as `cat-file` has it."""
    repository(tmp_path, object_format=object_format)
    data = packed(tmp_path, *words)
    pack = read(data, object_format=object_format)
    listed = git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check").decode()
    kinds = set()
    for line in listed.splitlines():
        oid, kind, _ = line.split()
        found = pack.kind(bytes.fromhex(oid))
        if kind == "blob":
            assert found is None
            continue
        assert found is ObjectKind[kind.upper()]
        assert pack.read(bytes.fromhex(oid)) == git(tmp_path, "cat-file", kind, oid)
        kinds.add(found)
    assert kinds == {ObjectKind.COMMIT, ObjectKind.TREE, ObjectKind.TAG}
    assert len(pack) == len(listed.splitlines())
    codes = {data[at] >> 4 & 7 for at in pack._starts}
    assert bool(codes & {6, 7}) is ("--window=0" not in words), "the rig makes the deltas it claims"


def test_only_the_kinds_that_are_wanted_are_named(tmp_path: Path) -> None:
    repository(tmp_path)
    data = packed(tmp_path, "--delta-base-offset")
    commits = Pack(MemorySource(data), "sha1", frozenset((ObjectKind.COMMIT, ObjectKind.BLOB)))
    tree = bytes.fromhex(git(tmp_path, "rev-parse", "HEAD^{tree}").decode())
    head = bytes.fromhex(git(tmp_path, "rev-parse", "HEAD").decode())
    assert (commits.kind(head), commits.kind(tree)) == (ObjectKind.COMMIT, None)
    assert read(data).kind(tree) is ObjectKind.TREE


def test_an_empty_pack_is_one() -> None:
    assert len(read(PackWriter().done())) == 0


def test_a_chain_of_deltas_is_followed_whatever_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is let go of is made again, from its place in the pack."""
    contents = [BASE + str(turn).encode() * 50 for turn in range(20)]
    writer = PackWriter()
    place = writer.add(TREE, contents[0])
    for before, after in pairwise(contents):
        place = writer.on_place(place, delta(before, after))
    for held in (0, 300, 10_000):
        monkeypatch.setattr("keyhole.wire.pack.HELD", held)
        pack = read(writer.done())
        for content in reversed(contents):
            assert pack.read(name_of(ObjectKind.TREE, content)) == content


def test_a_delta_may_come_before_its_base_by_oid() -> None:
    """And deltas on that one, by place and by oid, are known once it is."""
    names = [name_of(ObjectKind.TREE, BASE + bytes([n])) for n in range(5)]
    codes = [delta(BASE + bytes([n]), BASE + bytes([n + 1])) for n in range(4)]
    writer = PackWriter()
    first = writer.on_oid(names[0], codes[0])
    writer.on_place(first, codes[1])
    writer.on_oid(names[2], codes[2])
    writer.on_oid(names[3], codes[3])
    assert [read(writer.done()).kind(name) for name in names] == [None] * 5
    writer.add(TREE, BASE + b"\0")
    pack = read(writer.done())
    assert [pack.kind(name) for name in names] == [ObjectKind.TREE] * 5
    assert pack.read(names[4]) == BASE + bytes([4])


def test_a_delta_on_what_only_the_server_has_stays_hidden() -> None:
    """So absence proves nothing; deltas on blobs are never applied, even broken ones."""
    writer = PackWriter()
    hidden = writer.on_oid(name_of(ObjectKind.TREE, BASE), delta(BASE, NEXT))
    writer.on_place(hidden, delta(NEXT, BASE))
    blob = writer.add(BLOB, BASE)
    writer.on_place(blob, b"no delta at all")
    writer.on_oid(name_of(ObjectKind.BLOB, BASE), b"no delta at all")
    pack = read(writer.done())
    assert len(pack) == 5
    assert pack.kind(name_of(ObjectKind.TREE, NEXT)) is None


def test_a_blob_is_never_named_as_something_else() -> None:
    """The kind is part of the name: a tree's bytes in a blob are no tree."""
    tree = b"100644 a\0" + b"\x11" * 20
    writer = PackWriter()
    writer.add(BLOB, tree)
    assert read(writer.done()).kind(name_of(ObjectKind.TREE, tree)) is None


def test_one_object_twice_is_refused() -> None:
    writer = PackWriter()
    place = writer.add(TREE, BASE)
    writer.on_place(place, delta(BASE, NEXT))
    assert len(read(writer.done())) == 2
    writer.add(TREE, NEXT)
    assert "twice" in refusal(writer.done())


# ── what is no pack ───────────────────────────────────────────────────────────────────────────────


def one(kind: int = TREE, content: bytes = BASE) -> PackWriter:
    writer = PackWriter()
    writer.add(kind, content)
    return writer


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_pack_that_is_cut_within_its_header_is_refused(cut: int) -> None:
    assert "PACK" in refusal(PackWriter().done()[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PACK\0\0\0\3" + PackWriter().done()[8:],
        b"PACK\0\0\0\0" + PackWriter().done()[8:],
        b"pack" + PackWriter().done()[4:],
    ],
)
def test_a_pack_that_begins_otherwise_is_refused(data: bytes) -> None:
    assert "PACK" in refusal(data)


def test_every_cut_and_every_addition_shows() -> None:
    """The pack ends where its last object and a sum end: no byte is left for another reader."""
    data = one().done()
    assert len(read(data)) == 1
    for cut in range(12, len(data)):
        assert refusal(data[:cut])
    for wrong in (
        data + b"\0",
        one().done(behind=one().done()),
        one().done(count=0),
        one().done(count=2),
    ):
        assert refusal(wrong)


@pytest.mark.parametrize("code", [0, 5])
def test_a_kind_that_does_not_exist_is_refused(code: int) -> None:
    assert "kind" in refusal(one(code).done())


@pytest.mark.parametrize(
    ("said", "why"), [(len(BASE) - 1, "larger"), (len(BASE) + 1, "smaller"), (0, "larger")]
)
@pytest.mark.parametrize("kind", [TREE, BLOB])
def test_an_object_has_the_size_that_it_says(said: int, why: str, kind: int) -> None:
    writer = PackWriter()
    writer.raw(size_octets(kind, said) + zlib.compress(BASE))
    assert why in refusal(writer.done())


@pytest.mark.parametrize("kind", [TREE, BLOB])
def test_an_object_that_cannot_be_inflated_is_refused(kind: int) -> None:
    squeezed = zlib.compress(BASE)
    preset = zlib.compressobj(zdict=BASE)
    with_dictionary = preset.compress(BASE) + preset.flush()
    for wrong in (b"\xff" + squeezed[1:], squeezed[:-1] + b"\0", with_dictionary):
        writer = PackWriter()
        writer.raw(size_octets(kind, len(BASE)) + wrong)
        assert "inflated" in refusal(writer.done())


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 300_000, 600_000])
@pytest.mark.parametrize("kind", [TREE, BLOB])
def test_objects_of_every_size_end_where_they_end(size: int, kind: int) -> None:
    """Random bytes and zeros: what is read at once ends within, at and behind them."""
    chance = random.Random(size)  # noqa: S311 - the same each time
    for content in (chance.randbytes(size), bytes(size)):
        for level in (0, 1, 9):
            writer = PackWriter()
            writer.raw(size_octets(kind, size) + zlib.compress(content, level))
            writer.add(COMMIT, b"behind")
            assert (
                read(writer.done()).kind(name_of(ObjectKind.COMMIT, b"behind")) is ObjectKind.COMMIT
            )


def test_an_object_may_be_padded_with_blocks_of_nothing() -> None:
    """Deflate allows them without end; they cost as much as they are long."""
    squeeze = zlib.compressobj(0)
    data = squeeze.compress(BASE)
    data += b"".join(squeeze.flush(zlib.Z_FULL_FLUSH) + b"\0\0\0\xff\xff" * 20 for _ in range(999))
    data += squeeze.flush()
    writer = PackWriter()
    writer.raw(size_octets(TREE, len(BASE)) + data)
    assert read(writer.done()).read(name_of(ObjectKind.TREE, BASE)) == BASE


def test_a_size_without_end_is_refused() -> None:
    writer = PackWriter()
    writer.raw(b"\xaf" + b"\x80" * 8 + b"\x01" + zlib.compress(BASE))
    assert "too large" in refusal(writer.done())
    writer = PackWriter()
    writer.raw(b"\xaf" + b"\x80" * 5)
    assert refusal(writer.done()[:-20])


@pytest.mark.parametrize("back", [b"\0", b"\x01", b"\x7f", b"\xff\xff\x7f", b"\x80"])
def test_a_delta_is_on_an_object_before_it(back: bytes) -> None:
    writer = one()
    writer.raw(size_octets(6, 5) + back + zlib.compress(b"delta"))
    assert refusal(writer.done())


def test_a_delta_on_the_header_or_the_middle_of_an_object_is_refused() -> None:
    for place in (11, 13, 0):
        writer = one()
        writer.on_place(place, delta(BASE, NEXT))
        assert "no object" in refusal(writer.done())
    writer = one()
    writer.on_place(12, delta(BASE, NEXT))
    assert len(read(writer.done())) == 2


# ── deltas ────────────────────────────────────────────────────────────────────────────────────────


def codes(target: int, *operations: bytes, base: int = len(BASE)) -> bytes:
    return packing.number(base) + packing.number(target) + b"".join(operations)


def test_a_delta_copies_and_adds() -> None:
    base = random.Random(1).randbytes(200_000)  # noqa: S311 - the same each time
    assert apply_delta(base, codes(3, packing.insert(b"new"), base=200_000), 9) == b"new"
    for start, size in ((0, 1), (255, 256), (70_000, 65536), (65536, 65537), (131072, 68_928)):
        made = apply_delta(base, codes(size, packing.copy(start, size), base=200_000), size)
        assert made == base[start : start + size]
    assert apply_delta(b"", codes(0, base=0), 0) == b""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "sizes"),
        (b"\xff" * 8, "sizes"),
        (b"\xff" * 9 + b"\1", "sizes"),
        (codes(1, packing.insert(b"x"), base=len(BASE) + 1), "another size"),
        (codes(4, packing.copy(len(BASE) - 3, 4)), "behind its base"),
        (codes(4, packing.copy(1 << 30, 4)), "behind its base"),
        (codes(3, b"\0abc"), "means nothing"),
        (codes(3, b"\3ab"), "ends early"),
        (codes(3, b"\x91"), "ends early"),
        (codes(3, b"\x91\1"), "ends early"),
        (codes(3, packing.insert(b"ab")), "less than"),
        (codes(3, packing.insert(b"abcd")), "more than"),
        (codes(3, packing.copy(0, 4)), "more than"),
        (codes(99, packing.insert(b"x" * 99)), "of more than 98"),
    ],
)
def test_a_delta_that_does_not_add_up_is_refused(wrong: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        apply_delta(BASE, wrong, 98)
    writer = one()
    writer.on_place(12, wrong)
    assert refusal(writer.done(), PackBounds(size=len(BASE) - 1 if "of more" in why else 1000))


# ── bombs (I9): each beside one that is just small enough ─────────────────────────────────────────


def test_the_number_of_objects_is_bounded() -> None:
    writer = PackWriter()
    for number in range(5):
        writer.add(BLOB, b"%d" % number)
    assert len(read(writer.done(), PackBounds(objects=5))) == 5
    assert "more than 4 objects" in refusal(writer.done(), PackBounds(objects=4))
    assert "more than 1000000 objects" in refusal(writer.done(count=2**32 - 1))


def test_the_number_of_commits_and_trees_is_bounded() -> None:
    """What counts is what is remembered: blobs are not, deltas on the unknown are."""
    writer = PackWriter()
    for number in range(3):
        writer.add(TREE, b"%d" % number)
        writer.add(BLOB, b"%d" % number)
    writer.on_oid(b"\x11" * 20, b"x")
    assert len(read(writer.done(), PackBounds(counted=4))) == 7
    assert "more than 3 commits and trees" in refusal(writer.done(), PackBounds(counted=3))


@pytest.mark.parametrize("kind", [COMMIT, TREE, TAG])
def test_the_size_of_a_commit_tree_or_tag_is_bounded(kind: int) -> None:
    data = one(kind, bytes(1000)).done()
    assert len(read(data, PackBounds(size=1000))) == 1
    assert "more than 999 bytes" in refusal(data, PackBounds(size=999))
    assert len(read(one(BLOB, bytes(1000)).done(), PackBounds(size=999))) == 1


def test_a_small_delta_that_makes_much_is_bounded() -> None:
    base = bytes(65536)
    target = codes(65536 * 20, *[packing.copy(0, 65536)] * 20, base=65536)
    assert len(target) < 100
    writer = one(TREE, base)
    writer.on_place(12, target)
    assert len(read(writer.done(), PackBounds(size=65536 * 20))) == 2
    assert "more than" in refusal(writer.done(), PackBounds(size=65536 * 20 - 1))


def test_all_that_is_inflated_is_bounded() -> None:
    writer = PackWriter()
    for kind in (BLOB, TREE, COMMIT):
        writer.add(kind, bytes(1000))
    assert len(read(writer.done(), PackBounds(work=3000))) == 3
    assert "more than 2999 bytes" in refusal(writer.done(), PackBounds(work=2999))


def test_all_that_deltas_make_is_bounded() -> None:
    writer = one(TREE, bytes(1000))
    for number in range(3):
        writer.on_place(12, codes(1001, packing.copy(0, 1000), bytes([1, number]), base=1000))
    spent = 1000 + 3 * 1001 + 3 * 9
    assert len(read(writer.done(), PackBounds(work=spent))) == 4
    assert "bytes" in refusal(writer.done(), PackBounds(work=spent - 1))


@pytest.mark.parametrize("by_oid", [False, True])
def test_deltas_on_one_another_are_bounded(by_oid: bool) -> None:
    """Without recursion: the deepest that is allowed is read."""
    contents = [BASE + b"%d" % number for number in range(251)]
    writer = PackWriter()
    if by_oid:
        for before, after in reversed(list(pairwise(contents))):
            writer.on_oid(name_of(ObjectKind.TREE, before), delta(before, after))
        writer.add(TREE, contents[0])
    else:
        place = writer.add(TREE, contents[0])
        for before, after in pairwise(contents):
            place = writer.on_place(place, delta(before, after))
    assert read(writer.done()).read(name_of(ObjectKind.TREE, contents[-1])) == contents[-1]
    assert "249 deltas" in refusal(writer.done(), PackBounds(depth=249))
    assert PackBounds().depth < 255, "depths are kept in a byte"


def test_a_blob_of_zeros_is_read_in_little_memory() -> None:
    """A mebibyte that inflates to a thousand times that (I9)."""
    squeeze = zlib.compressobj(9)
    size = 256 << 20
    pieces = [squeeze.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    writer = PackWriter()
    writer.raw(size_octets(BLOB, size) + b"".join(pieces) + squeeze.flush())
    data = writer.done()
    tracemalloc.start()
    try:
        assert len(read(data)) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_blob_is_known_by_its_name_if_somebody_asks() -> None:
    """Whole, by a delta on a place, and by deltas on names that come before their base."""
    contents = [BASE + b"%d" % number for number in range(5)]
    names = [name_of(ObjectKind.BLOB, content) for content in contents]
    writer = PackWriter()
    late = writer.on_oid(names[2], delta(contents[2], contents[3]))
    writer.on_place(late, delta(contents[3], contents[4]))
    writer.on_oid(names[1], delta(contents[1], contents[2]))
    writer.on_place(writer.add(BLOB, contents[0]), delta(contents[0], contents[1]))
    writer.on_oid(b"\x11" * 20, delta(BASE, NEXT))
    tree = name_of(ObjectKind.TREE, BASE)
    writer.add(TREE, BASE)
    pack = read(writer.done())
    assert all(map(pack.is_blob, names))
    assert not pack.is_blob(tree)
    assert pack.kind(tree) is ObjectKind.TREE
    assert not pack.is_blob(name_of(ObjectKind.BLOB, NEXT)), "its base is not here"
    assert [pack.kind(name) for name in names] == [None] * 5


@pytest.mark.parametrize("words", [("--delta-base-offset",), (), ("--window=0",)])
def test_every_blob_that_git_packed_is_known_by_its_name(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    repository(tmp_path)
    pack = read(packed(tmp_path, *words))
    listed = git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check").decode()
    for oid, kind, _ in map(str.split, listed.splitlines()):
        assert pack.is_blob(bytes.fromhex(oid)) is (kind == "blob")


def test_a_blob_that_is_too_much_for_a_delta_is_not_known() -> None:
    """It counts as not found, and the pack is not refused for it (I9)."""
    large = bytes(range(256)) * 8
    writer = PackWriter()
    writer.on_place(writer.add(BLOB, large), delta(large, large + b"!"))
    place = writer.add(BLOB, BASE)
    contents = [BASE + b"%d" % number for number in range(5)]
    for before, after in pairwise([BASE, *contents]):
        place = writer.on_place(place, delta(before, after))
    names = [name_of(ObjectKind.BLOB, content) for content in (large, large + b"!", *contents)]
    assert all(map(read(writer.done()).is_blob, names))
    bounded = read(writer.done(), PackBounds(size=len(large) - 1))
    assert [bounded.is_blob(name) for name in names[:3]] == [True, False, True]
    shallow = read(writer.done(), PackBounds(depth=0))
    assert [shallow.is_blob(name) for name in names[:3]] == [True, False, False]


@settings(max_examples=200)
@given(st.data())
def test_a_pack_that_was_tampered_with_is_read_or_refused(data: st.DataObject) -> None:
    writer = one()
    writer.on_place(12, delta(BASE, NEXT))
    writer.on_oid(name_of(ObjectKind.TREE, NEXT), delta(NEXT, BASE + NEXT))
    writer.add(BLOB, NEXT)
    wrong = bytearray(writer.done())
    for _ in range(data.draw(st.integers(1, 4))):
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        read(bytes(wrong), PackBounds(work=1 << 24)).is_blob(b"")


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        read(b"PACK\0\0\0\2\0\0\0\1" + data)
