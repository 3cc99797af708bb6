"""One list of conversations, which means the same in each pair of HTTP/1.1 and HTTP/2.

The client says, the origin says, and the audit has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from tests.rigs.gateway.conversation import OWN, Channel, Conversation, Silence
from tests.rigs.gateway.stage import AMPLE, SECRET, STAND_IN, service
from tests.rigs.gateway.talk import Talk
from tests.rigs.http.http2 import PREFACE, Listener, Pair, data, headers, settings
from tests.rigs.http.http2 import request as pseudo

if TYPE_CHECKING:
    import socket

VERSIONS = {"1.1": "", "2": "h2"}


@dataclass(frozen=True)
class Said:
    """A message, whichever protocol carries it: `start` is its method and path, or its status."""

    start: str
    fields: tuple[Pair, ...] = ()
    pieces: tuple[str, ...] = ()
    trailers: tuple[Pair, ...] = ()

    @property
    def body(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True)
class Case:
    """What each side says, what the other is to hear of it, and the reasons in the audit."""

    client: Said
    origin_hears: Said | None
    origin: Said | None
    client_hears: Said
    audit: tuple[str, ...]
    policy: str = OWN
    limits: str = AMPLE
    interim: tuple[Said, ...] = ()


KEY = ("authorization", f"Bearer {SECRET}")
OK = Said("200", (), ("hi",))

CASES = {
    "a request gets the credential, and its response comes": Case(
        Said("GET /a", (("authorization", f"Bearer {STAND_IN}"), ("x-mine", "1"))),
        Said("GET /a", (KEY, ("x-mine", "1"))), OK, OK, ("rule",),
    ),
    "the client's own credential does not travel (I6)": Case(
        Said("GET /a", (("authorization", "Bearer mine"), ("cookie", "session=mine"))),
        Said("GET /a", (KEY,)), OK, OK, ("rule",),
    ),
    "a refused request reaches no origin (I3)": Case(
        Said("GET /v2/b"), None, None, Said("403"), ("no-rule",),
        service("own", "ok.example", allow="GET /v1/**"),
    ),
    "a path that is not clean reaches no origin": Case(
        Said("GET /v1/%2e%2e/b"), None, None, Said("403"), ("path-malformed",),
    ),
    "a body and its trailers pass": Case(
        Said("POST /a", (), ("hel", "lo"), (("x-sum", "5"),)),
        Said("POST /a", (KEY,), ("hel", "lo"), (("x-sum", "5"),)), OK, OK, ("rule",),
    ),
    "a response in pieces with trailers passes": Case(
        Said("GET /a"), Said("GET /a", (KEY,)),
        Said("200", (("x-more", "yes"),), ("one ", "two ", "three"), (("x-sum", "12"),)),
        Said("200", (("x-more", "yes"),), ("one two three",), (("x-sum", "12"),)), ("rule",),
    ),
    "a secret that comes back is replaced everywhere (I7)": Case(
        Said("GET /a"), Said("GET /a", (KEY,)),
        Said("200", (("x-echo", SECRET),), ("you sent ", SECRET[:9], SECRET[9:]),
             (("x-end", SECRET),)),
        Said("200", (("x-echo", STAND_IN),), ("you sent ", STAND_IN), (("x-end", STAND_IN),)),
        ("rule", "secret-scrubbed"),
    ),
    "a response to HEAD has no body": Case(
        Said("HEAD /a"), Said("HEAD /a", (KEY,)), Said("200", (("x-more", "yes"),)),
        Said("200", (("x-more", "yes"),)), ("rule",),
    ),
    "an early hint comes before the response": Case(
        Said("GET /a"), Said("GET /a", (KEY,)), OK, OK, ("rule",),
        interim=(Said("103", (("link", "</a.css>"),)),),
    ),
    "an error of the origin is its own": Case(
        Said("GET /a"), Said("GET /a", (KEY,)), Said("503", (), ("busy",)),
        Said("503", (), ("busy",)), ("rule",),
    ),
    "a body over its limit is refused (I9)": Case(
        Said("POST /a", (("content-length", "10241"),), ("x" * 10241,)), None, None, Said("413"),
        ("body-too-large",), limits=f"{AMPLE}body = '10KiB'\n",
    ),
    "a denied request reaches no origin": Case(
        Said("DELETE /no"), None, None, Said("403"), ("denied-by-rule",),
        service("own", "ok.example", more='deny = ["* /no"]'),
    ),
}  # fmt: skip


@dataclass
class Pairing:
    """A conversation in which each side has its protocol."""

    case: Case
    client: str
    origin: str
    listeners: dict[int, Listener] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.talk = Conversation(
            self.case.policy, self.case.limits, protocol=self.client, origin_protocol=self.origin
        )
        if self.client:
            self.talk.client.says(PREFACE + settings())

    def client_says(self, said: Said) -> None:
        method, _, path = said.start.partition(" ")
        if self.client:
            fields = pseudo(*said.fields, method=method, path=path)
            self.talk.client.says(*_frames(fields, said))
        else:
            line = f"{method} {path} HTTP/1.1\r\nHost: ok.example\r\n"
            self.talk.client.says(*_plain(line, said, bool(said.pieces or said.trailers)))

    def origin_says(self, said: Said, method: str) -> None:
        origin = self.talk.origins[-1]
        if self.origin:
            origin.says(*_frames([(":status", said.start), *said.fields], said))
        else:
            body = method != "HEAD" and not said.start.startswith("1")
            origin.says(*_plain(f"HTTP/1.1 {said.start} X\r\n", said, body))

    def origin_begins(self) -> None:
        if self.origin:
            self.talk.origins[-1].says(settings())

    def heard(self, side: Channel, protocol: str, method: str) -> list[Said]:
        """The messages that a side has got."""
        if not protocol:
            return _read(side.heard(), method)
        listener = self.listeners.setdefault(id(side), Listener())
        return _listen(listener.hears(side.heard().removeprefix(PREFACE)))


def _frames(fields: list[Pair], said: Said) -> list[bytes]:
    interim = said.start.startswith("1")
    more = bool(said.pieces or said.trailers)
    frames = [headers(1, fields, end=not more and not interim)]
    for number, piece in enumerate(said.pieces, 1):
        last = number == len(said.pieces) and not said.trailers
        frames.append(data(1, piece.encode(), end=last))
    if said.trailers:
        frames.append(headers(1, said.trailers))
    return frames


def _plain(line: str, said: Said, body: bool) -> list[bytes]:
    """HTTP/1.1, in chunks unless there is a length."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.fields)
    counted = any(name == "content-length" for name, _ in said.fields)
    if not body or counted:
        return [f"{line}{lines}\r\n".encode(), *(piece.encode() for piece in said.pieces)]
    chunks = [f"{len(piece):x}\r\n{piece}\r\n".encode() for piece in said.pieces]
    end = "".join(f"{name}: {value}\r\n" for name, value in said.trailers)
    head = f"{line}{lines}Transfer-Encoding: chunked\r\n\r\n"
    return [head.encode(), *chunks, f"0\r\n{end}\r\n".encode()]


