"""Do the walls of a container stand? The trials of `selftest.py`, by an engine and from an image.

Called by `boxed.py` before a first run, and by the doctor. What runs inside is our own interpreter,
which every sandbox has mounted, so that any image will do, one without a shell included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from typing import TYPE_CHECKING

from keyhole.app.limittrial import ALLOWED, EACH, TAKING, TOGETHER, LimitTrial, shut
from keyhole.app.selftest import Wall, narrow_door, read_walls
from keyhole.app.session import new_session
from keyhole.app.tried import Remembered, key_of_box
from keyhole.model.value import replace
from keyhole.sandbox.containers import closure
from keyhole.sandbox.containers.console import Console
from keyhole.sandbox.containers.engine import EngineFailed
from keyhole.sandbox.containers.spec import IMAGE
from keyhole.sandbox.helper import SetupFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.containers import Berth
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.launch import Launch

_MAX_OUTPUT = 1024 * 1024


async def probe_box(berth: Berth, launch: Launch, policy: Policy) -> list[Wall]:
    """Run the probe in a container that is made as this launch's is."""
    with narrow_door(policy) as (targets, admit):
        told = json.dumps(targets | {"contained": True})
        command = tuple(closure.words("keyhole.sandbox.probe", told))
        return read_walls(await _said(berth, replace(launch, command=command), admit))


def remember(berth: Berth, launch: Launch, tried: Path) -> None:
    """That its walls have held: a run of the same need not try them."""
    kit = f"{IMAGE}-{closure.key_of(closure.Programs.of(launch.nft))}"
    with contextlib.suppress(EngineFailed):  # then it is tried again
        Remembered(tried).keep(key_of_box(launch, berth.engine.version(), kit))


async def try_box_limits(berth: Berth, launch: Launch) -> LimitTrial:
    """Have several processes take what each may have and all together may not."""
    alone, taken = await _taken(berth, launch, 1, TOGETHER)
    return LimitTrial(
        held=alone == 1 and taken < TOGETHER,
        seen=f"memory by the engine: {taken} of {TOGETHER} processes got theirs",
        control=f"alone: {alone} of 1",
    )


async def _taken(berth: Berth, launch: Launch, *counts: int) -> list[int]:
    """How many processes got their memory; none where even who counts them was ended."""
    bounds = replace(launch.bounds, memory=ALLOWED)
    command = (*closure.started("-I", "-S", "-c", TAKING), str(EACH), *map(str, counts))
    text = await _said(berth, replace(launch, command=command, bounds=bounds), shut)
    try:
        found = [int(line) for line in text.splitlines()]
    except ValueError:
        found = []
    return [*found, *[0] * len(counts)][: len(counts)]


async def _said(
    berth: Berth, launch: Launch, admit: Callable[[list[socket.socket]], None]
) -> bytes:
    """What the command of this launch prints, in a sandbox that is gone by then."""
    with (
        os.fdopen(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "rb") as nothing,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
    ):
        console = Console(nothing.fileno(), output.fileno(), complaints.fileno())
        try:
            own = replace(berth, engine=berth.engine.another(), holding=None)
        except EngineFailed as failed:
            raise SetupFailed(str(failed)) from None
        launch = replace(launch, interactive=False, lasting=False)
        runtime = own.runtime(launch, console, new_session())
        try:
            await runtime.ready()
            running = await runtime.start(admit)
            console.start(running.is_stopped)
            try:
                code = await running.wait()
            finally:
                running.close()
                console.close()
        finally:
            await asyncio.to_thread(runtime.close)
        output.seek(0)
        complaints.seek(0)
        said = complaints.read(_MAX_OUTPUT).decode("utf-8", "replace").strip()
        text = output.read(_MAX_OUTPUT)
        if code and said and not text:
            raise SetupFailed(said.splitlines()[-1])
        return text
