"""The target that a person asks `keyhole why` about: a URL, a host, or a push.

Read by plain patterns: `urlsplit` drops tabs and newlines and takes `ok.test\\@evil.test` for
evil.test, and an explanation must be of the target that the door would see.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host, is_address, parse_port
from keyhole.model.rule import WEBSOCKET, WORDS, spelled
from keyhole.policy.push import RefChange
from keyhole.policy.request import RequestFacts

_URL = re.compile(
    r"(?P<scheme>https?|wss?)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?"
)
_ADDRESS = re.compile(
    r"(?:(?:https?|wss?)://)?(?P<host>\[[^\]/]*\]|[^/:\[\]]+)(?::[0-9]+)?(?:/.*)?"
)
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?(?P<host>[A-Za-z0-9.-]+):(?P<path>[^/:][^:]*)")
_SSH = re.compile(r"ssh://(?:[A-Za-z0-9._-]+@)?(?P<host>[A-Za-z0-9.-]+)(?::\d+)?(?P<path>/.+)")
_PORTS = {"http": 80, "https": DEFAULT_PORT, "ws": 80, "wss": DEFAULT_PORT}
_WEBSOCKETS = frozenset({"ws", "wss"})
_FORCE = frozenset({"-f", "--force", "--force-with-lease"})
_DELETE = frozenset({"-d", "--delete"})


class LiteralTarget(Struct, frozen=True):
    """An address instead of a name."""

    address: str


class HostTarget(Struct, frozen=True):
    """A connection to a name and port."""

    host: Host
    port: int


class RequestTarget(Struct, frozen=True):
    """A request to a host."""

    host: Host
    port: int
    request: RequestFacts


class PushTarget(Struct, frozen=True):
    """A push of one ref to a repository's address."""

    host: Host
    port: int
    path: str
    ref: str
    change: RefChange


Target = LiteralTarget | HostTarget | RequestTarget | PushTarget


def parse_target(words: tuple[str, ...], method: str) -> Target:
    """Read the words of `keyhole why`."""
    if len(words) == 1:
        words = tuple(words[0].split())
    if words[:2] == ("git", "push"):
        return _push(words[2:])
    if len(words) == 2 and spelled(words[0]) in WORDS and "://" in words[1]:
        method, words = words[0], words[1:]
    if len(words) != 1:
        raise Unparsable(
            "one URL or host, 'METHOD URL', or 'git push URL REF'",
            "keyhole why git push URL agent/x",
        )
    text = words[0]
    literal = _ADDRESS.fullmatch(text)
    if literal and is_address(literal["host"]):
        return LiteralTarget(literal["host"])
    if "://" in text:
        return _url(text, method)
    host, port = _authority(text.removesuffix("/"), DEFAULT_PORT)
    return HostTarget(host, port)


def _url(text: str, method: str) -> RequestTarget:
    found = _URL.fullmatch(text)
    if not found:
        raise Unparsable("a URL of http, https, ws or wss without a fragment is expected")
    scheme = found["scheme"]
    host, port = _authority(found["authority"], _PORTS[scheme])
    word = WEBSOCKET if scheme in _WEBSOCKETS else spelled(method)
    return RequestTarget(host, port, RequestFacts(word, found["path"] or "/", found["query"] or ""))


def _push(words: tuple[str, ...]) -> PushTarget:
    flags = {w.partition("=")[0] for w in words if w.startswith("-")}
    plain = [w for w in words if not w.startswith("-")]
    unknown = flags - _FORCE - _DELETE
    if unknown:
        raise Unparsable(f"'{min(unknown)}' is not understood here")
    if len(plain) != 2:
        raise Unparsable("a push is 'git push URL REF'")
    host, port, path = parse_repository_url(plain[0])
    source, colon, destination = plain[1].removeprefix("+").rpartition(":")
    change = RefChange.FAST_FORWARD
    if flags & _FORCE or plain[1].startswith("+"):
        change = RefChange.FORCE
    if flags & _DELETE or (colon and not source):
        change = RefChange.DELETE
    return PushTarget(host, port, path, _full_ref(destination), change)


def parse_repository_url(text: str) -> tuple[Host, int, str]:
    """Host, port and path of a remote, in any form that git accepts."""
    found = _URL.fullmatch(text)
    if found:
        host, port = _authority(found["authority"], _PORTS[found["scheme"]])
        return host, port, found["path"] or "/"
    found = _SSH.fullmatch(text) or _SCP.fullmatch(text)
    if found:
        # Inside, such remotes are rewritten to https.
        return Host.parse(found["host"]), DEFAULT_PORT, "/" + found["path"].lstrip("/")
    raise Unparsable("a push names the remote by its URL", "`git remote get-url origin` prints it")


def _authority(text: str, port: int) -> tuple[Host, int]:
    name, colon, port_text = text.rpartition(":")
    if colon and not text.endswith("]"):
        return Host.parse(name), parse_port(port_text)
    return Host.parse(text), port


def _full_ref(name: str) -> str:
    return name if name.startswith("refs/") else f"refs/heads/{name}"
