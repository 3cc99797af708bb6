"""Messages of a trusted process to a data plane: msgspec structs in MessagePack.

A run sends them to its data plane, and the keeper to that of a long-lived gateway. A data plane
trusts them, but no message can make it run anything: each is decoded by its type. Its own messages
are JSON. A secret passes between processes only here, over a pair of sockets that no other process
has (I1): msgspec itself refuses to write one, and `_plain` below writes it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from keyhole.app.processes.message_frames import frame_message
from keyhole.model.secret import Secret, SecretRef
from keyhole.model.text import visible
from keyhole.policy.budget import PeriodSpending  # noqa: TC001 - read by its annotation

Read = TypeVar("Read")


class SecretRotated(Struct, frozen=True, tag=True):
    """Inject another secret from now on."""

    reference: SecretRef
    secret: Secret
    hidden: tuple[Secret, ...]
    session: str = ""
    """Empty if there is only one session."""


class PolicyReloaded(Struct, frozen=True, tag=True):
    """Continue under this Provision."""

    provision: Raw
    session: str = ""


class ChangeRefused(Struct, frozen=True, tag=True):
    """Continue as before, although something has changed."""

    why: str
    session: str = ""


class SpendingChanged(Struct, frozen=True, tag=True):
    """What all sessions have spent, by service."""

    spending: dict[str, PeriodSpending]
    session: str = ""


class GrantHost(Struct, frozen=True, tag=True):
    """Allow one more host; the answer has this `number`."""

    number: int
    host: str
    seconds: int
    uses: int
    by: int


class ResumeSession(Struct, frozen=True, tag=True):
    """Let a frozen session go on; the answer has this `number`."""

    number: int
    by: int


class ReportFigures(Struct, frozen=True, tag=True):
    """Report the session's counters; the answer has this `number`."""

    number: int


class AnswerAsk(Struct, frozen=True, tag=True):
    """Answer a question; the answer to this has its `number`."""

    number: int
    ask: str
    answer: str
    seconds: int
    by: int
    via: str


class WatchSession(Struct, frozen=True, tag=True):
    """A person is there to answer questions, or no longer."""

    answers: bool


class CommandAnswered(Struct, frozen=True, tag=True):
    """The output of `approvals.command` for the question that was sent with this `number`, or why
    there is none."""

    number: int
    printed: bytes = b""
    why: str = ""


class CloseDoor(Struct, frozen=True, tag=True):
    """Close the door for good."""

    ending: str
    by: int


class JudgeStarted(Struct, frozen=True, tag=True):
    """A judge's socket and pidfd are beside this message, or `why` says why there is none."""

    why: str = ""


class CommitSigned(Struct, frozen=True, tag=True):
    """The signature of the commit that was sent with this `number`, or why there is none."""

    number: int
    signature: bytes = b""
    why: str = ""


class KeeperAnswer(Struct, frozen=True, tag=True):
    """The answer to the request `number`, or why it is refused."""

    number: int
    value: Raw
    why: str = ""


RunMessage: TypeAlias = (
    SecretRotated
    | PolicyReloaded
    | ChangeRefused
    | SpendingChanged
    | GrantHost
    | ResumeSession
    | ReportFigures
    | CloseDoor
    | JudgeStarted
    | CommitSigned
    | AnswerAsk
    | WatchSession
    | CommandAnswered
)
KeeperMessage: TypeAlias = (
    KeeperAnswer | SecretRotated | PolicyReloaded | ChangeRefused | SpendingChanged
)


def pack_message(message: RunMessage | KeeperMessage) -> bytes:
    """A message as a frame."""
    why = getattr(message, "why", "")
    if why:
        # An error may name a path that is not UTF-8, and MessagePack has no text for that.
        message = msgspec.structs.replace(message, why=visible(why))
    return frame_message(_ENCODER.encode(message))


def packed(value: object) -> Raw:
    """A value within a message, which is decoded later by its own type."""
    return Raw(_ENCODER.encode(value))


def unpack_run_message(frame: bytes) -> RunMessage:
    """A message of a run."""
    message: RunMessage = _RUN.decode(frame)
    return message


def unpack_keeper_message(frame: bytes) -> KeeperMessage:
    """A message of the keeper."""
    message: KeeperMessage = _KEEPER.decode(frame)
    return message


def unpacked(value: Raw | bytes, shape: type[Read]) -> Read:
    """The inverse of `packed`."""
    return msgspec.msgpack.decode(value, type=shape, dec_hook=_sealed)


def _plain(value: object) -> object:
    """A plain value for one that msgspec cannot encode."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} does not go into a message")


def _sealed(kind: type, value: Any) -> object:  # noqa: ANN401 - as msgspec has it
    """The inverse."""
    if kind is Secret:
        return Secret(value)
    raise TypeError(f"a {kind.__name__} does not come out of a message")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_RUN = msgspec.msgpack.Decoder(RunMessage, dec_hook=_sealed)
_KEEPER = msgspec.msgpack.Decoder(KeeperMessage, dec_hook=_sealed)
