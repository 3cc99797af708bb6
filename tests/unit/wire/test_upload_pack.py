"""Fetches of clients are written anew (I4), and what Keyhole asks brings what it needs, no more.

The questions are put to a real `git upload-pack`, with filters and without.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed, Refused, UpstreamFailed
from keyhole.wire.git_refs import UPLOAD_PACK, AdvertisementRewriter
from keyhole.wire.pkt_line import DELIM, FLUSH, MAX_DATA, encode, read_packets
from keyhole.wire.upload_pack import (
    MAX_ERROR,
    MAX_REQUEST,
    MAX_SHORT_LINES,
    PackReader,
    RefsReader,
    RemoteRefs,
    ServerAbilities,
    fetch_request,
    ls_refs_request,
    read_abilities,
    read_fetch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

ONE, TWO = "1" * 40, "2" * 40
WANT = b"want " + ONE.encode()


def packets(*lines: bytes) -> bytes:
    return b"".join(map(encode, lines))


def v2(*lines: bytes, command: bytes = b"fetch", head: tuple[bytes, ...] = ()) -> bytes:
    start = packets(b"command=" + command + b"\n", *head)
    return start + DELIM + packets(*lines) + FLUSH


# ── what a client asks ───────────────────────────────────────────────────────────────────────────

FETCH = v2(
    b"thin-pack\n", b"no-progress\n", b"include-tag\n", b"ofs-delta\n", b"sideband-all\n",
    b"wait-for-done\n", b"shallow " + TWO.encode() + b"\n", b"deepen 1\n", b"deepen-relative\n",
    b"deepen-since 1700000000\n", b"deepen-not refs/heads/old\n", b"filter blob:none\n",
    b"want-ref refs/heads/main\n", WANT + b"\n", b"have " + TWO.encode() + b"\n", b"done\n",
    head=(b"agent=git/2.39.5\n", b"object-format=sha1\n", b"session-id=1\n"),
)  # fmt: skip
LS_REFS = v2(b"peel\n", b"symrefs\n", b"unborn\n", b"ref-prefix refs/heads/\n", command=b"ls-refs")
OBJECT_INFO = v2(b"size\n", b"oid " + ONE.encode() + b"\n", command=b"object-info")
OLD = (
    packets(
        WANT + b" multi_ack_detailed no-done side-band-64k thin-pack agent=git/2 filter\n",
        b"want " + TWO.encode() + b"\n",
        b"shallow " + TWO.encode() + b"\n",
        b"deepen 3\n",
        b"filter blob:none\n",
    )
    + FLUSH
    + packets(b"have " + TWO.encode() + b"\n")
    + FLUSH
    + packets(b"done\n")
)


@pytest.mark.parametrize(
    "body", [FETCH, LS_REFS, OBJECT_INFO, packets(b"command=ls-refs\n") + FLUSH]
)
def test_requests_of_protocol_two_pass(body: bytes) -> None:
    assert read_fetch(body, 2) == body


@pytest.mark.parametrize("version", [0, 1])
def test_requests_of_older_protocols_pass(version: int) -> None:
    assert read_fetch(OLD, version) == OLD
    plain = packets(WANT + b"\n") + FLUSH + packets(b"done\n")
    assert read_fetch(plain, version) == plain


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_probe_passes(version: int) -> None:
    assert read_fetch(FLUSH, version) == FLUSH


def test_lines_without_an_end_are_written_with_one() -> None:
    assert read_fetch(v2(WANT, b"done"), 2) == v2(WANT + b"\n", b"done\n")
    assert read_fetch(packets(WANT), 0) == packets(WANT + b"\n")


def test_a_client_is_not_sent_to_other_hosts_for_packs() -> None:
    """I2: the argument is dropped, the rest goes on."""
    asked = v2(WANT + b"\n", b"packfile-uris https\n", b"done\n")
    assert read_fetch(asked, 2) == v2(WANT + b"\n", b"done\n")
    with pytest.raises(Refused):
        read_fetch(v2(b"packfile-uris https\n", command=b"ls-refs"), 2)


@pytest.mark.parametrize(
    "body",
    [
        v2(command=b"bundle-uri"),
        v2(command=b"FETCH"),
        v2(WANT, head=(b"server-option=x",)),
        v2(WANT, head=(b"server-option",)),
        v2(WANT, head=(b"something-new",)),
        v2(WANT, b"something-new"),
        v2(b"want " + ONE.upper().replace("1", "A").encode()),
        v2(WANT + b" junk"),
        v2(WANT + b"\0"),
        v2(WANT + b"\n\n"),
        v2(b"deepen -1"),
        v2(b"filter a b"),
        v2(b""),
        v2(WANT, command=b"ls-refs"),
        v2(b"peel"),
    ],
)
def test_what_is_not_known_is_refused(body: bytes) -> None:
    """I3: commands, capabilities and arguments are those of a list."""
    with pytest.raises(Refused) as refused:
        read_fetch(body, 2)
    assert refused.value.message
    assert read_fetch(FETCH, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"00",
        FLUSH + FETCH,
        FETCH + FLUSH,
        FETCH + FETCH,
        FETCH[:-4],
        FETCH[:-4] + b"0001",
        FETCH[:-4] + b"00020000",
        FETCH[:-4] + DELIM + packets(WANT) + FLUSH,
        FETCH + packets(b"command=bundle-uri") + FLUSH,
        DELIM + packets(WANT) + FLUSH,
        packets(b"agent=x", b"command=fetch") + FLUSH,
        packets(b"command=") + FLUSH,
        packets(b"fetch") + FLUSH,
        packets(b"command=fetch", b"command=bundle-uri") + DELIM + packets(WANT) + FLUSH,
        packets(b"command=fetch", b"agent=x\tserver-option=y") + FLUSH,
        packets(b"command=fetch", b"agent=" + b"x" * (MAX_DATA - 6)) + FLUSH,
        OLD,
    ],
)
def test_a_request_is_one_command_and_its_arguments(body: bytes) -> None:
    """I4: C git executes the first of two commands; another server may take the second."""
    with pytest.raises(Malformed):
        read_fetch(body, 2)
    assert read_fetch(FETCH, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        FLUSH + OLD,
        FETCH,
        packets(b"done\n"),
        packets(WANT, b"want " + TWO.encode() + b" filter") + FLUSH,
        packets(WANT + b" agent=x\tfilter") + FLUSH,
        packets(WANT, b"something-new") + FLUSH,
        packets(WANT, b"have " + TWO.encode() + b" x"),
        packets(WANT) + DELIM,
        packets(WANT) + b"0002",
        packets(WANT, b""),
        packets(WANT) + b"00",
    ],
)
def test_older_requests_are_wants_and_haves(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_fetch(body, 0)
    assert read_fetch(OLD, 0)


@pytest.mark.parametrize("version", [0, 2])
def test_a_fetch_is_bounded_in_bytes_and_lines(version: int) -> None:
    """I9: one line and one byte less pass."""
    have = encode(b"have " + TWO.encode())
    start, end = ((v2(WANT)[:-4], FLUSH) if version == 2 else (packets(WANT), b""))  # fmt: skip
    many = start + have * (MAX_REQUEST // len(have) - 4) + end
    assert len(read_packets(many)) > 150_000
    assert read_fetch(many, version)
    done = encode(b"done")
    assert read_fetch(start + done * (MAX_SHORT_LINES - 8) + end, version)
    with pytest.raises(Malformed, match="packets"):
        read_fetch(start + done * (MAX_SHORT_LINES * 2) + end, version)
    with pytest.raises(Malformed, match="bytes"):
        read_fetch(start + have * (MAX_REQUEST // len(have)) + end, version)


def test_an_older_capability_that_is_not_known_is_refused() -> None:
    with pytest.raises(Refused):
        read_fetch(packets(WANT + b" filter something-new=1") + FLUSH, 1)
    assert read_fetch(packets(WANT + b" filter") + FLUSH, 1)


@given(st.binary(max_size=60), st.integers(0, len(FETCH)), st.sampled_from([0, 1, 2]))
def test_what_passes_is_written_as_it_is_read_again(junk: bytes, at: int, version: int) -> None:
    for body in (FETCH[:at] + junk + FETCH[at:], OLD[:at] + junk + OLD[at:], junk):
        try:
            written = read_fetch(body, version)
        except (Malformed, Refused):
            continue
        assert read_fetch(written, version) == written


# ── what an origin answers ───────────────────────────────────────────────────────────────────────

LISTED = [
    f"{ONE} HEAD symref-target:refs/heads/main\n".encode(),
    f"{ONE} refs/heads/main\n".encode(),
    f"{ONE} refs/heads/alias symref-target:refs/heads/main\n".encode(),
    f"{TWO} refs/tags/v1 peeled:{ONE}\n".encode(),
    f"{TWO} refs/pull/1/head\n".encode(),
]
REFS = RemoteRefs(
    "refs/heads/main",
    frozenset({"refs/heads/alias"}),
    {"refs/heads/main": ONE, "refs/heads/alias": ONE, "refs/tags/v1": TWO},
    {"refs/tags/v1": ONE},
)


def refs(body: bytes) -> RemoteRefs:
    reader = RefsReader()
    reader.feed(body)
    return reader.end()


@given(st.lists(st.integers(0, 400), max_size=6))
def test_refs_are_read_wherever_the_answer_is_cut(cuts: list[int]) -> None:
    body, reader, at = packets(*LISTED) + FLUSH, RefsReader(), 0
    for cut in [*sorted(cuts), len(body)]:
        reader.feed(body[at:cut])
        at = max(at, cut)
    assert reader.end() == REFS


def test_a_head_that_names_no_branch_is_not_known() -> None:
    """I3: without a default branch, the policy denies."""
    assert refs(packets(f"{ONE} HEAD".encode()) + FLUSH).head is None
    assert refs(FLUSH).head is None
    unborn = packets(b"unborn HEAD symref-target:refs/heads/main\n") + FLUSH
    assert refs(unborn) == RemoteRefs("refs/heads/main", frozenset(), {}, {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        packets(*LISTED),
        packets(*LISTED) + FLUSH + b"0",
        packets(*LISTED) + FLUSH + FLUSH,
        packets(*LISTED) + DELIM,
        packets(LISTED[1], LISTED[1]) + FLUSH,
        packets(b"unborn refs/heads/x") + FLUSH,
        packets(b"x refs/heads/x") + FLUSH,
        packets(ONE.encode() + b" refs/heads/x surprise:1") + FLUSH,
        packets(ONE.encode() + b" refs/heads/x\nrefs/heads/y") + FLUSH,
        packets(b"") + FLUSH,
    ],
)
def test_an_odd_list_of_refs_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        refs(body)
    assert refs(packets(*LISTED) + FLUSH) == REFS


def test_refs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: those that are not kept do not count."""
    monkeypatch.setattr("keyhole.wire.upload_pack.MAX_REFS", 3)
    assert refs(packets(*LISTED) + FLUSH) == REFS
    with pytest.raises(Malformed, match="at most 3"):
        refs(packets(*LISTED, f"{ONE} refs/heads/x".encode()) + FLUSH)


