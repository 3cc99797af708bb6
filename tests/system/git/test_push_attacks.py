"""Requests that no git sends, from inside, against the whole gateway and a real server (I3, I4).

What C git makes of each is in the facts on git's protocol: most of them it would carry out. The
control of all is the first test, by the same hand and in the same form.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import resource
import threading
import zlib
from typing import TYPE_CHECKING

import pytest

from keyhole.wire.git_object import ObjectKind, parse_tree
from tests.rigs.gateway.stage import AMPLE
from tests.rigs.gateway.talk import head
from tests.rigs.git.errands import WORKFLOW, furnish
from tests.rigs.git.rawpush import (
    CAPABILITIES,
    FLUSH,
    KIND,
    PUSH,
    REPOSITORY,
    ZERO,
    Bench,
    Kit,
    bench,
    command,
    empty_pack,
    first,
    packet,
    report,
    unlinked_files,
    until_nothing_is_held,
)
from tests.rigs.git.repositories import run_git
from tests.rigs.wire.packing import PackWriter, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.git.server import GitServer

MIB = 1 << 20
AGENT = "refs/heads/agent/forward"
OTHER = "refs/heads/agent/other"
FETCH = f"{REPOSITORY}/git-upload-pack"
FETCH_KIND = "Content-Type: application/x-git-upload-pack-request"

DELETE_MAIN = command(ZERO, ZERO, "refs/heads/main", CAPABILITIES)


@pytest.fixture(scope="module")
def table(git_server: GitServer) -> Iterator[Bench]:
    """One gateway for all attacks."""
    with bench(git_server) as made:
        yield made


@pytest.fixture(scope="module")
def made(git_server: GitServer, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The repository at the server, as every test finds it."""
    directory = tmp_path_factory.mktemp("kit")
    made = Kit.make(furnish(git_server), directory)
    made.keep(directory / "kept.git")
    return made


@pytest.fixture
def kit(made: Kit, git_server: GitServer) -> Kit:
    """As it was; nothing was asked of the server yet."""
    made.restore()
    git_server.asked()
    return made


class Untouched:
    """The server's repository before an attack; nothing of it may be other after."""

    def __init__(self, kit: Kit, server: GitServer) -> None:
        self._kit, self._server = kit, server

    def check(self) -> None:
        """No ref and no object changed, and the server never saw a push."""
        assert self._kit.look() == self._kit.state
        assert not [each for each in self._server.asked() if each.pushes]


@pytest.fixture
def untouched(kit: Kit, git_server: GitServer) -> Untouched:
    """To be asked when the attack is over."""
    return Untouched(kit, git_server)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_push_by_hand_arrives(
    table: Bench, kit: Kit, git_server: GitServer, chunks: bool
) -> None:
    """The control of every test here."""
    answer = table.post(kit.granted, chunks=chunks)
    assert answer.status == 200
    assert answer.one("content-type") == "application/x-git-receive-pack-result"
    assert report(answer).startswith(f"000eunpack ok\n{len(AGENT) + 8:04x}ok {AGENT}\n")
    assert kit.bare.branch("agent/forward") == kit.new
    assert [each.status for each in git_server.asked() if each.pushes] == [200]
    until_nothing_is_held()


# ── lists that two readers read differently ───────────────────────────────────────────────────────


def _upper(line: bytes) -> bytes:
    return line[:4].upper() + line[4:]


def _certificate(kit: Kit) -> bytes:
    lines = (
        b"push-cert\0" + CAPABILITIES, b"certificate version 0.1\n", b"pusher x 1 +0000\n",
        b"nonce 1\n", b"\n", f"{kit.main} {kit.evil} refs/heads/main\n".encode(),
        b"-----BEGIN PGP SIGNATURE-----\n", b"-----END PGP SIGNATURE-----\n", b"push-cert-end\n",
    )  # fmt: skip
    return b"".join(map(packet, lines))


