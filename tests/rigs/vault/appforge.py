"""A forge on loopback that gives tokens to apps, and checks who asks, for what: by the JWT's
signature and times, the repositories of the installation, and its permissions."""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trustme
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.rigs.vault.tokenserver import TokenServer, answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.rigs.gateway.talk import Message

APP, INSTALLATION = "12345", 777
ALL = {
    "metadata": "read",
    "contents": "write",
    "pull_requests": "write",
    "issues": "write",
    "administration": "write",
    "checks": "read",
}


@dataclass
class Minted:
    """A token, and what it may do."""

    repositories: list[str]
    permissions: dict[str, str]


@dataclass(repr=False)
class AppForge:
    """A forge with one app, which is installed at one owner."""

    authority: trustme.CA
    host: str = "api.github.com"
    prefix: str = ""
    owner: str = "acme"
    installed: set[str] = field(default_factory=lambda: {"widgets", "docs", "secret"})
    permissions: dict[str, str] = field(default_factory=lambda: dict(ALL))
    tokens: dict[str, Minted] = field(default_factory=dict)
    life: float = 3600
    bend: dict[str, Any] = field(default_factory=dict)
    """Changes to the answer with a token."""

    def __post_init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.server = TokenServer(self.authority, (self.host,), self._reply)

    @property
    def pem(self) -> str:
        form = PrivateFormat.TraditionalOpenSSL
        return self.key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()

    def close(self) -> None:
        self.server.close()

    def _reply(self, asked: Message) -> Iterable[bytes]:
        sent = asked.headers.get("authorization", "").rpartition(" ")[2]
        if sent in self.tokens:
            return self._use(asked, self.tokens[sent])
        if not self._is_app(asked.headers.get("authorization", "")):
            return answer(401, {"message": "A JSON web token could not be decoded"})
        path = asked.target.removeprefix(self.prefix)
        if asked.method == "GET" and path.endswith("/installation"):
            _, _, owner, name, _ = path.split("/")
            if owner != self.owner or name not in self.installed:
                return answer(404, {"message": "Not Found"})
            return answer(200, {"id": INSTALLATION, "permissions": self.permissions})
        if asked.method == "POST" and path == f"/app/installations/{INSTALLATION}/access_tokens":
            return self._mint(json.loads(asked.body))
        return answer(404, {})

    def _use(self, asked: Message, minted: Minted) -> Iterable[bytes]:
        """A request of somebody with a token: a repository that it is for, and, as a careless
        service might, every token that was given."""
        _, _, owner, name, *_ = [*asked.target.split("/"), "", "", ""]
        if owner != self.owner or name not in minted.repositories:
            return answer(404, {"message": "Not Found"}, "Connection: close")
        told = {"full_name": f"{owner}/{name}", "generation": len(self.tokens)}
        return answer(200, told | {"knows": list(self.tokens)}, "Connection: close")

    def _mint(self, wanted: dict[str, Any]) -> Iterable[bytes]:
        names, permissions = wanted["repositories"], wanted["permissions"]
        ranks = {"read": 1, "write": 2}
        if not set(names) <= self.installed or not all(
            ranks[level] <= ranks.get(self.permissions.get(name, ""), 0)
            for name, level in permissions.items()
        ):
            return answer(422, {"message": "not granted"})
        token = f"ghs_{secrets.token_hex(18)}"
        self.tokens[token] = Minted(names, permissions)
        ends = datetime.fromtimestamp(time.time() + self.life, UTC)
        document = {
            "token": token,
            "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "permissions": permissions,
            "repository_selection": "selected",
            "repositories": [
                {"full_name": f"{self.owner.title()}/{name}", "url": "x" * 8000} for name in names
            ],
        }
        return answer(201, document | self.bend)

    def _is_app(self, authorization: str) -> bool:
        parts = authorization.removeprefix("Bearer ").split(".")
        if len(parts) != 3:
            return False
        header, claims, signature = (base64.urlsafe_b64decode(p + "==") for p in parts)
        try:
            signed = f"{parts[0]}.{parts[1]}".encode()
            self.key.public_key().verify(signature, signed, PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        said, now = json.loads(claims), time.time()
        return bool(
            json.loads(header)["alg"] == "RS256"
            and said["iss"] == APP
            and said["iat"] <= now
            and now < said["exp"] <= now + 600
        )
