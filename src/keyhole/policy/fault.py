"""A mistake in a policy: its place, and what to write instead.

Faults are collected, never raised one by one: a person sees all of them at once.
"""

from __future__ import annotations

from msgspec import Struct

from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

_SHOWN = 400
"""Characters of a line that are shown."""


class TextSpan(Struct, frozen=True, order=True):
    """A place in a text; lines and columns count from 1."""

    line: int
    column: int
    length: int = 1


class PolicyFault(Struct, frozen=True, order=True):
    """One mistake. `source` is the line it stands on, as written."""

    file: str
    span: TextSpan
    message: str
    hint: str | None = None
    source: str = ""

    def render(self) -> str:
        """The message with the line and a caret under the place."""
        head = f"{visible(self.file)}:{self.span.line}:{self.span.column}: {visible(self.message)}"
        lines = [head]
        if self.source:
            number = str(self.span.line)
            start = self.span.column - 1
            # Of a line that would fill the screen, the part around the place is shown.
            first = max(0, start - _SHOWN // 2) if len(self.source) > _SHOWN else 0
            source = self.source[first : first + _SHOWN]
            before = visible(source[: start - first])
            marked = visible(source[start - first :][: self.span.length])
            lines.append(f"  {number} | {visible(source)}")
            lines.append(f"  {' ' * len(number)} | {' ' * len(before)}{'^' * max(1, len(marked))}")
        if self.hint:
            lines.append(f"  hint: {visible(self.hint)}")
        return "\n".join(lines)


class PolicyFaults(KeyholeError):
    """A policy that cannot be used, with every fault found in it; its message is the first."""

    reason = "policy-invalid"

    def __init__(self, faults: tuple[PolicyFault, ...]) -> None:
        first, more = faults[0], len(faults) - 1
        hints = [visible(first.hint)] if first.hint else []
        if more:
            hints.append(f"and {more} more: `keyhole check` shows all")
        super().__init__(first.render().partition("\n")[0], "; ".join(hints) or None)
        self.faults = faults

    @property
    def summary(self) -> str:
        """The faults are its details."""
        return "the policy is not valid"

    @property
    def details(self) -> tuple[str, ...]:
        """Every fault with its place."""
        return tuple(fault.render() for fault in self.faults)
