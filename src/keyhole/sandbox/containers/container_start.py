"""Starts a sandbox that is a container: the holder, its door, the sandbox, and its end.

The order matters (I2): the holder makes the network and hands over the door. The sandbox's
container may be created before, but is started in that network only when the gateway holds the
door. Everything depends on the connection over which the door came: when this process ends in any
way, the connection closes, the holder ends, and with it every process of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.confine.seccomp import build_filter, profile
from keyhole.model.errors import SANDBOX_LOST, SetupFailed
from keyhole.sandbox.containers import container_spec, volumes
from keyhole.sandbox.containers.attachment_watch import AttachmentWatch
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.containers.engine_traits import AS_ROOT
from keyhole.sandbox.containers.holder_setup import HolderSetup
from keyhole.sandbox.containers.idmapped_mounts import mount_idmapped, unmount_idmapped
from keyhole.sandbox.containers.interface_watch import InterfaceWatch
from keyhole.sandbox.containers.mount_sources import write_mount_sources
from keyhole.sandbox.containers.registration import check_peer, receive_door
from keyhole.sandbox.first_process import note_process
from keyhole.sandbox.handover import SETUP_SECONDS, TOOK_TOO_LONG
from keyhole.sandbox.interface import SandboxNotice
from keyhole.system.processes import has_ended

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from keyhole.sandbox.containers.console import ContainerConsole, UnattendedConsole
    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.engine_traits import EngineTraits
    from keyhole.sandbox.containers.engine_values import EngineImage
    from keyhole.sandbox.containers.entrypoint import EntrypointConfig
    from keyhole.sandbox.containers.mount_sources import MountSources
    from keyhole.sandbox.launch import Launch

    TryWalls = Callable[[Launch, str], Awaitable[None]]
    """Tries the walls of a set-up, unless they have held since boot. Its arguments are the launch,
    and the name of the volume with our programs, which identifies them. Raises SetupFailed."""

_ENDING_SECONDS = 5.0
"""How long a sandbox may take to end, all of its processes included."""
_ENTRY = "entry"
"""The file, in the session's directory, with the assertions for `entrypoint.py`."""

HOLDER_ENDED = "the sandbox's holder was ended from outside, and with it all that ran inside"


class OutsideWatch(Struct, frozen=True):
    """The ids of the sandbox's containers and the socket that reports interfaces, for the
    watches."""

    engine: Engine
    containers: tuple[str, ...]
    """The holder and the sandbox."""
    links: socket.socket


_LOOK_SECONDS = 0.01
"""Interval at which a started sandbox is polled for whether it has asserted its walls."""


class RunningContainer:
    """A sandbox in a container, with its running command."""

    def __init__(
        self, pid: int, ended: asyncio.Future[int], control: socket.socket, outside: OutsideWatch
    ) -> None:
        """`pid` is 0 when a short command has already ended."""
        self.init: int | None = pid or None
        self.commands: socket.socket | None = None
        self._outside = outside
        self._told: Callable[[SandboxNotice], None] = lambda _: None
        self._ended = ended
        self._control: socket.socket | None = control
        self._process = -1
        if pid:
            with contextlib.suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)

    async def wait(self) -> int:
        """The command's exit code, as in a shell; by then no process is left inside."""
        try:
            await self._end_of_command()
            holder_ended = self._holder_ended()
            # At once: Podman does not report the end while a process inside still holds the output.
            self.kill()
            code = await asyncio.shield(self._ended)
        except EngineFailed as failed:
            self.kill()
            await asyncio.to_thread(lambda: self.lives_on)
            raise SetupFailed(
                f"the engine lost the sandbox: {failed}", reason=SANDBOX_LOST
            ) from None
        else:
            if holder_ended:
                self._told(SandboxNotice("holder-ended", HOLDER_ENDED))
        finally:
            self.kill()
        return code

    async def _end_of_command(self) -> None:
        if self._process < 0:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process, ended.set)
        self._ended.add_done_callback(lambda _: ended.set())
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process)

    def _holder_ended(self) -> bool:
        """Whether the holder ended by itself, and not because we closed the connection."""
        return self._control is not None and bool(select.select([self._control], [], [], 0)[0])

    @contextlib.contextmanager
    def watch(self, told: Callable[[SandboxNotice], None]) -> Iterator[None]:
        """Report containers attached to it; end it when its network gets an interface (I2)."""

        def added(name: str) -> None:
            self.kill()
            line = f"an interface ({name}) was put into the sandbox's network: the run is ended"
            told(SandboxNotice("interface-added", line, {"interface": name}, ends=True))

        self._told = told
        links = InterfaceWatch(self._outside.links, added)
        neighbours = AttachmentWatch(self._outside.engine, self._outside.containers, told)
        try:
            yield
        finally:
            neighbours.close()
            links.close()

    @property
    def lives_on(self) -> bool:
        """Whether the command's process still runs after a moment."""
        if self._process < 0:
            return False
        return not has_ended(self._process, _ENDING_SECONDS)

    def is_stopped(self) -> bool:
        """Whether to suspend this process too; the sandbox decides what Ctrl-Z means."""
        return False

    def forward(self, number: int) -> None:
        """Forward a signal to the command."""
        if self._process >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, number)

    def resume(self) -> None:
        """Do nothing: the command was not stopped with us."""

    def kill(self) -> None:
        """End everything in the sandbox at once: the holder ends, and so does all below."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def close(self) -> None:
        """Close the descriptor of the command's process."""
        if self._process >= 0:
            os.close(self._process)
            self._process = -1