LISTS: dict[str, Callable[[Kit], bytes]] = {
    "a delimiter ends the list": lambda k: first(k.old, k.new, AGENT) + b"0001" + k.pack,
    "a response end ends the list": lambda k: first(k.old, k.new, AGENT) + b"0002" + k.pack,
    "an illegal length": lambda k: first(k.old, k.new, AGENT) + b"0003" + FLUSH + k.pack,
    "an empty packet": lambda k: first(k.old, k.new, AGENT) + b"0004" + FLUSH + k.pack,
    "no end": lambda k: first(k.old, k.new, AGENT),
    "nothing": lambda _: b"",
    "a list of nothing, then a pack": lambda k: FLUSH + k.pack,
    "capabilities again": lambda k: first(k.old, k.new, AGENT)
    + command(ZERO, k.new, OTHER, b" push-options") + FLUSH + k.pack,
    "options asked for on the second line": lambda k: first(k.old, k.new, AGENT)
    + command(ZERO, k.new, OTHER, b" push-options") + FLUSH + packet(b"ci.skip") + FLUSH + k.pack,
    "a second NUL": lambda k: command(k.old, k.new, AGENT, CAPABILITIES + b"\0more")
    + FLUSH + k.pack,
    "a certificate": lambda k: _certificate(k) + FLUSH + k.evil_pack,
    "a list and a certificate": lambda k: first(k.old, k.new, AGENT) + _certificate(k)
    + FLUSH + k.evil_pack,
    "a list after the list": lambda k: first(k.old, k.new, AGENT) + FLUSH
    + command(k.main, k.evil, "refs/heads/main") + FLUSH + k.evil_pack,
    "a list after an empty one": lambda k: FLUSH + first(k.main, k.evil, "refs/heads/main")
    + FLUSH + k.evil_pack,
    "one ref twice": lambda k: first(k.old, k.new, AGENT) + command(k.new, k.old, AGENT)
    + FLUSH + k.pack,
    "capital letters in an oid": lambda k: first(k.old.upper(), k.new, AGENT) + FLUSH + k.pack,
    "capital letters in a length": lambda k: _upper(first(k.old, k.new, AGENT)) + FLUSH + k.pack,
    "a length with a sign": lambda k: b"+" + first(k.old, k.new, AGENT)[1:] + FLUSH + k.pack,
    "a length in hexadecimal": lambda k: b"0x" + first(k.old, k.new, AGENT)[2:] + FLUSH + k.pack,
    "a shallow line with more": lambda k: packet(f"shallow {k.old} more\n".encode())
    + first(k.old, k.new, AGENT) + FLUSH + k.pack,
    "a shallow line with capabilities": lambda k: packet(f"shallow {k.old}\0 x".encode())
    + first(k.old, k.new, AGENT) + FLUSH + k.pack,
    "a short oid": lambda k: first(k.old[:39], k.new, AGENT) + FLUSH + k.pack,
    "a long oid": lambda k: first(k.old + "0", k.new, AGENT) + FLUSH + k.pack,
    "two spaces": lambda k: first(k.old + " ", k.new, AGENT) + FLUSH + k.pack,
    "another object format": lambda k: command(
        "0" * 64, "1" * 64, AGENT, b" report-status object-format=sha256"
    ) + FLUSH + k.pack,
    "many commands": lambda k: first(k.old, k.new, AGENT)
    + b"".join(command(ZERO, k.new, f"refs/heads/agent/n{i}") for i in range(2000))
    + FLUSH + k.pack,
    "a long name": lambda k: first(ZERO, k.new, "refs/heads/agent/" + "n" * 5000) + FLUSH + k.pack,
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_can_be_read_in_two_ways_is_refused(
    table: Bench, kit: Kit, untouched: Untouched, name: str
) -> None:
    """I3, I4: what the gateway judged is what the server would do."""
    answer = table.post(LISTS[name](kit))
    assert answer.status in (200, 400, 403, 413), answer.head
    if answer.status == 200 and answer.body:
        assert " ok " not in report(answer).replace("unpack ok", "")
    untouched.check()
    until_nothing_is_held()


def test_the_probe_of_a_large_push_is_answered(
    table: Bench, kit: Kit, untouched: Untouched
) -> None:
    answer = table.post(FLUSH)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.one("content-type") == "application/x-git-receive-pack-result"
    assert not kit.bare.has(kit.new)


# ── commands that are more than they seem ─────────────────────────────────────────────────────────

COMMANDS: dict[str, Callable[[Kit], bytes]] = {
    "main": lambda k: first(k.main, k.evil, "refs/heads/main") + FLUSH + k.evil_pack,
    "zero to zero deletes": lambda _: DELETE_MAIN + FLUSH,
    "zero to zero deletes what is granted": lambda _: first(
        ZERO, ZERO, "refs/heads/agent/doomed") + FLUSH,
    "a delete": lambda k: first(k.main, ZERO, "refs/heads/agent/doomed") + FLUSH,
    "a delete of what one does not know": lambda _: first(
        "1" * 40, ZERO, "refs/heads/agent/doomed") + FLUSH,
    "a delete beside a push": lambda k: first(k.old, k.new, AGENT)
    + command(k.main, ZERO, "refs/heads/agent/doomed") + FLUSH + k.pack,
    "the same again": lambda k: first(k.old, k.old, AGENT) + FLUSH + empty_pack(),
    "an alias": lambda k: first(k.main, k.evil, "refs/heads/agent/alias") + FLUSH + k.evil_pack,
    "HEAD": lambda k: first(k.main, k.evil, "HEAD") + FLUSH + k.evil_pack,
    "what is older": lambda k: first(k.main, k.old, "refs/heads/agent/merge")
    + FLUSH + empty_pack(),
    "what nobody has": lambda k: first(k.old, "a" * 40, AGENT) + FLUSH + k.pack,
    "what nobody has, of nothing": lambda k: first(ZERO, "a" * 40, OTHER) + FLUSH + empty_pack(),
    "what a fork has": lambda k: first(ZERO, k.dangling, OTHER) + FLUSH + empty_pack(),
    "an update that says it creates": lambda k: first(
        ZERO, k.new, "refs/heads/agent/forced") + FLUSH + k.pack,
    "an old value that is past": lambda k: first(
        k.old, k.new, "refs/heads/agent/forced") + FLUSH + k.pack,
    "a pack of something else": lambda k: first(k.old, k.new, AGENT) + FLUSH + k.evil_pack,
    "no pack": lambda k: first(k.old, k.new, AGENT) + FLUSH,
    "half a pack": lambda k: (first(k.old, k.new, AGENT) + FLUSH + k.pack)[:-10],
    "a pack and more": lambda k: first(k.old, k.new, AGENT) + FLUSH + k.pack + b"more",
    "two packs": lambda k: first(k.old, k.new, AGENT) + FLUSH + k.pack + k.evil_pack,
    "a pack of another count": lambda k: first(k.old, k.new, AGENT) + FLUSH + k.pack[:8]
    + (2**32 - 1).to_bytes(4, "big") + k.pack[12:],
    "a pack of another version": lambda k: first(k.old, k.new, AGENT) + FLUSH + k.pack[:7]
    + b"\7" + k.pack[8:],
    "options that nobody allowed": lambda k: command(
        k.old, k.new, AGENT, CAPABILITIES + b" push-options"
    ) + FLUSH + packet(b"ci.variable=X=1") + FLUSH + k.pack,
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_judged_by_what_the_server_would_do(
    table: Bench, kit: Kit, untouched: Untouched, name: str
) -> None:
    """I3."""
    answer = table.post(COMMANDS[name](kit))
    assert answer.status in (200, 400, 403), answer.head
    if answer.status == 200 and answer.body:
        said = report(answer)
        assert "ng " in said or not said.startswith("000eunpack ok")
    untouched.check()
    until_nothing_is_held()


def _merge(kit: Kit, tree: str, *parents: str) -> tuple[str, bytes]:
    """A merge that says of itself what it holds, and the pack of what is new by it."""
    names = [part for parent in parents for part in ("-p", parent)]
    oid = kit.scratch.git("commit-tree", "-m", "merge", *names, tree).strip()
    return oid, kit.scratch.pack(oid, without=(kit.old, kit.main))


def test_a_merge_with_a_history_of_ones_own_removes_no_workflow(
    table: Bench, kit: Kit, untouched: Untouched
) -> None:
    """I3: a first commit has none of them, and is a parent like any other. It moves forward."""
    git = kit.scratch.git
    lines = git("ls-tree", kit.old).splitlines()
    bare = [line for line in lines if not line.endswith("\t.github")]
    assert len(bare) < len(lines)
    tree = git("mktree", data="".join(f"{line}\n" for line in bare).encode()).strip()
    orphan = git("commit-tree", "-m", "first", git("mktree", data=b"").strip()).strip()
    for parents in ((kit.old, orphan), (orphan, kit.old)):
        new, pack = _merge(kit, tree, *parents)
        answer = table.post(first(kit.old, new, AGENT) + FLUSH + pack)
        assert f"would change {WORKFLOW}" in report(answer)
    untouched.check()
    # Control: the same with the files as they are.
    new, pack = _merge(kit, f"{kit.old}^{{tree}}", kit.old, orphan)
    table.post(first(kit.old, new, AGENT) + FLUSH + pack)
    assert kit.bare.branch("agent/forward") == new


def test_a_merge_with_ones_own_past_brings_no_workflow_back(
    table: Bench, kit: Kit, untouched: Untouched
) -> None:
    """I3: `merge(main, main~1)`, with what main~1 has."""
    for parents in ((kit.main, kit.old), (kit.old, kit.main)):
        new, pack = _merge(kit, f"{kit.old}^{{tree}}", *parents)
        answer = table.post(first(ZERO, new, OTHER) + FLUSH + pack)
        assert f"would change {WORKFLOW}" in report(answer)
    untouched.check()
    # Control: the same with what main has, which is how a branch takes up what is new there.
    new, pack = _merge(kit, f"{kit.main}^{{tree}}", kit.old, kit.main)
    table.post(first(kit.old, new, AGENT) + FLUSH + pack)
    assert kit.bare.branch("agent/forward") == new


def test_a_pack_with_another_sum_is_nobodys(table: Bench, kit: Kit) -> None:
    """Its objects are what they are, so it may arrive; the server does not take it."""
    table.post(kit.granted[:-1] + bytes([kit.granted[-1] ^ 1]))
    assert kit.look() == kit.state


NAMES = (
    b"refs/heads/MAIN", b"refs/Heads/agent/x", b"REFS/heads/agent/x", b"refs/heads/agent/\xff",
    "refs/heads/agent/x\u200b".encode(), "refs/heads/\u212aey".encode(), b"refs/heads//agent/x",
    b"refs/heads/agent//x", b"refs/heads/agent/../main", b"refs/heads/agent/./x",
    b"refs/heads/agent/x.lock", b"refs/heads/agent/.x", b"refs/heads/agent/x ", b"agent/x",
    b"refs/heads/agent/x\n", b"refs/heads/agent/x\r", b"refs/heads/agent/x\t", b"refs/heads/agent/",
    b"refs/heads/agent", b"refs/heads/agent/x@{1}", b"refs/heads/agent/x~1", b"refs/heads/agent/*",
    b"refs/pull/1/head", b"refs/for/main", b"refs/drafts/main", b"refs/for-review/main",
    b"refs/changes/01/1/1", b"refs/notes/commits", b"refs/meta/config", b"refs/keep-around/x",
    b"refs/merge-requests/1/head", b"refs/remotes/agent/x", b"refs/replace/" + b"1" * 40,
    b"refs/tags/agent/x", b"refs/heads/refs/heads/agent/x", b"refs/stash", b"HEAD", b"FETCH_HEAD",
    b"", b"refs/heads/-agent/x", b"refs/heads/agent/-x",
)  # fmt: skip


def test_a_name_that_is_no_plain_branch_is_refused(
    table: Bench, kit: Kit, untouched: Untouched
) -> None:
    """I3: only what a pattern names, spelt as it is spelt."""
    for name in NAMES:
        answer = table.post(first(ZERO, kit.new, name) + FLUSH + kit.pack)
        assert answer.status in (200, 400, 403), (name, answer.head)
        if answer.status == 200:
            assert "ng " in report(answer), name
    untouched.check()


def test_a_reason_cannot_be_forged_by_a_name(table: Bench, kit: Kit) -> None:
    """I8: what the sandbox sent is cut to one printable line."""
    name = b"refs/heads/x\x1b[2J\nok refs/heads/main"
    answer = table.post(first(ZERO, kit.new, name) + FLUSH + kit.pack)
    assert b"\x1b" not in answer.body
    assert b"\nok refs" not in answer.body
    for event in table.stage.watch.events:
        assert "\n" not in str(dict(event.details).get("ref", ""))


# ── around the list ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "identity, gzip", "br"])
def test_a_push_is_never_compressed(
    table: Bench, kit: Kit, untouched: Untouched, coding: str
) -> None:
    """I4: a server inflates what the gateway would have read as it is."""
    body = gzip.compress(kit.granted) if "gzip" in coding else zlib.compress(kit.granted)
    assert table.post(body, f"Content-Encoding: {coding}").status in (400, 403, 415)
    untouched.check()


@pytest.mark.parametrize(
    "kind",
    [
        "", KIND + "; charset=utf-8", KIND.upper(), "Content-Type: text/plain", FETCH_KIND,
        KIND.replace("request", "result"),
    ],
)  # fmt: skip
def test_a_push_has_its_media_type(table: Bench, kit: Kit, untouched: Untouched, kind: str) -> None:
    answer = table.post(kit.granted, kind=kind)
    assert answer.status in (400, 403, 415)
    untouched.check()


@pytest.mark.parametrize(
    "path",
    [
        f"{PUSH}?service=git-upload-pack", f"{PUSH}/", f"/{PUSH}",
        "/acme/vault.git/git-receive-pack", "/acme/widgets.git/../vault.git/git-receive-pack",
        "/acme//widgets.git/git-receive-pack",
        "/acme/widgets.git/%67it-receive-pack", "/acme/widgets.git/git-receive-pack%00",
        "/acme/widgets.git;x/git-receive-pack",
        "/acme/widgets.git.git/git-receive-pack", "/acme/widgets.wiki.git/git-receive-pack",
        "/acme/widgets.git/info/refs/git-receive-pack", "/acme/widgets.git/git-upload-archive",
    ],
)  # fmt: skip
def test_a_push_has_its_address(table: Bench, kit: Kit, untouched: Untouched, path: str) -> None:
    assert table.post(kit.granted, path=path).status in (400, 403, 404)
    untouched.check()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "GET", "DELETE", "PROPFIND", "MKCOL"])
