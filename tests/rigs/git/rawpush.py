"""Pushes that are put together byte by byte, and a gateway in this process to send them to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.certs.authority import Authority
from keyhole.judge.judge_pool import JudgePool
from tests.rigs.gateway.rig import Services
from tests.rigs.gateway.stage import AMPLE, STAND_IN, Stage, set_up
from tests.rigs.gateway.talk import Message, Talk, head
from tests.rigs.git.repositories import Bare
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.gateway.session import Interception
    from keyhole.policy.rulebook import Rulebook
    from tests.rigs.git.server import GitServer

ZERO = "0" * 40
FLUSH = b"0000"
CAPABILITIES = b" report-status side-band-64k object-format=sha1 agent=git/raw"
KIND = "Content-Type: application/x-git-receive-pack-request"
REPOSITORY = "/acme/widgets.git"
PUSH = f"{REPOSITORY}/git-receive-pack"

GRANT = """
[services.own]
hosts = ["ok.example"]
forge = "github"
inject = { basic_user = "x-access-token" }
secret = "file:/nowhere"
repos = ["acme/widgets", "acme/bulk", "acme/sink"]
push = ["agent/*"]
"""
LIMITS = AMPLE + 'body = "4GiB"\nupload = "16GiB"\ndownload = "16GiB"\n'


def packet(data: bytes) -> bytes:
    return b"%04x" % (len(data) + 4) + data


def command(old: str, new: str, ref: str | bytes, capabilities: bytes | None = None) -> bytes:
    """A line of the list; with capabilities, its first."""
    name = ref if isinstance(ref, bytes) else ref.encode()
    tail = b"" if capabilities is None else b"\0" + capabilities
    return packet(f"{old} {new} ".encode() + name + tail)


def first(old: str, new: str, ref: str | bytes) -> bytes:
    """The first line of a list."""
    return command(old, new, ref, CAPABILITIES)


def empty_pack() -> bytes:
    data = b"PACK" + (2).to_bytes(4, "big") + bytes(4)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


@dataclass
class Kit:
    """A client's own repository, and what it knows of the server's."""

    bare: Bare
    """At the server."""
    scratch: Bare
    """The client's."""
    old: str
    """Where agent/forward is."""
    new: str
    """What may follow it, in `pack`."""
    pack: bytes
    main: str
    evil: str
    """What may not follow main, in `evil_pack`."""
    evil_pack: bytes
    dangling: str
    """A commit that the server has, and no branch: as from a fork that shares its objects."""
    kept: Path = field(init=False)
    state: tuple[dict[str, str], frozenset[str]] = field(init=False)

    @classmethod
    def make(cls, bare: Bare, directory: Path) -> Kit:
        """Clone what the server has."""
        refs = bare.refs()
        main, old = refs["refs/heads/main"], refs["refs/heads/agent/forward"]
        bare.commit("refs/other/fork", {".github/workflows/ci.yml": b"on: fork\n"}, base=main)
        dangling = bare.refs()["refs/other/fork"]
        bare.git("update-ref", "-d", "refs/other/fork")
        scratch = Bare(Path(shutil.copytree(bare.path, directory / "scratch.git", symlinks=True)))
        new = scratch.commit("agent/forward", {"more": b"more\n"})
        evil = scratch.commit("main", {"evil": b"evil\n"})
        return cls(
            bare, scratch, old, new, scratch.pack(new, without=(old,)),
            main, evil, scratch.pack(evil, without=(main,)), dangling,
        )  # fmt: skip

    def keep(self, directory: Path) -> None:
        """Remember how the server's repository is now."""
        shutil.copytree(self.bare.path, directory, symlinks=True)
        self.kept, self.state = directory, self.look()

    def look(self) -> tuple[dict[str, str], frozenset[str]]:
        """Every ref and every object of the server's."""
        return self.bare.refs(), self.bare.objects()

    def restore(self) -> None:
        """Undo what a test did."""
        if self.look() != self.state:
            shutil.rmtree(self.bare.path)
            shutil.copytree(self.kept, self.bare.path, symlinks=True)

    @property
    def granted(self) -> bytes:
        """The body of a push that may go."""
        return first(self.old, self.new, "refs/heads/agent/forward") + FLUSH + self.pack