class ContainerStarter:
    """Makes one sandbox in an engine."""

    def __init__(
        self,
        engine: Engine,
        launch: Launch,
        image: EngineImage,
        console: ContainerConsole | UnattendedConsole,
        session: str,
        at: Path,
        traits: EngineTraits = AS_ROOT,
        holding: HolderSetup | None = None,
        try_walls: TryWalls | None = None,
    ) -> None:
        """`at` is a directory of ours, in which no sandbox can write. `holding` is a holder whose
        creation has begun.

        Without `try_walls`, this start is itself the trial of the walls.
        """
        self.launch = launch
        self.terminal = console
        self._engine = engine
        self._image = image
        self._session = session
        self._top = at
        self._traits = traits
        self._holding = holding
        self._try_walls = try_walls
        self.container = ""
        """The id of the sandbox's container, once it is created."""
        self._control: socket.socket | None = None
        self._stream: socket.socket | None = None
        self._links: socket.socket | None = None
        self._making, self._closed = threading.Lock(), False

    async def ready(self) -> None:
        """Create the holder in the engine, with its image and the volumes where they are missing,
        and try the walls."""
        holding = self._holding
        if holding is None:
            holding = self._holding = HolderSetup(
                self._engine,
                self._session,
                self._top,
                self.launch.nft,
                self._traits,
                self.launch.ports,
            )
        await asyncio.wrap_future(holding.created)
        marks = volumes.volume_marks(self._top)
        giving = volumes.VolumeGiver(holding.image, holding.kit, self._traits, marks)
        try:
            await asyncio.to_thread(volumes.ensure_volumes, self._engine, self.launch, giving)
        except EngineFailed as failed:
            raise SetupFailed(str(failed)) from None
        if self._try_walls is not None:
            await self._try_walls(self.launch, holding.kit)

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> RunningContainer:
        """Make the door, hand it to `admit`, and start the command behind it."""
        if self.launch.views:
            raise SetupFailed("an error in Keyhole itself: a container has no copy for its review")
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                return await self._start(admit)
        except TimeoutError:
            raise SetupFailed(TOOK_TOO_LONG) from None
        except EngineFailed as failed:
            raise SetupFailed(str(failed)) from None

    async def _start(self, admit: Callable[[list[socket.socket]], None]) -> RunningContainer:
        engine, holding = self._engine, self._holding
        if holding is None:
            raise RuntimeError("the holder is made first")
        holder = holding.created.result()
        # 1. Create the sandbox's container, in which nothing runs yet, while the engine starts the
        # holder.
        try:
            box, filled = await asyncio.to_thread(self._create_sandbox, holding, holder)
        except EngineFailed:
            await asyncio.wrap_future(holding.started)  # raises, if the holder failed
            raise
        sandbox = self.container
        program = build_filter()
        if engine.is_podman():  # it attaches only to a container that could be started at once
            await asyncio.wrap_future(holding.started)
        stream = self._stream = await asyncio.to_thread(engine.attach, sandbox)
        await asyncio.wrap_future(holding.started)
        # 2. The holder and its identity.
        control = self._control = await self._registered(holding, holder)
        grouped = not self._traits.rootless
        await asyncio.to_thread(check_peer, control, engine, holder, grouped=grouped)
        if self.launch.record:
            # The sandbox shares the holder's process namespace, and ends with it.
            note_process(self.launch.record, (await asyncio.to_thread(engine.state, holder)).pid)
        # 3. The gateway gets the door.
        handed = await receive_door(control)
        self._links = handed.links
        admit(handed.door)
        # 4. The sandbox, in that network; we hold its streams before it can write to them.
        walls = container_spec.assertions(
            box, handed.namespace, filled.same, program, filled.owners
        )
        _assert(holding.directory, walls)
        await asyncio.to_thread(engine.start, sandbox)
        unmount_idmapped(holding.directory)  # the sandbox has its own copies of these mounts
        ended = _in_thread(lambda: _end_of(engine, sandbox))
        pid = (await asyncio.to_thread(engine.state, sandbox)).pid
        if self.launch.lasting:
            pid = await asyncio.to_thread(_entered, pid)
        outside = OutsideWatch(engine, (holder, sandbox), handed.links)
        running = RunningContainer(pid, ended, control, outside)
        self._control = self._links = self._stream = None

        def resized(rows: int, columns: int) -> None:
            with contextlib.suppress(EngineFailed):
                engine.resize(sandbox, rows, columns)

        self.terminal.connect(stream, resized, lambda: running.forward(signal.SIGPIPE))
        return running

    def close(self) -> None:
        """Remove the containers, the files and the registration."""
        for each in (self._control, self._links, self._stream):
            if each is not None:
                each.close()
        with self._making:
            self._closed = True
        if self.container:
            with contextlib.suppress(EngineFailed):
                self._engine.remove(self.container)
            self.container = ""
        if self._holding is not None:
            self._holding.close()
        self._engine.close()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    async def _registered(self, holding: HolderSetup, holder: str) -> socket.socket:
        accepting = asyncio.ensure_future(holding.registration.accept())
        while True:
            done, _ = await asyncio.wait((accepting,), timeout=1.0)
            if done:
                return accepting.result()
            try:
                lives = (await asyncio.to_thread(self._engine.state, holder)).running
            except NotInEngine:
                lives = False
            if not lives:
                accepting.cancel()
                raise SetupFailed("the holder ended before it made a network")

    def _create_sandbox(
        self, holding: HolderSetup, holder: str
    ) -> tuple[container_spec.ContainerSpec, MountSources]:
        """Make its container, unless the run was cancelled meanwhile. An interrupted caller no
        longer waits for this thread, but `close` does."""
        with self._making:
            if self._closed:
                raise SetupFailed("it was given up")
            return self._create(holding, holder)

    def _create(
        self, holding: HolderSetup, holder: str
    ) -> tuple[container_spec.ContainerSpec, MountSources]:
        """Create the sandbox's container, with an empty file for its assertions, which are written
        when its network is known."""
        podman = self._engine.is_podman()
        directory = holding.directory
        box = container_spec.ContainerSpec(
            self.launch,
            self._session,
            holder,
            self._image.id,
            self._image.volumes,
            holding.kit,
            holding.told("profile", profile()),
            str(self._top),
            owns_memory=not podman,
            traits=self._traits,
        )
        try:
            files = container_spec.visible_entries(self.launch.files)
            filled = write_mount_sources(directory, files)
            sources = filled.sources
            if self.launch.maps_root:
                sources |= mount_idmapped(directory, files, self.launch.uid)
            config = directory / _ENTRY
            config.touch(0o600, exist_ok=False)
        except OSError as error:
            raise SetupFailed(str(error)) from None
        self.container = self._engine.create(
            container_spec.sandbox_spec(box, sources, str(config)), f"keyhole-{self._session}"
        )
        return box, filled


