"""What a run asks of whatever makes its sandbox: bubblewrap, or an engine of containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from keyhole.sandbox.launch import Launch


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was done to a sandbox from outside."""

    reason: str
    """As the audit log has it."""
    line: str
    """For the person."""
    details: Mapping[str, str] = field(default_factory=dict)
    ends: bool = False
    """Whether the sandbox was ended for it."""


class Running(Protocol):
    """A sandbox whose command runs."""

    init: int | None
    """A process in which its mounts are seen, as the host numbers it; None when it has ended."""

    @property
    def lives_on(self) -> bool:
        """Whether that process has not ended, nor does in a moment."""

    async def wait(self) -> int:
        """The command's exit code, as a shell tells it; by then no process is left inside."""

    def is_stopped(self) -> bool:
        """Whether the command itself is stopped, as Ctrl-Z does it."""

    def watch(self, told: Callable[[Notice], None]) -> AbstractContextManager[None]:
        """Tell, from any thread, what is done to it from outside, for as long as it is entered."""

    def forward(self, number: int) -> None:
        """Give the command a signal that was meant for it."""

    def resume(self) -> None:
        """Let the command go on after Ctrl-Z."""

    def kill(self) -> None:
        """End everything in the sandbox at once."""

    def close(self) -> None:
        """Let go of its processes."""


class Console(Protocol):
    """The person's end of the command's standard streams."""

    interactive: bool

    @property
    def raw(self) -> bool:
        """Whether the person's terminal now wants carriage returns spelled out."""

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to relay, once the command runs; `suspended`: did it stop?"""

    def resize(self) -> None:
        """Pass on the size of the person's terminal."""

    def close(self) -> None:
        """Wait for the last output, and give the terminal back as it was."""

    def make_room(self) -> None:
        """After that: go to where lines can be read, whatever the command left on the screen."""


class Runtime(Protocol):
    """Makes one sandbox."""

    launch: Launch

    @property
    def terminal(self) -> Console:
        """The person's end of its streams."""

    async def ready(self) -> None:
        """What must hold before a session begins. Raises SetupFailed."""

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> Running:
        """Make the walls, hand the door to `admit`, start the command. Raises SetupFailed."""

    def close(self) -> None:
        """Leave nothing of it."""
