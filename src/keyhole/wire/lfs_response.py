"""A forge's response to a Git LFS batch: read strictly, and rebuilt for the client.

Called by `gateway/git/batch.py`. A response names where each object is stored and the fields that
are needed there, and both carry credentials (I1). So a client gets only what this module writes.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.http.field import parse_field
from keyhole.model.errors import Malformed, Unparsable
from keyhole.model.host import DEFAULT_PORT, Host, parse_port
from keyhole.wire.lfs_json import (
    read_json,
    read_list,
    read_mapping,
    read_number,
    read_text,
    write_error,
    write_json,
)
from keyhole.wire.lfs_request import BASIC, HASH, MAX_OBJECTS, LfsOperation, check_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.wire.lfs_request import BatchRequest, LargeObject

MAX_ANSWER = 1024 * 1024
"""Bytes of an answer to a batch: ten KiB an object, where signed addresses take two."""

MAX_HREF = 8 * 1024
"""Characters of an address; signed ones with a session token have under 4 KiB."""

MAX_HEADERS = 32
"""Header fields of one action; forges give up to five."""

MAX_VALUE = 8 * 1024
"""Characters of a header field's value: what common servers accept of a line."""

MAX_MESSAGE = 200
"""Characters of an error that are passed on."""

MAX_WORD = 15
"""Characters of a word in an error that is passed on. A longer word may be a secret: from this
length on, secrets are searched for."""

# RFC 3986 without user information and fragment; names are judged by `Host`, brackets do not match.
_HREF = re.compile(
    r"https://([A-Za-z0-9.-]+)(?::([0-9]+))?"
    r"((?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*)?)"
    r"(\?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|]|%[0-9A-Fa-f]{2})*)?"
)


class TransferVerb(enum.StrEnum):
    """The purpose of an action in a response."""

    DOWNLOAD = "download"
    UPLOAD = "upload"
    VERIFY = "verify"

    @property
    def method(self) -> str:
        """The method of its request, in the transfer that is called basic."""
        return _METHODS[self]


_METHODS = {TransferVerb.DOWNLOAD: "GET", TransferVerb.UPLOAD: "PUT", TransferVerb.VERIFY: "POST"}
_VERBS = {
    LfsOperation.DOWNLOAD: (TransferVerb.DOWNLOAD,),
    LfsOperation.UPLOAD: (TransferVerb.UPLOAD, TransferVerb.VERIFY),
}


class StorageAddress(Struct, frozen=True):
    """The address of a stored object. Its query is often a credential, so it cannot be printed."""

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


class TransferAction(Struct, frozen=True):
    """A transfer of an object. It carries credentials (I1), so it cannot be printed."""

    address: StorageAddress
    header: tuple[tuple[str, str], ...] = ()
    expires_in: int | None = None
    expires_at: str = ""

    def __repr__(self) -> str:
        return f"Action({self.address!r})"


class AnsweredObject(Struct, frozen=True):
    """A forge's entry for one object: how to transfer it, that no transfer is needed, or an
    error."""

    large: LargeObject
    actions: tuple[tuple[TransferVerb, TransferAction], ...] = ()
    code: int = 0
    message: str = ""


class TransferLink(Struct, frozen=True):
    """The link that the client gets in place of an action."""

    href: str
    expires_in: int


def read_batch_answer(data: bytes, request: BatchRequest) -> tuple[AnsweredObject, ...]:
    """Parse a forge's response to this request: each requested object at most once, and no
    other."""
    said = read_json(data, MAX_ANSWER)
    if said.get("transfer") not in (None, "", BASIC):
        raise Malformed("the answer wants a transfer that is not `basic`")
    check_hash(said)
    asked = {large.oid: large for large in request.objects}
    answered = []
    for value in read_list(said.get("objects"), "objects", MAX_OBJECTS):
        entry = read_mapping(value, "an object of LFS")
        large = asked.pop(read_text(entry.get("oid"), "oid"), None)
        if large is None:
            raise Malformed("the answer has an object that was not asked for, or twice")
        if entry.get("size") not in (None, large.size):
            raise Malformed("the answer has an object of another size than was asked for")
        answered.append(_answered(entry, large, request.operation))
    return tuple(answered)


def _answered(
    entry: Mapping[str, object], large: LargeObject, operation: LfsOperation
) -> AnsweredObject:
    if entry.get("error") is not None:
        error = read_mapping(entry["error"], "error")
        code = read_number(error.get("code"), "code")
        if not 400 <= code < 600:
            raise Malformed("code is not that of an error")
        return AnsweredObject(large, code=code, message=_words(error.get("message")))
    given = entry.get("actions")
    actions = {} if given is None else read_mapping(given, "actions")
    verbs = _VERBS[operation]
    if not actions.keys() <= set(verbs):
        raise Malformed("the answer has an action that was not asked for")
    found = [(verb, _action(actions[verb])) for verb in verbs if actions.get(verb) is not None]
    return AnsweredObject(large, tuple(found))


def _action(value: object) -> TransferAction:
    said = read_mapping(value, "an action")
    href = said.get("href")
    if not isinstance(href, str):
        raise Malformed("href is not text")
    header = {} if said.get("header") is None else read_mapping(said["header"], "header")
    if len(header) > MAX_HEADERS:
        raise Malformed(f"header has more than {MAX_HEADERS} fields")
    expires_in = said.get("expires_in")
    return TransferAction(
        StorageAddress.parse(href),
        tuple(_field(name, field) for name, field in header.items()),
        None if expires_in is None else read_number(expires_in, "expires_in"),
        read_text(said.get("expires_at") or "", "expires_at"),
    )


def _field(name: str, value: object) -> tuple[str, str]:
    """A field as it is written: CR, LF or NUL in it would be a second one, or a second request."""
    if not isinstance(value, str) or not value.isascii() or len(value) > MAX_VALUE:
        raise Malformed("header has a value that is not a line of ASCII")
    if not name.isascii():
        raise Malformed("header has a field whose name is not ASCII")
    found = parse_field(f"{name}:{value}".encode("ascii"))
    return name, found.value.decode("ascii")


def write_batch_answer(
    answered: Iterable[AnsweredObject], links: Mapping[tuple[str, TransferVerb], TransferLink]
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
    return write_json({"transfer": BASIC, "objects": objects, "hash_algo": HASH})


def rewrite_error(data: bytes) -> bytes:
    """The body of an answer that is an error: its message and nothing else."""
    try:
        message = _words(read_json(data, MAX_ANSWER).get("message"))
    except Malformed:
        message = ""
    return write_error(message or "the server says no more")


def _words(value: object) -> str:
    """A message for people, without anything in it that may be a secret."""
    words = value.split() if isinstance(value, str) else []
    plain = (word if len(word) <= MAX_WORD and word.isprintable() else "…" for word in words)
    return " ".join(plain)[:MAX_MESSAGE]
