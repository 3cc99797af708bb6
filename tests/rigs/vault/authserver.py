"""An authorization server and a service on loopback, which check what the RFCs say they must.

PKCE, redirect, client, `resource`, one-time codes, refresh tokens that rotate and end at a second
use, device codes, revocation, and a page on which a person agrees. `bend` changes a description or
an answer before it is sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import trustme

from tests.rigs.gateway.origins import Origin, tls_for
from tests.rigs.gateway.talk import Message, Talk
from tests.rigs.vault.tokenserver import answer, posted
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    import socket


SERVICE, ISSUER = "mcp.tracker.example", "auth.tracker.example"
RESOURCE, ISSUER_URL = f"https://{SERVICE}/mcp", f"https://{ISSUER}"
HOUR = 3600

Bend = Callable[[str, dict[str, Any]], Any]
"""From the path and the document that would be sent to the one that is; bytes are sent as a whole
answer."""


@dataclass
class Login:
    """A code that a person agreed to."""

    client: str
    redirect: str
    challenge: str
    resource: str
    scope: str


@dataclass(repr=False)
class AuthServer:
    """Both hosts behind one port; what they were asked is in `asked`."""

    authority: trustme.CA
    bend: Bend = lambda _, document: document
    life: int = HOUR
    asked: list[Message] = field(default_factory=list)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, Login] = field(default_factory=dict)
    devices: dict[str, bool] = field(default_factory=dict)
    refresh: dict[str, str] = field(default_factory=dict)
    """Good refresh tokens, and the resource of each."""
    access: set[str] = field(default_factory=set)
    hosts: tuple[str, ...] = (SERVICE, ISSUER)
    describes: bool = True
    registers: bool = True
    ledger: Path | None = None
    """A file in which a real server of MCP finds the tokens: one line of access and refresh token
    for each that was issued."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._origin = Origin(self._converse, tls_for(self.authority, *self.hosts))
        self.port = self._origin.port

    @property
    def connect(self) -> str:
        lines = [f'"{host}:443" = "127.0.0.1:{self.port}"\n' for host in self.hosts]
        return "[upstream.connect]\n" + "".join(lines)

    def policy(self, directory: Path, more: str = "") -> str:
        """A policy with the service, and the way to it."""
        (directory / "ca.pem").write_bytes(self.authority.cert_pem.bytes())
        return (
            f'[services.tracker]\nhosts = ["{SERVICE}"]\nsecret = "login:tracker"\n'
            'inject = { header = "Authorization", value = "Bearer {secret}" }\n'
            f'allow = ["GET /**", "POST /mcp"]\n{more}\n'
            f'[upstream]\nca_file = "ca.pem"\n{self.connect}'
        )

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())

    def close(self) -> None:
        self._origin.close()

    def paths(self) -> list[str]:
        """Method and path of each request."""
        return [f"{m.method} {m.target.partition('?')[0]}" for m in self.asked]

    def agree(self, link: str, **bent: str) -> str:
        """What a person's browser is sent back to after they agreed; `bent` replaces fields of the
        return."""
        where = urlsplit(link)
        assert (where.scheme, where.netloc, where.path) == ("https", ISSUER, "/authorize")
        fields = dict(parse_qsl(where.query, strict_parsing=True))
        assert fields["response_type"] == "code"
        assert fields["code_challenge_method"] == "S256"
        assert fields["redirect_uri"] in self.clients[fields["client_id"]]["redirect_uris"]
        code = secrets.token_urlsafe(16)
        self.codes[code] = Login(
            fields["client_id"],
            fields["redirect_uri"],
            fields["code_challenge"],
            fields.get("resource", ""),
            fields.get("scope", ""),
        )
        back = {"code": code, "state": fields["state"], "iss": ISSUER_URL} | bent
        return f"{fields['redirect_uri']}?{urlencode({k: v for k, v in back.items() if v})}"

    def _converse(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE)
        asked = Talk(sock).request()
        if asked is None:
            return
        with self._lock:
            self.asked.append(asked)
            pieces = list(self._reply(asked))
        for piece in pieces:
            sock.sendall(piece)

    def _reply(self, asked: Message) -> Iterable[bytes]:
        path, host = asked.target.partition("?")[0], asked.headers["host"]
        if host == SERVICE:
            return self._service(asked, path)
        match f"{asked.method} {path}":
            case "GET /.well-known/oauth-authorization-server":
                return self._sent(200, path, self._metadata())
            case "POST /register":
                return self._register(asked, path)
            case "POST /token":
                status, document = self._token(posted(asked), asked)
                return self._sent(status, path, document)
            case "GET /authorize":
                return self._page(asked)
            case "POST /consent":
                back = self.agree(f"{ISSUER_URL}/authorize?{posted(asked)['asked']}")
                return answer(302, b"", f"Location: {back}", "Connection: close")
            case "POST /device":
                return self._device(path)
            case "POST /revoke":
                self.refresh.pop(posted(asked)["token"], None)
                self.access.discard(posted(asked)["token"])
                return answer(200, b"")
        return answer(404, {})

    def _page(self, asked: Message) -> Iterable[bytes]:
        """What a person sees, with a button."""
        query = html.escape(asked.target.partition("?")[2])
        page = (
            '<!doctype html><title>consent</title><form method="post" action="/consent">'
            f'<input type="hidden" name="asked" value="{query}"><button id="agree">Agree</button>'
        )
        kind = "Content-Type: text/html; charset=utf-8"
        return answer(200, page.encode(), kind, "Connection: close")

    def _service(self, asked: Message, path: str) -> Iterable[bytes]:
        if path.startswith("/.well-known/oauth-protected-resource") and self.describes:
            document = {
                "resource": RESOURCE,
                "authorization_servers": [ISSUER_URL],
                "scopes_supported": ["read", "write"],
            }
            return self._sent(200, path, document)
        if path == "/mcp":
            token = asked.headers.get("authorization", "").removeprefix("Bearer ")
            if token in self.access:
                return answer(200, {"hello": "tracker"})
            named = f"https://{SERVICE}/.well-known/oauth-protected-resource/mcp"
            field = f'WWW-Authenticate: Bearer resource_metadata="{named}", scope="read write"'
            return answer(401, {}, *([field] if self.describes else []))
        return answer(404, {})

    def _metadata(self) -> dict[str, Any]:
        found = {
            "issuer": ISSUER_URL,
            "authorization_endpoint": f"{ISSUER_URL}/authorize",
            "token_endpoint": f"{ISSUER_URL}/token",
            "revocation_endpoint": f"{ISSUER_URL}/revoke",
            "device_authorization_endpoint": f"{ISSUER_URL}/device",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return found | (
            {"registration_endpoint": f"{ISSUER_URL}/register"} if self.registers else {}
        )

    def _sent(self, status: int, path: str, document: dict[str, Any]) -> Iterable[bytes]:
        bent = self.bend(path, document)
        return [bent] if isinstance(bent, bytes) else answer(status, bent)

    def _register(self, asked: Message, path: str) -> Iterable[bytes]:
        document = posted(asked)
        name = f"client-{secrets.token_hex(4)}"
        self.clients[name] = document
        return self._sent(201, path, {"client_id": name} | document)

    def _token(self, fields: dict[str, str], asked: Message) -> tuple[int, dict[str, Any]]:
        if _client_of(fields, asked) not in self.clients:
            return 401, {"error": "invalid_client"}
        match fields["grant_type"]:
            case "authorization_code":
                login = self.codes.pop(fields["code"], None)
                digest = hashlib.sha256(fields["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                if (
                    login is None
                    or login.challenge != challenge
                    or login.redirect != fields["redirect_uri"]
                    or login.client != _client_of(fields, asked)
                ):
                    return 400, {"error": "invalid_grant"}
                if login.resource != fields.get("resource"):
                    return 400, {"error": "invalid_target"}
                return 200, self._issue(login.resource, login.scope)
            case "refresh_token":
                resource = self.refresh.pop(fields["refresh_token"], None)
                if resource is None:
                    return 400, {"error": "invalid_grant", "error_description": "\x1b[2J"}
                if resource != fields.get("resource"):
                    return 400, {"error": "invalid_target"}
                return 200, self._issue(resource, "read write")
            case "urn:ietf:params:oauth:grant-type:device_code":
                if not self.devices.get(fields["device_code"]):
                    return 400, {"error": "authorization_pending"}
                return 200, self._issue(fields["resource"], "read write")
        return 400, {"error": "unsupported_grant_type"}

    def _issue(self, resource: str, scope: str) -> dict[str, Any]:
        access, refresh = f"at-{secrets.token_urlsafe(24)}", f"rt-{secrets.token_urlsafe(24)}"
        self.access.add(access)
        self.refresh[refresh] = resource
        if self.ledger is not None:
            with self.ledger.open("a") as file:
                file.write(f"{access} {refresh}\n")
        return {
            "access_token": access,
            "refresh_token": refresh,
            "token_type": "Bearer",
            "expires_in": self.life,
            "scope": scope,
        }

    def _device(self, path: str) -> Iterable[bytes]:
        code = secrets.token_urlsafe(16)
        self.devices[code] = False
        document = {
            "device_code": code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{ISSUER_URL}/activate",
            "expires_in": 600,
            "interval": 1,
        }
        return self._sent(200, path, document)


def _client_of(fields: dict[str, str], asked: Message) -> str:
    """The client, by the body or by Basic."""
    sent = asked.headers.get("authorization", "")
    if sent.startswith("Basic "):
        return unquote(base64.b64decode(sent[6:]).decode().partition(":")[0])
    return fields.get("client_id", "")
