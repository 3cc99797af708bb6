"""What the gateway does for those who ask: one method for each operation of `table.py`.

Implemented by the composition root, and by a fake in the tests. Every method runs on the gateway's
loop; it may wait, must not block, and is cancelled when it takes longer than
`conversation.WORK_SECONDS`. Who asked is handed to whatever changes something, for the audit (I8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.control.handed import HandedDoor
    from keyhole.control.peer import Peer, Stranger
    from keyhole.control.prometheus import Family
    from keyhole.control.values import (
        Grant,
        GrantView,
        Health,
        Opened,
        Opening,
        Paging,
        Reloaded,
        Revoked,
        SessionPage,
        SessionView,
        Status,
    )


class NoSuch(Exception):
    """There is none by that id, or none for this peer: the answer does not tell which."""


class Refused(Exception):
    """It will not be done. The message is for the person, one line, and never has a secret."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Operations(Protocol):
    """The gateway, as the control socket sees it. All that wait may raise NoSuch or Refused."""

    def stranger(self, stranger: Stranger) -> None:
        """Somebody was turned away; to be written down, counted beyond a rate (I8)."""

    async def status(self) -> Status:
        """The gateway as a whole."""

    async def health(self) -> Health:
        """Whether sandboxes can work now, and what they lack."""

    async def metrics(self) -> Iterable[Family]:
        """Its counters; at most `prometheus.MAX_SAMPLES` samples."""

    async def list_sessions(self, page: Paging) -> SessionPage:
        """Sessions by id, those after `page.after`, at most `page.limit`."""

    async def show_session(self, session: str) -> SessionView:
        """One of them."""

    async def open_session(self, opening: Opening, door: HandedDoor | None, peer: Peer) -> Opened:
        """Prepare a session, or open it if there is a door.

        The session is the peer's: it ends with that process, which `peer.watch()` tells of. The
        sockets belong to the gateway from `door.take()` on; what is not taken is closed. A second
        door from `door.namespace` is to be refused: two sessions would be one sandbox (I5).
        """

    async def open_door(self, session: str, door: HandedDoor, peer: Peer) -> None:
        """The door of a prepared session; NoSuch unless `peer.process` is the one that did."""

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End it."""

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close it for good."""

    async def revoke_all(self, peer: Peer) -> Revoked:
        """Close all."""

    async def grant(self, session: str, grant: Grant, peer: Peer) -> GrantView:
        """Allow one host more."""

    async def reload(self, peer: Peer) -> Reloaded:
        """Read the policies again."""

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read a secret again; that nobody uses it is no error, and must not take less time."""

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin the end and return: the answer is still to be sent (`Server.close` waits)."""
