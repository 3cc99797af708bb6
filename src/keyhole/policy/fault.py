"""What is wrong with a policy, where, and what to write instead.

Faults are collected, never thrown one by one: a person sees all of them at once.
"""

from __future__ import annotations

from keyhole.model.text import visible
from keyhole.model.value import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a text; lines and columns count from 1."""

    line: int
    column: int
    length: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One mistake. `source` is the line it stands on, as written."""

    file: str
    span: Span
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
            before = visible(self.source[:start])
            marked = visible(self.source[start : start + self.span.length])
            lines.append(f"  {number} | {visible(self.source)}")
            lines.append(f"  {' ' * len(number)} | {' ' * len(before)}{'^' * max(1, len(marked))}")
        if self.hint:
            lines.append(f"  hint: {visible(self.hint)}")
        return "\n".join(lines)


class PolicyFaults(Exception):
    """A policy that cannot be used, with every fault found in it."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(f"{len(faults)} fault(s) in the policy")
        self.faults = faults
