"""`keyhole`, with a gateway of the tests' own behind `up`: run as a program, never imported.

FAKE_GATEWAY says how it behaves: `fail`, `die`, `hang` before it is ready; `ask` for a passphrase,
`speak` a line, then serve; `stay` when it is told to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402

from keyhole.cli import background, main  # noqa: E402
from keyhole.control.server import ControlServer  # noqa: E402
from keyhole.control.socket_directory import claim_socket  # noqa: E402
from keyhole.model.errors import SetupFailed  # noqa: E402
from tests.rigs.control.rig import FakeGateway  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.containers.door_receiver_client import ExpectedSandbox
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.control.peer import Peer
    from keyhole.vault.store_source import PassphrasePrompt


class DaemonSettings(Struct, frozen=True):
    """The same."""

    places: HostPaths
    env: Mapping[str, str]
    ready: Callable[[], None]
    report: Callable[[str], None]
    ask: PassphrasePrompt | None
    expected: ExpectedSandbox | None = None
    turned: Callable[[], None] = lambda: None
    listen: object = None
    workers: int = 1


class Ending(FakeGateway):
    """Ends when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    async def stop_gateway(self, peer: Peer) -> None:
        self.over.set()


def serve(serving: DaemonSettings) -> int:
    """A control socket with nothing behind it."""
    manner = serving.env.get("FAKE_GATEWAY", "")
    assert "NOTIFY_SOCKET" not in serving.env
    assert "NOTIFY_SOCKET" not in os.environ
    assert not any(name.startswith("WATCHDOG") for name in (*serving.env, *os.environ))
    if manner == "fail":
        raise SetupFailed("the audit log cannot be written: no room; `df` says more")
    if manner == "die":
        sys.stderr.write("its last \x1b[2Jline\n")
        raise ZeroDivisionError("words that may quote a secret")
    if manner == "hang":
        signal.pause()
    if manner == "ask":
        said = serving.ask and serving.ask(True)
        text = said.reveal() if said else "nothing"
        serving.report(f"it was asked and got {len(text)} characters: {text[:3]}…")
    if manner == "speak":
        serving.report("session 5e55104d0123 was left by a gateway that died; it is ended")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(serving, stays=manner == "stay"))
    return 0


async def _serve(serving: DaemonSettings, *, stays: bool) -> None:
    loop, gateway = asyncio.get_running_loop(), Ending()
    loop.add_signal_handler(signal.SIGTERM, gateway.over.set)
    place = claim_socket(serving.places.runtime)
    server = ControlServer(loop, place, place.listen(), gateway)
    serving.ready()
    serving.report("after it was ready")
    await gateway.over.wait()
    if stays:
        await asyncio.Event().wait()
    await server.close()


if __name__ == "__main__":
    daemon = types.ModuleType("keyhole.app.daemon.daemon")
    vars(daemon).update(DaemonSettings=DaemonSettings, serve_daemon=serve)
    sys.modules[daemon.__name__] = daemon
    background.PROGRAM = (sys.executable, "-I", __file__)
    main.entry()
