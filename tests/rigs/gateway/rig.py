"""A gateway on a loop of its own thread, and what it wrote down."""

from __future__ import annotations

import asyncio
import threading
import traceback
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import msgspec
import uvloop

from keyhole.app.session.interception import SessionTrust, build_interception
from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.certs.authority import Authority
from keyhole.gateway.asking import AskNotice
from keyhole.gateway.gateway import Gateway
from keyhole.gateway.session import Judge, Session
from keyhole.model.event import Event
from keyhole.model.secret import Secret
from keyhole.policy.learning_mode import LearningMode
from keyhole.policy.rulebook import Rulebook
from keyhole.system.resolver import unresolved
from tests.rigs.policies import book
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from keyhole.gateway.door.door import Door
    from keyhole.gateway.door.handle import DoorHandle
    from keyhole.gateway.session import Interception
    from keyhole.model.decision import Address
    from keyhole.model.host import Host

PATIENCE = 20.0
T = TypeVar("T")


def policy(*hosts: str, more: str = "", **connect: str) -> str:
    """An egress policy with overrides, as `{"name:port": "address"}`."""
    allow = ", ".join(f'"{host}"' for host in hosts)
    lines = "".join(f'"{at}" = "{to}"\n' for at, to in connect.items())
    return f"[egress]\nallow = [{allow}]\n{more}\n[upstream.connect]\n{lines}"


class FakeResolver:
    """Answers from a table and counts; a list of lists is one answer after the other."""

    def __init__(self, table: dict[str, list[list[str]]] | None = None) -> None:
        self.table = table or {}
        self.asked: list[str] = []

    async def resolve(self, host: Host, who: Hashable) -> Sequence[Address]:
        self.asked.append(host.name)
        answers = self.table.get(host.name)
        if not answers:
            raise unresolved("no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(text) for text in answer]


@dataclass
class Watch:
    """What one session wrote down and told."""

    events: list[Event] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    notices: list[AskNotice] = field(default_factory=list)
    admitting: bool = True

    def asked(self, count: int = 1) -> list[AskNotice]:
        """Wait until so many questions were asked; all of them, without their settlements."""
        until(lambda: len(self._asked()) >= count, told=lambda: f"{self.notices}")
        return self._asked()

    def _asked(self) -> list[AskNotice]:
        return [each for each in list(self.notices) if each.reason == "held"]

    def until(self, reason: str, **details: object) -> Event:
        """Wait for an event with this reason and these details; fail with what there was."""
        found: list[Event] = []

        def look() -> bool:
            found.extend(
                event
                for event in list(self.events)
                if event.reason == reason and details.items() <= dict(event.details).items()
            )
            return bool(found)

        until(look, told=lambda: f"no {reason} {details} in {self.events}")
        return found[0]

    def reasons(self, kind: str) -> list[str]:
        """The reasons of all events of a kind."""
        return [event.reason for event in self.events if event.kind == kind]


@dataclass(frozen=True)
class Services:
    """A session's secrets and placeholders by service, its CA, and who signs for the origins."""

    secrets: dict[str, str]
    placeholders: dict[str, str]
    authority: Authority
    roots: bytes
    judge: Judge | None = None

    def intercept(self, rules: Rulebook) -> Interception:
        """As the composition root does it."""
        secrets = {name: Secret(value) for name, value in self.secrets.items()}
        stand_ins = {name: tuple(text.split("\n")) for name, text in self.placeholders.items()}
        trust = SessionTrust(self.authority, TrustedRoots(self.roots, None))
        return build_interception(rules, secrets, stand_ins, trust, self.judge)


class Rig:
    def __init__(self, resolver: FakeResolver | None = None, **options: object) -> None:
        self.resolver = resolver or FakeResolver()
        self.loop = uvloop.new_event_loop()
        self.faults: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.gateway = self.call(lambda: Gateway(self.loop, self.resolver, **options))  # type: ignore[arg-type]
        self.watches: list[Watch] = []

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def open(
        self, door: Door, policy: str, services: Services | None = None, *, learning: bool = False
    ) -> tuple[DoorHandle, Watch]:
        """Open a door under a policy; without `services` nothing is inspected."""
        watch = Watch()
        session = self.session(watch, policy, services)
        if learning:
            learnt = Rulebook(LearningMode().apply(session.book.policy))
            session = msgspec.structs.replace(session, book=learnt)
        return self.call(lambda: self.gateway.open_door(door, session)), watch

    def session(self, watch: Watch, policy: str, services: Services | None = None) -> Session:
        """A session under a policy, that is written down by this watch."""
        rules = book(policy)
        return Session(
            "s1",
            rules,
            watch.events.append,
            lambda: watch.admitting,
            watch.lines.append,
            services.intercept(rules) if services else None,
            announce=watch.notices.append,
        )

    def close(self) -> None:
        """End the gateway; nothing may have been raised out of a callback."""
        self.call(self.gateway.close)

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), PATIENCE)

        asyncio.run_coroutine_threadsafe(settle(), self.loop).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not self.faults, self.told_faults()

    def told_faults(self) -> str:
        """What was raised out of callbacks."""
        raised = [fault.get("exception") for fault in self.faults]
        told = ["".join(traceback.format_exception(e)) for e in raised if isinstance(e, Exception)]
        return "\n".join([*told, *map(str, self.faults)])