ANSWER = (
    packets(b"acknowledgments\n", b"NAK\n")
    + DELIM
    + packets(b"shallow-info\n", b"shallow " + ONE.encode())
    + DELIM
    + packets(b"packfile\n", b"\x02counting\n", b"\x01PACK", b"\x01", b"\x01more")
    + FLUSH
)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=6))
def test_a_pack_is_read_wherever_the_answer_is_cut(cuts: list[int]) -> None:
    reader, found, at = PackReader(), b"", 0
    for cut in [*sorted(cuts), len(ANSWER)]:
        found += reader.feed(ANSWER[at:cut])
        at = cut
    assert (found, reader.done) == (b"PACKmore", True)


def test_a_cut_pack_is_not_done() -> None:
    reader = PackReader()
    assert reader.feed(ANSWER[:-4]) == b"PACKmore"
    assert not reader.done


@pytest.mark.parametrize(
    "body",
    [
        FLUSH,
        DELIM,
        packets(b"acknowledgments\n", b"NAK\n") + FLUSH,
        packets(b"packfile-uris\n"),
        packets(b"PACK"),
        packets(b"packfile\n") + DELIM,
        packets(b"packfile\n") + b"0002",
        packets(b"packfile\n", b""),
        packets(b"packfile\n", b"\x04x"),
        packets(b"packfile\n", b"PACK"),
        ANSWER + FLUSH,
        ANSWER + packets(b"packfile\n"),
    ],
)
def test_an_answer_that_is_no_pack_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        PackReader().feed(body)
    assert PackReader().feed(ANSWER) == b"PACKmore"


