"""A session's holder while it is being made: in a thread, beside whatever else a run has to do.

Begun when it is known what the sandbox may see, so a run that is refused for that starts nothing.
An engine takes as long for a holder as Keyhole does for its secrets and certificates. What is begun
here has no say in the order of `start.py`: until that has taken the door, the holder only waits,
and it ends with the socket that it was to register at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from keyhole.sandbox.containers import closure, spec
from keyhole.sandbox.containers.engine import EngineFailed, NoSuchThing
from keyhole.sandbox.containers.orphans import hold, remove_files
from keyhole.sandbox.containers.registration import Registration
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.sandbox.seccomp import common_rules, profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine
    from keyhole.sandbox.containers.nature import Nature


class Holding:
    """One holder, and the directory, lock and registration of its session."""

    def __init__(self, engine: Engine, session: str, at: Path, nft: str, nature: Nature) -> None:
        """Begin. `at` is a directory of ours, in which no sandbox can write."""
        self.session = session
        self.directory = at / session
        self.created: Future[str] = Future()
        """The holder's id, once the engine has it; or why it has none."""
        self.started: Future[None] = Future()
        """Settled when it has been started."""
        self._top = at
        self._engine = engine
        self._nature = nature
        self._name = f"keyhole-{session}-holder"
        self._alive = -1
        self._registration: Registration | None = None
        self._asked = self._given_up = False
        programs = closure.Programs.of(nft)
        key = closure.key_of(programs)
        self.kit, self.image = f"{spec.IMAGE}-{key}", f"{spec.IMAGE}:{key}"
        """The volume with our own programs, and the image that it is filled from."""
        for each in (self.created, self.started):
            each.set_running_or_notify_cancel()  # whoever waits no longer does not undo it
        self._thread = threading.Thread(target=self._run, args=(programs,), daemon=True)
        try:
            at.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700)
            self._alive = hold(self.directory)
            self._registration = Registration(self.directory)
            # Nearly always the engine has the image: it is asked for by using it. Not yet in the
            # thread, which would wait for its turn at every step while modules are imported here.
            with contextlib.suppress(NoSuchThing), _uninterrupted():
                self._create(engine)
            self._thread.start()
        except (EngineFailed, OSError) as failed:
            self.close()
            raise SetupFailed(str(failed)) from None
        except BaseException:
            self.close()
            raise

    @property
    def registration(self) -> Registration:
        """Where it registers its door."""
        if self._registration is None:
            raise RuntimeError("it has not begun")
        return self._registration

    def told(self, name: str, rules: str) -> str:
        """How the engine is told a filter: Docker takes it itself, Podman the path of a file."""
        if not self._engine.is_podman():
            return rules
        file = self.directory / name
        file.write_text(rules, "utf-8")
        return str(file)

    def close(self) -> None:
        """Leave nothing of it; what the engine has begun is waited for."""
        self._given_up = True
        if self._registration is not None:
            self._registration.close()
        if self._thread.ident is not None:
            self._thread.join()
        if self._asked:
            # By its name: whoever was interrupted may not know its id.
            with contextlib.suppress(EngineFailed):
                self._engine.remove(self._name)
            self._asked = False
        if self._alive >= 0:
            remove_files(self.directory)
            os.close(self._alive)
            self._alive = -1

    def _run(self, programs: closure.Programs) -> None:
        engine = self._engine.another()  # of this thread's own
        try:
            if not self.created.done():
                self._make_image(engine, programs)
                self._create(engine)
            if not self._given_up:
                engine.start(self._name)
            self.started.set_result(None)
        except (EngineFailed, Missing, OSError) as failed:
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
        config = spec.holder(
            self.image, self.session, str(self._top), place, self.kit, rules, self._nature
        )
        self._asked = True
        self.created.set_result(engine.create(config, self._name))

    def _make_image(self, engine: Engine, programs: closure.Programs) -> None:
        # One at a time: who comes second finds it made.
        with open(self._top / "image.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(NoSuchThing):
                engine.image(self.image)
                return
            unfinished = f"{self.image}-unfinished"
            engine.import_image(closure.pack(programs), unfinished, {spec.LABEL: "holder"})
            # The engine fills the volume when the first container with it is made.
            filling = engine.create(spec.filler(unfinished, self.kit))
            engine.remove(filling)
            engine.rename(unfinished, self.image)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: an engine goes on with what it was asked, so whoever asked must hear of it to
    be able to undo it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
