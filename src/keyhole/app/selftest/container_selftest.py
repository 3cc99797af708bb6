"""Tests the walls of a container: the trials of `selftest.py`, by an engine and from an image.

Called by `wall_trial.py` before a first run, and by the doctor. Our own interpreter runs inside,
which every sandbox has mounted, so that any image will do, even one without a shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.selftest.limit_check import (
    ALLOWED,
    EACH,
    TAKING,
    TOGETHER,
    LimitCheck,
    ignore_door,
)
from keyhole.app.selftest.selftest import WallResult, probe_door, read_walls
from keyhole.app.selftest.selftest_cache import SelftestCache, container_key
from keyhole.app.session.session_events import new_session
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.console import ContainerConsole
from keyhole.sandbox.containers.container_spec import IMAGE
from keyhole.sandbox.containers.engine_client import EngineFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.policy.policy import Policy
    from keyhole.sandbox.containers.container_target import ContainerTarget
    from keyhole.sandbox.launch import Launch

_MAX_OUTPUT = 1024 * 1024


async def probe_container(
    container_target: ContainerTarget, launch: Launch, policy: Policy
) -> list[WallResult]:
    """Run the probe in a container that is made like this launch's."""
    with probe_door(policy) as (targets, admit):
        told = json.dumps(targets | {"contained": True})
        command = tuple(holder_image.program_command("keyhole.sandbox.probe", told))
        return read_walls(await _said(container_target, replace(launch, command=command), admit))


def remember_container(container_target: ContainerTarget, launch: Launch, tried: Path) -> None:
    """Record that its walls have held, so that a run of the same set-up need not try them."""
    kit = f"{IMAGE}-{holder_image.holder_image_key(holder_image.HolderPrograms.of(launch.nft))}"
    with contextlib.suppress(EngineFailed):  # then it is tried again
        SelftestCache(tried).keep(container_key(launch, container_target.build, kit))


async def check_container_limits(container_target: ContainerTarget, launch: Launch) -> LimitCheck:
    """Let several processes each take memory: one may have that much, all together may not."""
    alone, taken = await _taken(container_target, launch, 1, TOGETHER)
    return LimitCheck(
        held=alone == 1 and taken < TOGETHER,
        seen=f"memory by the engine: {taken} of {TOGETHER} processes got theirs",
        control=f"alone: {alone} of 1",
    )


async def _taken(container_target: ContainerTarget, launch: Launch, *counts: int) -> list[int]:
    """How many processes got their memory; 0 when even the counting process was killed."""
    bounds = replace(launch.bounds, memory=ALLOWED)
    command = (
        *holder_image.interpreter_command("-I", "-S", "-c", TAKING),
        str(EACH),
        *map(str, counts),
    )
    text = await _said(
        container_target, replace(launch, command=command, bounds=bounds), ignore_door
    )
    try:
        found = [int(line) for line in text.splitlines()]
    except ValueError:
        found = []
    return [*found, *[0] * len(counts)][: len(counts)]


async def _said(
    container_target: ContainerTarget, launch: Launch, admit: Callable[[list[socket.socket]], None]
) -> bytes:
    """The output of this launch's command, in a sandbox that has ended by then."""
    with (
        os.fdopen(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "rb") as nothing,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
    ):
        console = ContainerConsole(nothing.fileno(), output.fileno(), complaints.fileno())
        try:
            own = replace(container_target, engine=container_target.engine.another(), holding=None)
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
