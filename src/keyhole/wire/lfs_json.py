"""Git LFS's JSON: read strictly, with one meaning, and rebuilt.

The grammar below `lfs_request.py` (requests of clients) and `lfs_response.py` (responses of
forges). Attack: Go's reader accepts `Operation` for `operation` and takes the last of two, while
other readers take the first. So names that differ only in case are the same name, and a repeated
name is refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from keyhole.http.field import values_of
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

MEDIA_TYPE = b"application/vnd.git-lfs+json"

MAX_TEXT = 4096
"""Characters of a path, a ref's name or a cursor: what a file system takes for a path."""

MAX_DIGITS = 16
"""Digits of a number: as many as the size of the largest object has."""

_MEDIA = re.compile(
    rb"application/vnd\.git-lfs\+json(?:[ \t]*;[ \t]*charset=\"?utf-8\"?)?", re.IGNORECASE
)


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
    return read_mapping(value, "LFS's JSON")


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


def read_mapping(value: object, what: str) -> dict[str, object]:
    """An object. Raises Malformed with the name in `what`, as all functions below do."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def read_list(value: object, what: str, most: int) -> list[object]:
    """A list of at most so many."""
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{what} is not a list of at most {most}")
    return value


def read_number(value: object, what: str) -> int:
    """A whole number."""
    # `true` is an int to Python.
    if type(value) is not int:
        raise Malformed(f"{what} is not a number")
    return value


def read_text(value: object, what: str) -> str:
    """One line of text."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        # A lone surrogate is not printable either.
        raise Malformed(f"{what} is not one line of text")
    return value


def is_lfs_json(lines: Iterable[bytes]) -> bool:
    """Whether a request's fields name LFS's media type, once, and no encoding of the body."""
    lines = tuple(lines)
    types = values_of(lines, b"content-type")
    encoded = bool(values_of(lines, b"content-encoding"))
    return len(types) == 1 and _MEDIA.fullmatch(types[0]) is not None and not encoded


def write_json(value: Mapping[str, object]) -> bytes:
    """The JSON text to send."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def write_error(message: str) -> bytes:
    """An error as LFS clients read it."""
    return write_json({"message": message})
