"""The channel between `keyhole up` and the gateway that it started, until the gateway is ready.

It is a pair of sockets that preserve messages. The gateway sends lines, asks for the store's
passphrase, and reports at last that it is ready or why not. The passphrase travels here alone,
never as an argument or a variable, and as bytes: neither end prints or keeps it.
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

from msgspec import Struct

from keyhole.model.errors import SetupFailed
from keyhole.model.secret import Secret
from keyhole.system.interrupts import delay_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.vault.store_source import PassphrasePrompt

READY_SECONDS = 60.0
"""How long the gateway may be silent while it starts; the time in which a person types is free."""

END_SECONDS = 20.0
"""How long a process that failed to start may take to end before it is killed: it removes what it
has started, some of it by an engine."""

MAX_MESSAGE = 16 * 1024
"""Bytes of a message; a longer text is cut."""

_TERMINAL, _ANSWER, _NO_ANSWER = b"t", b"p", b"n"
_READY, _FAILED, _SAID, _ASKS = b"r", b"f", b"s", b"a"


# ── the gateway's end ─────────────────────────────────────────────────────────────────────────────


class StartupChannel:
    """The gateway's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._sock: socket.socket | None = socket.socket(fileno=descriptor)
        self._sock.set_inheritable(False)
        self._asks = self._receive() == _TERMINAL + b"1"

    @property
    def ask(self) -> PassphrasePrompt | None:
        """A function that asks the person for the passphrase; None without a terminal."""
        return self._ask if self._asks else None

    def say(self, line: str) -> None:
        """Send a line for the person."""
        self._send(_SAID, line)

    def ready(self) -> None:
        """Let `keyhole up` return; from here on no question can be asked."""
        self._send(_READY, "")
        self._hang_up()

    def failed(self, words: str) -> None:
        """Send why the gateway did not start."""
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
            with contextlib.suppress(OSError):  # `keyhole up` is gone; the gateway stays
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


class StartingUser(Struct, frozen=True):
    """The person who typed the verb: how to print a line, and how to ask."""

    tell: Callable[[str], None]
    ask: Callable[[bool], bytes] | None
    """Returns the passphrase as typed, empty for none. None without a terminal."""


def start(words: Sequence[str], env: Mapping[str, str], log: int, person: StartingUser) -> int:
    """Start the program with `--line`, wait until it is ready, and return its process number.

    Raises SetupFailed.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child: subprocess.Popen[bytes] | None = None
    with ours:
        try:
            with theirs, delay_interrupts():  # it may be running long before `Popen` returns
                child = subprocess.Popen(  # noqa: S603 - ourselves
                    [*words, "--line", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",  # it may outlive the current directory
                    env=env,
                    umask=0o077,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # no controlling terminal: no Ctrl-C, no hang-up
                )
            _converse(ours, child, person)
        except BaseException:
            if child is not None:
                with delay_interrupts():
                    _give_up(child)
            raise
    # It lives on; without this, Popen would warn that it was not waited for.
    child.returncode = 0
    return child.pid


def _converse(sock: socket.socket, child: subprocess.Popen[bytes], person: StartingUser) -> None:
    process = os.pidfd_open(child.pid)
    try:
        with contextlib.suppress(OSError):  # the gateway ended at once
            sock.send(_TERMINAL + (b"1" if person.ask else b"0"))
        deadline = time.monotonic() + READY_SECONDS
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            found = select.select([sock.fileno(), process], [], [], left)[0]
            if not found:
                raise SetupFailed(f"it was not ready within {READY_SECONDS:g} s")
            # Read the last message before the end of the process is noticed.
            message = _next(sock) if sock.fileno() in found else b""
            kind, text = message[:1], message[1:].decode("utf-8", "replace")
            if kind == _READY:
                return
            if kind == _FAILED:
                raise SetupFailed(text)
            if kind == _SAID:
                person.tell(text)
            elif kind == _ASKS:
                _answer(sock, person.ask(bool(text)) if person.ask else b"")
            else:
                raise SetupFailed("")
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
