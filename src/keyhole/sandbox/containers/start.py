"""Starting a sandbox that is a container: the holder, its door, the sandbox, and its end.

The order is the promise (I2): the holder makes the network and hands over the door; only when that
is in the gateway's hands is a container started in it, though it is made before. Over the
connection by which the door came hangs everything: when this process ends, however it does, the
connection does, so the holder does, and with it every process of the sandbox.
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

from keyhole.model.value import dataclass
from keyhole.sandbox.containers import spec, volumes
from keyhole.sandbox.containers.engine import Engine, EngineFailed, NoSuchThing
from keyhole.sandbox.containers.filling import fill
from keyhole.sandbox.containers.holding import Holding
from keyhole.sandbox.containers.links import LinkWatch
from keyhole.sandbox.containers.mapped import map_trees, unmap
from keyhole.sandbox.containers.nature import AS_ROOT
from keyhole.sandbox.containers.neighbours import Neighbours
from keyhole.sandbox.containers.registration import check_peer, receive
from keyhole.sandbox.helper import SETUP_SECONDS, TOOK_TOO_LONG, SandboxLost, SetupFailed
from keyhole.sandbox.interface import Notice
from keyhole.sandbox.seccomp import build_filter, profile

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyhole.sandbox.containers.console import Console, Unattended
    from keyhole.sandbox.containers.engine import Image
    from keyhole.sandbox.containers.entry import Config
    from keyhole.sandbox.containers.filling import Filled
    from keyhole.sandbox.containers.nature import Nature
    from keyhole.sandbox.launch import Launch

_ENDING_SECONDS = 5.0
"""How long the end of a sandbox that has begun to end may take, all of its processes included."""
_ENTRY = "entry"
"""The file, in the session's directory, that says what `entry.py` asserts."""

HOLDER_ENDED = "the sandbox's holder was ended from outside, and with it all that ran inside"


@dataclass(frozen=True, slots=True)
class Outside:
    """By what it is known who does something to a sandbox."""

    engine: Engine
    containers: tuple[str, ...]
    """The holder and the sandbox."""
    links: socket.socket


_LOOK_SECONDS = 0.01
"""Between two looks whether the walls of a sandbox that lasts were found to stand."""


class Contained:
    """A sandbox in a container, whose command runs."""

    def __init__(
        self, pid: int, ended: asyncio.Future[int], control: socket.socket, outside: Outside
    ) -> None:
        """`pid` is 0 when a short command has ended by now."""
        self.init: int | None = pid or None
        self._outside = outside
        self._told: Callable[[Notice], None] = lambda _: None
        self._ended = ended
        self._control: socket.socket | None = control
        self._process = -1
        if pid:
            with contextlib.suppress(ProcessLookupError):
                self._process = os.pidfd_open(pid)

    async def wait(self) -> int:
        """The command's exit code, as a shell tells it; by then no process is left inside."""
        try:
            await self._end_of_command()
            holder_ended = self._holder_ended()
            # At once: Podman does not tell the end while somebody inside still holds the output.
            self.kill()
            code = await asyncio.shield(self._ended)
        except EngineFailed as failed:
            self.kill()
            await asyncio.to_thread(lambda: self.lives_on)
            raise SandboxLost(f"the engine lost the sandbox: {failed}") from None
        else:
            if holder_ended:
                self._told(Notice("holder-ended", HOLDER_ENDED))
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
        """Whether that was the end of all, and not ours."""
        return self._control is not None and bool(select.select([self._control], [], [], 0)[0])

    @contextlib.contextmanager
    def watch(self, told: Callable[[Notice], None]) -> Iterator[None]:
        """Tell who attaches a container to it; end it when its network gets an interface (I2)."""

        def added(name: str) -> None:
            self.kill()
            line = f"an interface ({name}) was put into the sandbox's network: the run is ended"
            told(Notice("interface-added", line, {"interface": name}, ends=True))

        self._told = told
        links = LinkWatch(self._outside.links, added)
        neighbours = Neighbours(self._outside.engine, self._outside.containers, told)
        try:
            yield
        finally:
            neighbours.close()
            links.close()

    @property
    def lives_on(self) -> bool:
        """Whether the command's process has not ended, nor does in a moment."""
        if self._process < 0:
            return False
        return not select.select([self._process], [], [], _ENDING_SECONDS)[0]

    def is_stopped(self) -> bool:
        """Whether the person should be asked; what Ctrl-Z means is decided inside."""
        return False

    def forward(self, number: int) -> None:
        """Give the command a signal that was meant for it."""
        if self._process >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._process, number)

    def resume(self) -> None:
        """The command never stopped with us."""

    def kill(self) -> None:
        """End everything in the sandbox at once: the holder ends, and so does all below."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def close(self) -> None:
        """Let go of the command's process."""
        if self._process >= 0:
            os.close(self._process)
            self._process = -1