@pytest.mark.parametrize(
    "body",
    [
        packets(b"ERR not\nours\x1b"),
        packets(b"packfile\n", b"\x01PACK", b"\x03not\nours\x1b"),
        packets(b"acknowledgments\n", b"ERR not\nours\x1b"),
    ],
)
def test_an_error_of_the_origin_is_one_printable_line(body: bytes) -> None:
    """I8: no line of a log or terminal can be made of it."""
    with pytest.raises(UpstreamFailed) as error:
        PackReader().feed(body)
    assert error.value.message == "not ours"


def test_errors_in_place_of_refs_and_abilities_are_told() -> None:
    with pytest.raises(UpstreamFailed, match="gone"):
        refs(packets(b"ERR gone"))
    with pytest.raises(UpstreamFailed) as error:
        read_abilities(packets(b"ERR " + b"x" * 1000))
    assert error.value.message == "x" * MAX_ERROR


V2 = [b"version 2\n", b"ls-refs=unborn\n", b"fetch=shallow filter\n", b"object-format=sha256\n"]
SERVICE = packets(b"# service=git-upload-pack\n") + FLUSH


@pytest.mark.parametrize(
    ("body", "abilities"),
    [
        (packets(*V2) + FLUSH, ServerAbilities(2, "sha256", True, True)),
        (SERVICE + packets(*V2) + FLUSH + b"zzzz", ServerAbilities(2, "sha256", True, True)),
        (
            packets(b"version 2", b"ls-refs", b"fetch=shallow") + FLUSH,
            ServerAbilities(2, "sha1", False),
        ),
        (packets(b"version 2") + FLUSH, ServerAbilities(2, "sha1", False)),
        (
            SERVICE + packets(b"version 1", ONE.encode() + b" HEAD\0thin-pack filter agent=x\n"),
            ServerAbilities(1, "sha1", True),
        ),
        (
            SERVICE + packets(ONE.encode() + b" HEAD\0thin-pack object-format=sha256 fetch=filter"),
            ServerAbilities(0, "sha256", False),
        ),
    ],
)
def test_abilities_are_read(body: bytes, abilities: ServerAbilities) -> None:
    assert read_abilities(body) == abilities


