"""The operations of a gateway: one method for each operation of `operation_table.py`.

Implemented by the composition root, and by a fake in the tests. Every method runs on the gateway's
loop; it may wait, must not block, and is cancelled when it takes longer than
`conversation.WORK_SECONDS`. Methods that change something get the peer, for the audit log (I8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.model.errors import KeyholeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.control.event_feed import EventFeed
    from keyhole.control.peer import Peer, RefusedPeer
    from keyhole.control.prometheus import Family
    from keyhole.control.received_door import ReceivedDoor
    from keyhole.control.values import (
        AnswerRequest,
        AskList,
        AskView,
        EventQuery,
        GrantRequest,
        GrantView,
        Health,
        Invited,
        OpenedSession,
        Reloaded,
        Revoked,
        SessionPage,
        SessionQuery,
        SessionRequest,
        SessionView,
        Status,
    )


class NoSuchSession(KeyholeError):
    """There is none with that id, or none for this peer: the answer does not say which."""


class Operations(Protocol):
    """The gateway as the control API sees it. Every coroutine may raise NoSuchSession or
    Refused."""

    def peer_refused(self, refused: RefusedPeer) -> None:
        """A peer was turned away; to be recorded, or counted beyond a rate (I8)."""

    async def status(self) -> Status:
        """The gateway as a whole."""

    async def health(self) -> Health:
        """Whether sandboxes can work now, and what is missing."""

    async def metrics(self) -> Iterable[Family]:
        """Its counters; at most `prometheus.MAX_SAMPLES` samples."""

    async def list_sessions(self, page: SessionQuery) -> SessionPage:
        """Sessions by id, those after `page.after`, at most `page.limit`."""

    async def show_session(self, session: str) -> SessionView:
        """One session."""

    async def open_session(
        self, opening: SessionRequest, door: ReceivedDoor | None, peer: Peer
    ) -> OpenedSession:
        """Prepare a session, or open it if there is a door.

        The session belongs to the peer and ends with its process, which `peer.watch()` reports. The
        sockets belong to the gateway from `door.take()` on; others are closed. Refuse a second door
        from `door.namespace`: two sessions would be one sandbox (I5).
        """

    async def open_door(self, session: str, door: ReceivedDoor, peer: Peer) -> None:
        """Open a prepared session; NoSuchSession unless `peer.process` prepared it."""

    async def stop_session(self, session: str, peer: Peer) -> None:
        """End a session and its sandbox."""

    async def resume_session(self, session: str, peer: Peer) -> None:
        """Let a frozen session go on; Refused if it is not frozen."""

    async def revoke_session(self, session: str, peer: Peer) -> None:
        """Close a session's door for good."""

    async def revoke_all(self, peer: Peer) -> Revoked:
        """Close all doors."""

    async def grant(self, session: str, grant: GrantRequest, peer: Peer) -> GrantView:
        """Allow a session one more host."""

    async def list_asks(self) -> AskList:
        """The questions of all sessions that can be answered."""

    async def answer_ask(
        self, session: str, ask: str, answer: AnswerRequest, peer: Peer
    ) -> AskView:
        """Answer a question; Refused if it does not wait."""

    def watch(self, query: EventQuery) -> EventFeed:
        """A stream of events from now on; Refused if there are too many."""

    async def reload(self, peer: Peer) -> Reloaded:
        """Read the policies again."""

    async def invite(self, opening: SessionRequest, peer: Peer) -> Invited:
        """Let one sandbox of another machine enrol; Refused if none can connect here."""

    async def secret_changed(self, name: str, peer: Peer) -> None:
        """Read a secret again. If no session uses it, it is no error and takes as long."""

    async def stop_gateway(self, peer: Peer) -> None:
        """Begin to end the gateway, and return: `Server.close` waits until the answer is sent."""
