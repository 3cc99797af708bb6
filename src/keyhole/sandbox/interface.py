"""The interface between a run and its runtime: bubblewrap, or a container engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from keyhole.sandbox.launch import Launch


class SandboxNotice(Struct, frozen=True):
    """Something that was done to the sandbox from outside."""

    reason: str
    """The reason in the audit log."""
    line: str
    """The line for the person."""
    details: Mapping[str, str] = field(default_factory=dict)
    ends: bool = False
    """Whether the sandbox was ended because of it."""


class RunningSandbox(Protocol):
    """A sandbox with its running command."""

    init: int | None
    """The host's number of a process that sees the sandbox's mounts; None when it has ended."""
    commands: socket.socket | None
    """Leads to the sandbox's first process, which starts further commands; None for a container,
    in which the engine does."""

    @property
    def lives_on(self) -> bool:
        """Whether that process still runs after a moment."""

    async def wait(self) -> int:
        """The command's exit code, as in a shell; by then no process is left inside."""

    def is_stopped(self) -> bool:
        """Whether the command itself is stopped, as by Ctrl-Z."""

    def watch(self, told: Callable[[SandboxNotice], None]) -> AbstractContextManager[None]:
        """Report events from outside while the block lasts. The callback may be called from any
        thread."""

    def forward(self, number: int) -> None:
        """Forward a signal to the command."""

    def resume(self) -> None:
        """Continue the command after Ctrl-Z."""

    def kill(self) -> None:
        """Kill everything in the sandbox at once."""

    def close(self) -> None:
        """Close the descriptors of its processes."""


class Console(Protocol):
    """The person's end of the command's standard streams."""

    interactive: bool

    @property
    def raw(self) -> bool:
        """Whether the person's terminal is in raw mode, in which a line needs a carriage return."""

    @property
    def occupied(self) -> bool:
        """Whether a program has the screen or the keyboard to itself, so that nothing else may be
        printed."""

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to relay, once the command runs. `suspended` says whether it has stopped."""

    def resize(self) -> None:
        """Pass on the size of the person's terminal."""

    def close(self) -> None:
        """Wait for the last output, and restore the terminal."""

    def make_room(self) -> None:
        """After `close`, move the cursor to a new line, so that a message can be read after the
        command's output."""


class SandboxRuntime(Protocol):
    """Makes one sandbox."""

    launch: Launch

    @property
    def terminal(self) -> Console:
        """The person's end of its streams."""

    async def ready(self) -> None:
        """Check what must hold before a session begins. Raises SetupFailed."""

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> RunningSandbox:
        """Make the walls, hand the door to `admit`, start the command. Raises SetupFailed."""

    def close(self) -> None:
        """Remove everything."""
