"""The client of the control API: one connection for each request, plain sockets, no event loop.

Used by the verbs of `cli/`. It imports little, because their start-up counts. It uses a socket only
in a directory that no other user can change, and talks only to a process of its own user.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, cast

from keyhole.control.operation_table import AUTHORITY, BY_NAME, FAULT, WATCH_EVENT
from keyhole.control.socket_directory import SOCKET, open_directory, socket_address
from keyhole.model.errors import KeyholeError, ResourceUnusable, Unparsable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from keyhole.control.operation_table import Operation
    from keyhole.control.values import (
        AnswerRequest,
        AskList,
        AskView,
        GrantView,
        Health,
        Invited,
        OpenedSession,
        Reloaded,
        Revoked,
        SessionPage,
        SessionRequest,
        SessionView,
        Status,
        WatchEvent,
    )

SECONDS = 45.0
"""How long a request may take: longer than the server's own limits together."""

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer: twice the fullest page of sessions."""

_READ = 64 * 1024
_UCRED = struct.Struct("=iII")

SILENT = "gateway-silent"
"""The reason of a ControlFailed: the gateway did not answer in time."""


class ControlFailed(KeyholeError):
    """The gateway could not be asked; the message says why and what to do."""

    reason = "gateway-failed"


class NoGateway(ControlFailed):
    """No gateway is running."""

    reason = "no-gateway"

    def __init__(self) -> None:
        super().__init__("no gateway is running", "`keyhole up` starts one")


class RequestDeclined(ControlFailed):
    """The gateway refused or failed. `error` is the code of the API, `status` that of HTTP."""

    def __init__(self, status: int, error: str, why: str) -> None:
        super().__init__(why, reason=f"gateway-{error}")
        self.status = status
        self.error = error


class ControlClient:
    """A client for the socket in one directory; it connects for each request."""

    def __init__(self, directory: Path, seconds: float = SECONDS, name: str = SOCKET) -> None:
        """`name` is the name of the socket in the directory; a run has its own."""
        self._directory = directory
        self._seconds = seconds
        self._name = name

    def status(self) -> Status:
        """The gateway as a whole."""
        return cast("Status", self.ask("status"))

    def health(self) -> Health:
        """Whether sandboxes can work now."""
        return cast("Health", self.ask("health"))

    def metrics(self) -> str:
        """Prometheus's text."""
        return cast("str", self.ask("metrics"))

    def sessions(self) -> list[SessionView]:
        """All sessions, read page by page."""
        found: list[SessionView] = []
        query: dict[str, str] = {}
        while True:
            page = cast("SessionPage", self.ask("list_sessions", query=query))
            found += page.sessions
            # Otherwise a server that repeats a page would be asked for ever.
            if page.next is None or page.next <= query.get("after", ""):
                return found
            query = {"after": page.next}

    def session(self, session: str) -> SessionView:
        """One session."""
        return cast("SessionView", self.ask("show_session", id=session))

    def open_session(self, opening: SessionRequest, door: Sequence[int] = ()) -> OpenedSession:
        """Prepare or open a session; `door` are descriptors in the order of `opening.door`."""
        body = _written("open_session", opening)
        return cast("OpenedSession", self.ask("open_session", body=body, descriptors=door))

    def open_door(self, session: str, names: Sequence[str], door: Sequence[int]) -> None:
        """Hand over the door of a session that this process prepared."""
        self.ask("open_door", body={"door": list(names)}, descriptors=door, id=session)

    def stop_session(self, session: str) -> None:
        """End a session and its sandbox."""
        self.ask("stop_session", id=session)

    def resume_session(self, session: str) -> None:
        """Let a frozen session go on."""
        self.ask("resume_session", id=session)

    def revoke_session(self, session: str) -> None:
        """Close a session's door for good."""
        self.ask("revoke_session", id=session)

    def revoke_all(self) -> int:
        """Close all doors; returns how many there were."""
        return cast("Revoked", self.ask("revoke_all")).revoked

    def grant(self, session: str, host: str, seconds: int, uses: int) -> GrantView:
        """Allow a session one more host."""
        body = {"host": host, "seconds": seconds, "uses": uses}
        return cast("GrantView", self.ask("grant", body=body, id=session))

    def asks(self) -> AskList:
        """The questions of all sessions that can be answered."""
        return cast("AskList", self.ask("list_asks"))

    def answer(self, session: str, ask: str, answer: AnswerRequest) -> AskView:
        """Answer a question."""
        body = _written("answer_ask", answer)
        return cast("AskView", self.ask("answer_ask", body=body, id=session, ask=ask))

    def watch(self, query: Mapping[str, str]) -> EventStream:
        """The stream of events from now on. Raises ControlFailed."""
        operation = BY_NAME["watch"]
        target = operation.path + ("?" + "&".join(f"{k}={v}" for k, v in query.items()))
        sock = self._connect(time.monotonic() + self._seconds)
        try:
            sock.sendall(_request(operation.method, target, None))
        except OSError as error:
            sock.close()
            raise ControlFailed(f"the gateway hung up: {error.strerror}") from None
        return EventStream(sock)

    def reload(self) -> Reloaded:
        """Make the gateway read all policies again."""
        return cast("Reloaded", self.ask("reload"))

    def invite(self, opening: SessionRequest) -> Invited:
        """Let one sandbox of another machine enrol."""
        return cast("Invited", self.ask("invite", body=_written("invite", opening)))

    def secret_changed(self, name: str) -> None:
        """Make the gateway read a secret again."""
        self.ask("secret_changed", name=name)

    def stop_gateway(self) -> None:
        """End the gateway."""
        self.ask("stop_gateway")

    def ask(
        self,
        name: str,
        /,
        *,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        **parameters: str,
    ) -> Any:  # noqa: ANN401 - what the operation's record makes of the answer
        """Call an operation of the table by its name."""
        operation = BY_NAME[name]
        try:
            target = operation.target(**parameters)
        except Unparsable:
            # The server would answer the same.
            raise RequestDeclined(404, "not-found", "there is nothing like that") from None
        if query:
            target += "?" + "&".join(f"{key}={value}" for key, value in query.items())
        request = _request(operation.method, target, body)
        deadline = time.monotonic() + self._seconds
        with self._connect(deadline) as sock:
            try:
                _send(sock, request, descriptors)
                raw = _receive(sock, deadline)
            except TimeoutError:
                raise self._silent() from None
            except OSError as error:
                raise ControlFailed(f"the gateway hung up: {error.strerror}") from None
        return _read(operation, raw)

    def _silent(self) -> ControlFailed:
        why = f"the gateway did not answer within {self._seconds:g} s"
        return ControlFailed(why, reason=SILENT)

    def _connect(self, deadline: float) -> socket.socket:
        try:
            directory = open_directory(self._directory, make=False)
        except FileNotFoundError:
            raise NoGateway from None
        except ResourceUnusable as error:
            raise ControlFailed(str(error)) from None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.connect(socket_address(directory, self._name))
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            raise NoGateway from None
        except TimeoutError:
            sock.close()
            raise self._silent() from None
        except OSError as error:
            sock.close()
            why = error.strerror or "it does not accept connections"
            raise ControlFailed(f"the gateway cannot be reached: {why}") from None
        finally:
            os.close(directory)
        if _UCRED.unpack(raw)[1] != os.geteuid():
            sock.close()
            raise ControlFailed("the gateway's socket belongs to another user's process")
        return sock


