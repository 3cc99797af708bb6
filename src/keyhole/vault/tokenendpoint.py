"""One POST to a token endpoint, over verified TLS, within bounds; its answer is data.

Called by `logins.py`. The host is a constant of the provider's and no sandbox has a part in it. The
dialler of the data plane resolves, judges and dials it, under the same policy (I4). Nothing is
followed, kept or cached.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.value import dataclass
from keyhole.vault.provider import read_document
from keyhole.wire.httpbody import ChunkedReader
from keyhole.wire.httpfield import END_OF_HEAD, Malformed
from keyhole.wire.httpresponse import Framing, parse_response

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.policy.rulebook import Rulebook
    from keyhole.vault.provider import Document, TokenRequest

PATIENCE = 60.0
"""Seconds for the whole of an answer. Long: a token may be spent although no answer came."""

DIALLING = 10.0
"""Seconds for a connection and its TLS; before that nothing is spent."""

MAX_HEAD = 16 * 1024
"""Bytes of an answer's head."""

MAX_ANSWER = 64 * 1024
"""Bytes of an answer: tokens with claims come to some 6,000 (I9)."""

_AT_ONCE = 16 * 1024

SPENT = frozenset(
    "invalid_grant refresh_token_expired refresh_token_reused refresh_token_invalidated "
    "refresh_token_revoked".split()
)
"""Codes for a refresh token that will never be good again (RFC 6749 §5.2, and OpenAI's own)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How token endpoints are reached under a policy; both are made when they are needed."""

    book: Callable[[], Rulebook]
    """For `upstream.connect`, `upstream.proxy`, `upstream.private` and the addresses."""
    context: Callable[[], ssl.SSLContext]
    """This host's roots, and those of `upstream.ca_file`."""
    patience: float = PATIENCE


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """What came of asking. Neither a token nor a reason is the zero."""

    document: Document | None = None
    """What the endpoint gave, if it gave something."""
    why: str = ""
    """Why there is nothing, in words of our own."""
    spent: bool = False
    """The refresh token is no longer good, so asking again is of no use."""

    def __repr__(self) -> str:
        return f"Answer({self.why!r})"


def ask(request: TokenRequest, reach: Reach) -> Answer:
    """Send it, and read what comes; it raises nothing."""
    from keyhole.system.dialler import AddressRefused, Unreachable  # it brings asyncio

    try:
        sock = _dial(request.host, reach)
    except AddressRefused as refused:
        return Answer(why=f"{request.host} is refused ({refused.decision.reason})")
    except Unreachable as failed:
        return Answer(why=f"{request.host} cannot be reached: {failed} ({failed.reason})")
    except (OSError, Malformed) as error:
        return Answer(why=f"{request.host} cannot be reached: {_words(error)}")
    try:
        with sock:
            deadline = time.monotonic() + reach.patience
            _send(sock, _written(request), deadline)
            status, body = _read(sock, deadline)
    except (OSError, Malformed) as error:
        return Answer(why=f"{request.host} gave no answer: {_words(error)}")
    return _judge(request.host, status, body)


def _judge(host: str, status: int, body: bytes) -> Answer:
    found = read_document(body)
    if status == 200 and found is not None:
        return Answer(found)
    error = (found or {}).get("error")
    code = error.get("code") if isinstance(error, dict) else error
    if 400 <= status < 500 and isinstance(code, str) and code in SPENT:
        return Answer(why=f"{host} says {code}", spent=True)
    # Nothing of the body: it may repeat what was sent.
    return Answer(why=f"{host} answered {status}" + (" and no JSON" if status == 200 else ""))


# ── the connection ────────────────────────────────────────────────────────────────────────────────


def _dial(name: str, reach: Reach) -> ssl.SSLSocket:
    """Raises AddressRefused, Unreachable, OSError and Malformed."""
    from keyhole.system.dialler import dial_blocking

    deadline = time.monotonic() + min(DIALLING, reach.patience)
    dialled = dial_blocking(reach.book(), Host.parse(name), DEFAULT_PORT, _left(deadline))
    try:
        if dialled.early:
            raise Malformed("the proxy answers for it before it was asked")
        dialled.sock.settimeout(_left(deadline))
        # TLS for the name, whatever was dialled.
        return reach.context().wrap_socket(dialled.sock, server_hostname=name)
    except BaseException:
        dialled.sock.close()
        raise


# ── the exchange ──────────────────────────────────────────────────────────────────────────────────


def _written(request: TokenRequest) -> bytes:
    return (
        f"POST {request.path} HTTP/1.1\r\nHost: {request.host}\r\n"
        f"User-Agent: {request.agent}\r\nContent-Type: {request.kind}\r\n"
        "Accept: application/json\r\nAccept-Encoding: identity\r\n"
        f"Content-Length: {len(request.body)}\r\nConnection: close\r\n\r\n".encode("ascii")
        + request.body
    )


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(_left(deadline))
    sock.sendall(data)


def _read(sock: socket.socket, deadline: float) -> tuple[int, bytes]:
    """Strictly, as the gateway reads an origin's answers."""
    raw = b""
    while END_OF_HEAD not in raw:
        if len(raw) > MAX_HEAD:
            raise Malformed("its head has no end")
        raw += _receive(sock, _AT_ONCE, deadline)
    head, _, body = raw.partition(END_OF_HEAD)
    response = parse_response(head, "POST", {})
    if response.framing is Framing.LENGTH and response.length <= MAX_ANSWER:
        while len(body) < response.length:
            body += _receive(sock, _AT_ONCE, deadline)
        return response.status, body[: response.length]
    if response.framing is Framing.CHUNKED:
        return response.status, _read_chunks(sock, body, deadline)
    if response.framing is Framing.CLOSE:
        return response.status, _read_all(sock, body, deadline)
    if response.framing is Framing.NONE:
        return response.status, b""
    raise Malformed("its body is too long")


def _read_all(sock: socket.socket, body: bytes, deadline: float) -> bytes:
    """To the end of the connection; what is cut off is no JSON."""
    while True:
        sock.settimeout(_left(deadline))
        data = sock.recv(_AT_ONCE)
        if not data:
            return body
        body += data
        if len(body) > MAX_ANSWER:
            raise Malformed("its body is too long")


def _read_chunks(sock: socket.socket, begun: bytes, deadline: float) -> bytes:
    chunks = ChunkedReader(None)
    body = chunks.feed(begun)
    while not chunks.done:
        if len(body) > MAX_ANSWER:
            raise Malformed("its body is too long")
        body += chunks.feed(_receive(sock, _AT_ONCE, deadline))
    return body


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    sock.settimeout(_left(deadline))
    data = sock.recv(size)
    if not data:
        raise Malformed("it was cut off")
    return data


def _left(deadline: float) -> float:
    """Until then, however many bytes come meanwhile, one by one."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _words(error: OSError | Malformed) -> str:
    """Ours, or the system's; never what was received."""
    if isinstance(error, Malformed):
        return error.why
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.strerror or str(error) or type(error).__name__).lower()