@pytest.mark.parametrize(
    "body", [b"", SERVICE, packets(*V2), packets(b"version 2", b"object-format=md5") + FLUSH]
)
def test_abilities_that_are_cut_or_odd_are_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        read_abilities(body)


# ── what Keyhole asks ────────────────────────────────────────────────────────────────────────────


def test_questions_are_requests_that_we_would_let_pass() -> None:
    for object_format, digits in (("sha1", 40), ("sha256", 64)):
        oid = "1" * digits
        asked = fetch_request(
            [oid, oid], [], object_format=object_format, alone=True, filtered=True
        )
        assert read_fetch(asked, 2) == asked
        assert asked.count(b"want ") == 1
        assert (b"object-format=sha256" in asked) is (object_format == "sha256")
        for unborn in (False, True):
            asked = ls_refs_request(object_format, unborn=unborn)
            assert read_fetch(asked, 2) == asked
            assert (b"unborn" in asked) is unborn


@pytest.mark.parametrize("oid", ["", "1" * 39, "1" * 64, "A" * 40, ONE + "\n", ONE[:-1] + "\0"])
def test_a_question_names_objects_and_nothing_else(oid: str) -> None:
    """I4: who asks has read a hostile pack."""
    for wants, haves in (([oid], []), ([ONE], [oid])):
        with pytest.raises(Malformed, match="hex"):
            fetch_request(wants, haves, object_format="sha1", alone=False, filtered=True)
    assert fetch_request([ONE], [TWO], object_format="sha1", alone=False, filtered=True)


