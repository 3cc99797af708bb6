"""Tests whether the walls stand: tries every known way out from inside, in the set-up of the run.

`keyhole doctor` shows the rows; a run makes them once for each boot, set of programs, ruleset,
filter and bind plan, and refuses if one does not hold (I2).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from keyhole.changes.scratch_layer import scratch_layer
from keyhole.gateway.door.door import Door
from keyhole.gateway.gateway import Gateway
from keyhole.gateway.session import Session
from keyhole.model.errors import SetupFailed
from keyhole.model.host import HostPattern
from keyhole.policy.rulebook import Rulebook
from keyhole.sandbox import probe
from keyhole.sandbox.bwrap.bwrap_start import built_filter, start_sandbox
from keyhole.sandbox.handover import StandardStreams
from keyhole.sandbox.launch import ReviewView, refusals_of
from keyhole.system.resolver import unresolved

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from keyhole.model.decision import Address
    from keyhole.model.host import Host
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.launch import Launch

ALLOWED_NAME = "allowed.keyhole.example"
"""The one name that exists while the probe runs; it is resolved inside, never outside."""

_MAX_OUTPUT = 1024 * 1024


class WallResult(Struct, frozen=True):
    """One thing that was tried, and whether the wall held."""

    id: str
    held: bool
    seen: str


class _NoResolver:
    """The probe reaches nothing, so nothing is ever resolved."""

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        raise unresolved(host.name)


async def probe_walls(
    launch: Launch, policy: Policy, program: bytes, *, borrows: bool | None = None
) -> list[WallResult]:
    """Run the probe as the command of this launch, at a door that allows one name.

    `borrows` is whether the run has its namespaces from bubblewrap: then the probe must, too.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        targets, admit = stack.enter_context(probe_door(policy))
        probing = msgspec.structs.replace(
            launch,
            views=tuple(
                ReviewView(
                    view.tree,
                    stack.enter_context(scratch_layer(view.layer, (launch.uid, launch.gid))),
                )
                for view in launch.views
            ),
            command=_probe_command(launch.python, targets),
            interactive=False,
            fault=refusals_of(launch.fault),
        )
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, null)
        complaints = stack.enter_context(tempfile.TemporaryFile())
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            streams = StandardStreams(null, write_end, complaints.fileno())
            running = await start_sandbox(probing, streams, admit, built_filter(program))
        except SetupFailed as error:
            raise SetupFailed(f"{error}{_last_line(complaints)}") from None
        finally:
            os.close(write_end)
        output = loop.run_in_executor(None, _read_all, read_end)
        await running.wait()
        running.close()
        text = await output
    walls = read_walls(text)
    same = borrows is None or borrows == bool(running.refusal)
    return [WallResult("namespaces", same, _whose(running.refusal)), *walls] if walls else []


@contextmanager
def probe_door(
    policy: Policy,
) -> Iterator[tuple[dict[str, object], Callable[[list[socket.socket]], None]]]:
    """The probe's targets, and a gateway for its door that allows one name."""
    narrow = msgspec.structs.replace(
        policy,
        allow=(HostPattern.parse(ALLOWED_NAME),),
        services=(),
        presets=(),
        learning=False,
    )
    session = Session("selftest", Rulebook(narrow), _ignore, lambda: True, _ignore)
    gateway = Gateway(asyncio.get_running_loop(), _NoResolver())

    def admit(sockets: list[socket.socket]) -> None:
        gateway.open_door(Door.of(sockets, {}), session)

    with ExitStack() as stack:
        stack.callback(gateway.close)
        yield _targets(stack), admit


def read_walls(text: bytes) -> list[WallResult]:
    """Parse the probe's output."""
    try:
        return [WallResult(row["id"], row["held"], row["seen"]) for row in json.loads(text)]
    except (ValueError, KeyError, TypeError):
        raise SetupFailed("the self-test said nothing that can be read") from None


def _whose(refusal: str) -> str:
    if not refusal:
        return "order B: Keyhole makes them itself, as this system lets it"
    return f"order A: bubblewrap makes them, as this system refuses Keyhole its own ({refusal})"


def refuse_unless_held(walls: list[WallResult]) -> None:
    """Raise if a wall does not stand, or if nothing was tried at all."""
    fallen = [f"{wall.id} ({wall.seen})" for wall in walls if not wall.held]
    if fallen or not walls:
        raise SetupFailed("the self-test failed: " + (", ".join(fallen) or "nothing was tried"))


def _probe_command(python: str, targets: dict[str, object]) -> tuple[str, ...]:
    code = Path(probe.__file__).read_text("utf-8")
    return (python, "-I", "-S", "-c", code, json.dumps(targets))


def _targets(stack: ExitStack) -> dict[str, object]:
    """Listeners on the host that the probe must not reach; the host itself reaches them, as a
    control."""
    loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    name = f"keyhole-{secrets.token_hex(8)}"
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind("\0" + name)
    abstract.listen()
    port = loopback.getsockname()[1]
    socket.create_connection(("127.0.0.1", port), 5).close()
    with socket.socket(socket.AF_UNIX) as control:
        control.connect("\0" + name)
    return {"port": port, "abstract": name, "pid": os.getpid(), "allowed": ALLOWED_NAME}


def _last_line(complaints: IO[bytes]) -> str:
    """Bubblewrap's error output, if any."""
    complaints.seek(0)
    lines = complaints.read(_MAX_OUTPUT).decode("utf-8", "replace").strip().split("\n")
    return f" ({lines[-1]})" if lines[-1] else ""


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_OUTPUT)


def _ignore(_: object) -> None:
    """Ignore it: the self-test is not an event of any session."""
