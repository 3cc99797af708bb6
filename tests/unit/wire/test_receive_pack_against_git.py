"""What PushReader accepts, a real `git receive-pack` understands in the same way (I4).

git runs on a bare repository whose pre-receive hook writes down what it is told and refuses, so
that each list finds the repository as the one before did. At the end, real clients speak through
the readers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.git_refs import (
    ADVERTISEMENT_TYPES,
    RECEIVE_PACK,
    REQUEST_TYPES,
    RESULT_TYPES,
    AdvertisementRewriter,
)
from keyhole.wire.pkt_line import FLUSH, encode
from keyhole.wire.receive_pack import HELD_BACK, PushReader, PushRequest, refusal_report
from keyhole.wire.upload_pack import read_fetch
from tests.rigs.gateway.origins import Origin as HttpOrigin
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.talk import Message, ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAIN_LISTS, MUTATED_LISTS = 120, 600
"""Command lists that are generated. Each that is accepted costs some 15 ms of git."""

EMPTY_PACK = b"PACK\0\0\0\x02\0\0\0\0"
EMPTY_PACK += hashlib.sha1(EMPTY_PACK, usedforsecurity=False).digest()

HOOK = """#!/bin/sh
cat >seen
i=0
while [ "$i" -lt "${GIT_PUSH_OPTION_COUNT:-0}" ]; do
  eval "printf '%s\\n' \\"\\$GIT_PUSH_OPTION_$i\\"" >>options
  i=$((i + 1))
