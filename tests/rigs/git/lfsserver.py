"""A small LFS server: batches and locks on one port, objects on another, both as real as it gets.

What a forge and its storage host are to each other: the forge lends each transfer a token and a
signed address, and the storage host takes nothing else. Both write down what they saw. A web
server before it may pass `…/info/lfs/…` on to the forge's port; `serving` is told by which names
the two are known outside.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.talk import Message, ok

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

MEDIA_TYPE = "application/vnd.git-lfs+json"
_LFS = re.compile(r"/(?P<repo>.+?)(?:\.git)?/info/lfs/(?P<rest>.+)")
_OBJECT = re.compile(r"/store/(?P<repo>.+)/(?P<oid>[0-9a-f]{64})(?P<verify>/verify)?")


class Seen(NamedTuple):
    """A request, as it arrived."""

    where: str
    """`forge` or `storage`."""
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, status: int, value: object) -> Reply:
        """In JSON."""
        return cls(status, json.dumps(value).encode(), (("Content-Type", MEDIA_TYPE),))


class LfsServer:
    """The two of them. `objects` and `locks` are of repositories by their paths without `.git`."""

    def __init__(
        self, *, authorization: str | None = None, redirects: bool = False, chunked: bool = False
    ) -> None:
        """`authorization` is what the forge wants of every request. With `redirects`, the storage
        host sends downloads on to another name, as GitLab does; with `chunked`, uploads are told to
        come in chunks.
        """
        self.authorization = authorization
        self.redirects = redirects
        self.chunked = chunked
        self.forge = self.storage = self.elsewhere = ""
        """Where they are, as `https://name:port`; the last is the storage host by another name."""
        self.objects: dict[tuple[str, str], bytes] = {}
        self.verified: set[tuple[str, str]] = set()
        self.locks: dict[str, list[dict[str, Any]]] = {}
        self.seen: list[Seen] = []
        self.lent: dict[tuple[str, str, str], tuple[str, str]] = {}
        """Token and signature, by repository, oid and verb."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def secrets(self) -> list[str]:
        """All that was lent: none of it may come inside."""
        return [secret for pair in self.lent.values() for secret in pair]

    def answer(self, seen: Seen) -> Reply:
        """To a request to either."""
        with self._lock:
            self.seen.append(seen)
            return self._at_storage(seen) if seen.where == "storage" else self._at_forge(seen)

    # ── the forge ─────────────────────────────────────────────────────────────────────────────────

    def _at_forge(self, seen: Seen) -> Reply:
        found = _LFS.fullmatch(seen.path)
        if found is None:
            return Reply.of(404, {"message": "no such place"})
        if self.authorization and seen.headers.get("authorization") != self.authorization:
            challenge = ("WWW-Authenticate", 'Basic realm="lfs"')
            return Reply(401, b'{"message": "who are you?"}', (challenge,))
        if not seen.headers.get("accept", "").startswith(MEDIA_TYPE):
            return Reply.of(406, {"message": "Not Acceptable"})
        repo, said = found["repo"], json.loads(seen.body or b"{}")
        match (seen.method, *found["rest"].split("/")):
            case ("POST", "objects", "batch"):
                return self._batch(repo, said)
            case ("GET", "locks"):
                wanted = parse_qs(seen.query).get("path")
                return Reply.of(200, {"locks": self._locks_at(repo, wanted)})
            case ("POST", "locks"):
                return self._take_lock(repo, said["path"])
            case ("POST", "locks", "verify"):
                return Reply.of(200, {"ours": self._locks_at(repo, None), "theirs": []})
            case ("POST", "locks", number, "unlock"):
                return self._unlock(repo, number)
        return Reply.of(404, {"message": "no such endpoint"})

    def _batch(self, repo: str, said: dict[str, Any]) -> Reply:
        objects = [self._describe(repo, each, said["operation"]) for each in said["objects"]]
        return Reply.of(200, {"transfer": "basic", "objects": objects, "hash_algo": "sha256"})

    def _describe(self, repo: str, each: dict[str, Any], operation: str) -> dict[str, Any]:
        oid, size = each["oid"], each["size"]
        there = (repo, oid) in self.objects
        if operation == "download" and not there:
            return each | {"error": {"code": 404, "message": "Object does not exist"}}
        verbs = ["download"] if operation == "download" else ["upload", "verify"]
        if operation == "upload" and there:
            return {"oid": oid, "size": size}
        return each | {"actions": {verb: self._lend(repo, oid, verb) for verb in verbs}}

    def _lend(self, repo: str, oid: str, verb: str) -> dict[str, Any]:
        token, signature = self.lent[repo, oid, verb] = (
            secrets.token_urlsafe(30),
            secrets.token_hex(32),
        )
        tail = "/verify" if verb == "verify" else ""
        header = {"Authorization": f"RemoteAuth {token}", "X-Lent": "yes"}
        if verb == "upload" and self.chunked:
            header["Transfer-Encoding"] = "chunked"
        href = f"{self.storage}/store/{repo}/{oid}{tail}?actor=7&X-Amz-Signature={signature}"
        return {"href": href, "header": header, "expires_in": 600}

    def _locks_at(self, repo: str, paths: list[str] | None) -> list[dict[str, Any]]:
        return [each for each in self.locks.get(repo, []) if not paths or each["path"] in paths]

    def _take_lock(self, repo: str, path: str) -> Reply:
        if self._locks_at(repo, [path]):
            return Reply.of(409, {"message": "already created lock"})
        made = {"id": f"lock-{next(self._numbers)}", "path": path}
        made |= {"locked_at": "2026-01-01T00:00:00Z", "owner": {"name": "agent"}}  # type: ignore[dict-item]
        self.locks.setdefault(repo, []).append(made)
        return Reply.of(201, {"lock": made})

    def _unlock(self, repo: str, number: str) -> Reply:
        for each in self.locks.get(repo, []):
            if each["id"] == number:
                self.locks[repo].remove(each)
                return Reply.of(200, {"lock": each})
        return Reply.of(404, {"message": "no such lock"})

    # ── the storage host ──────────────────────────────────────────────────────────────────────────

    def _at_storage(self, seen: Seen) -> Reply:
        if seen.path.startswith("/elsewhere/") and seen.method == "GET":
            return self._elsewhere(seen)
        found = _OBJECT.fullmatch(seen.path)
        if found is None:
            return Reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        repo, oid = found["repo"], found["oid"]
        verb = {"GET": "download", "PUT": "upload", "POST": "verify"}.get(seen.method, "")
        token, signature = self.lent.get((repo, oid, verb), ("", ""))
        signed = parse_qs(seen.query).get("X-Amz-Signature") == [signature]
        if not token or seen.headers.get("authorization") != f"RemoteAuth {token}" or not signed:
            # As S3 does: the answer holds what was asked with.
            told = f"<Error><StringToSign>{seen.query} {dict(seen.headers)}</StringToSign></Error>"
            return Reply(403, told.encode())
        match verb:
            case "download" if self.redirects:
                place = f"{self.elsewhere}/elsewhere/{repo}/{oid}?X-Amz-Signature={signature}"
                return Reply(302, b"", (("Location", place), ("Set-Cookie", "session=1")))
            case "download":
                headers = (("Content-Type", "application/octet-stream"), ("Set-Cookie", "a=1"))
                return Reply(200, self.objects[repo, oid], headers)
            case "upload":
                if hashlib.sha256(seen.body).hexdigest() != oid:
                    return Reply(422, b"not what was announced")
                self.objects[repo, oid] = seen.body
                return Reply(200)
        said = json.loads(seen.body)
        if len(self.objects.get((repo, oid), b"")) != said["size"] or said["oid"] != oid:
            return Reply.of(404, {"message": "not here"})
        self.verified.add((repo, oid))
        return Reply.of(200, {})

    def _elsewhere(self, seen: Seen) -> Reply:
        repo, _, oid = seen.path.removeprefix("/elsewhere/").rpartition("/")
        signature = self.lent[repo, oid, "download"][1]
        if parse_qs(seen.query).get("X-Amz-Signature") != [signature]:
            return Reply(403, b"<Error/>")
        if "authorization" in seen.headers:
            return Reply(400, b"<Error><Code>InvalidArgument</Code></Error>")
        return Reply(200, self.objects[repo, oid])


