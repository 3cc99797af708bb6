"""The tests' git server with large files: nginx before it leads `…/info/lfs/…` to an LFS server,
whose storage host has a name of its own that no policy grants.

What the storage host is like goes by the repository's name, so that one run meets all of them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import trustme

from tests.rigs.gateway.origins import tls_for
from tests.rigs.git.lfsserver import LfsServer, Reply, Seen, serving
from tests.rigs.git.server import USER, GitServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.git.repositories import Bare

STORAGE, ELSEWHERE = "objects.storage.example", "cdn.storage.example"
ATTRIBUTES = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"


class Moods(LfsServer):
    """An LFS server that treats some repositories in its own way. What it lent stays good when
    somebody else asks for the same, as it does at real ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[str, tuple[tuple[str, str, str], tuple[str, str]]] = {}

    @property
    def secrets(self) -> list[str]:
        """All that was ever lent."""
        return [secret for _, pair in self._pairs.values() for secret in pair]

    def _at_forge(self, seen: Seen) -> Reply:
        if "/acme/locked-out" in seen.path:
            challenge = (("WWW-Authenticate", "Basic"), ("LFS-Authenticate", 'Basic realm="x"'))
            return Reply(401, b'{"message": "who are you?"}', challenge)
        return super()._at_forge(seen)

    def _lend(self, repo: str, oid: str, verb: str) -> dict[str, Any]:
        made = super()._lend(repo, oid, verb)
        pair = self.lent[repo, oid, verb]
        self._pairs[f"RemoteAuth {pair[0]}"] = ((repo, oid, verb), pair)
        return made | ({"expires_in": 1} if repo == "acme/brief" else {})

    def _at_storage(self, seen: Seen) -> Reply:
        self.redirects = "/acme/moved/" in seen.path
        known = self._pairs.get(seen.headers.get("authorization", ""))
        if known is not None:
            self.lent[known[0]] = known[1]
        if "/acme/failing/" in seen.path:
            # As S3 does: the answer holds what was asked with.
            return Reply(503, f"<Error>{seen.query} {dict(seen.headers)}</Error>".encode())
        if "/acme/lying/" in seen.path and seen.method == "GET":
            repo, oid = "acme/lying", seen.path.rpartition("/")[2]
            return Reply(200, self.objects[repo, oid][::-1])
        return super()._at_storage(seen)


class LfsForge(GitServer):
    def __init__(self, directory: Path, *names: str) -> None:
        self.large = Moods()
        self._stack = contextlib.ExitStack()
        authority = trustme.CA()
        context = tls_for(authority, STORAGE, ELSEWHERE)
        self._ports = self._stack.enter_context(
            serving(
                self.large,
                contexts={"storage": context},
                names={"storage": f"https://{STORAGE}", "elsewhere": f"https://{ELSEWHERE}"},
            )
        )
        super().__init__(directory, *names, authority=authority, large=self._ports["forge"])
        word = base64.b64encode(f"{USER}:{self.secret}".encode()).decode()
        self.large.authorization = f"Basic {word}"

    @property
    def connect(self) -> str:
        """Lines for `[upstream.connect]`, by which the gateway finds the storage hosts."""
        port = self._ports["storage"]
        return "".join(f'"{each}:443" = "127.0.0.1:{port}"\n' for each in (STORAGE, ELSEWHERE))

    def close(self) -> None:
        """End it with what is behind it."""
        super().close()
        self._stack.close()

    def furnish(self, name: str, content: bytes) -> Bare:
        """A repository with one large file, `large.bin`."""
        oid = hashlib.sha256(content).hexdigest()
        self.large.objects[name, oid] = content
        bare = self.create(name)
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\n"
        pointer += f"size {len(content)}\n"
        bare.commit("main", {".gitattributes": ATTRIBUTES, "large.bin": pointer.encode()})
        return bare
