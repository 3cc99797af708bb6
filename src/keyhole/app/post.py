"""Where a run's door is served: by a gateway of its own, or by one that is there already.

`run.py` holds the sandbox and asks no more of a gateway than this.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from typing import TYPE_CHECKING, Protocol

from keyhole.app.ahead import begin_session
from keyhole.app.ending import Ending
from keyhole.app.session import session_event
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.live import LiveSession
    from keyhole.app.provider import Provider, Stock, Wanted
    from keyhole.app.tenant import Tenant
    from keyhole.audit.log import AuditLog
    from keyhole.gateway.gateway import Gateway
    from keyhole.gateway.pushes import Judge
    from keyhole.policy.budget import GatewayLimits
    from keyhole.sandbox.jail import Jail
    from keyhole.sandbox.launch import Launch


class Post(Protocol):
    """A gateway, as a run sees it."""

    def begin(self, launch: Launch) -> None:
        """A sandbox is about to be: see that what happens can be written down (I8)."""

    def admit(self, door: list[socket.socket]) -> None:
        """Take the door; when this returns, the sandbox may start (I2)."""

    async def open(self, ended: Callable[[Ending], None]) -> None:
        """Serve it from now on; `ended` hears when it is served no longer, and why."""

    def note(self, what: str, **details: str | int) -> None:
        """Write down what became of the sandbox."""

    async def close(self, code: int) -> str:
        """The sandbox has ended; the audit log's last digest."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """Where a tenant's policy and secrets come from, for whoever follows them."""

    provider: Provider
    wanted: Wanted
    stock: Stock


class OwnGateway:
    """A gateway for as long as one sandbox lives, in the process that holds it."""

    def __init__(
        self,
        tenant: Tenant,
        audit: Path,
        quarantine: Path,
        report: Callable[[str], None],
        sourced: Callable[[], Sourced],
        limits: GatewayLimits,
        log: AuditLog | None = None,
    ) -> None:
        """`log` is open, with the session begun in it, where the helper was let go on ahead."""
        self._tenant = tenant
        self._audit = audit
        self._quarantine = quarantine
        self._report = report
        self._limits = limits
        self._log = log
        self._sourced = sourced
        self._door: list[socket.socket] = []
        self._gateway: Gateway | None = None
        self._live: LiveSession | None = None
        self._judge: Jail | None = None
        self._follower: _Follower | None = None

    def begin(self, launch: Launch) -> None:
        """Open the log."""
        if self._log is None:
            rate = self._tenant.provision.policy.limits.audit_per_second
            self._log = begin_session(self._tenant.id, self._audit, launch, rate)

    def admit(self, door: list[socket.socket]) -> None:
        """What connects waits in these until it is answered."""
        self._door = door

    async def open(self, ended: Callable[[Ending], None]) -> None:
        """Load the data plane, which takes a while, and open the door."""
        await _load_gateway()
        from keyhole.app.live import House, LiveSession
        from keyhole.gateway.door import Door
        from keyhole.gateway.gateway import Gateway
        from keyhole.system.resolver import SystemResolver

        loop = asyncio.get_running_loop()
        self._gateway = Gateway(loop, SystemResolver(loop), limits=self._limits)
        house = House(loop, self._gateway, self._opened_log, self._make_judge, self._quarantine)
        door = Door(*self._door)
        self._door = []
        self._live = LiveSession(house, self._tenant, door, self._report, ended)
        self._follower = _Follower(self._sourced(), self._live, loop)

    def note(self, what: str, **details: str | int) -> None:
        """In the log."""
        self._opened_log.record(self._tenant.id, session_event(what, **details))

    async def close(self, code: int) -> str:
        """Close the door, then the log."""
        if self._follower is not None:
            self._follower.close()
        if self._live is not None:
            self._live.close(Ending.DONE)
        for each in self._door:
            each.close()
        if self._gateway is not None:
            self._gateway.close()
        if self._judge is not None:
            self._judge.close()
        if self._log is None:
            return ""
        with self._log as log:
            self.note("ended", code=code)
            log.finish(self._tenant.id)
        return log.head()

    @property
    def _opened_log(self) -> AuditLog:
        if self._log is None:
            raise RuntimeError("the log is opened before the sandbox starts")
        return self._log

    def _make_judge(self, session: str) -> Judge:
        if self._judge is None:
            from keyhole.sandbox.jail import Jail

            self._judge = Jail()
        return self._judge.for_session(session)


class _Follower:
    """Follows one session's sources in a thread, and changes it on the loop."""

    def __init__(
        self, sourced: Sourced, live: LiveSession, loop: asyncio.AbstractEventLoop
    ) -> None:
        from keyhole.app.following import INTERVAL, Following, Told

        def on_loop(method: Callable[..., None]) -> Callable[..., None]:
            def call(*values: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                    loop.call_soon_threadsafe(method, *values)

            return call

        told = Told(on_loop(live.rotate), on_loop(live.reload), on_loop(live.keep))
        self._following = Following(sourced.provider, sourced.wanted, sourced.stock, told)
        self._interval = INTERVAL
        self._over = threading.Event()
        threading.Thread(target=self._run, name="following", daemon=True).start()

    def close(self) -> None:
        """Follow no longer."""
        self._over.set()
        self._following.close()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._following.look()


async def _load_gateway() -> None:
    """Import the data plane while the command starts on another core.

    In a thread that nobody waits for: the loop sees a short command end before it is done.
    """
    loop = asyncio.get_running_loop()
    loaded = loop.create_future()

    def load() -> None:
        error = None
        try:
            importlib.import_module("keyhole.app.live")
            importlib.import_module("keyhole.gateway.gateway")
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(tell, error)

    def tell(error: BaseException | None) -> None:
        if loaded.cancelled():
            return
        if error:
            loaded.set_exception(error)
        else:
            loaded.set_result(None)

    threading.Thread(target=load, daemon=True).start()
    await loaded