def test_a_push_is_a_post(table: Bench, kit: Kit, untouched: Untouched, method: str) -> None:
    assert table.post(kit.granted, method=method).status in (400, 403, 404, 405)
    untouched.check()


def test_what_is_advertised_for_a_push_is_what_may_be_done(table: Bench, kit: Kit) -> None:
    """Nothing that would be refused is on offer, nothing of forks is told."""
    answer = table.get(f"{REPOSITORY}/info/refs?service=git-receive-pack")
    assert answer.status == 200
    assert answer.one("content-type") == "application/x-git-receive-pack-advertisement"
    text = answer.body
    assert b"no-thin" in text
    for word in (b"push-cert", b"push-options", b".have"):
        assert word not in text
    assert b"report-status" in text
    assert f"{kit.main} refs/heads/main".encode() in text


@pytest.mark.parametrize(
    "query",
    [
        "?service=git-upload-pack&service=git-receive-pack", "?service=git%2dreceive-pack",
        "?s%65rvice=git-receive-pack", "?service=git-receive-pack&x=1",
        "?x=1&service=git-upload-pack", "?service=git-upload-archive", "", "?", "?service=",
        "?service=git-Receive-pack", "?service=git-upload-pack#", "?service=git-upload-pack%00",
    ],
)  # fmt: skip
def test_discovery_is_asked_in_one_way(table: Bench, kit: Kit, query: str) -> None:
    """I4. Control: the test above, and every clone."""
    assert table.get(f"{REPOSITORY}/info/refs{query}").status in (400, 403, 404)
    paths = [(each.path, each.query) for each in table.server.asked()]
    assert not [each for each in paths if each[0].endswith("/info/refs")]


