"""Starting a sandbox that is a container: the holder, its door, the sandbox, and its end.

The order is the promise (I2): the holder makes the network and hands over the door; only when that
is in the gateway's hands is a container started in it. Over the connection by which the door came
hangs everything: when this process ends, however it does, the connection does, so the holder does,
and with it every process of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

from keyhole.sandbox.containers import closure, spec
from keyhole.sandbox.containers.engine import Engine, EngineFailed, NoSuchThing
from keyhole.sandbox.containers.filling import fill
from keyhole.sandbox.containers.mapped import map_trees, unmap
from keyhole.sandbox.containers.nature import AS_ROOT
from keyhole.sandbox.containers.orphans import hold, remove_files
from keyhole.sandbox.containers.registration import Registration, check_peer, receive_door
from keyhole.sandbox.helper import SETUP_SECONDS, TOOK_TOO_LONG, SetupFailed
from keyhole.sandbox.seccomp import build_filter, profile

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.sandbox.containers.console import Console
    from keyhole.sandbox.containers.engine import Image
    from keyhole.sandbox.containers.nature import Nature
    from keyhole.sandbox.launch import Launch

_ENDING_SECONDS = 5.0
"""How long the end of a sandbox that has begun to end may take, all of its processes included."""


class Contained:
    """A sandbox in a container, whose command runs."""

    def __init__(self, pid: int, ended: asyncio.Future[int], control: socket.socket) -> None:
        """`pid` is 0 when a short command has ended by now."""
        self.init: int | None = pid or None
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
            # At once: Podman does not tell the end while somebody inside still holds the output.
            self.kill()
            code = await asyncio.shield(self._ended)
        except EngineFailed as failed:
            raise SetupFailed(f"the engine lost the sandbox: {failed}") from None
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
        console: Console,
        session: str,
        at: Path,
        nature: Nature = AS_ROOT,
    ) -> None:
        """`at` is a directory of ours, in which no sandbox can write."""
        self.launch = launch
        self.terminal = console
        self._engine = engine
        self._image = image
        self._session = session
        self._top = at
        self._directory = at / session
        self._made: list[str] = []
        self._nature = nature
        self._control: socket.socket | None = None
        self._alive = -1

    async def ready(self) -> None:
        """Have the holder's image in the engine."""
        try:
            await asyncio.to_thread(self._ensure_image)
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
        self._top.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.mkdir(mode=0o700)
        self._alive = hold(self._directory)
        engine = self._engine
        # 1. The holder, and who it is.
        registration = Registration(self._directory)
        try:
            holder = await asyncio.to_thread(self._start_holder, str(registration.path))
            control = self._control = await self._registered(registration, holder)
        finally:
            registration.close()
        grouped = not self._nature.rootless
        await asyncio.to_thread(check_peer, control, engine, holder, grouped=grouped)
        # 2. The door is the gateway's.
        door, namespace = await receive_door(control)
        admit(door)
        # 3. The sandbox, in that network; its streams are ours before it can write to them.
        sandbox = await asyncio.to_thread(self._create_sandbox, holder, namespace)
        stream = await asyncio.to_thread(engine.attach, sandbox)
        await asyncio.to_thread(engine.start, sandbox)
        unmap(self._directory)  # the sandbox has what it needs of it
        ended = _in_thread(lambda: _end_of(engine, sandbox))
        pid = (await asyncio.to_thread(engine.state, sandbox)).pid
        running = Contained(pid, ended, control)
        self._control = None

        def resized(rows: int, columns: int) -> None:
            with contextlib.suppress(EngineFailed):
                engine.resize(sandbox, rows, columns)

        self.terminal.connect(stream, resized, lambda: running.forward(signal.SIGPIPE))
        return running

    def close(self) -> None:
        """Leave nothing of it."""
        if self._control is not None:
            self._control.close()
        for container in self._made:
            with contextlib.suppress(EngineFailed):
                self._engine.remove(container)
        remove_files(self._directory)
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        self._engine.close()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def _ensure_image(self) -> None:
        programs = closure.Programs.of(self.launch.nft)
        key = closure.key_of(programs)
        self._kit, self._holder_image = f"{spec.IMAGE}-{key}", f"{spec.IMAGE}:{key}"
        if self._has_image():
            return
        self._top.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One at a time: who comes second finds it made.
        with open(self._top / "image.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._has_image():
                return
            unfinished = f"{self._holder_image}-unfinished"
            self._engine.import_image(closure.pack(programs), unfinished, {spec.LABEL: "holder"})
            # The engine fills the volume when the first container with it is made.
            filling = self._engine.create(spec.filler(unfinished, self._kit))
            self._engine.remove(filling)
            self._engine.rename(unfinished, self._holder_image)

    def _has_image(self) -> bool:
        try:
            self._engine.image(self._holder_image)
        except NoSuchThing:
            return False
        return True

    def _start_holder(self, registration: str) -> str:
        at, kit, nature = str(self._top), self._kit, self._nature
        config = spec.holder(self._holder_image, self._session, at, registration, kit, nature)
        holder = self._engine.create(config, f"keyhole-{self._session}-holder")
        self._made.append(holder)
        self._engine.start(holder)
        return holder

    async def _registered(self, registration: Registration, holder: str) -> socket.socket:
        accepting = asyncio.ensure_future(registration.accept())
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

    def _profile(self, *, podman: bool) -> str:
        """Docker takes the profile itself, Podman the path of a file."""
        if not podman:
            return profile()
        file = self._directory / "profile"
        file.write_text(profile(), "utf-8")
        return str(file)

    def _create_sandbox(self, holder: str, namespace: str) -> str:
        podman = self._nature.podman
        box = spec.Box(
            self.launch,
            self._session,
            holder,
            self._image.id,
            self._image.volumes,
            self._kit,
            self._profile(podman=podman),
            str(self._top),
            owns_memory=not podman,
            nature=self._nature,
        )
        try:
            files = spec.visible(self.launch.files)
            filled = fill(self._directory, files)
            sources = filled.sources
            if self.launch.maps_root:
                sources |= map_trees(self._directory, files, self.launch.uid)
            config = self._directory / "entry"
            config.write_bytes(
                spec.assertions(box, namespace, filled.same, build_filter(), filled.owners).packed()
            )
            config.chmod(0o444)
        except OSError as error:
            raise SetupFailed(str(error)) from None
        made = self._engine.create(
            spec.sandbox(box, sources, str(config)), f"keyhole-{self._session}"
        )
        self._made.insert(0, made)
        return made


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