def _assert(directory: Path, config: EntrypointConfig) -> None:
    """Write the assertions for the first process inside, which has not started yet."""
    file = directory / _ENTRY
    try:
        file.write_bytes(config.packed())
        file.chmod(0o444)
    except OSError as error:
        raise SetupFailed(str(error)) from None


def _entered(pid: int) -> int:
    """Wait until the process that asserts the walls has become the command. Returns its id, or 0
    when it has ended.

    For callers that wait for the start and do not see its streams.
    """
    deadline = time.monotonic() + SETUP_SECONDS
    asserting = b"".join(word.encode() + b"\0" for word in container_spec.ENTRY)
    try:
        process = os.pidfd_open(pid) if pid else -1
    except OSError:
        return 0
    try:
        while process >= 0 and time.monotonic() < deadline:
            if has_ended(process, _LOOK_SECONDS):
                return 0
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                # A process that has just ended cannot be read.
                if file.read() not in (asserting, b""):
                    return pid
    except OSError:
        return 0
    finally:
        if process >= 0:
            os.close(process)
    return pid


def _end_of(engine: Engine, container: str) -> int:
    other = engine.another()
    try:
        return other.wait(container)
    finally:
        other.close()


def _in_thread(work: Callable[[], int]) -> asyncio.Future[int]:
    """The result of `work`, from a daemon thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def settle(code: int, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(code)
        else:
            future.set_exception(error)
            future.exception()  # retrieved, also when no caller is left

    def run() -> None:
        code, error = 0, None
        try:
            code = work()
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(settle, code, error)

    threading.Thread(target=run, daemon=True).start()
    return future
