"""Makes a session's holder in a thread, beside the rest of a run's preparation.

Started after the mount plan was accepted, so that a refused run starts nothing. An engine takes as
long for a holder as Keyhole does for its secrets and certificates. This does not change the order
of `container_start.py`: until that has taken the door, the holder only waits, and it ends with the
socket at which it was to register.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from keyhole.confine.seccomp import common_rules, profile
from keyhole.model.errors import ResourceUnusable, SetupFailed
from keyhole.sandbox.containers import container_spec, holder_image
from keyhole.sandbox.containers.engine_client import EngineFailed, NotInEngine
from keyhole.sandbox.containers.orphans import make_session_directory, remove_session_files
from keyhole.sandbox.containers.registration import DoorRegistration
from keyhole.system.interrupts import delay_interrupts

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.engine_traits import EngineTraits


class HolderSetup:
    """One session's holder, with its directory, lock and registration."""

    def __init__(
        self,
        engine: Engine,
        session: str,
        at: Path,
        nft: str,
        traits: EngineTraits,
        ports: str = "",
    ) -> None:
        """Begin. `at` is one of our directories, in which no sandbox can write. `ports` are those
        that are joined to the host's."""
        self.session = session
        self.directory = at / session
        self.created: Future[str] = Future()
        """The holder's id once it is created, or the reason why there is none."""
        self.started: Future[None] = Future()
        """Done when the holder was started."""
        self._top = at
        self._engine = engine
        self._traits = traits
        self._ports = ports
        self._name = f"keyhole-{session}-holder"
        self._alive = -1
        self._registration: DoorRegistration | None = None
        self._asked = self._given_up = False
        programs = holder_image.HolderPrograms.of(nft)
        key = holder_image.holder_image_key(programs)
        self.kit, self.image = f"{container_spec.IMAGE}-{key}", f"{container_spec.IMAGE}:{key}"
        """The volume with our programs, and the image that fills it."""
        for each in (self.created, self.started):
            each.set_running_or_notify_cancel()  # a caller that stopped waiting does not undo it
        self._thread = threading.Thread(target=self._run, args=(programs,), daemon=True)
        try:
            at.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._alive = make_session_directory(self.directory)
            self._registration = DoorRegistration(self.directory)
            # Nearly always the engine has the image, so the container is created without asking.
            # Not in the thread: while modules are imported here, it would wait for the interpreter
            # at every step. An engine completes a request in any case: the result is needed to undo
            # it.
            with contextlib.suppress(NotInEngine), delay_interrupts():
                self._create(engine)
            self._thread.start()
        except (EngineFailed, OSError) as failed:
            self.close()
            raise SetupFailed(str(failed)) from None
        except BaseException:
            self.close()
            raise

    @property
    def registration(self) -> DoorRegistration:
        """The socket on which it registers its door."""
        if self._registration is None:
            raise RuntimeError("it has not begun")
        return self._registration

    def told(self, name: str, rules: str) -> str:
        """The filter in the engine's form: text for Docker, the path of a file for Podman."""
        if not self._engine.is_podman():
            return rules
        file = self.directory / name
        file.write_text(rules, "utf-8")
        return str(file)

    def close(self) -> None:
        """Remove everything. Waits for an operation that the engine has begun."""
        self._given_up = True
        if self._registration is not None:
            self._registration.close()
        if self._thread.ident is not None:
            self._thread.join()
        if self._asked:
            # By its name: an interrupted caller may not know its id.
            with contextlib.suppress(EngineFailed):
                self._engine.remove(self._name)
            self._asked = False
        if self._alive >= 0:
            remove_session_files(self.directory)
            os.close(self._alive)
            self._alive = -1

    def _run(self, programs: holder_image.HolderPrograms) -> None:
        engine = self._engine.another()  # of this thread's own
        try:
            if not self.created.done():
                self._make_image(engine, programs)
                self._create(engine)
            if not self._given_up:
                engine.start(self._name)
            self.started.set_result(None)
        except (EngineFailed, ResourceUnusable, OSError) as failed:
            self._fail(SetupFailed(str(failed)))
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            self._fail(error)
        finally:
            engine.close()

    def _fail(self, error: BaseException) -> None:
        for each in (self.created, self.started):
            if not each.done():
                each.set_exception(error)

    def _create(self, engine: Engine) -> None:
        place = str(self.registration.path)
        rules = self.told("holder-profile", profile(common_rules()))
        config = container_spec.holder_spec(
            self.image,
            self.session,
            str(self._top),
            place,
            self.kit,
            rules,
            self._traits,
            self._ports,
        )
        self._asked = True
        self.created.set_result(engine.create(config, self._name))

    def _make_image(self, engine: Engine, programs: holder_image.HolderPrograms) -> None:
        # One at a time: the second caller finds it made.
        with open(self._top / "image.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(NotInEngine):
                engine.image(self.image)
                return
            unfinished = f"{self.image}-unfinished"
            engine.import_image(
                holder_image.build_holder_image(programs),
                unfinished,
                {container_spec.LABEL: "holder"},
            )
            # The engine fills the volume when the first container with it is made.
            filling = engine.create(container_spec.filler_spec(unfinished, self.kit))
            engine.remove(filling)
            engine.rename(unfinished, self.image)
