"""The canary file: a made-up key in a place where a thief looks, which no service owns (I1).

It is put into the home of a session that is frozen when a decoy is sent (`limits.on_decoy`). A
request that carries the key, in its head or its body, was made by code that read the file and sent
it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.placeholder import TokenShape
from keyhole.inject.stub_files import StubFile

if TYPE_CHECKING:
    from collections.abc import Sequence

CANARY = "canary.file"
"""The owner of the canary's values, beside services. The dot keeps it apart: no service's name has
one."""

CANARY_PATH = ".aws/credentials"
"""Below the home: the first file that programs which collect keys read."""

_KEY_ID = TokenShape.parse("AKIA{base32:16}")
_KEY = TokenShape.parse("{alnum:40}")
"""Letters and digits alone, so that the key looks the same in a URL, in JSON and in a form."""

NOISE = 2 * (16 + 40)
"""Random bytes for one canary: two for each character."""


class Canary:
    """The made-up key of one session."""

    def __init__(self, noise: bytes) -> None:
        """`noise` are random bytes, `NOISE` of them."""
        self._key_id = _KEY_ID.placeholder(noise[: 2 * 16])
        self._key = _KEY.placeholder(noise[2 * 16 :])

    @property
    def texts(self) -> tuple[str, ...]:
        """Its values."""
        return self._key_id, self._key

    def file(self) -> StubFile:
        """The file for the home."""
        return StubFile(
            CANARY_PATH,
            f"[default]\naws_access_key_id = {self._key_id}\naws_secret_access_key = {self._key}\n",
        )


class CanaryScanner:
    """Searches a body that comes in pieces. Time is linear in its bytes (I12)."""

    __slots__ = ("_keep", "_tail", "_values")

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = values
        self._keep = max(map(len, values)) - 1
        self._tail = b""

    def found_in(self, data: bytes | memoryview) -> bool:
        """Whether a value ends in these bytes."""
        text = self._tail + bytes(data)
        self._tail = text[-self._keep :]
        return any(text.find(value) >= 0 for value in self._values)
