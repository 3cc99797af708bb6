"""Finds secrets in an upstream's responses, and replaces them by placeholders of the same length
(I7).

`Needles` are made by `credential.py`; the gateway searches headers with them and runs bodies
through a `Scrubber`. The attacker may choose what the upstream echoes, and sees content and timing
of the bytes that are passed. So the bytes that are held back depend on which bytes could belong to
any token, never on the secret: if they depended on a partial match, the secret could be guessed
character by character.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from keyhole.inject.escaped_secret import MARKS, EscapedSecret, unescape
from keyhole.inject.renderings import (
    MIN_SCRUBBED,
    Rendering,
    as_it_is,
    fitted,
    rendered_base64,
    renderings,
    searchable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.inject.prefilter import Prefilter

TOKEN_BYTES = bytes(range(0x21, 0x7F))
"""The characters of a token: printable ASCII, without space and line end."""

LARGE = 8 * 1024
"""Bytes from which on a view is passed without a copy: below, a copy is cheaper."""

FEW_SPELLED = 4
"""Up to this many secrets are searched for in escapes one by one. For more, the text is decoded
first, which takes as long as the search for three. A session whose secret changes often has dozens
a day (I12)."""

HOLD_STEP = 256
"""The bytes held back are a multiple of this, so that their number does not reveal a secret's
length."""


class NeedleSpan(NamedTuple):
    """The position of a needle, and its replacement."""

    start: int
    end: int
    stand_in: bytes


class Needles:
    """The renderings of some secrets, ready to be searched for. Cannot be printed or pickled."""

    __slots__ = (
        "__weakref__", "_probes", "_renderings", "_second", "_sieve", "_spelled", "hold", "longest",
        "reach", "tight",
    )  # fmt: skip

    def __init__(
        self, found: Iterable[Rendering] = (), spelled: Mapping[EscapedSecret, str] | None = None
    ) -> None:
        """`spelled` are secrets that may come back in escapes, each with its replacement."""
        self._renderings = {rendering.needle: rendering for rendering in found}
        self._spelled = dict(spelled or {})
        self._measure()
        probes: dict[bytes, list[tuple[int, Rendering]]] = {}
        # Every search costs time; if one probe is part of another's needle, its search finds both.
        for rendering in sorted(self._renderings.values(), key=lambda r: len(r.probe)):
            needle = rendering.needle
            probe = next((probe for probe in probes if probe in needle), rendering.probe)
            probes.setdefault(probe, []).append((needle.index(probe), rendering))
        self._probes = probes
        self._sieve: Prefilter | None = None
        """Catches every probe, and every mark of an escape."""
        self._second: Prefilter | None = None
        """Catches every probe, and every hint at a secret in escapes: used where the first did."""

    def _measure(self) -> None:
        self.longest = max(map(len, self._renderings), default=0)
        """Bytes of the longest needle."""
        self.tight = all(not needle.translate(None, TOKEN_BYTES) for needle in self._renderings)
        """Whether every needle consists of token bytes alone."""
        self.hold = _whole_steps(self.longest)
        """Bytes that a stream holds back."""
        reach = max((spelled.reach for spelled in self._spelled), default=0)
        self.reach = max(self.hold, _whole_steps(reach))
        """Bytes that it holds back where there are escapes."""

    @classmethod
    def none(cls) -> Needles:
        """Needles that match nothing."""
        return _NONE

    @classmethod
    def of(cls, secret: str, placeholder: str) -> Needles:
        """All renderings of one secret; none if it is too short."""
        return cls(
            renderings(secret, placeholder), _spelled(secret, searchable(secret), placeholder)
        )

    @classmethod
    def of_name(cls, name: str, placeholder: str) -> Needles:
        """Needles of a name that belongs to a secret: it is replaced where it is written
        plainly."""
        return cls(as_it_is(name, placeholder))

    @classmethod
    def encoded(cls, before: str, secret: str, placeholder: str) -> tuple[str, Needles]:
        """Base64 of a secret with something before it, and that text as a needle."""
        text, found, searched = rendered_base64(before, secret, placeholder)
        return text, cls(found, _spelled(text, searched, placeholder) if found else None)

    def __or__(self, other: Needles) -> Needles:
        if not other:
            return self
        both = Needles()
        both.become((self, other))
        return both

    def become(self, parts: Iterable[Needles]) -> None:
        """Search for these from now on, also in streams that have begun.

        Call it only on an object made with `Needles()`: those of a credential are shared.
        """
        renderings: dict[bytes, Rendering] = {}
        probes: dict[bytes, list[tuple[int, Rendering]]] = {}
        spelled: dict[EscapedSecret, str] = {}
        for part in parts:
            for probe, aims in part._probes.items():
                fresh = [aim for aim in aims if aim[1].needle not in renderings]
                if fresh:
                    probes.setdefault(probe, []).extend(fresh)
            renderings |= part._renderings
            spelled |= part._spelled
        self._renderings, self._probes, self._spelled = renderings, probes, spelled
        self._sieve = self._second = None
        self._measure()

    def covers(self, other: Needles) -> bool:
        """Whether everything that the other searches for is searched for here."""
        return other._renderings.keys() <= self._renderings.keys()

    def __bool__(self) -> bool:
        return bool(self._renderings)

    def __len__(self) -> int:
        return len(self._renderings)

    def __repr__(self) -> str:
        return f"Needles({len(self)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("needles cannot be pickled or copied")

    def found_in(self, data: bytes) -> bool:
        """Whether a secret is in this text, in any rendering."""
        return bool(self.spans(data))

    def is_part_of(self, text: bytes) -> bool:
        """The same for a text that is tested once, without preparing a search."""
        return bool(self._look(text))

    def may_be_in(self, data: bytes | memoryview) -> bool:
        """Whether the text needs an exact search."""
        sieve = self._sieve
        if sieve is None:
            if not self._probes:
                return False
            sieve = self._sieve = _prepare((*self._probes, *(MARKS if self._spelled else ())))
        return sieve.catches(data) and (not self._spelled or self._may_be_spelled_in(data))

    def _may_be_spelled_in(self, data: bytes | memoryview) -> bool:
        """The same for a text that has an escape, or one of the probes."""
        if self._second is None:
            hints = {hint for spelled in self._spelled for hint in spelled.hints}
            self._second = _prepare((*self._probes, *sorted(hints)))
        return self._second.catches(data)

    def replace(self, data: bytes) -> bytes:
        """The text with every byte replaced that belongs to a needle."""
        spans = self.spans(data)
        return _masked(data, spans) if spans else data

    def spans(self, data: bytes) -> list[NeedleSpan]:
        """The position of every needle, overlapping ones included, in order of their beginnings."""
        if not self.may_be_in(data):
            return []
        spans = self._look(data)
        if self._spelled and (b"\\u00" in data or b"#" in data):
            self._look_for_escapes(data, spans)
        spans.sort(key=lambda span: (span.start, -span.end))
        return spans

    def _look_for_escapes(self, data: bytes, spans: list[NeedleSpan]) -> None:
        known = {(span.start, span.end) for span in spans}
        plain = unescape(data) if len(self._spelled) > FEW_SPELLED else None
        for spelled, placeholder in self._spelled.items():
            if plain is not None and not spelled.may_be_in(plain):
                continue
            for place in spelled.find(data):
                if place not in known:
                    known.add(place)
                    start, end = place
                    # A replacement without escapes is right in any text.
                    spans.append(NeedleSpan(start, end, fitted(placeholder, end - start).encode()))

    def _look(self, data: bytes) -> list[NeedleSpan]:
        spans: list[NeedleSpan] = []
        find = data.find
        for probe, aims in self._probes.items():
            at = find(probe)
            while at >= 0:
                for offset, (needle, stand_in, _) in aims:
                    start = at - offset
                    end = start + len(needle)
                    # Not `==`, which ends at the first byte that is wrong.
                    if start >= 0 and compare_digest(data[start:end], needle):
                        spans.append(NeedleSpan(start, end, stand_in))
                at = find(probe, at + 1)
        return spans


def _prepare(texts: Iterable[bytes]) -> Prefilter:
    from keyhole.inject.prefilter import Prefilter

    return Prefilter(texts)


def _whole_steps(size: int) -> int:
    return -(-size // HOLD_STEP) * HOLD_STEP


def _spelled(text: str, searched: str, placeholder: str) -> dict[EscapedSecret, str]:
    if len(text) < MIN_SCRUBBED or not text.isascii():
        return {}
    return {EscapedSecret(text[text.index(searched) :], searched): placeholder}


_NONE = Needles()


def _masked(data: bytes, spans: list[NeedleSpan]) -> bytes:
    """Replace needles; if some overlap, the first one's placeholder is written whole, then the rest
    of the others'."""
    parts: list[bytes] = []
    at = 0
    for start, end, stand_in in spans:
        if end > at:
            parts += (data[at:start], stand_in[max(at - start, 0) :])
            at = end
    parts.append(data[at:])
    return b"".join(parts)