class Bench:
    """A gateway of this process, whose sandbox is a namespace, before the real server."""

    def __init__(self, stage: Stage, server: GitServer) -> None:
        self.stage = stage
        self.server = server

    def talk(self) -> Talk:
        return self.stage.visit("ok.example")

    def post(
        self,
        body: bytes,
        *lines: str,
        path: str = PUSH,
        kind: str = KIND,
        chunks: bool = False,
        method: str = "POST",
        talk: Talk | None = None,
    ) -> Message:
        """One request, by default on a connection of its own, and its answer."""
        framing = "Transfer-Encoding: chunked" if chunks else f"Content-Length: {len(body)}"
        fields = [*lines, framing] if not kind else [kind, *lines, framing]
        talk = talk or self.talk()
        talk.send(head(method, path, *fields))
        # An answer that comes early may close the way.
        with contextlib.suppress(OSError):
            if not chunks:
                talk.send(body)
            else:
                for at in range(0, len(body), 1000):
                    piece = body[at : at + 1000]
                    talk.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                talk.send(b"0\r\n\r\n")
        return talk.answer(method)

    def get(self, path: str, *lines: str, method: str = "GET") -> Message:
        """A request without a body."""
        talk = self.talk()
        talk.send(head(method, path, *lines))
        return talk.answer(method)


@dataclass(frozen=True)
class GitServices(Services):
    """With a judge of pushes, and where they wait for it."""

    quarantine: Path | None = None

    def intercept(self, rules: Rulebook) -> Interception:
        """As the composition root does it."""
        return replace(super().intercept(rules), quarantine=self.quarantine)


@contextlib.contextmanager
def bench(server: GitServer, limits: str = LIMITS) -> Iterator[Bench]:
    """A gateway with one door; when it is over, nothing is left in its quarantine."""
    _OTHERS.update(_unlinked())
    judge, authority = JudgePool(), server.authority
    with tempfile.TemporaryDirectory(prefix="keyhole-quarantine-") as directory:
        services = GitServices(
            {"own": server.secret}, {"own": STAND_IN}, Authority.create("t"),
            authority.cert_pem.bytes(), judge, Path(directory),
        )  # fmt: skip
        with set_up(authority, services) as stage:
            connect = f'[upstream.connect]\n"ok.example:443" = "{server.address}"\n'
            text = f"{GRANT}\n[limits]\n{limits}\n{connect}"
            stage.handle, stage.watch = stage.rig.open(stage.namespace.door, text, services)
            yield Bench(stage, server)
            stage.rig.call(judge.close)
        assert not os.listdir(directory)


def report(answer: Message) -> str:
    """What a push was answered, as git would read it: band 1 alone, its lines."""
    data, said = answer.body, b""
    while len(data) >= 4 and (size := int(data[:4], 16)) >= 4:
        packed, data = data[4:size], data[size:]
        said += packed[1:] if packed[:1] == b"\1" else b"" if packed[:1] in b"\2\3" else packed
    return said.decode("latin-1")


_OTHERS: set[str] = set()
"""Unlinked files that were there before any gateway: pytest keeps what it captures in such."""


def unlinked_files() -> list[str]:
    """Files of this process that are in no directory any more: what a quarantine is made of."""
    return sorted(set(_unlinked()) - _OTHERS)


def _unlinked() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(entry)
            if name.endswith(" (deleted)") and not name.startswith("/memfd:"):
                found.append(name)
    return found


def until_nothing_is_held() -> None:
    """Wait until no file of a quarantine is open in this process."""
    until(lambda: not unlinked_files(), told=unlinked_files)