class Containers:
    """Makes one sandbox in an engine."""

    def __init__(
        self,
        engine: Engine,
        launch: Launch,
        image: Image,
        console: Console | Unattended,
        session: str,
        at: Path,
        nature: Nature = AS_ROOT,
        holding: Holding | None = None,
    ) -> None:
        """`at` is a directory of ours, in which no sandbox can write. `holding` was begun ahead."""
        self.launch = launch
        self.terminal = console
        self._engine = engine
        self._image = image
        self._session = session
        self._top = at
        self._nature = nature
        self._holding = holding
        self.container = ""
        """The sandbox's own, once it is made."""
        self._control: socket.socket | None = None
        self._stream: socket.socket | None = None
        self._links: socket.socket | None = None
        self._making, self._closed = threading.Lock(), False

    @property
    def kit(self) -> str:
        """The volume with our own programs, known when it is ready: its name tells all of them."""
        return self._holding.kit if self._holding else ""

    async def ready(self) -> None:
        """Have a holder in the engine, which may have to have its image first, and the volumes."""
        holding = self._holding
        if holding is None:
            holding = self._holding = Holding(
                self._engine, self._session, self._top, self.launch.nft, self._nature
            )
        await asyncio.wrap_future(holding.created)
        marks = volumes.marks_of(self._top)
        giving = volumes.Giving(holding.image, holding.kit, self._nature, marks)
        try:
            await asyncio.to_thread(volumes.ensure, self._engine, self.launch, giving)
        except EngineFailed as failed:
            raise SetupFailed(str(failed)) from None

    async def start(self, admit: Callable[[list[socket.socket]], None]) -> Contained:
        """Make the door, hand it to `admit`, and start the command behind it."""
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                return await self._start(admit)
        except TimeoutError:
            raise SetupFailed(TOOK_TOO_LONG) from None
        except EngineFailed as failed:
            raise SetupFailed(str(failed)) from None

    async def _start(self, admit: Callable[[list[socket.socket]], None]) -> Contained:
        engine, holding = self._engine, self._holding
        if holding is None:
            raise RuntimeError("the holder is made first")
        holder = holding.created.result()
        # 1. The sandbox's container, which nothing runs in yet, while the engine starts the holder.
        try:
            box, filled = await asyncio.to_thread(self._create_sandbox, holding, holder)
        except EngineFailed:
            await asyncio.wrap_future(holding.started)  # if that failed, it is the reason
            raise
        sandbox = self.container
        program = build_filter()
        if engine.is_podman():  # which attaches only to what could be started at once
            await asyncio.wrap_future(holding.started)
        stream = self._stream = await asyncio.to_thread(engine.attach, sandbox)
        await asyncio.wrap_future(holding.started)
        # 2. The holder, and who it is.
        control = self._control = await self._registered(holding, holder)
        grouped = not self._nature.rootless
        await asyncio.to_thread(check_peer, control, engine, holder, grouped=grouped)
        # 3. The door is the gateway's.
        handed = await receive(control)
        self._links = handed.links
        admit(handed.door)
        # 4. The sandbox, in that network; its streams are ours before it can write to them.
        walls = spec.assertions(box, handed.namespace, filled.same, program, filled.owners)
        _assert(holding.directory, walls)
        await asyncio.to_thread(engine.start, sandbox)
        unmap(holding.directory)  # the sandbox has what it needs of it
        ended = _in_thread(lambda: _end_of(engine, sandbox))
        pid = (await asyncio.to_thread(engine.state, sandbox)).pid
        if self.launch.lasting:
            pid = await asyncio.to_thread(_entered, pid)
        outside = Outside(engine, (holder, sandbox), handed.links)
        running = Contained(pid, ended, control, outside)
        self._control = self._links = self._stream = None

        def resized(rows: int, columns: int) -> None:
            with contextlib.suppress(EngineFailed):
                engine.resize(sandbox, rows, columns)

        self.terminal.connect(stream, resized, lambda: running.forward(signal.SIGPIPE))
        return running

    def close(self) -> None:
        """Leave nothing of it."""
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

    async def _registered(self, holding: Holding, holder: str) -> socket.socket:
        accepting = asyncio.ensure_future(holding.registration.accept())
        while True:
            done, _ = await asyncio.wait((accepting,), timeout=1.0)
            if done:
                return accepting.result()
            try:
                lives = (await asyncio.to_thread(self._engine.state, holder)).running
            except NoSuchThing:
                lives = False
            if not lives:
                accepting.cancel()
                raise SetupFailed("the holder ended before it made a network")

    def _create_sandbox(self, holding: Holding, holder: str) -> tuple[spec.Box, Filled]:
        """Make its container, unless all was given up meanwhile: who is interrupted waits for this
        thread no longer, but `close` does."""
        with self._making:
            if self._closed:
                raise SetupFailed("it was given up")
            return self._create(holding, holder)

    def _create(self, holding: Holding, holder: str) -> tuple[spec.Box, Filled]:
        """Make its container, with a file for what it will assert when its network is known."""
        podman = self._engine.is_podman()
        directory = holding.directory
        box = spec.Box(
            self.launch,
            self._session,
            holder,
            self._image.id,
            self._image.volumes,
            holding.kit,
            holding.told("profile", profile()),
            str(self._top),
            owns_memory=not podman,
            nature=self._nature,
        )
        try:
            files = spec.visible(self.launch.files)
            filled = fill(directory, files)
            sources = filled.sources
            if self.launch.maps_root:
                sources |= map_trees(directory, files, self.launch.uid)
            config = directory / _ENTRY
            config.touch(0o600, exist_ok=False)
        except OSError as error:
            raise SetupFailed(str(error)) from None
        self.container = self._engine.create(
            spec.sandbox(box, sources, str(config)), f"keyhole-{self._session}"
        )
        return box, filled


def _assert(directory: Path, config: Config) -> None:
    """Tell the first process inside, which is not started yet, what to insist on."""
    file = directory / _ENTRY
    try:
        file.write_bytes(config.packed())
        file.chmod(0o444)
    except OSError as error:
        raise SetupFailed(str(error)) from None


def _entered(pid: int) -> int:
    """The process, once what asserts the walls has become the command; 0 when it has ended.

    For one whose start somebody waits for who will not see its streams.
    """
    deadline = time.monotonic() + SETUP_SECONDS
    asserting = b"".join(word.encode() + b"\0" for word in spec.ENTRY)
    try:
        process = os.pidfd_open(pid) if pid else -1
    except OSError:
        return 0
    try:
        while process >= 0 and time.monotonic() < deadline:
            if select.select([process], [], [], _LOOK_SECONDS)[0]:
                return 0
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                # Of one that has just ended there is nothing to read.
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
    """What `work` returns, from a thread that nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def settle(code: int, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(code)
        else:
            future.set_exception(error)
            future.exception()  # known, also where nobody asks any more

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