@pytest.mark.parametrize("path", ["HEAD", "objects/info/packs", "objects/info/http-alternates",
                                  "config", "git-upload-archive"])  # fmt: skip
def test_there_is_no_dumb_protocol(table: Bench, kit: Kit, path: str) -> None:
    assert table.get(f"{REPOSITORY}/{path}").status in (403, 404)
    assert not table.server.asked()


# ── fetches ───────────────────────────────────────────────────────────────────────────────────────

V2 = "Git-Protocol: version=2"
LS_REFS = packet(b"command=ls-refs\n") + b"0001" + packet(b"peel\n") + FLUSH


def test_a_fetch_by_hand_is_answered(table: Bench, kit: Kit) -> None:
    """The control of those below, plain and compressed."""
    for body, lines in ((LS_REFS, ()), (gzip.compress(LS_REFS), ("Content-Encoding: gzip",))):
        answer = table.post(body, V2, *lines, path=FETCH, kind=FETCH_KIND)
        assert answer.status == 200
        assert f"{kit.main} refs/heads/main".encode() in answer.body


@pytest.mark.parametrize(
    "body",
    [
        packet(b"command=bundle-uri\n") + FLUSH,
        packet(b"command=ls-refs\n") + packet(b"server-option=x\n") + b"0001" + FLUSH,
        packet(b"command=object-push\n") + FLUSH,
        LS_REFS + LS_REFS,
        LS_REFS[:-2],
        b"garbage",
    ],
)
def test_a_fetch_asks_what_is_known(table: Bench, kit: Kit, body: bytes) -> None:
    table.server.asked()
    answer = table.post(body, V2, path=FETCH, kind=FETCH_KIND)
    told = f"{kit.main} refs/heads/main".encode() in answer.body
    # A server option is dropped, the rest is refused: neither reaches the server as it was.
    assert answer.status != 200 or b"ERR" in answer.body or (b"server-option" in body and told)


