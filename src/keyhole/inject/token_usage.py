"""Reads which model wrote a response and how many tokens it reports, as the response passes.

The gateway feeds the bytes of a response in pieces of any size: JSON, events or frames. A member
called `usage` (or `usageMetadata`) is searched for in the text, and only its value is kept and
parsed, so that a response of any length costs a few kilobytes (I9).

The client influences the response: a model can be told to write a `usage` of its own into a tool's
arguments. In JSON text a quotation mark within a string is escaped, so a match is always a member.
It may be a forged one, so the largest of each number counts, and a forgery can only raise the
count. Tokens that a cache makes cheaper are taken off within one member alone, for the same reason;
and every model that is named is told, of which the dearest counts (`prices.py`).
"""

from __future__ import annotations

import enum
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from keyhole.inject.prices import MAX_MODEL, TokenCount

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


class ReportedUsage(Struct, frozen=True):
    """What a response reports."""

    total: int
    tokens: TokenCount
    """The same tokens by how they are billed."""
    models: tuple[str, ...] = ()
    """Every model that it names."""


_Said: TypeAlias = Mapping[str, int]
"""The numbers of one member, by name."""


def _anthropic(said: _Said) -> TokenCount:
    """Every kind has a number of its own. OpenAI's members have the same names and a total."""
    if "total_tokens" in said:
        return TokenCount()
    long = said.get("cache_creation.ephemeral_1h_input_tokens", 0)
    return TokenCount(
        input=said.get("input_tokens", 0),
        cached=said.get("cache_read_input_tokens", 0),
        written=max(0, said.get("cache_creation_input_tokens", 0) - long),
        written_long=long,
        output=said.get("output_tokens", 0),
    )


def _openai(said: _Said) -> TokenCount:
    """Cached tokens are part of the input, reasoning is part of the output."""
    prompt = _most(said, "prompt_tokens", "input_tokens")
    cached = _most(
        said,
        "prompt_tokens_details.cached_tokens",
        "input_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
    )
    output = _most(said, "completion_tokens", "output_tokens")
    return _parts(prompt, cached, output, said.get("total_tokens", 0))


def _google(said: _Said) -> TokenCount:
    """Cached tokens are part of the prompt; thoughts are not part of the candidates."""
    prompt = said.get("promptTokenCount", 0) + said.get("toolUsePromptTokenCount", 0)
    output = said.get("candidatesTokenCount", 0) + said.get("thoughtsTokenCount", 0)
    cached = said.get("cachedContentTokenCount", 0)
    return _parts(prompt, cached, output, said.get("totalTokenCount", 0))


def _bedrock(said: _Said) -> TokenCount:
    """Cached tokens are beside the input."""
    plain, output = said.get("inputTokens", 0), said.get("outputTokens", 0)
    cached, written = said.get("cacheReadInputTokens", 0), said.get("cacheWriteInputTokens", 0)
    rest = said.get("totalTokens", 0) - plain - cached - written
    return TokenCount(input=plain, cached=cached, written=written, output=max(output, rest))


def _cohere(said: _Said) -> TokenCount:
    return TokenCount(
        input=_most(said, "tokens.input_tokens", "billed_units.input_tokens"),
        output=_most(said, "tokens.output_tokens", "billed_units.output_tokens"),
    )


def _most(said: _Said, *names: str) -> int:
    return max(said.get(name, 0) for name in names)


def _parts(prompt: int, cached: int, output: int, total: int) -> TokenCount:
    cached = min(cached, prompt)
    return TokenCount(input=prompt - cached, cached=cached, output=max(output, total - prompt))


class _Form(Struct, frozen=True):
    count: Callable[[_Said], TokenCount]
    """The tokens of one member, by how they are billed."""
    sums: tuple[tuple[str, ...], ...]
    """Numbers that are added up, in each form that a service uses; the largest sum counts. A dot
    leads into an object."""
    members: tuple[bytes, ...] = (b"usage",)
    parts: tuple[str, ...] = ()
    """Further numbers that `count` reads."""