class Origin:
    """A bare repository, and what a real server answers for it.

    main: first <- second <- merge, and first <- side <- merge. Each commit has `d/e/file`.
    """

    def __init__(self, place: Path, object_format: str, *, filters: bool) -> None:
        self.place = place
        self.object_format = object_format
        self.filters = filters
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "x",
            "GIT_AUTHOR_EMAIL": "x@example.org",
            "GIT_COMMITTER_NAME": "x",
            "GIT_COMMITTER_EMAIL": "x@example.org",
        }
        self.git("init", "-q", "--bare", "-b", "main", f"--object-format={object_format}", ".")
        self.git("config", "uploadpack.allowFilter", str(filters).lower())
        self.first = self.commit("1")
        self.second = self.commit("2", self.first)
        self.side = self.commit("3", self.first)
        self.merge = self.commit("4", self.second, self.side)
        self.git("update-ref", "refs/heads/main", self.merge)
        self.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
        self.git("update-ref", "refs/heads/side", self.side)
        self.git("tag", "-a", "-m", "x", "v1", self.side)

    def git(self, *arguments: str, body: bytes = b"", protocol: str = "") -> str:
        return self.raw(*arguments, body=body, protocol=protocol).decode().strip()

    def raw(self, *arguments: str, body: bytes = b"", protocol: str = "") -> bytes:
        done = subprocess.run(
            ["git", "-C", str(self.place), *arguments],  # noqa: S607 - the git of the host
            input=body,
            capture_output=True,
            env=self.environment | {"GIT_PROTOCOL": protocol},
            check=False,
        )
        return done.stdout

    def commit(self, content: str, *parents: str) -> str:
        below = self.git("hash-object", "-w", "--stdin", body=content.encode())
        for mode, name in (("100644 blob", "file"), ("040000 tree", "e"), ("040000 tree", "d")):
            below = self.git("mktree", body=f"{mode} {below}\t{name}\n".encode())
        named = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", below, *named, "-m", content)

    def oid(self, name: str) -> str:
        return self.git("rev-parse", name)

    def answer(self, request: bytes) -> bytes:
        return self.raw("upload-pack", "--stateless-rpc", ".", body=request, protocol="version=2")

    def ask(
        self, wants: Iterable[str], haves: Iterable[str] = (), *, alone: bool = False
    ) -> set[str]:
        """The objects that an answer brings."""
        request = fetch_request(
            wants, haves, object_format=self.object_format, alone=alone, filtered=self.filters
        )
        assert read_fetch(request, 2) == request
        reader = PackReader()
        pack = reader.feed(self.answer(request))
        assert reader.done
        fresh = self.place / "fresh.git"
        self.git("init", "-q", "--bare", f"--object-format={self.object_format}", str(fresh))
        # Every base is in the pack: none is filled in from a repository that is empty.
        self.raw("-C", str(fresh), "unpack-objects", "-q", body=pack)
        found = self.git(
            "-C", str(fresh), "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"
        )
        shutil.rmtree(fresh)
        return set(found.split())


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Origin]:
    """Origins that nothing writes to, each made once."""

    @functools.cache
    def made(object_format: str = "sha1", *, filters: bool = True, bitmap: bool = False) -> Origin:
        origin = Origin(tmp_path_factory.mktemp("origin"), object_format, filters=filters)
        if bitmap:
            origin.git("repack", "-adb")
        return origin

    return made


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
formats = pytest.mark.parametrize("object_format", ["sha1", "sha256"])


@needs_git
@formats
@pytest.mark.parametrize("filters", [False, True])
def test_refs_and_abilities_of_a_real_server(
    origins: Callable[..., Origin], object_format: str, filters: bool
) -> None:
    origin = origins(object_format, filters=filters)
    body = origin.raw("upload-pack", "--http-backend-info-refs", ".", protocol="version=2")
    rewriter = AdvertisementRewriter(UPLOAD_PACK)
    for said in (body, rewriter.feed(body) + rewriter.end()):
        assert read_abilities(said) == ServerAbilities(2, object_format, filters, True)
    reader = RefsReader()
    reader.feed(origin.answer(ls_refs_request(object_format)))
    found = reader.end()
    assert found.head == "refs/heads/main"
    assert found.symbolic == {"refs/heads/alias"}
    assert found.tips == {
        "refs/heads/alias": origin.merge,
        "refs/heads/main": origin.merge,
        "refs/heads/side": origin.side,
        "refs/tags/v1": origin.oid("v1"),
    }
    assert found.peeled == {"refs/tags/v1": origin.side}