def test_a_compressed_fetch_is_no_bomb(table: Bench, kit: Kit) -> None:
    """I9: bounded by what it becomes; and what is behind the first member is nobody's."""
    table.server.asked()
    for body in (
        gzip.compress(bytes(64 * MIB), 9),
        gzip.compress(LS_REFS) + gzip.compress(LS_REFS),
        gzip.compress(LS_REFS)[:-6],
    ):
        lines = (V2, "Content-Encoding: gzip")
        answer = table.post(body, *lines, path=FETCH, kind=FETCH_KIND)
        assert answer.status in (400, 403, 413)
    assert not table.server.asked()


# ── interrupted ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["in the list", "in the pack", "before the last chunk"])
def test_a_push_that_is_cut_off_leaves_nothing(
    table: Bench, kit: Kit, untouched: Untouched, where: str
) -> None:
    """I9: no file, no descriptor, nothing upstream."""
    body = kit.granted + bytes(4 * MIB)
    for _ in range(10):
        talk = table.talk()
        if where == "before the last chunk":
            talk.send(head("POST", PUSH, KIND, "Transfer-Encoding: chunked"))
            talk.send(b"%x\r\n%b\r\n" % (len(kit.granted), kit.granted))
        else:
            talk.send(head("POST", PUSH, KIND, f"Content-Length: {len(body)}"))
            talk.send(body[:50] if where == "in the list" else body[: 2 * MIB])
        talk.close()
    until_nothing_is_held()
    untouched.check()


