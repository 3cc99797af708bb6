"""Ships the audit log of a node, line by line, with the pod of each event.

Run by `keyhole kube reports`, a process apart from the agent. For each receiver it keeps a position
on disk, which it advances after the receiver took a line. So nothing is lost while this process or
a receiver is down, and a receiver may get a few lines twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.app.kube.pod_states import BOUND
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogReader
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from keyhole.audit.log_line import LogRecord

POLL_SECONDS = 0.5
BATCH = 512
"""The most events that a receiver gets at once."""
RETRY_SECONDS = 5.0
"""Seconds before a failed receiver is tried again."""
MAX_SESSIONS = 4096
"""Sessions whose pods are remembered; the oldest is forgotten first."""

_IDENTITY = ("namespace", "pod", "uid", "account")


class ShippedEvent(Struct, frozen=True):
    """An event, and the pod that it is about."""

    record: LogRecord
    data: bytes
    """The line as the log has it."""
    node: str
    pod: dict[str, str]
    """Its namespace, name, uid and service account; empty for events of the gateway itself."""

    @property
    def line(self) -> bytes:
        """The log's own line with two more members at its end. Without these two it is the line
        that the chain of digests covers (I8)."""
        added = json.dumps({"node": self.node, "pod": self.pod}, separators=(",", ":"))
        return self.data[:-1] + b"," + added[1:].encode("ascii")


class AuditReceiver(Protocol):
    """A destination of events."""

    name: str

    def take(self, events: list[ShippedEvent]) -> None:
        """Take these events. If it raises OSError, they are offered again."""


class SessionPods:
    """The pod of each session, read from the event that names it."""

    def __init__(self, known: dict[str, dict[str, str]] | None = None) -> None:
        self.known = known or {}

    def pod_of(self, record: LogRecord) -> dict[str, str]:
        """The pod of the session that an event is about."""
        if record.kind == "session" and record.reason == BOUND:
            self.known[record.session] = {name: record.text(name) for name in _IDENTITY}
            if len(self.known) > MAX_SESSIONS:
                del self.known[next(iter(self.known))]
        return self.known.get(record.session, {})


class AuditShipper:
    """Follows the log for one receiver."""

    def __init__(
        self,
        audit: Path,
        place: Path,
        node: str,
        receiver: AuditReceiver,
        say: Callable[[str], None],
    ) -> None:
        self._audit = audit
        self._position = place / f"{receiver.name}.json"
        self._node = node
        self._receiver = receiver
        self._say = say
        self._said = ""

    def run(self) -> None:
        """Ship until the process ends."""
        while True:
            try:
                with contextlib.closing(LogDirectory.open(self._audit)) as directory:
                    self._follow(directory)
            except (OSError, ResourceUnusable) as error:
                self._pause(error)

    def _follow(self, directory: LogDirectory) -> None:
        offsets, known = self._read_position()
        reader, pods = LogReader(directory, offsets=offsets), SessionPods(known)
        while True:
            events = [
                ShippedEvent(each.record, each.data, self._node, pods.pod_of(each.record))
                for each in reader.fresh()
                if each.record is not None
            ]
            for start in range(0, len(events), BATCH):
                self._offer(events[start : start + BATCH])
            if events:
                self._write_position(reader.offsets(), pods.known)
            else:
                time.sleep(POLL_SECONDS)

    def _offer(self, events: list[ShippedEvent]) -> None:
        while True:
            try:
                self._receiver.take(events)
            except OSError as error:
                self._pause(error)
            else:
                self._said = ""
                return

    def _pause(self, error: Exception) -> None:
        """Report the fault once, and wait before the next try."""
        if str(error) != self._said:
            self._said = str(error)
            self._say(f"audit events wait for {self._receiver.name}: {error}")
        time.sleep(RETRY_SECONDS)

    def _read_position(self) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
        try:
            said = json.loads(self._position.read_bytes())
            return said["offsets"], said["sessions"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}, {}

    def _write_position(self, offsets: dict[str, int], sessions: dict[str, dict[str, str]]) -> None:
        beside = self._position.with_suffix(".new")
        beside.write_text(json.dumps({"offsets": offsets, "sessions": sessions}), "ascii")
        beside.replace(self._position)


class StandardOutput:
    """Prints lines on standard output, where the cluster's log collector finds them."""

    name = "stdout"

    def __init__(self, write: TextWriter) -> None:
        self._write = write

    def take(self, events: Iterable[ShippedEvent]) -> None:
        """Print them."""
        for each in events:
            self._write.write(each.line.decode("ascii") + "\n")
        self._write.flush()


class TextWriter(Protocol):
    """A stream of text."""

    def write(self, text: str, /) -> object:
        """Write a text."""

    def flush(self) -> None:
        """Pass on what was written."""


class RotatedFile:
    """Appends lines to a file of the node, which it renames when the file is full."""

    name = "file"
    SIZE = 64 << 20
    """Bytes of one file."""
    KEPT = 4
    """Older files that are kept beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, events: Iterable[ShippedEvent]) -> None:
        """Append them. Only root of the node reads them, as the log itself."""
        with open(self._path, "ab", opener=_for_owner) as file:
            file.write(b"".join(each.line + b"\n" for each in events))
            full = file.tell() >= self.SIZE
        if full:
            for number in range(self.KEPT, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