def _read(sent: bytes, method: str) -> list[Said]:
    """Messages of HTTP/1.1: requests without a method of theirs, or the answers to one."""
    talk = Talk(cast("socket.socket", Silence()), sent)
    found: list[Said] = []
    while talk._buffer:
        message = talk.answer(method) if method else talk.request()
        assert message is not None
        words = message.start.split(" ")
        start = words[1] if method else " ".join(words[:2])
        lines = [line.partition(": ") for line in message.trailers.decode().splitlines()]
        trailers = tuple((name.lower(), value) for name, _, value in lines)
        body = (message.body.decode(),)
        found.append(Said(start, tuple(message.fields), body, trailers))
    return found


def _listen(words: list[str]) -> list[Said]:
    """Messages of the one stream of HTTP/2."""
    found: list[Said] = []
    for each in words:
        number, _, rest = each.partition(" ")
        kind, _, text = rest.partition(" ")
        if number != "1" or kind not in ("HEADERS", "DATA"):
            continue
        text = text.removesuffix("END").removesuffix(" ") if text.endswith("END") else text
        if kind == "DATA":
            last = found.pop()
            found.append(Said(last.start, last.fields, (*last.pieces, text), last.trailers))
            continue
        parts = re.split(r"(?:^| )(:?[a-z0-9-]+)=", text)[1:]
        pairs = dict(zip(parts[::2], parts[1::2], strict=True))
        plain = tuple((name, value) for name, value in pairs.items() if name[0] != ":")
        if ":status" in pairs:
            found.append(Said(pairs[":status"], plain))
        elif ":method" in pairs:
            found.append(Said(f"{pairs[':method']} {pairs[':path']}", plain))
        else:
            last = found.pop()
            found.append(Said(last.start, last.fields, last.pieces, plain))
    return found


@pytest.mark.parametrize("origin", VERSIONS)
@pytest.mark.parametrize("client", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_conversation_means_the_same_in_each_pair(name: str, client: str, origin: str) -> None:
    case = CASES[name]
    pairing = Pairing(case, VERSIONS[client], VERSIONS[origin])
    talk = pairing.talk
    method = case.client.start.partition(" ")[0]
    pairing.client_says(case.client)
    arrived = pairing.heard(talk.origins[-1], pairing.origin, "")
    if case.origin_hears is None:
        assert arrived == []
    else:
        (up,) = arrived
        assert (up.start, up.body) == (case.origin_hears.start, case.origin_hears.body)
        assert set(case.origin_hears.fields) <= set(up.fields)
        assert [value for each, value in up.fields if each == "authorization"] == [KEY[1]]
        assert not any("mine" in value for _, value in up.fields)
        assert up.trailers == case.origin_hears.trailers
    if case.origin is not None:
        pairing.origin_begins()
        for said in (*case.interim, case.origin):
            pairing.origin_says(said, method)
    *interim, got = pairing.heard(talk.client, pairing.client, method)
    assert [(each.start, each.fields) for each in interim] == [
        (each.start, each.fields) for each in case.interim
    ]
    assert got.start == case.client_hears.start
    assert set(case.client_hears.fields) <= set(got.fields)
    assert got.trailers == case.client_hears.trailers
    if case.origin is not None:
        assert got.body == case.client_hears.body
    assert tuple(talk.reasons) == case.audit
    assert talk.state.busy == 0
