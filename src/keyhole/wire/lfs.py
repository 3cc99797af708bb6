"""Git LFS's JSON: batch requests, their answers and locks, read strictly and written anew.

Called by `policy/largefiles.py` for what a client asks and by `gateway/lfs.py` for what a forge
answers. Both are attacked through the reader: Go's takes `Operation` for `operation` and the last
of two, others the first. So a name counts once whatever its case, and only what was read here goes
on, never the bytes that came. Nothing is decided here, and no address is reached.
"""

from __future__ import annotations

import enum
import json
import re
from typing import TYPE_CHECKING

from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host, parse_port
from keyhole.model.value import dataclass
from keyhole.wire.httpfield import FIELD, Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

MEDIA_TYPE = b"application/vnd.git-lfs+json"

MAX_REQUEST = 256 * 1024
"""Bytes of a request: MAX_OBJECTS take some 12 KiB, a lock's path at most 4."""

MAX_ANSWER = 1024 * 1024
"""Bytes of an answer to a batch: ten KiB an object, where signed addresses take two."""

MAX_OBJECTS = 100
"""Objects of a batch: the client's own default."""

MAX_SIZE = 2**50
"""Bytes of an object: a petabyte, and no integer of anyone overflows."""

MAX_HREF = 8 * 1024
"""Characters of an address; signed ones with a session token have under 4 KiB."""

MAX_HEADERS = 32
"""Header fields of one action; forges give up to five."""

MAX_VALUE = 8 * 1024
"""Characters of a header field's value: what common servers accept of a line."""

MAX_TEXT = 4096
"""Characters of a path, a ref's name or a cursor: what a file system takes for a path."""

MAX_MESSAGE = 200
"""Characters of an error that are passed on."""

MAX_WORD = 15
"""Characters of a word in an error that is passed on: a longer one may be a secret, since that is
where secrets begin to be searched for."""

MAX_DIGITS = 16
"""Digits of a number: MAX_SIZE has that many."""

_OID = re.compile(r"[0-9a-f]{64}")
_MEDIA = re.compile(
    rb"application/vnd\.git-lfs\+json(?:[ \t]*;[ \t]*charset=\"?utf-8\"?)?", re.IGNORECASE
)
# RFC 3986 without user information and fragment; names are judged by `Host`, brackets do not match.
_HREF = re.compile(
    r"https://([A-Za-z0-9.-]+)(?::([0-9]+))?"
    r"((?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*)?)"
    r"(\?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|]|%[0-9A-Fa-f]{2})*)?"
)
_BASIC = "basic"
_HASH = "sha256"


class Operation(enum.StrEnum):
    """What a batch is for. The zero is the one that needs no more than reading."""

    DOWNLOAD = "download"
    UPLOAD = "upload"


class Verb(enum.StrEnum):
    """What an action of an answer does."""

    DOWNLOAD = "download"
    UPLOAD = "upload"
    VERIFY = "verify"

    @property
    def method(self) -> str:
        """The method of its request, in the transfer that is called basic."""
        return _METHODS[self]


_METHODS = {Verb.DOWNLOAD: "GET", Verb.UPLOAD: "PUT", Verb.VERIFY: "POST"}
_VERBS = {
    Operation.DOWNLOAD: (Verb.DOWNLOAD,),
    Operation.UPLOAD: (Verb.UPLOAD, Verb.VERIFY),
}


@dataclass(frozen=True, slots=True)
class LargeObject:
    """One object: SHA-256 of its content, and its size in bytes."""

    oid: str
    size: int


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a client asks for, once it was read."""

    operation: Operation
    objects: tuple[LargeObject, ...]
    ref: str = ""
    """What the client says it is for: a claim."""

    def encoded(self) -> bytes:
        """What goes on: nothing but what was read, and the one transfer that is known."""
        said: dict[str, object] = {"operation": self.operation, "transfers": [_BASIC]}
        if self.ref:
            said["ref"] = {"name": self.ref}
        said["objects"] = [{"oid": each.oid, "size": each.size} for each in self.objects]
        return _json(said | {"hash_algo": _HASH})


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a client asks of locks; fields that its endpoint does not have are empty."""

    path: str = ""
    cursor: str = ""
    limit: int = 0
    ref: str = ""
    force: bool = False

    def encoded(self) -> bytes:
        """What goes on."""
        said: dict[str, object] = {"path": self.path, "cursor": self.cursor, "limit": self.limit}
        said |= {"force": self.force, "ref": {"name": self.ref} if self.ref else None}
        return _json({name: value for name, value in said.items() if value})


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """Where an object is stored. Its query is often a credential, so it is not shown."""

    host: Host
    port: int
    path: str
    query: str

    @classmethod
    def parse(cls, text: str) -> StorageAddress:
        """Read an address that a forge gave: by https, of a name."""
        found = _HREF.fullmatch(text) if len(text) <= MAX_HREF else None
        if found is None:
            raise Malformed("an address of LFS is not `https://name/path`")
        name, port, path, query = found.groups()
        try:
            return cls(
                Host.parse(name),
                parse_port(port) if port is not None else DEFAULT_PORT,
                path or "/",
                query or "",
            )
        except Unparsable as error:
            raise Malformed(f"an address of LFS is refused: {error.message}") from None

    @property
    def target(self) -> str:
        """Path and query, as a request line has them."""
        return self.path + self.query

    def __repr__(self) -> str:
        return f"StorageAddress({self.host}:{self.port})"


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """How an object is transferred. It carries credentials (I1), so it is not shown."""

    address: StorageAddress
    header: tuple[tuple[str, str], ...] = ()
    expires_in: int | None = None
    expires_at: str = ""

    def __repr__(self) -> str:
        return f"Action({self.address!r})"


