"""The person's end of a container's standard streams.

The engine makes the pty, so the person's own terminal is never inside; here bytes are copied
between the streams that Keyhole was started with and the connection that the engine gives. On a
terminal, that is made raw meanwhile; what the keys mean is decided inside, Ctrl-Z included.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

from keyhole.sandbox.keyboard import Keyboard
from keyhole.sandbox.softreset import SoftReset

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 65536
_HEADER = struct.Struct(">BxxxI")
"""Before each piece of output when there is no terminal: 1 for output or 2 for errors, its size."""
_DRAIN_SECONDS = 5.0
"""How long output that is still in flight is waited for after the sandbox has ended."""


_USUAL_SIZE = (24, 80)
"""Rows and columns of a terminal that nobody looks at."""
_MAX_SAID = 4096
"""Bytes that are kept of what a command says to nobody."""


class Console:
    """Owns the copying of one run. `close` gives the terminal back as it was."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._outer = (stdin, stdout, stderr)
        self.interactive = os.isatty(stdin) and os.isatty(stdout)
        """Whether the command gets a terminal: its output is then one stream."""
        self._keyboard = Keyboard(stdin) if self.interactive else None
        self._reset = SoftReset()
        self._stream: socket.socket | None = None
        self._resized: Callable[[int, int], None] = lambda *_: None
        self._unread: Callable[[], None] = lambda: None
        self._output: threading.Thread | None = None

    @property
    def raw(self) -> bool:
        """Whether the user's terminal now wants carriage returns spelled out."""
        return self._keyboard is not None and self._keyboard.raw

    def connect(
        self,
        stream: socket.socket,
        resized: Callable[[int, int], None],
        unread: Callable[[], None],
    ) -> None:
        """Whom to copy from and to. From any thread, `resized` is told rows and columns, and
        `unread` that nobody reads the output any more."""
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
        """Until there is no more to copy: the command has ended, or its terminal was left."""
        if self._output is not None:
            self._output.join()

    def hang_up(self) -> None:
        """Leave the command's streams; `wait` returns."""
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
        """Wait for the last output, and give the terminal back as it was."""
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
        """Go to where lines can be read, whatever the command left on the screen."""
        if self.interactive:
            self._write(self._reset.room())

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            _write_all(self._outer[1], data)

    def _type(self) -> None:
        """What the person types, or a pipe brings, to its end."""
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


class Unattended:
    """Nobody's end: what the command says is read, so that it need not wait, and the last of it
    kept, for whoever asks why it ended at once. Those who attach have streams of their own."""

    interactive = True
    """The command has a terminal, to which people come and go."""
    raw = False

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
        """What to read."""
        self._stream, self._resized = stream, resized

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to read."""
        self._resized(*_USUAL_SIZE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self) -> None:
        """There is nobody whose size it could have."""

    def make_room(self) -> None:
        """There is nobody to read."""

    def close(self) -> None:
        """Read no longer."""
        if self._reader is not None:
            self._reader.join(_DRAIN_SECONDS)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @property
    def last_line(self) -> str:
        """What was said last, of what fits."""
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