def _handler(server: LfsServer, where: str) -> Service:
    def answer(message: Message) -> bytes:
        parts = urlsplit(message.target)
        seen = Seen(where, message.method, parts.path, parts.query, message.headers, message.body)
        reply = server.answer(seen)
        fields = [f"{name}: {value}".encode() for name, value in reply.headers]
        return ok(reply.body, *fields, status=b"%d x" % reply.status)

    return Service(answer)


@contextmanager
def serving(
    server: LfsServer,
    *,
    contexts: Mapping[str, ssl.SSLContext] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[dict[str, int]]:
    """Serve both on loopback while the block runs; their ports, by `forge` and `storage`.

    `contexts`: TLS for either. `names`: what each, and `elsewhere`, is called in addresses, as
    `https://name[:port]`; by default its own address.
    """
    running: dict[str, Origin] = {}
    for where in ("forge", "storage"):
        context = (contexts or {}).get(where)
        origin = running[where] = Origin(_handler(server, where), context)
        scheme = "https" if context else "http"
        setattr(server, where, (names or {}).get(where, f"{scheme}://{origin.address}"))
        if where == "storage":
            other = f"{scheme}://localhost:{origin.port}"
            server.elsewhere = (names or {}).get("elsewhere", other)
    try:
        yield {where: origin.port for where, origin in running.items()}
    finally:
        for origin in running.values():
            origin.close()