done
exit 1
"""

Seen = tuple[list[tuple[str, str, str]], list[str]]


class Repository:
    """A bare repository with two commits and a branch, and git's own reading of pushes to it."""

    def __init__(self, place: Path) -> None:
        self.place = place / "origin.git"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "x",
            "GIT_AUTHOR_EMAIL": "x@example.org",
            "GIT_COMMITTER_NAME": "x",
            "GIT_COMMITTER_EMAIL": "x@example.org",
            "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_DATE": "1700000000 +0000",
        }
        self.run("init", "-q", "--bare", "-b", "main", str(self.place))
        tree = self.git("mktree")
        self.old = self.git("commit-tree", tree, "-m", "one")
        self.new = self.git("commit-tree", tree, "-p", self.old, "-m", "two")
        self.git("update-ref", "refs/heads/main", self.old)
        self.git("config", "receive.advertisePushOptions", "true")
        hook = self.place / "hooks" / "pre-receive"
        hook.write_text(HOOK)
        hook.chmod(0o755)

    def run(
        self, *arguments: str, body: bytes = b"", protocol: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", *arguments],  # noqa: S607 - the git of the host
            input=body,
            capture_output=True,
            env=self.environment | {"GIT_PROTOCOL": protocol},
            check=False,
        )

    def git(self, *arguments: str) -> str:
        done = self.run("-C", str(self.place), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def understands(self, body: bytes) -> Seen | None:
        """The commands and options that git would execute for a body; None when it sees none."""
        for name in ("seen", "options"):
            (self.place / name).unlink(missing_ok=True)
        self.run("receive-pack", "--stateless-rpc", str(self.place), body=body)
        seen, options = self.place / "seen", self.place / "options"
        if not seen.exists():
            return None
        lines = seen.read_bytes().decode("latin-1").splitlines()
        old_new_ref = [line.split(" ", 2) for line in lines]
        given_options = options.read_text().splitlines() if options.exists() else []
        return [(old, new, ref) for old, new, ref in old_new_ref], given_options


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    return Repository(tmp_path_factory.mktemp("receive-pack"))


def accepted(body: bytes) -> tuple[PushRequest, bytes] | None:
    """What the reader makes of a whole body, and what lies behind the list."""
    reader = PushReader()
    try:
        request = reader.feed(body)
        reader.end()
    except Malformed:
        return None
    assert request is not None
    return request, reader.rest


def meant(request: PushRequest) -> Seen:
    return [(c.old, c.new, c.ref) for c in request.commands], list(request.options)


# ── each row of the facts: git executes it, the reader refuses it ────────────────────────────────

ZERO = "0" * 40
CAPABILITIES = b"\0 report-status atomic"
ASKED = b"\0 report-status push-options"


def line(old: str, new: str, ref: str, more: bytes = b"") -> bytes:
    return f"{old} {new} {ref}".encode() + more


def packets(*lines: bytes, end: bytes = FLUSH) -> bytes:
    return b"".join(map(encode, lines)) + end


def test_a_plain_push_is_understood_by_both(origin: Repository) -> None:
    """The control for all rows below: the rig sees what git executes."""
    old, new = origin.old, origin.new
    body = packets(
        line(old, new, "refs/heads/main", b"\0 report-status push-options agent=x"),
        line(ZERO, new, "refs/heads/agent/x"),
        line(old, ZERO, "refs/heads/y"),
    )
    body += packets(b"ci.skip", b"a b") + EMPTY_PACK
    found = accepted(body)
    assert found is not None
    assert origin.understands(body) == meant(found[0])
    assert origin.git("rev-parse", "refs/heads/main") == old


def main(old: str, new: str, more: bytes = b"") -> bytes:
    """The first command of most rows."""
    return line(old, new, "refs/heads/main", CAPABILITIES + more)


def packed(*lines: bytes, end: bytes = b"0000", options: bytes = b"") -> bytes:
    """A list, push options, and a pack of nothing."""
    return packets(*lines, end=end) + options + EMPTY_PACK


X, SKIP = "refs/heads/x", packets(b"ci.skip")
ROWS = {
    "a delim packet ends the list": lambda o, n: packed(main(o, n), end=b"0001"),
    "a response-end packet ends the list": lambda o, n: packed(main(o, n), end=b"0002"),
    "capabilities on a second line": lambda o, n: packed(main(o, n), line(ZERO, n, X, b"\0 quiet")),
    "a second NUL": lambda o, n: packed(main(o, n, b"\0 quiet")),
    "push options asked for on a second line": lambda o, n: packed(
        main(o, n), line(ZERO, n, X, ASKED), options=SKIP
    ),
    "push options behind a tab": lambda o, n: packed(
        line(o, n, "refs/heads/main", b"\0 report-status agent=x\tpush-options"), options=SKIP
    ),
    "push options with a value": lambda o, n: packed(
        line(o, n, "refs/heads/main", b"\0 report-status push-options=no"), options=SKIP
    ),
    "a certificate that was never offered": lambda o, n: packed(
        *certificate(line(o, n, "refs/heads/main"))
    ),
    "plain commands and a certificate": lambda o, n: packed(
        line(ZERO, n, "refs/heads/agent/x", CAPABILITIES),
        *certificate(line(o, n, "refs/heads/main")),
    ),
    "two commands in one line of a certificate": lambda o, n: packed(
        *certificate(line(o, n, "refs/heads/main") + b"\n" + line(ZERO, n, X))
    ),
    "zero to zero": lambda o, n: packets(main(ZERO, ZERO)),
    "old is new": lambda o, n: packed(main(o, o)),
    "the same ref twice": lambda o, n: packed(main(o, n), line(n, o, "refs/heads/main")),
    "upper-case objects": lambda o, n: packed(main(o.upper(), n.upper())),
    "an upper-case length": lambda o, n: packed(main(o, n, b" agent=" + b"x" * 26)).replace(
        b"009c", b"009C"
    ),
    "junk behind a shallow line": lambda o, n: packed(
        b"shallow " + o.encode() + b" junk", main(o, n)
    ),
    "a shallow line behind a command": lambda o, n: packed(main(o, n), b"shallow " + o.encode()),
    "a second list behind a delete": lambda o, n: (
        packets(line(o, ZERO, X, CAPABILITIES)) + packets(main(o, n))
    ),
    "a name with a space": lambda o, n: packed(line(o, n, "refs/heads/a b", CAPABILITIES)),
}


def certificate(commands: bytes) -> tuple[bytes, ...]:
    return (
        b"push-cert\0 report-status",
        b"certificate version 0.1\n",
        b"pusher x <x@example.org> 0 +0000\n",
        b"\n",
        commands + b"\n",
        b"-----BEGIN PGP SIGNATURE-----\n",
        b"push-cert-end\n",
    )


@pytest.mark.parametrize("row", ROWS)
def test_git_executes_it_and_the_reader_refuses_it(origin: Repository, row: str) -> None:
    """I4: each is a push that git understands; none reaches it."""
    body = ROWS[row](origin.old, origin.new)
    assert origin.understands(body) is not None
    assert accepted(body) is None


# ── lists that nobody thought of ─────────────────────────────────────────────────────────────────

OIDS = st.sampled_from(["old", "new", "zero", "absent"])
NAMES = st.sampled_from(
    [
        "refs/heads/main",
        "refs/heads/agent/x",
        "refs/heads/agent/X",
        "refs/heads/\xff",
        "refs/heads/a..b",
        "refs/tags/v1",
        "refs/for/main",
        "HEAD",
    ]
)
WORDS = st.sampled_from(
    b"report-status report-status-v2 side-band-64k atomic quiet ofs-delta delete-refs push-options"
    b" agent=git/2 object-format=sha1 session-id=1".split()
)
OPTIONS = st.lists(st.sampled_from([b"ci.skip", b"a b", b"x=y\n"]), max_size=2)
TOKENS = st.sampled_from(
    [
        b"\0", b"\n", b"\t", b" ", b"\0 push-options", b"\tpush-options", b"A", b"0", b"\xff", b"",
        b"shallow ", b"push-cert", b"0000", b"0001", b"0002", b"0003", b"0004", b"PACK",
        b" object-format=sha256", b"refs/heads/main",
    ]
)  # fmt: skip


@st.composite
def lists(draw: st.DrawFn) -> list[bytes]:
    """The packets of a list as git could write it, without its end."""
    changes = st.tuples(OIDS, OIDS, NAMES).filter(lambda c: c[0] != c[1])
    commands = draw(st.lists(changes, min_size=1, max_size=4, unique_by=lambda c: c[2]))
    words = draw(st.lists(WORDS, unique=True, max_size=5))
    rows = [f"<{old}> <{new}> {ref}".encode("latin-1") for old, new, ref in commands]
    rows[0] += b"\0" + draw(st.sampled_from([b"", b" "])) + b" ".join(words)
    rows = [b"shallow <old>"] * draw(st.integers(0, 2)) + rows
    feed = draw(st.sampled_from([b"", b"\n"]))
    return [row + feed for row in rows]


def mutations(rows: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    where = st.integers(0, len(rows) - 1)

    def spliced(index: int, at: int, cut: int, token: bytes) -> list[bytes]:
        row = rows[index]
        at = min(at, len(row))
        return [*rows[:index], row[:at] + token + row[at + cut :], *rows[index + 1 :]]

    def twice(index: int, to: int) -> list[bytes]:
        return [*rows[:to], rows[index], *rows[to:]]

    return st.one_of(
        st.builds(spliced, where, st.integers(0, 120), st.integers(0, 2), TOKENS),
        st.builds(spliced, where, st.just(1000), st.just(0), TOKENS),
        st.builds(twice, where, where),
    )


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    rows = draw(lists())
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        rows = draw(mutations(rows))
    return rows


def filled(origin: Repository, rows: list[bytes], spell: Callable[[str], str] = str) -> list[bytes]:
    """The rows with objects of the repository in them."""
    oids = {"<old>": origin.old, "<new>": origin.new, "<zero>": ZERO, "<absent>": "ab" * 20}
    for name, oid in oids.items():
        rows = [row.replace(name.encode(), spell(oid).encode()) for row in rows]
    return rows


@settings(max_examples=PLAIN_LISTS, database=None)
@given(lists(), OPTIONS)
def test_what_git_could_write_is_accepted_and_understood_alike(
    origin: Repository, rows: list[bytes], options: list[bytes]
) -> None:
    """I4: the same refs, old and new in the same order, and the same options."""
    body = packets(*filled(origin, rows))
    if b"push-options" in body:
        body += packets(*options)
    found = accepted(body)
    assert found is not None
    request, rest = found
    assert not rest
    if request.has_pack:
        body += EMPTY_PACK
    assert origin.understands(body) == meant(request)


@settings(max_examples=MUTATED_LISTS, database=None)
@given(
    mutated(),
    st.sampled_from([FLUSH] * 12 + [b"0001", b"", FLUSH + FLUSH]),
    OPTIONS,
    st.sampled_from([str] * 12 + [str.upper]),
)
def test_whatever_is_accepted_is_understood_alike_or_not_at_all(
    origin: Repository,
    rows: list[bytes],
    end: bytes,
    options: list[bytes],
    spell: Callable[[str], str],
) -> None:
    """I4: what git executes of an accepted push is what was listed, and nothing else."""
    body = packets(*filled(origin, rows, spell), end=end)
    if b"push-options" in body:
        body += packets(*options)
    found = accepted(body)
    event("refused" if found is None else "accepted")
    if found is None:
        return
    request, rest = found
    if request.has_pack and not rest:
        body += EMPTY_PACK
    understood = origin.understands(body)
    event("executed" if understood else "not executed")
    if understood is None:
        # git takes none of it: something else than a pack follows the list.
        assert rest
    else:
        assert understood == meant(request)


# ── real clients ─────────────────────────────────────────────────────────────────────────────────


class Server:
    """A small git server on loopback: each request passes the readers before git sees it."""

    def __init__(self, origin: Repository) -> None:
        self.origin = origin
        self.pushes: list[PushRequest] = []
        self.refuse: dict[str, str] = {}
        self.fetches = 0
        self.address = ""

    def advertise(self, service: str, protocol: str) -> bytes:
        said = self.origin.run(
            service.removeprefix("git-"),
            "--http-backend-info-refs",
            str(self.origin.place),
            protocol=protocol,
        ).stdout
        if service == RECEIVE_PACK or protocol != "version=2":
            said = encode(b"# service=" + service.encode() + b"\n") + FLUSH + said
        rewriter = AdvertisementRewriter(service, options=True)
        return rewriter.feed(said) + rewriter.end()

    def fetch(self, body: bytes, protocol: str) -> bytes:
        self.fetches += 1
        checked = read_fetch(body, int(protocol[-1:] or "0"))
        place = str(self.origin.place)
        return self.origin.run(
            "upload-pack", "--stateless-rpc", place, body=checked, protocol=protocol
        ).stdout

    def push(self, body: bytes) -> bytes:
        reader = PushReader()
        request = reader.feed(body)
        reader.end()
        assert request is not None
        assert reader.size + len(reader.rest) == len(body)
        self.pushes.append(request)
        if request.is_probe:
            return b""
        if self.refuse:
            return refusal_report(request, self.refuse, "keyhole: a hint")
        return self.origin.run(
            "receive-pack", "--stateless-rpc", str(self.origin.place), body=body
        ).stdout


def service(server: Server) -> Service:
    def answer(message: Message) -> bytes:
        protocol = message.headers.get("git-protocol", "")
        if message.method == "GET":
            name = message.target.partition("service=")[2]
            kind, said = ADVERTISEMENT_TYPES[name], server.advertise(name, protocol)
        else:
            name, body = message.target.rpartition("/")[2], message.body
            assert message.headers["content-type"].encode() == REQUEST_TYPES[name]
            if message.headers.get("content-encoding") == "gzip":
                body = zlib.decompressobj(31).decompress(body)
            said = server.push(body) if name == RECEIVE_PACK else server.fetch(body, protocol)
            kind = RESULT_TYPES[name]
        return ok(said, b"Content-Type: " + kind)

    return Service(answer)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    origin = Repository(tmp_path)
    (origin.place / "hooks" / "pre-receive").unlink()
    origin.git("config", "uploadpack.allowFilter", "true")
    served = Server(origin)
    listening = HttpOrigin(service(served))
    served.address = f"http://{listening.address}/origin.git"
    yield served
    listening.close()


def clone(server: Server, place: Path, *arguments: str) -> Callable[..., str]:
    """A clone, and git in it: what it says to a person."""

    def git(*words: str, code: int = 0) -> str:
        done = server.origin.run(*words)
        assert done.returncode == code, done.stderr
        return done.stdout.decode() + done.stderr.decode()

    git("clone", "-q", *arguments, server.address, str(place))
    return lambda *words, code=0: git("-C", str(place), *words, code=code)


@pytest.mark.parametrize("version", ["0", "1", "2"])
def test_a_client_of_each_protocol_clones_and_fetches(
    server: Server, tmp_path: Path, version: str
) -> None:
    """The control for what is refused: what git itself asks passes."""
    origin, options = server.origin, ("-c", f"protocol.version={version}")
    origin.git("tag", "-a", "-m", "x", "v1", origin.old)
    git = clone(server, tmp_path / "clone", *options)
    tip = origin.new
    for number in range(40):
        tip = origin.git("commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", str(number))
    origin.git("update-ref", "refs/heads/main", tip)
    # Many haves: a compressed request, in several rounds.
    for number in range(60):
        git("commit", "-q", "--allow-empty", "-m", str(number))
    git("fetch", "-q", "origin", "main")
    assert tip in git("rev-parse", "FETCH_HEAD")
    shallow = clone(server, tmp_path / "shallow", "--depth=2", *options)
    shallow("fetch", "-q", "--deepen=3")
    shallow("fetch", "-q", "--unshallow")
    assert origin.old in shallow("rev-list", "HEAD")
    clone(server, tmp_path / "partial", "--filter=blob:none", *options)
    clone(server, tmp_path / "since", "--shallow-since=2001-01-01", *options)
    assert server.fetches >= 6


def test_pushes_of_a_client_are_read_as_it_meant_them(server: Server, tmp_path: Path) -> None:
    git = clone(server, tmp_path / "clone")
    old = server.origin.old
    git("commit", "-q", "--allow-empty", "-m", "x")
    git("tag", "-a", "-m", "x", "v1")
    new, tag = git("rev-parse", "HEAD", "v1").split()
    git("push", "-q", "-o", "ci.skip", "origin", "main", "main:agent/x", "v1")
    git("push", "-q", "origin", ":agent/x")
    git("push", "-q", "--force", "--atomic", "origin", f"{old}:refs/heads/main")
    assert [[(c.old, c.new, c.ref) for c in push.commands] for push in server.pushes] == [
        [
            (old, new, "refs/heads/main"),
            (ZERO, new, "refs/heads/agent/x"),
            (ZERO, tag, "refs/tags/v1"),
        ],
        [(new, ZERO, "refs/heads/agent/x")],
        [(new, old, "refs/heads/main")],
    ]
    assert [push.options for push in server.pushes] == [("ci.skip",), (), ()]
    assert [push.has_pack for push in server.pushes] == [True, False, True]
    assert server.origin.git("rev-parse", "refs/heads/main") == old


def test_a_shallow_and_a_large_push_are_read(server: Server, tmp_path: Path) -> None:
    server.origin.git("update-ref", "refs/heads/main", server.origin.new)
    git = clone(server, tmp_path / "clone", "--depth=1")
    (tmp_path / "clone" / "file").write_bytes(os.urandom(200_000))
    git("add", "file")
    git("commit", "-q", "-m", "x")
    git("-c", "http.postBuffer=65536", "push", "-q", "origin", "main:agent/x")
    probe, push = server.pushes
    assert probe.is_probe
    assert push.shallow == (server.origin.new,)
    assert git("rev-parse", "HEAD").strip() == server.origin.git("rev-parse", "refs/heads/agent/x")


def test_a_refusal_is_shown_as_git_shows_one(server: Server, tmp_path: Path) -> None:
    """I10: each ref with its reason, the hint above, exit code 1; the same push passes after."""
    git = clone(server, tmp_path / "clone")
    git("commit", "-q", "--allow-empty", "-m", "x")
    server.refuse = {"refs/heads/main": "keyhole: push to main is not allowed; allowed: agent/*"}
    said = git("push", "origin", "main", "main:agent/x", code=1)
    assert "remote: keyhole: a hint" in said
    assert (
        "! [remote rejected] main -> main (keyhole: push to main is not allowed; allowed: agent/*)"
        in said
    )
    assert f"! [remote rejected] main -> agent/x ({HELD_BACK})" in said
    assert "up-to-date" not in said
    assert "disconnect" not in said
    server.refuse = {}
    git("push", "-q", "origin", "main", "main:agent/x")
