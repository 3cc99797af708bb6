"""What the jail and the judge say to one another, as bytes.

Used on both sides of one socket. The jail says what the case is, and sends what upstream answered;
the judge asks, and says what it found. Whatever the judge says may have been written by the pack
that it reads, so it is plain lines, read strictly and bounded, and never more than a question or a
finding for a ref that was asked about.
"""

from __future__ import annotations

import enum
import json
import re
import struct

from keyhole.model.glob import Glob
from keyhole.policy.push import Change
from keyhole.policy.trial import MAX_HAVES, MAX_WANTS, Ask, Case, Finding, Question
from keyhole.wire.gitobject import OID_BYTES
from keyhole.wire.receivepack import Command

MAX_SAID = 1024 * 1024
"""Bytes of what the judge says at once: the largest question has half of it."""

MAX_TOLD = 64 * 1024 * 1024
"""Bytes of what it is told at once; we say that ourselves, so this only bounds a mistake."""

_MAX_WORDS = 300
"""Characters of a text that is shown to people."""

HEAD = struct.Struct(">cI")
"""What comes before each: its kind, and how many bytes follow."""

_NOT_PLAIN = re.compile(r"[^ -~]")


class Said(bytes, enum.Enum):
    """What is said, first to the judge and then by it."""

    FILTER = b"f"
    CASE = b"c"
    PIECE = b"p"
    """Of the pack that answers a question."""
    ANSWERED = b"a"
    UNANSWERED = b"n"
    QUESTION = b"q"
    FOUND = b"r"
    UNSOUND = b"u"
    FAILED = b"x"


class Garbled(Exception):
    """The judge said something that it would not say."""


def frame(said: Said, content: bytes = b"") -> bytes:
    """One thing that is said."""
    return HEAD.pack(said.value, len(content)) + content


def write_case(case: Case, offset: int, size: int) -> bytes:
    """The case, and where in its file the pack is."""
    return json.dumps(
        {
            "commands": [(c.old, c.new, c.ref) for c in case.commands],
            "tips": sorted(case.tips),
            "deny_paths": [glob.segments for glob in case.deny_paths],
            "object_format": case.object_format,
            "shallow": case.shallow,
            "pack": (offset, size),
        }
    ).encode()


def read_case(data: bytes) -> tuple[Case, int, int]:
    """What `write_case` wrote."""
    told = json.loads(data)
    offset, size = told["pack"]
    case = Case(
        commands=tuple(Command(*command) for command in told["commands"]),
        tips=frozenset(told["tips"]),
        deny_paths=tuple(Glob(tuple(segments)) for segments in told["deny_paths"]),
        object_format=told["object_format"],
        shallow=tuple(told["shallow"]),
    )
    return case, offset, size


def write_question(question: Question) -> bytes:
    """A question as three lines."""
    lines = (question.ask.value, " ".join(question.wants), " ".join(question.haves))
    return "\n".join(lines).encode()


def read_question(data: bytes, object_format: str) -> Question:
    """What the judge asks; raises Garbled unless it is a question that a trial would put."""
    lines = data.decode("latin-1").split("\n")
    if len(lines) != len(("ask", "wants", "haves")) or lines[0] not in set(Ask):
        raise Garbled
    oid = re.compile(f"[0-9a-f]{{{2 * OID_BYTES[object_format]}}}")
    wants, haves = (tuple(line.split(" ")) if line else () for line in lines[1:])
    if not wants or len(wants) > MAX_WANTS or len(haves) > MAX_HAVES:
        raise Garbled
    if not all(map(oid.fullmatch, wants + haves)):
        raise Garbled
    return Question(Ask(lines[0]), wants, haves)


def write_findings(findings: tuple[Finding, ...]) -> bytes:
    """A line for each finding, without the ref: they come as the commands did."""
    return "\n".join(
        "\t".join(
            (
                str(found.change.value),
                "unproven" if found.unproven else "proven",
                "clean" if found.denied_path is None else "denied",
                plain(found.denied_path or ""),
                plain(found.why),
            )
        )
        for found in findings
    ).encode()


def read_findings(data: bytes, case: Case) -> tuple[Finding, ...]:
    """What the judge found, one finding for each command; raises Garbled."""
    lines = data.decode("latin-1").split("\n")
    if len(lines) != len(case.commands):
        raise Garbled
    return tuple(
        _finding(command.ref, line.split("\t"))
        for command, line in zip(case.commands, lines, strict=True)
    )


def _finding(ref: str, fields: list[str]) -> Finding:
    try:
        change, proven, clean, path, why = fields
    except ValueError:
        raise Garbled from None
    if change not in _CHANGES:
        raise Garbled
    return Finding(
        ref=ref,
        change=_CHANGES[change],
        denied_path=None if clean == "clean" else plain(path),
        why=plain(why),
        unproven=proven != "proven",
    )


def plain(text: str) -> str:
    """A text that may be shown to people: one line, printable, not long."""
    return _NOT_PLAIN.sub("?", text[:_MAX_WORDS])


_CHANGES = {str(change.value): change for change in Change}