class EventStream:
    """Events of one gateway, as they come. To be used with `select`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self._begun = False
        sock.setblocking(False)

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to read."""
        return self._sock.fileno()

    def read(self) -> list[WatchEvent] | None:
        """The events that have come; None when the gateway has closed the stream. Raises
        ControlFailed."""
        try:
            more = self._sock.recv(_READ)
        except BlockingIOError:
            return []
        except OSError:
            more = b""
        if not more:
            return None
        self._data += more
        if not self._begun:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return []
            self._begun = True
            if not head.startswith(b"HTTP/1.1 200 "):
                _read(BY_NAME["watch"], self._data)
                raise ControlFailed("the gateway does not send events")
            self._data = rest
        *lines, self._data = self._data.split(b"\n")
        if len(self._data) > MAX_ANSWER:
            raise ControlFailed(f"an event of the gateway has more than {MAX_ANSWER} bytes")
        try:
            return [WATCH_EVENT.read(json.loads(line), "event") for line in lines]
        except ValueError:
            raise ControlFailed("an event of the gateway cannot be read") from None

    def close(self) -> None:
        """Close it."""
        self._sock.close()


def _written(name: str, value: object) -> dict[str, object]:
    record = BY_NAME[name].body
    if record is None:
        raise TypeError(f"{name} takes no body")
    try:
        return record.write(value, "request")
    except Unparsable as error:
        raise RequestDeclined(400, "malformed", error.message) from None


def _request(method: str, target: str, body: Mapping[str, object] | None) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: {AUTHORITY}\r\n"
    if body is None:
        return f"{head}\r\n".encode("ascii")
    data = json.dumps(body).encode("ascii")
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode("ascii") + data


def _send(sock: socket.socket, request: bytes, descriptors: Sequence[int]) -> None:
    """Send; descriptors go with the first byte. A server that hangs up may have answered before."""
    try:
        sent = 0
        if descriptors:
            rights = array.array("i", descriptors)
            sent = sock.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        sock.sendall(request[sent:])
    except (BrokenPipeError, ConnectionResetError):
        return


def _receive(sock: socket.socket, deadline: float) -> bytes:
    """Read to the end; descriptors that come along are closed."""
    received = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        try:
            more = sock.recv(_READ)
        except ConnectionResetError:
            return bytes(received)
        if not more:
            return bytes(received)
        received += more
        if len(received) > MAX_ANSWER:
            raise ControlFailed(f"the gateway's answer has more than {MAX_ANSWER} bytes")


def _read(operation: Operation, raw: bytes) -> object:
    head, end, body = raw.partition(b"\r\n\r\n")
    if not end:
        raise ControlFailed("the gateway hung up before it answered")
    try:
        status, length = _parse_head(head)
        if len(body) < length:
            raise ControlFailed("the gateway hung up in the middle of its answer")
        if status == operation.status:
            return _value(operation, body)
        fault = FAULT.read(json.loads(body), "answer")
    except ValueError:
        raise ControlFailed(
            "the gateway's answer cannot be read: it may be of another version of Keyhole;"
            " `keyhole down` and `keyhole up` start this one"
        ) from None
    raise RequestDeclined(status, fault.error, fault.why)


def _parse_head(head: bytes) -> tuple[int, int]:
    """Status and length, as `responses.py` writes them; ValueError for any other form.

    `wire/` is not used: its patterns take longer to compile than the request takes.
    """
    start, *rows = head.decode("ascii").split("\r\n")
    version, status, _ = start.split(" ", 2)
    fields = dict(row.split(": ", 1) for row in rows)
    if version != "HTTP/1.1" or len(fields) != len(rows):
        raise ValueError(start)
    return int(status), int(fields.get("Content-Length", "0"))


def _value(operation: Operation, body: bytes) -> object:
    if operation.metrics:
        return body.decode("utf-8")
    if operation.answer is None:
        return None
    return operation.answer.read(json.loads(body), "answer")