@needs_git
def test_the_head_of_an_empty_repository_is_told(tmp_path: Path) -> None:
    origin = Origin(tmp_path, "sha1", filters=True)
    for ref in ("heads/main", "heads/side", "tags/v1"):
        origin.git("update-ref", "-d", f"refs/{ref}")
    for unborn, head in ((True, "refs/heads/main"), (False, None)):
        reader = RefsReader()
        reader.feed(origin.answer(ls_refs_request("sha1", unborn=unborn)))
        assert reader.end() == RemoteRefs(head, frozenset(), {}, {})


@needs_git
@formats
@pytest.mark.parametrize("bitmap", [False, True])
def test_history_is_the_commits_between_without_trees(
    origins: Callable[..., Origin], object_format: str, bitmap: bool
) -> None:
    """With a server that knows filters; a have that nobody knows counts for nothing."""
    origin = origins(object_format, bitmap=bitmap)
    merge, second, side, first = origin.merge, origin.second, origin.side, origin.first
    assert origin.ask([merge], [first]) == {merge, second, side}
    assert origin.ask([merge, side], [second]) == {merge, side}
    assert origin.ask([merge], ["a" * len(merge)]) == {merge, second, side, first}
    assert origin.ask([merge], [merge]) == set()
    assert origin.ask([origin.oid("v1")], [first]) == {origin.oid("v1"), side}


@needs_git
@formats
@pytest.mark.parametrize("bitmap", [False, True])
def test_objects_alone_are_those_and_nothing_below(
    origins: Callable[..., Origin], object_format: str, bitmap: bool
) -> None:
    origin = origins(object_format, bitmap=bitmap)
    merge, second = origin.merge, origin.second
    tree, d, e = (origin.oid(f"main{path}") for path in ("^{tree}", ":d", ":d/e"))
    other = origin.oid("main~1:d")
    assert origin.ask([merge], alone=True) == {merge}
    assert origin.ask([merge, second], [second], alone=True) == {merge, second}
    assert origin.ask([tree], alone=True) == {tree}
    assert origin.ask([d, other], alone=True) == {d, other}
    assert origin.ask([e], alone=True) == {e}
    assert origin.ask([origin.oid("v1")], alone=True) == {origin.oid("v1"), origin.side}


@needs_git
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_what_git_leaves_out_comes_when_it_is_asked_for_again(
    origins: Callable[..., Origin], order: tuple[int, ...]
) -> None:
    """A tree that lies below another of the same request may be missing; each answer has some."""
    origin = origins()
    names = [origin.oid(f"main{path}") for path in ("", "^{tree}", ":d", ":d/e")]
    wanted = [names[n] for n in order]
    rounds = 0
    while wanted:
        found = origin.ask(wanted, alone=True)
        assert found
        assert found <= set(names)
        wanted = [oid for oid in wanted if oid not in found]
        rounds += 1
    assert rounds <= len(names)


@needs_git
def test_a_server_without_filters_sends_what_is_below_too(origins: Callable[..., Origin]) -> None:
    origin = origins(filters=False)
    below = {origin.oid(f"main{path}") for path in ("^{tree}", ":d", ":d/e", ":d/e/file")}
    assert origin.ask([origin.merge], alone=True) == {origin.merge} | below
    assert origin.ask([origin.oid("main:d/e")], alone=True) == {
        origin.oid("main:d/e"),
        origin.oid("main:d/e/file"),
    }
    history = origin.ask([origin.merge], [origin.second])
    assert {origin.merge, origin.side} | below <= history
    assert origin.second not in history


@needs_git
def test_a_server_without_filters_does_not_answer_a_filter(origins: Callable[..., Origin]) -> None:
    """Why `filtered` has to be known: git ends without a word."""
    origin = origins(filters=False)
    asked = fetch_request([origin.merge], [], object_format="sha1", alone=True, filtered=True)
    assert origin.answer(asked) == b""


@needs_git
def test_an_object_that_is_not_there_is_an_error_of_the_origin(
    origins: Callable[..., Origin],
) -> None:
    origin = origins()
    with pytest.raises(UpstreamFailed, match="not our ref"):
        origin.ask(["a" * 40])
