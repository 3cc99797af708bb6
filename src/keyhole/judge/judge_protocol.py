"""The protocol between the gateway and a judge process, as bytes.

Used on both sides of one socket. The gateway sends the push and the responses of upstream; the
judge sends questions and findings. A hostile pack may control every byte that the judge sends, so
messages are plain lines, parsed strictly and bounded, and can only be a question or a finding for a
ref of this push.
"""

from __future__ import annotations

import enum
import json
import re
import struct

from keyhole.model.errors import Malformed
from keyhole.model.glob import Glob
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import (
    MAX_HAVES,
    MAX_WANTS,
    PushCase,
    PushFinding,
    QuestionPurpose,
    UpstreamQuestion,
)
from keyhole.wire.git_object import OID_BYTES
from keyhole.wire.receive_pack import RefCommand

GARBLED = "an intact judge does not send this message"

MAX_SAID = 1024 * 1024
"""Bytes of one message of the judge: the largest question takes half of it."""

MAX_TOLD = 64 * 1024 * 1024
"""Bytes of one message to the judge; the gateway writes it, so this only bounds a mistake."""

_MAX_WORDS = 300
"""Characters of a text that is shown to people."""

HEAD = struct.Struct(">cI")
"""The header of each message: its kind, and its size."""

_NOT_PLAIN = re.compile(r"[^ -~]")


class JudgeMessage(bytes, enum.Enum):
    """The kinds of message: first those to the judge, then those from it."""

    FILTER = b"f"
    CASE = b"c"
    PIECE = b"p"
    """A piece of the pack that answers a question."""
    ANSWERED = b"a"
    UNANSWERED = b"n"
    QUESTION = b"q"
    FOUND = b"r"
    UNSOUND = b"u"
    FAILED = b"x"


def frame(said: JudgeMessage, content: bytes = b"") -> bytes:
    """One message."""
    return HEAD.pack(said.value, len(content)) + content


def write_case(case: PushCase, offset: int, size: int) -> bytes:
    """The case, with the pack's offset and size in its file."""
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


def read_case(data: bytes) -> tuple[PushCase, int, int]:
    """The inverse of `write_case`."""
    told = json.loads(data)
    offset, size = told["pack"]
    case = PushCase(
        commands=tuple(RefCommand(*command) for command in told["commands"]),
        tips=frozenset(told["tips"]),
        deny_paths=tuple(Glob(tuple(segments)) for segments in told["deny_paths"]),
        object_format=told["object_format"],
        shallow=tuple(told["shallow"]),
    )
    return case, offset, size


def write_question(question: UpstreamQuestion) -> bytes:
    """A question as three lines."""
    lines = (question.ask.value, " ".join(question.wants), " ".join(question.haves))
    return "\n".join(lines).encode()


def read_question(data: bytes, object_format: str) -> UpstreamQuestion:
    """The judge's question. Raises Malformed unless a trial could ask it."""
    lines = data.decode("latin-1").split("\n")
    if len(lines) != len(("ask", "wants", "haves")) or lines[0] not in set(QuestionPurpose):
        raise Malformed(GARBLED)
    oid = re.compile(f"[0-9a-f]{{{2 * OID_BYTES[object_format]}}}")
    wants, haves = (tuple(line.split(" ")) if line else () for line in lines[1:])
    if not wants or len(wants) > MAX_WANTS or len(haves) > MAX_HAVES:
        raise Malformed(GARBLED)
    if not all(map(oid.fullmatch, wants + haves)):
        raise Malformed(GARBLED)
    return UpstreamQuestion(QuestionPurpose(lines[0]), wants, haves)


def write_findings(findings: tuple[PushFinding, ...]) -> bytes:
    """One line for each finding, in the order of the commands, without the ref."""
    return "\n".join(
        "\t".join(
            (
                str(found.change.value),
                "unproven" if found.unproven else "proven",
                "clean" if found.denied_path is None else "denied",
                one_plain_line(found.denied_path or ""),
                one_plain_line(found.why),
            )
        )
        for found in findings
    ).encode()


def read_findings(data: bytes, case: PushCase) -> tuple[PushFinding, ...]:
    """The judge's findings, one for each command. Raises Malformed."""
    lines = data.decode("latin-1").split("\n")
    if len(lines) != len(case.commands):
        raise Malformed(GARBLED)
    return tuple(
        _finding(command.ref, line.split("\t"))
        for command, line in zip(case.commands, lines, strict=True)
    )


def _finding(ref: str, fields: list[str]) -> PushFinding:
    try:
        change, proven, clean, path, why = fields
    except ValueError:
        raise Malformed(GARBLED) from None
    if change not in _CHANGES:
        raise Malformed(GARBLED)
    return PushFinding(
        ref=ref,
        change=_CHANGES[change],
        denied_path=None if clean == "clean" else one_plain_line(path),
        why=one_plain_line(why),
        unproven=proven != "proven",
    )


def one_plain_line(text: str) -> str:
    """A text that may be shown to people: one line, printable, not long."""
    return _NOT_PLAIN.sub("?", text[:_MAX_WORDS])


_CHANGES = {str(change.value): change for change in RefChange}
