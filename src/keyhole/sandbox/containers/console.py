"""The user's end of a container's standard streams.

The engine makes the pty, so the user's own terminal is never inside. This module copies bytes
between the streams that Keyhole was started with and the engine's connection. A terminal is in raw
mode meanwhile; the sandbox interprets the keys, Ctrl-Z included.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

from keyhole.sandbox.keyboard import Keyboard
from keyhole.sandbox.screen_modes import ScreenModes
from keyhole.sandbox.soft_reset import SoftReset

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 65536
_HEADER = struct.Struct(">BxxxI")
"""The header of each piece of output without a terminal: 1 for output or 2 for errors, and the
size."""
_DRAIN_SECONDS = 5.0
"""How long to wait for output in flight after the sandbox has ended."""


_USUAL_SIZE = (24, 80)
"""Rows and columns of a terminal that no person looks at."""
_MAX_SAID = 4096
"""Bytes of output that are kept while no terminal is attached."""


class ContainerConsole:
    """Copies one run's streams. `close` restores the terminal."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._outer = (stdin, stdout, stderr)
        self.interactive = os.isatty(stdin) and os.isatty(stdout)
        """Whether the command gets a terminal: its output is then one stream."""
        self._keyboard = Keyboard(stdin) if self.interactive else None
        self._reset = SoftReset()
        self._modes = ScreenModes()
        self._stream: socket.socket | None = None
        self._resized: Callable[[int, int], None] = lambda *_: None
        self._unread: Callable[[], None] = lambda: None
        self._output: threading.Thread | None = None

    @property
    def raw(self) -> bool:
        """Whether the user's terminal is in raw mode, in which a line needs a carriage return."""
        return self._keyboard is not None and self._keyboard.raw

    @property
    def occupied(self) -> bool:
        """Whether a program inside draws the screen or reads single keys: its output tells, since
        the pty is the engine's."""
        return self._keyboard is not None and self._modes.taken

    def connect(
        self,
        stream: socket.socket,
        resized: Callable[[int, int], None],
        unread: Callable[[], None],
    ) -> None:
        """Set the connection to copy from and to. Both callbacks may come from any thread:
        `resized` gets rows and columns, `unread` is called when the output has no reader any
        more."""
        self._stream, self._resized, self._unread = stream, resized, unread

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to copy."""
        if self._keyboard is not None:
            self._keyboard.take()
        show = self._show_terminal if self.interactive else self._show_streams
        self._output = threading.Thread(target=show, daemon=True)
        self._output.start()
        threading.Thread(target=self._type, daemon=True).start()
        self.resize()

    def wait(self) -> None:
        """Wait until there is no more to copy: the command has ended, or the person detached."""
        if self._output is not None:
            self._output.join()

    def hang_up(self) -> None:
        """Detach from the command's streams; `wait` returns."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)

    def resize(self) -> None:
        """Give the sandbox's terminal the size of the user's."""
        if self.interactive and self._stream is not None:
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(self._outer[1])
                self._resized(rows, columns)

    def close(self) -> None:
        """Wait for the last output, and restore the terminal."""
        if self._output is not None:
            self._output.join(_DRAIN_SECONDS)
        if self._keyboard is not None:
            self._keyboard.close()
            self._write(self._reset.sequence())
            self._keyboard = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def make_room(self) -> None:
        """Move the cursor to a new line, so that a message can be read after the command's
        output."""
        if self.interactive:
            self._write(self._reset.room())

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            _write_all(self._outer[1], data)

    def _type(self) -> None:
        """Copy what the person types, or a pipe delivers, until its end."""
        stream, keyboard = self._stream, self._keyboard
        if stream is None:
            return
        with contextlib.suppress(OSError):
            while data := keyboard.read(_CHUNK) if keyboard else os.read(self._outer[0], _CHUNK):
                stream.sendall(data)
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_WR)

    def _show_terminal(self) -> None:
        stream = self._stream
        with contextlib.suppress(OSError):
            while stream is not None and (data := stream.recv(_CHUNK)):
                self._reset.passed(data)
                self._modes.passed(data)
                _write_all(self._outer[1], data)

    def _show_streams(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                which, size = _HEADER.unpack(self._exactly(_HEADER.size))
                outer = self._outer[2] if which == 2 else self._outer[1]
                while size:
                    data = self._exactly(min(size, _CHUNK))
                    size -= len(data)
                    try:
                        _write_all(outer, data)
                    except OSError:
                        self._unread()  # and go on: the other stream may still be read

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._stream.recv(size - len(data)) if self._stream is not None else b""
            if not more:
                raise EOFError
            data += more
        return data


class UnattendedConsole:
    """The console of a sandbox without a user. It reads the output, so that the command does not
    block, and keeps the last of it to explain an early end. Attached terminals have streams of
    their own."""

    interactive = True
    """The command has a terminal, to which people attach and from which they detach."""
    raw = False
    occupied = False

    def __init__(self) -> None:
        self._stream: socket.socket | None = None
        self._resized: Callable[[int, int], None] = lambda *_: None
        self._reader: threading.Thread | None = None
        self._said = b""

    def connect(
        self,
        stream: socket.socket,
        resized: Callable[[int, int], None],
        unread: Callable[[], None],
    ) -> None:
        """Set the connection to read from."""
        self._stream, self._resized = stream, resized

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to read."""
        self._resized(*_USUAL_SIZE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self) -> None:
        """Do nothing: there is no terminal to take the size from."""

    def make_room(self) -> None:
        """Do nothing: there is no reader."""

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.join(_DRAIN_SECONDS)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @property
    def last_line(self) -> str:
        """The last line of the output that was kept."""
        lines = self._said.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _read(self) -> None:
        stream = self._stream
        with contextlib.suppress(OSError):
            while stream is not None and (data := stream.recv(_CHUNK)):
                self._said = (self._said + data)[-_MAX_SAID:]


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