def test_a_push_whose_pusher_is_gone_when_it_is_judged_leaves_nothing(
    table: Bench, kit: Kit
) -> None:
    talk = table.talk()
    talk.send(head("POST", PUSH, KIND, f"Content-Length: {len(kit.granted)}"), kit.granted)
    talk.close()
    until_nothing_is_held()
    assert kit.bare.branch("agent/forward") in (kit.old, kit.new)


def test_a_door_that_closes_takes_its_quarantine_along(git_server: GitServer, kit: Kit) -> None:
    """I2, I9: half a push is there, and then the session ends."""
    with bench(git_server) as own:
        body = kit.granted + bytes(4 * MIB)
        talk = own.talk()
        talk.send(head("POST", PUSH, KIND, f"Content-Length: {len(body)}"), body[: 2 * MIB])
        own.stage.watch.events.clear()
        # That it was taken in is known by the file, which is there while the push comes.
        ready = threading.Event()
        deadline = 200
        while not unlinked_files() and deadline:
            ready.wait(0.01)
            deadline -= 1
        assert unlinked_files(), "the control: a quarantine is a file without a name"
    until_nothing_is_held()


@pytest.mark.parametrize("bound", ["body", "upload"])
@pytest.mark.parametrize("chunks", [False, True])
def test_a_push_over_a_limit_is_refused_and_leaves_nothing(
    git_server: GitServer, kit: Kit, untouched: Untouched, bound: str, chunks: bool
) -> None:
    """I9: what a quarantine may hold is bounded. Control: the same bounds let a small one pass."""
    with bench(git_server, f'{AMPLE}{bound} = "1MiB"\n') as own:
        with contextlib.suppress(OSError):  # it may be cut off
            answer = own.post(kit.granted + bytes(2 * MIB), chunks=chunks)
            assert answer.status != 200 or "ng " in report(answer)
        until_nothing_is_held()
        untouched.check()
        if bound == "body":
            assert own.post(kit.granted, chunks=chunks).status == 200
            assert kit.bare.branch("agent/forward") == kit.new
    until_nothing_is_held()


