"""What `keyhole up` and the gateway that it started say to one another until that is ready.

A pair of sockets that keep messages apart: the gateway says lines, asks for the store's passphrase,
and at last that it is ready or why not. The passphrase goes this way alone, never by an argument or
a variable, and as bytes: neither end prints or keeps what it passes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from keyhole.model.secret import Secret
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.vault.stored import Ask

READY_SECONDS = 60.0
"""How long the gateway may be silent while it starts; the time a person types does not count."""

END_SECONDS = 5.0
"""How long a gateway that was given up may take to end before it is killed."""

MAX_MESSAGE = 16 * 1024
"""Bytes of a message; longer words are cut."""

_TERMINAL, _ANSWER, _NO_ANSWER = b"t", b"p", b"n"
_READY, _FAILED, _SAID, _ASKS = b"r", b"f", b"s", b"a"


class NotStarted(Exception):
    """The gateway did not come up; the message is its own, empty where it had no time for one."""


# ── the gateway's end ─────────────────────────────────────────────────────────────────────────────


class Starter:
    """The `keyhole up` that waits for us, as the gateway sees it."""

    def __init__(self, descriptor: int) -> None:
        self._sock: socket.socket | None = socket.socket(fileno=descriptor)
        self._sock.set_inheritable(False)
        self._asks = self._receive() == _TERMINAL + b"1"

    @property
    def ask(self) -> Ask | None:
        """Asks the person for the passphrase, until we are ready; None where nobody can be."""
        return self._ask if self._asks else None

    def say(self, line: str) -> None:
        """A line for the person."""
        self._send(_SAID, line)

    def ready(self) -> None:
        """Let `keyhole up` return; nobody is asked from here on."""
        self._send(_READY, "")
        self._hang_up()

    def failed(self, words: str) -> None:
        """Why there is no gateway."""
        self._send(_FAILED, words)
        self._hang_up()

    def _ask(self, again: bool) -> Secret | None:
        self._send(_ASKS, "again" if again else "")
        answer = self._receive()
        if answer[:1] != _ANSWER:
            return None
        return Secret(answer[1:].decode("utf-8", "surrogateescape"))

    def _send(self, kind: bytes, text: str) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):  # whoever started us is gone; we stay
                self._sock.send((kind + text.encode("utf-8", "replace"))[:MAX_MESSAGE])

    def _receive(self) -> bytes:
        if self._sock is None:
            return b""
        try:
            return self._sock.recv(MAX_MESSAGE)
        except OSError:
            return b""

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


# ── the end of `keyhole up` ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Person:
    """Who started it."""

    tell: Callable[[str], None]
    ask: Callable[[bool], bytes] | None
    """The passphrase as it was typed; empty for none. None where there is no terminal."""


def start(words: Sequence[str], env: Mapping[str, str], log: int, person: Person) -> int:
    """Start the program with `--line` and wait until it is ready: its process. Or NotStarted."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = subprocess.Popen(  # noqa: S603 - ourselves
                [*words, "--line", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # it outlives the directory that it was started in
                env=env,
                umask=0o077,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # no terminal, so no Ctrl-C and no hang-up of it
            )
        try:
            _converse(ours, child, person)
        except BaseException:
            _give_up(child)
            raise
    # It lives on without us; nobody is to warn that it was not waited for.
    child.returncode = 0
    return child.pid


def _converse(sock: socket.socket, child: subprocess.Popen[bytes], person: Person) -> None:
    process = os.pidfd_open(child.pid)
    try:
        with contextlib.suppress(OSError):  # it ended at once
            sock.send(_TERMINAL + (b"1" if person.ask else b"0"))
        deadline = time.monotonic() + READY_SECONDS
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            found = select.select([sock.fileno(), process], [], [], left)[0]
            if not found:
                raise NotStarted(f"it was not ready within {READY_SECONDS:g} s")
            # Its last words come before its end.
            message = _next(sock) if sock.fileno() in found else b""
            kind, text = message[:1], message[1:].decode("utf-8", "replace")
            if kind == _READY:
                return
            if kind == _FAILED:
                raise NotStarted(text)
            if kind == _SAID:
                person.tell(text)
            elif kind == _ASKS:
                _answer(sock, person.ask(bool(text)) if person.ask else b"")
            else:
                raise NotStarted("")
            deadline = time.monotonic() + READY_SECONDS
    finally:
        os.close(process)


def _next(sock: socket.socket) -> bytes:
    try:
        return sock.recv(MAX_MESSAGE)
    except OSError:
        return b""


def _answer(sock: socket.socket, passphrase: bytes) -> None:
    with contextlib.suppress(OSError):
        fits = 0 < len(passphrase) < MAX_MESSAGE
        sock.send(_ANSWER + passphrase if fits else _NO_ANSWER)


def _give_up(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_SECONDS)
            return
