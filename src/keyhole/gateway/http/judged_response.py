"""Passes the response to a judged request through the reader that the judge has set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.http.response import ResponseHead
    from keyhole.policy.body import AnswerRewriter


class JudgedResponseReader:
    """Adapts an `AnswerRewriter` to a `ResponseReader` (`git/responses.py`) and to the rewriter of
    its body. `noted` is called whenever the reader may have found something."""

    __slots__ = ("_noted", "_reader", "whole")

    def __init__(self, reader: AnswerRewriter, noted: Callable[[], None]) -> None:
        self._reader = reader
        self._noted = noted
        self.whole = reader.whole

    def read(self, head: ResponseHead) -> JudgedResponseReader | None:
        """As `ResponseReader`."""
        fields: dict[str, str] = {}
        for line in head.lines:
            sent, _, value = line.decode("latin-1").partition(":")
            name = sent.lower()
            fields[name] = f"{fields[name]}, {value.strip()}" if name in fields else value.strip()
        try:
            return self if self._reader.begin(head.status, fields) else None
        finally:
            self._noted()

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be passed on now."""
        try:
            return self._reader.feed(data)
        finally:
            self._noted()

    def end(self) -> bytes:
        """The remaining bytes."""
        try:
            return self._reader.end()
        finally:
            self._noted()