def test_many_pushes_at_once_all_arrive(table: Bench, kit: Kit) -> None:
    """More than are judged at a time; nobody waits for ever, and nobody's pack is another's."""

    talks = [table.talk() for _ in range(12)]

    def push(number: int) -> int:
        body = first(ZERO, kit.new, f"refs/heads/agent/n{number}") + FLUSH + kit.pack
        answer = table.post(body, talk=talks[number])
        return answer.status if "ng " not in report(answer) else 0

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(push, range(12))) == [200] * 12
    refs = kit.bare.refs()
    assert {refs[f"refs/heads/agent/n{number}"] for number in range(12)} == {kit.new}
    until_nothing_is_held()


# ── trees that say something else than is there ───────────────────────────────────────────────────

Entries = dict[bytes, tuple[bytes, bytes]]
"""Mode and oid by name."""


class Crafted:
    """Objects that no git makes, and packs of them."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._objects: list[tuple[ObjectKind, bytes]] = []

    def put(self, kind: ObjectKind, content: bytes) -> bytes:
        """Add an object to the next pack; its oid."""
        self._objects.append((kind, content))
        return name_of(kind, content)

    def tree(self, entries: Entries) -> bytes:
        ends = {name: name + b"/" * (mode == b"40000") for name, (mode, _) in entries.items()}
        lines = (
            b"%b %b\0%b" % (entries[n][0], n, entries[n][1])
            for n in sorted(ends, key=ends.__getitem__)
        )
        return self.put(ObjectKind.TREE, b"".join(lines))

    def root(self) -> Entries:
        """What is in the root of the branch."""
        content = run_git(self._kit.scratch.path, "cat-file", "tree", f"{self._kit.old}^{{tree}}")
        return {name: (mode, oid) for mode, name, oid in parse_tree(content, 20)}

    def push(self, tree: bytes, parent: str) -> tuple[str, bytes]:
        """A commit of a tree, and the body of a push of all that was added."""
        lines = f"tree {tree.hex()}\nparent {parent}\n"
        lines += "".join(f"{who} A <a@example.com> 1 +0000\n" for who in ("author", "committer"))
        new = self.put(ObjectKind.COMMIT, lines.encode() + b"\nx\n").hex()
        writer = PackWriter()
        for kind, content in self._objects:
            writer.add(kind, content)
        self._objects.clear()
        return new, first(parent, new, AGENT) + FLUSH + writer.done()


def _workflow(made: Crafted) -> bytes:
    """A directory with a workflow in it."""
    blob = made.put(ObjectKind.BLOB, b"on: push\n")
    return made.tree({b"workflows": (b"40000", made.tree({b"x.yml": (b"100644", blob)}))})


@pytest.mark.parametrize("mode", [b"100644", b"100755", b"100664", b"120000", b"160000"])
def test_a_directory_is_not_pushed_as_something_else(
    table: Bench, kit: Kit, untouched: Untouched, mode: bytes
) -> None:
    """I3: `.gitea` as a file, whose object is a directory with a workflow."""
    made = Crafted(kit)
    _, body = made.push(made.tree(made.root() | {b".gitea": (mode, _workflow(made))}), kit.old)
    assert f"ng {AGENT}" in report(table.post(body))
    untouched.check()


@pytest.mark.parametrize("mode", [b"100644", b"100755", b"100664", b"120000"])
def test_a_directory_that_the_server_has_is_not_pushed_as_something_else(
    table: Bench, kit: Kit, git_server: GitServer, mode: bytes
) -> None:
    """I3: pushed first where nothing is denied, which is the control; then named as a file."""
    made = Crafted(kit)
    directory = _workflow(made)
    root = made.root() | {b"lib": (b"40000", directory)}
    there, body = made.push(made.tree(root), kit.old)
    table.post(body)
    assert kit.bare.branch("agent/forward") == there
    git_server.asked()
    _, body = made.push(made.tree(root | {b".gitea": (mode, directory)}), there)
    assert f"ng {AGENT}" in report(table.post(body))
    assert kit.bare.branch("agent/forward") == there
    assert not [each for each in git_server.asked() if each.pushes]


@pytest.mark.parametrize("mode", [b"100644", b"100755", b"100664"])
def test_a_file_is_pushed_in_each_mode_that_git_has_written(
    table: Bench, kit: Kit, mode: bytes
) -> None:
    """The control: also where a directory would be looked into."""
    made = Crafted(kit)
    file = (mode, made.put(ObjectKind.BLOB, b"a file\n"))
    new, body = made.push(made.tree(made.root() | {b".gitea": file, b"new": file}), kit.old)
    table.post(body)
    assert kit.bare.branch("agent/forward") == new


@pytest.mark.parametrize("mode", [b"100666", b"100600", b"040000", b"0100644", b"20000", b"100744"])
def test_a_mode_that_git_does_not_write_is_refused(
    table: Bench, kit: Kit, untouched: Untouched, mode: bytes
) -> None:
    made = Crafted(kit)
    file = (mode, made.put(ObjectKind.BLOB, b"a file\n"))
    _, body = made.push(made.tree(made.root() | {b"new": file}), kit.old)
    assert "plain mode" in report(table.post(body))
    untouched.check()


@pytest.mark.parametrize("piece", [b"40000 ", b"40000 a", b"100644 \xcc\x81\xcc\xa3"])
def test_a_tree_takes_the_judge_no_longer_than_its_size(
    table: Bench, kit: Kit, untouched: Untouched, piece: bytes
) -> None:
    """I12: some kilobytes that inflate to twelve megabytes; each byte of them looked like the start
    of an entry, and the judge was killed after a minute."""
    made = Crafted(kit)
    _, body = made.push(made.put(ObjectKind.TREE, piece * ((12 << 20) // len(piece))), kit.old)
    assert len(body) < 64 << 10
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert "plain mode" in report(table.post(body))
    untouched.check()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10