_FORMS = {
    # In a stream, the first event has the input tokens and the last the output tokens, as totals.
    UsageFormat.ANTHROPIC: _Form(
        _anthropic,
        (
            (
                "input_tokens",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
                "output_tokens",
            ),
        ),
        parts=("cache_creation.ephemeral_1h_input_tokens", "total_tokens"),
    ),
    # Chat, completions and embeddings; then Responses. Cached tokens are part of the input tokens.
    UsageFormat.OPENAI: _Form(
        _openai,
        (
            ("prompt_tokens", "completion_tokens"),
            ("input_tokens", "output_tokens"),
            ("total_tokens",),
        ),
        parts=(
            "prompt_tokens_details.cached_tokens",
            "input_tokens_details.cached_tokens",
            "prompt_cache_hit_tokens",
        ),
    ),
    UsageFormat.GOOGLE: _Form(
        _google,
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
        ("cachedContentTokenCount",),
    ),
    # Converse, whose binary events have their JSON in the clear.
    UsageFormat.BEDROCK: _Form(
        _bedrock,
        (
            ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens"),
            ("totalTokens",),
        ),
    ),
    # The second version, and the first.
    UsageFormat.COHERE: _Form(
        _cohere,
        (
            ("tokens.input_tokens", "tokens.output_tokens"),
            ("billed_units.input_tokens", "billed_units.output_tokens"),
        ),
        (b"usage", b"meta"),
    ),
}

_MEMBER_ROOM = 256
"""Bytes within which a member's name, its colon and the start of its value, or a model's name, are
found."""

MAX_MODELS = 8
"""Models that one response may name; a further one has no name, and so no price."""

_IN_EVERY_NAME = b"oken"

_STRUCTURE = re.compile(rb'["{}]|\\.?', re.DOTALL)


@functools.cache
def _pattern(forms: tuple[UsageFormat, ...]) -> re.Pattern[bytes]:
    """Finds the start of a member's value, by the one prefix that all names have or by quotes."""
    names = sorted({name for form in forms for name in _FORMS[form].members})
    return re.compile(
        rb'"(?:(?:%b)"\s{0,16}:\s{0,16}([^\s"])|model(?:Version)?"\s{0,16}:\s{0,16}"([!#-\[\]-~]{1,%d})")'
        % (b"|".join(names), MAX_MODEL)
    )


class UsageReader:
    """Reads one response, or one message after the other."""

    __slots__ = (
        "_counts", "_depth", "_escaped", "_found", "_held", "_in_string", "_members", "_models",
        "_names", "_object", "_pattern", "_seen", "_sums", "_tokens", "crowded", "empty",
    )  # fmt: skip

    def __init__(self, forms: tuple[UsageFormat, ...]) -> None:
        self._pattern = _pattern(forms)
        self._sums = {names for form in forms for names in _FORMS[form].sums}
        self._counts = tuple(_FORMS[form].count for form in forms)
        self._names = {name for names in self._sums for name in names}
        self._names |= {name for form in forms for name in _FORMS[form].parts}
        self._held = b""
        """The end of the searched text: a member may have begun in it."""
        self._object: bytearray | None = None
        """The value of a member, as far as it has arrived."""
        self._depth = 0
        self._in_string = self._escaped = False
        self._found: dict[str, int] = {}
        self._tokens = TokenCount()
        self._models: dict[str, None] = {}
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
            if member[2] is not None:
                self._name_model(member[2])
                continue
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

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that was named so far."""
        return tuple(self._models)

    def take(self) -> ReportedUsage | None:
        """The tokens read since the last call; None when none were reported."""
        found, self._found = self._found, {}
        tokens, self._tokens = self._tokens, TokenCount()
        if not found:
            return None
        total = max(sum(found.get(name, 0) for name in names) for names in self._sums)
        return ReportedUsage(total, tokens, self.models)

    def _name_model(self, name: bytes) -> None:
        # A model that is told to write many names hides its own behind none of them.
        text = name.decode("ascii") if len(self._models) < MAX_MODELS else ""
        self._models.setdefault(text)

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
        said: dict[str, int] = {}
        self._note(value, "", said)
        for name, number in said.items():
            self._found[name] = max(number, self._found.get(name, 0))
        for count in self._counts:
            self._tokens = self._tokens.at_least(count(said))

    def _note(self, value: dict[str, object], within: str, said: dict[str, int]) -> None:
        for name, number in value.items():
            if isinstance(number, dict) and not within:
                self._note(number, f"{name}.", said)
                continue
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            name = within + name
            if name in self._names and 0 <= number <= MAX_NUMBER:
                said[name] = int(number)