@dataclass(frozen=True, slots=True)
class AnsweredObject:
    """What a forge says of an object: how to transfer it, that it need not be, or an error."""

    large: LargeObject
    actions: tuple[tuple[Verb, Action], ...] = ()
    code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """What the client gets in the place of an action."""

    href: str
    expires_in: int


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def read_json(data: bytes, limit: int) -> dict[str, object]:
    """An object in UTF-8, in which no name stands twice and numbers are plain and whole."""
    if len(data) > limit:
        raise Malformed(f"LFS's JSON has at most {limit} bytes here")
    try:
        # `json.loads` would guess UTF-16 from bytes.
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except (ValueError, RecursionError):
        raise Malformed("LFS's JSON cannot be read") from None
    return _mapping(value, "LFS's JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name.casefold() for name, _ in pairs}) != len(pairs):
        raise Malformed("LFS's JSON has a name twice")
    return dict(pairs)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        _refuse_number(text)
    return int(text)


def _refuse_number(_: str) -> NoReturn:
    raise Malformed("LFS's JSON has a number that is not plain and whole")


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _list(value: object, what: str, most: int) -> list[object]:
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{what} is not a list of at most {most}")
    return value


def _number(value: object, what: str) -> int:
    # `true` is an int to Python.
    if type(value) is not int:
        raise Malformed(f"{what} is not a number")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        # A lone surrogate is not printable either.
        raise Malformed(f"{what} is not one line of text")
    return value


def is_lfs_json(lines: Iterable[bytes]) -> bool:
    """Whether a request's fields name LFS's media type, once, and no encoding of the body."""
    fields = [FIELD.match(line) for line in lines]
    named = [(found[1].lower(), found[2].strip(b" \t")) for found in fields if found]
    types = [value for name, value in named if name == b"content-type"]
    encoded = any(name == b"content-encoding" for name, _ in named)
    return len(types) == 1 and _MEDIA.fullmatch(types[0]) is not None and not encoded


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def read_batch_request(data: bytes) -> BatchRequest:
    """The body of `POST objects/batch`."""
    said = read_json(data, MAX_REQUEST)
    try:
        operation = Operation(_text(said.get("operation"), "operation"))
    except ValueError:
        raise Malformed("operation is something else than download and upload") from None
    _check_hash(said)
    if said.get("transfers") is not None and _BASIC not in _list(
        said["transfers"], "transfers", 16
    ):
        raise Malformed("transfers does not hold `basic`")
    found: dict[str, LargeObject] = {}
    for entry in _list(said.get("objects"), "objects", MAX_OBJECTS):
        large = _large(_mapping(entry, "an object of LFS"))
        if found.setdefault(large.oid, large) != large:
            raise Malformed("an object of LFS has two sizes")
    if not found:
        raise Malformed("objects is empty")
    return BatchRequest(operation, tuple(found.values()), _ref(said))


def read_lock_request(data: bytes, *names: str) -> LockRequest:
    """The body of a request on locks, of which these fields are read and the others dropped."""
    said = {name: value for name, value in read_json(data, MAX_REQUEST).items() if name in names}
    force = said.get("force") or False
    if not isinstance(force, bool):
        raise Malformed("force is neither true nor false")
    return LockRequest(
        path=_text(said.get("path") or "", "path"),
        cursor=_text(said.get("cursor") or "", "cursor"),
        limit=_number(said.get("limit") or 0, "limit"),
        ref=_ref(said),
        force=force,
    )


def read_object(data: bytes) -> LargeObject:
    """The body by which a client asks to verify an upload."""
    return _large(read_json(data, MAX_REQUEST))


def write_object(large: LargeObject) -> bytes:
    """The same, as it goes on."""
    return _json({"oid": large.oid, "size": large.size})


def _large(entry: Mapping[str, object]) -> LargeObject:
    oid, size = _text(entry.get("oid"), "oid"), _number(entry.get("size"), "size")
    if not _OID.fullmatch(oid):
        raise Malformed("oid is not a SHA-256 in lower-case hexadecimal")
    if not 0 <= size <= MAX_SIZE:
        raise Malformed("size is not that of a file")
    return LargeObject(oid, size)


def _check_hash(said: Mapping[str, object]) -> None:
    if said.get("hash_algo") not in (None, "", _HASH):
        raise Malformed("hash_algo is something else than sha256")


def _ref(said: Mapping[str, object]) -> str:
    ref = said.get("ref")
    return "" if ref is None else _text(_mapping(ref, "ref").get("name", ""), "a ref's name")


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def read_batch_answer(data: bytes, request: BatchRequest) -> tuple[AnsweredObject, ...]:
    """What a forge answers to this request: each object one that was asked for, and once."""
    said = read_json(data, MAX_ANSWER)
    if said.get("transfer") not in (None, "", _BASIC):
        raise Malformed("the answer wants a transfer that is not `basic`")
    _check_hash(said)
    asked = {large.oid: large for large in request.objects}
    answered = []
    for value in _list(said.get("objects"), "objects", MAX_OBJECTS):
        entry = _mapping(value, "an object of LFS")
        large = asked.pop(_text(entry.get("oid"), "oid"), None)
        if large is None:
            raise Malformed("the answer has an object that was not asked for, or twice")
        if entry.get("size") not in (None, large.size):
            raise Malformed("the answer has an object of another size than was asked for")
        answered.append(_answered(entry, large, request.operation))
    return tuple(answered)


def _answered(
    entry: Mapping[str, object], large: LargeObject, operation: Operation
) -> AnsweredObject:
    if entry.get("error") is not None:
        error = _mapping(entry["error"], "error")
        code = _number(error.get("code"), "code")
        if not 400 <= code < 600:
            raise Malformed("code is not that of an error")
        return AnsweredObject(large, code=code, message=_words(error.get("message")))
    given = entry.get("actions")
    actions = {} if given is None else _mapping(given, "actions")
    verbs = _VERBS[operation]
    if not actions.keys() <= set(verbs):
        raise Malformed("the answer has an action that was not asked for")
    found = [(verb, _action(actions[verb])) for verb in verbs if actions.get(verb) is not None]
    return AnsweredObject(large, tuple(found))


def _action(value: object) -> Action:
    said = _mapping(value, "an action")
    href = said.get("href")
    if not isinstance(href, str):
        raise Malformed("href is not text")
    header = {} if said.get("header") is None else _mapping(said["header"], "header")
    if len(header) > MAX_HEADERS:
        raise Malformed(f"header has more than {MAX_HEADERS} fields")
    expires_in = said.get("expires_in")
    return Action(
        StorageAddress.parse(href),
        tuple(_field(name, field) for name, field in header.items()),
        None if expires_in is None else _number(expires_in, "expires_in"),
        _text(said.get("expires_at") or "", "expires_at"),
    )


def _field(name: str, value: object) -> tuple[str, str]:
    """A field as it is written: CR, LF or NUL in it would be a second one, or a second request."""
    if not isinstance(value, str) or not value.isascii() or len(value) > MAX_VALUE:
        raise Malformed("header has a value that is not a line of ASCII")
    if not name.isascii() or not FIELD.fullmatch(f"{name}:{value}".encode("ascii")):
        raise Malformed("header has a field that is not `name: value` on one line")
    return name, value.strip(" \t")


def write_batch_answer(
    answered: Iterable[AnsweredObject], links: Mapping[tuple[str, Verb], Link]
) -> bytes:
    """The answer as the client gets it: links in the place of actions, and none of their fields."""
    objects: list[dict[str, object]] = []
    for each in answered:
        said: dict[str, object] = {"oid": each.large.oid, "size": each.large.size}
        if each.code:
            said["error"] = {"code": each.code, "message": each.message}
        elif each.actions:
            # Otherwise the client would look for credentials of its own.
            said["authenticated"] = True
            actions = {}
            for verb, _ in each.actions:
                link = links[each.large.oid, verb]
                actions[verb] = {"href": link.href, "expires_in": link.expires_in}
            said["actions"] = actions
        objects.append(said)
    return _json({"transfer": _BASIC, "objects": objects, "hash_algo": _HASH})


def rewrite_error(data: bytes) -> bytes:
    """The body of an answer that is an error: its message and nothing else."""
    try:
        message = _words(read_json(data, MAX_ANSWER).get("message"))
    except Malformed:
        message = ""
    return write_error(message or "the server says no more")


def write_error(message: str) -> bytes:
    """An error as LFS clients read it."""
    return _json({"message": message})


def _words(value: object) -> str:
    """A message for people, without anything in it that may be a secret."""
    words = value.split() if isinstance(value, str) else []
    plain = (word if len(word) <= MAX_WORD and word.isprintable() else "…" for word in words)
    return " ".join(plain)[:MAX_MESSAGE]
