"""Reads how many tokens a response of a language model reports, as the response passes.

The gateway feeds the bytes of a response in pieces of any size: JSON, events or frames. A member
called `usage` (or `usageMetadata`) is searched for in the text, and only its value is kept and
parsed, so that a response of any length costs a few kilobytes (I9).

The client influences the response: a model can be told to write a `usage` of its own into a tool's
arguments. In JSON text a quotation mark within a string is escaped, so a match is always a member.
It may be a forged one, so the largest of each number counts, and a forgery can only raise the
count.
"""

from __future__ import annotations

import enum
import functools
import json
import re

from msgspec import Struct

MAX_OBJECT = 8 * 1024
"""Bytes of one such value; those that are known have a few hundred."""

MAX_NUMBER = 10**12
"""The largest number of tokens that is believed; no real response has more."""

BYTES_PER_MEMBER = 256
"""Fewer bytes than a service's usage event has. Parsing one takes as long as passing some
kilobytes, and services echo requests. Attack: a tool whose description contains a million of them
(I9)."""

FREE_MEMBERS = 1000
"""The number of members in one response that may be closer together."""

_MAX_DEPTH = 8


class UsageFormat(enum.StrEnum):
    """How a service reports usage; the catalogue names these."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"
    BEDROCK = "bedrock"
    COHERE = "cohere"


class _Form(Struct, frozen=True):
    sums: tuple[tuple[str, ...], ...]
    """Numbers that are added up, in each form that a service uses; the largest sum counts. A dot
    leads into an object."""
    members: tuple[bytes, ...] = (b"usage",)


_FORMS = {
    # In a stream, the first event has the input tokens and the last the output tokens, as totals.
    UsageFormat.ANTHROPIC: _Form(
        (
            (
                "input_tokens",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
                "output_tokens",
            ),
        )
    ),
    # Chat, completions and embeddings; then Responses. Cached tokens are part of the input tokens.
    UsageFormat.OPENAI: _Form(
        (
            ("prompt_tokens", "completion_tokens"),
            ("input_tokens", "output_tokens"),
            ("total_tokens",),
        )
    ),
    UsageFormat.GOOGLE: _Form(
        (
            (
                "promptTokenCount",
                "toolUsePromptTokenCount",
                "candidatesTokenCount",
                "thoughtsTokenCount",
            ),
            ("totalTokenCount",),
        ),
        (b"usageMetadata",),
    ),
    # Converse, whose binary events have their JSON in the clear.
    UsageFormat.BEDROCK: _Form(
        (
            ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens"),
            ("totalTokens",),
        )
    ),
    # The second version, and the first.
    UsageFormat.COHERE: _Form(
        (
            ("tokens.input_tokens", "tokens.output_tokens"),
            ("billed_units.input_tokens", "billed_units.output_tokens"),
        ),
        (b"usage", b"meta"),
    ),
}

_MEMBER_ROOM = 64
"""Bytes within which a member's name, its colon and the start of its value are found."""

_IN_EVERY_NAME = b"oken"

_STRUCTURE = re.compile(rb'["{}]|\\.?', re.DOTALL)


@functools.cache
def _pattern(forms: tuple[UsageFormat, ...]) -> re.Pattern[bytes]:
    """Finds the start of a member's value, by the one prefix that all names have or by quotes."""
    names = sorted({name for form in forms for name in _FORMS[form].members})
    return re.compile(rb'"(?:%b)"\s{0,16}:\s{0,16}(\S)' % b"|".join(names))


class UsageReader:
    """Reads one response, or one message after the other."""

    __slots__ = (
        "_depth", "_escaped", "_found", "_held", "_in_string", "_members", "_names", "_object",
        "_pattern", "_seen", "_sums", "crowded", "empty",
    )  # fmt: skip

    def __init__(self, forms: tuple[UsageFormat, ...]) -> None:
        self._pattern = _pattern(forms)
        self._sums = {names for form in forms for names in _FORMS[form].sums}
        self._names = {name for names in self._sums for name in names}
        self._held = b""
        """The end of the searched text: a member may have begun in it."""
        self._object: bytearray | None = None
        """The value of a member, as far as it has arrived."""
        self._depth = 0
        self._in_string = self._escaped = False
        self._found: dict[str, int] = {}
        self._members = self._seen = 0
        self.crowded = False
        """Whether reading was given up, because it has more members than a service writes."""
        self.empty = False
        """Whether a member reports that its number is not known yet."""

    def feed(self, data: bytes | memoryview) -> None:
        """Read further bytes."""
        self._seen += len(data)
        if self.crowded:
            return
        text = b"".join((self._held, data))
        self._held = b""
        at, size = 0, len(text)
        while at < size:
            if self._object is not None:
                at = self._collect(self._object, text, at)
                continue
            member = self._pattern.search(text, at)
            if member is None:
                self._held = text[max(at, size - _MEMBER_ROOM + 1) :]
                return
            at = member.end()
            self._members += 1
            if self._members > FREE_MEMBERS + self._seen // BYTES_PER_MEMBER:
                self.crowded = True
                self._object = None
                return
            if member[1] == b"{":
                self._object = bytearray()
                self._depth = 0
                self._in_string = self._escaped = False
                at -= 1
            elif member[1] == b"n":
                self.empty = True

    def take(self) -> int | None:
        """The tokens read since the last call; None when none were reported."""
        found, self._found = self._found, {}
        if not found:
            return None
        return max(sum(found.get(name, 0) for name in names) for names in self._sums)

    def _collect(self, value: bytearray, text: bytes, start: int) -> int:
        """Look for the end of a member's value. Returns the position to continue at."""
        end = min(len(text), start + MAX_OBJECT - len(value))
        at = start + 1 if self._escaped else start
        self._escaped = False
        for found in _STRUCTURE.finditer(text, at, end):
            match found[0]:
                case b'"':
                    self._in_string = not self._in_string
                case b"{" if not self._in_string:
                    self._depth += 1
                case b"}" if not self._in_string:
                    self._depth -= 1
                case b"\\":
                    self._escaped = True  # the character that it escapes has not arrived
            if not self._depth:
                self._object = None
                self._read(bytes(value) + text[start : found.end()])
                return found.end()
            if self._depth > _MAX_DEPTH:
                self._object = None
                return found.end()
        value += text[start:end]
        if len(value) >= MAX_OBJECT:
            # Not a service's own usage, which is never inside such a value.
            self._object = None
        return end

    def _read(self, text: bytes) -> None:
        if _IN_EVERY_NAME not in text:
            return
        try:
            value = json.loads(text)
        except ValueError:
            return
        self._note(value, "")

    def _note(self, value: dict[str, object], within: str) -> None:
        found = self._found
        for name, number in value.items():
            if isinstance(number, dict) and not within:
                self._note(number, f"{name}.")
                continue
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            name = within + name
            if name in self._names and found.get(name, 0) <= number <= MAX_NUMBER:
                found[name] = int(number)
