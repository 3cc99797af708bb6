"""One session as a long-lived gateway knows it, and as a person sees it in a list.

Kept by `operations.py` from when a session is prepared to its end; looked at by `metrics.py`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from keyhole.control import values
from keyhole.control.table import MAX_OF_SESSION
from keyhole.control.values import State
from keyhole.gateway import granting
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.secret import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.line import Line
    from keyhole.app.live import LiveSession
    from keyhole.app.tenant import Tenant
    from keyhole.control.peer import Peer
    from keyhole.control.values import GrantView, Opening
    from keyhole.policy.budget import BudgetUse
    from keyhole.policy.grants import Grant as Granted


class Entry:
    """One session as the gateway knows it."""

    def __init__(self, tenant: Tenant, opening: Opening, peer: Peer) -> None:
        self.tenant = tenant
        self.label = opening.label
        self.policy = opening.policy
        self.process = peer.process
        self.pidfd = peer.watch()
        self.opened = int(time.time())
        self.state = State.PREPARED
        self.live: LiveSession | None = None
        self.line: Line | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()
        self.stored: set[str] = set()

    @property
    def id(self) -> str:
        """Its name everywhere."""
        return self.tenant.id

    def report(self, text: str) -> None:
        """A line for the person in front of it."""
        if self.line is not None:
            self.line.say(say=text)

    def view(self) -> values.SessionView:
        """As a person sees it."""
        now, live = time.time(), self.live
        provision = live.provision if live else self.tenant.provision
        named = {s.secret for s in provision.policy.services if s.secret}
        self.stored |= {ref.locator for ref in named if ref.source is Source.STORE}
        figures = live.handle.figures if live else None
        return values.SessionView(
            id=self.id,
            state=self.state,
            label=self.label,
            policy=self.policy,
            pid=self.process[0],
            opened=self.opened,
            expires=int(now + live.expires_in) if live else None,
            connections=figures.connections if figures else 0,
            requests=figures.requests if figures else 0,
            denied=figures.denied if figures else 0,
            up=figures.up if figures else 0,
            down=figures.down if figures else 0,
            stored=tuple(sorted(self.stored)[:MAX_OF_SESSION]),
            secrets=tuple(sorted(provision.secrets)[:MAX_OF_SESSION]),
            grants=tuple(map(shown, live.handle.grants)) if live and not live.ending else (),
            budgets=_budgets(live.handle.budgets) if live else (),
        )


def shown(grant: Granted) -> GrantView:
    """A grant as a person sees it, whose clock is the wall's."""
    left = grant.expires - granting.now()
    port = "" if grant.port == DEFAULT_PORT else f":{grant.port}"
    return values.GrantView(f"{grant.host.name}{port}", int(time.time() + left), grant.uses)


def _budgets(uses: Iterable[BudgetUse]) -> tuple[values.BudgetView, ...]:
    """As many as an answer has room for; `keyhole check` names all."""
    found = [values.BudgetView(use.name, use.used, use.limit) for use in uses]
    return tuple(found[:MAX_OF_SESSION])
