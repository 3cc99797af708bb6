"""The supervisor of a sandbox that has a name: a run as any other, that nobody sits in front of.

A process of its own session that `keyhole new` and `keyhole start` leave behind. It holds the
sandbox's lock and the connection that the holder hangs on: it ends, however it does, and so does
everything inside. What is to outlive it, the home, is the engine's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.boxed import Boxed
from keyhole.app.catalogue import FileCatalogue
from keyhole.app.containers import BOXES
from keyhole.app.leaving import Leaving
from keyhole.app.leftovers import SUPERVISOR
from keyhole.app.lodging import find_lodging
from keyhole.app.named import MAX_LEFT, NotPossible, new_life
from keyhole.app.policyfile import open_policy, with_presets
from keyhole.app.prepare import Intent
from keyhole.app.run import Lasting, Run, execute
from keyhole.app.tried import Remembered
from keyhole.app.trust import TrustStore, examine
from keyhole.model.value import dataclass, replace
from keyhole.policy.schema import Runtime
from keyhole.sandbox.containers import closure
from keyhole.sandbox.containers.console import Unattended
from keyhole.sandbox.containers.engine import Engine, EngineFailed
from keyhole.sandbox.containers.orphans import remove_session
from keyhole.sandbox.containers.volumes import forget, marks_of
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.named import Life, Named, Record
    from keyhole.app.places import Places
    from keyhole.sandbox.interface import Running
    from keyhole.vault.stored import Ask

IDLE = (*closure.words("keyhole.sandbox.containers.idle"),)
"""What runs where no command was given."""

ADDRESS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


@dataclass(frozen=True, slots=True)
class Watched:
    """Whoever waits for the sandbox to run."""

    ready: Callable[[], None]
    say: Callable[[str], None]
    """A line, for them and for the log."""
    note: Callable[[str], None]
    """A line for the log alone."""
    ask: Ask | None
    """Asks for the store's passphrase, as long as it is not ready."""


def supervise(named: Named, places: Places, env: Mapping[str, str], watched: Watched) -> int:
    """Be it until the sandbox ends; its exit code. NotPossible, and all that a run may raise."""
    name_process(SUPERVISOR)
    lock = named.hold()
    try:
        record = named.record()
        clear(named, record, places)
        return _supervise(named, record, places, env, watched)
    finally:
        os.close(lock)


def _supervise(
    named: Named, record: Record, places: Places, env: Mapping[str, str], watched: Watched
) -> int:
    # 1. Authorise: these very bytes were accepted by whoever started us (I11).
    file = open_policy(Path(record.policy), places, FileCatalogue())
    dossier = examine(file, places.home, env.get("PATH", ""))
    accepted = TrustStore(places.trust).find(file.path)
    if accepted is None or accepted.digest != dossier.digest:
        raise Refused("the policy was changed meanwhile, and not accepted")
    if file.loaded.policy.services or file.loaded.policy.presets:
        from keyhole.vault.memory import guard_memory

        guard_memory()
    # 2. Validate, by the same steps as a run.
    env = dict(env) | {ADDRESS[record.runtime]: f"unix://{record.engine}"}
    joined = with_presets(file, env, places.home)
    sandbox = replace(joined.policy.sandbox, runtime=Runtime(record.runtime), image=record.image)
    joined = replace(joined, policy=replace(joined.policy, sandbox=sandbox))
    intent = Intent(
        dossier,
        joined,
        places,
        env,
        record.command or IDLE,
        Path(record.directory),
        name=record.name,
        home_volume=record.volume,
    )
    lodging = find_lodging(intent, alone=False, asked=lambda: watched.ask)
    prepared = lodging.prepared
    if prepared.berth is None:
        raise NotPossible(f"{named.name} is not in a container")
    for line in (*joined.notes, *lodging.notes):
        watched.say(line)
    # 3. Touch. What is known of the session is on disk before anything of it is in the engine.
    life = new_life(lodging.session, shared=lodging.shared)
    named.write_life(life)
    console = Unattended()
    launch = prepared.launch(interactive=True, lasting=True)
    made = prepared.berth.runtime(launch, console, lodging.session)
    runtime = Boxed(made, prepared.berth, joined.policy, Remembered(places.tried))
    ran: list[bool] = []

    def started(running: Running) -> None:
        if running.init is not None:
            ran.append(True)
            named.write_life(replace(life, container=made.container))
            watched.ready()

    lasting = Lasting(started, lambda ending: named.note_closed(str(ending)))
    post = lodging.post(watched.say)
    leaving = Leaving(places.findings, file.directory, prepared, lodging.session)
    if reminder := leaving.begin():
        watched.say(reminder)
    run = Run(
        joined.policy,
        lodging.session,
        runtime,
        post,
        watched.say,
        lasting=lasting,
        left=leaving.look,
    )
    try:
        outcome = execute(run)
        leaving.done()
    finally:
        leaving.close()
        # 4. Tell whoever asks how it ended, and what is left behind.
        changes = leaving.lines
        for line in changes:
            watched.note(f"left behind, and your host may execute it: {line}")
    if outcome.uncovered:
        watched.note(f"{outcome.uncovered} was replaced on the host, which uncovered it inside")
    watched.note(f"session {outcome.session} ended, exit code {outcome.code}")
    named.write_life(replace(named.life(), code=outcome.code, left=changes[:MAX_LEFT]))
    if not ran:
        said = console.last_line.removeprefix("keyhole: ")
        raise SetupFailed(f"its command ended at once, exit code {outcome.code}: {said}")
    return outcome.code


def clear(named: Named, record: Record, places: Places) -> None:
    """Remove what a supervisor that was killed left in the engine. By whoever holds the sandbox."""
    life: Life = named.life()
    if not life.session:
        return
    try:
        engine = Engine(record.engine)
        try:
            remove_session(engine, places.state / BOXES, life.session)
        finally:
            engine.close()
    except EngineFailed as failed:
        raise Refused(str(failed)) from None


def destroy(named: Named, places: Places) -> None:
    """Leave nothing of a sandbox that does not run, its home included. Raises NotPossible."""
    lock = named.hold()
    try:
        try:
            record = named.record()
        except NotPossible:  # nothing of it can be found any more
            named.remove()
            raise
        try:
            clear(named, record, places)
            engine = Engine(record.engine)
            try:
                forget(engine, record.volume, marks_of(places.state / BOXES))
            finally:
                engine.close()
        except (EngineFailed, Refused) as failed:
            raise NotPossible(f"{named.name} is kept: {failed}") from None
        named.remove()
    finally:
        os.close(lock)