class Scrubber:
    """Replaces secrets in one body as it passes, by placeholders of the same length.

    A needle of token bytes lies within one run of token bytes, so everything before a byte of
    another kind may pass. At the end of an unfinished run, as many bytes wait as a needle could
    have. If a secret contains other bytes, that many bytes always wait.
    """

    __slots__ = ("_kept", "_needles", "_sent", "hits")

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._kept = b""
        self._sent = 0
        """The number of kept bytes that have been passed: they are needed to find a needle that
        overlaps one which is partly gone."""
        self.hits = 0
        """The number of needles that were replaced."""

    @property
    def held(self) -> int:
        """Bytes that were fed and not passed yet."""
        return len(self._kept) - self._sent

    def feed(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes that may pass now. A view that is fed is copied once; the result is no
        copy."""
        needles = self._needles
        if not needles.hold and not self._kept:
            return data
        text = self._kept + data if self._kept else bytes(data)
        sent, size = self._sent, len(text)
        hold, held = self._held_of(text)
        cut = size - held
        # Before a shorter run is a byte that is in no needle: nothing reaches across it.
        known = min(cut, hold) if held == hold or cut == sent else 0
        self._kept = text[cut - known :]
        self._sent = known
        passed = self._clean(text, sent, cut)
        return memoryview(passed)[sent:cut] if sent or held else passed

    def _held_of(self, text: bytes) -> tuple[int, int]:
        """The number of bytes of a text that might have to wait, and that do."""
        needles = self._needles
        hold = needles.hold
        held = self._run(text, hold)
        if held == hold:
            # Escapes make a secret longer; a text without escapes in reach need not wait for them.
            reach = text[-needles.reach :]
            if b"\\" in reach or b"&" in reach:
                hold = needles.reach
                held = self._run(text, hold)
        return hold, held

    def _run(self, text: bytes, most: int) -> int:
        """The number of bytes at the end of a text that could belong to an unfinished token."""
        # Bytes that were passed cannot be held any more, even if longer needles have come
        # meanwhile.
        held = min(most, len(text) - self._sent)
        if self._needles.tight:
            held -= len(text[len(text) - held :].rstrip(TOKEN_BYTES))
        return held

    def pass_on(self, view: memoryview) -> tuple[bytes | memoryview, memoryview]:
        """The same in two pieces: the bytes that had waited, and those of the view, which are not
        copied."""
        needles, kept, size = self._needles, self._kept, len(view)
        hold = needles.hold
        waited = len(kept) - self._sent
        if needles.tight and hold <= LARGE <= size and not self._sent:
            tail = bytes(view[size - hold :])
            held = hold - len(tail.rstrip(TOKEN_BYTES))
            if held < hold and not self._is_at_seam(view) and not needles.may_be_in(view):
                self._kept = tail[hold - held :]
                return kept, view[: size - held]
        passed = memoryview(self.feed(view))
        return passed[:waited], passed[waited:]

    def _is_at_seam(self, view: memoryview) -> bool:
        """Whether a needle of token bytes begins in the kept bytes and ends in the view."""
        if not self._kept:
            return False
        head = bytes(view[: self._needles.reach])
        run = len(head) - len(head.lstrip(TOKEN_BYTES))
        return self._needles.found_in(self._kept + head[:run])

    def replace(self, text: bytes) -> bytes:
        """The same for a whole text, while nothing is kept of another."""
        return self._clean(text, 0, len(text))

    def end(self) -> bytes:
        """The remaining bytes; then it is ready for another body."""
        kept, sent = self._kept, self._sent
        self._kept, self._sent = b"", 0
        return self._clean(kept, sent, len(kept))[sent:]

    def _clean(self, text: bytes, sent: int, cut: int) -> bytes:
        spans = self._needles.spans(text)
        if not spans:
            return text
        self.hits += sum(sent <= span.start < cut for span in spans)
        return _masked(text, spans)
