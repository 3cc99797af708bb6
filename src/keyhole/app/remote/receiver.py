"""The remote receiver: the process beside a gateway that admits sandboxes of other machines.

Started by `daemon.py` with `keyhole up --listen`. It starts the listener, which has the TLS port,
and a relay for each remote sandbox, and connects the two by sockets. It reads no byte of a remote
door. The listener and the relays, which do, are locked down; the receiver accepts from them only
messages of known shapes. It holds no secret, and dies with the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from keyhole.app.processes.child import start_child, stay_with_parent
from keyhole.app.processes.sandbox_channel import MAX_MESSAGE, SandboxChannel
from keyhole.app.remote.invitation import MAX_INVITATIONS, Invitation
from keyhole.app.remote.parcel_channel import ParcelChannel
from keyhole.app.remote.turned_away import TurnedAway
from keyhole.control.values import ServicePlaceholder, SessionRequest
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REMOTE = 256
"""Remote sandboxes at a time: each takes two processes and about 40 MiB."""

RENEWALS_APART = 1.0
"""Seconds between two certificates for one door: signing takes time of the listener, which serves
all doors (I12)."""

REPORTS_APART = 0.5
"""Seconds between two reports of visitors that were turned away, for each reason: the listener
sends one a second, unless somebody has taken it over (I9)."""

MAX_LABEL = 64
MAX_SERVICES = 256
_NO_ROOM = "the gateway has as many remote sandboxes as it can"
_TOO_MANY = (
    f"{MAX_INVITATIONS} invitations wait to be used, which is the most; one ends ten minutes after"
    " it was made"
)


class RelayProcess:
    """The relay of one remote sandbox, and its state."""

    def __init__(self, number: int) -> None:
        self.number = number
        """The number of the enrolment that waits for this relay."""
        self.session = ""
        self.channel: ParcelChannel | None = None
        self.renewed = -RENEWALS_APART
        """When the door last asked for a certificate."""


class RemoteReceiver:
    """Connects the listener with the relays."""

    def __init__(self, runtime: str, lifetime: int | None, env: Mapping[str, str]) -> None:
        self._runtime, self._lifetime, self._env = runtime, lifetime, env
        self._loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self._line: SandboxChannel | None = None
        self._listener: ParcelChannel | None = None
        self._fingerprint = b""
        self._invited: dict[str, SessionRequest] = {}
        self._relays: dict[str, RelayProcess] = {}
        self._starting = 0
        self._reported: dict[TurnedAway, float] = {}

    def open(self, line: SandboxChannel, port: socket.socket) -> None:
        """Start the listener, and give it the port."""
        self._line = line
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start_child("keyhole.app.remote.listener", (theirs, port), self._env)
        self._listener = ParcelChannel(
            self._loop, ours, lambda message, _: self._heard(message), self.over.set
        )
        if self._lifetime is not None:
            self._listener.send({"lifetime": self._lifetime})

    # ── the control process ───────────────────────────────────────────────────────────────────────

    def told(self, message: dict[str, Any]) -> None:
        """A message of the control process, which is trusted."""
        match message:
            case {"invite": dict(opening), "number": int(number), "seconds": int(seconds)}:
                self._invite(convert(opening, SessionRequest), number, seconds)

    def _invite(self, opening: SessionRequest, number: int, seconds: int) -> None:
        if self._line is None or self._listener is None:
            return
        if not self._fingerprint:
            self._line.say(invited=number, code="")
            return
        if len(self._invited) >= MAX_INVITATIONS:
            self._line.say(invited=number, code="", why=_TOO_MANY)
            return
        made = Invitation.make(self._fingerprint)
        self._invited[made.digest] = opening
        self._loop.call_later(seconds, self._invited.pop, made.digest, None)
        self._listener.send({"invite": made.digest, "seconds": seconds})
        self._line.say(invited=number, code=made.code)

    # ── the listener ──────────────────────────────────────────────────────────────────────────────

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": str(fingerprint)}:
                self._fingerprint = bytes.fromhex(fingerprint)
                if self._line is not None:
                    self._line.say(ready=True)
            case {"failed": str(why)} if self._line is not None:
                self._line.say(failed=visible(why))
            case {"enrol": str(digest), "number": int(number), "opening": dict(opening)}:
                self._enrol(digest, number, opening)
            case {"connect": str(session), "number": int(number), "address": str(address)}:
                relay = self._relays.get(session)
                if relay is not None and relay.channel is not None and self._listener is not None:
                    one, other = socket.socketpair()
                    relay.channel.send({"trunk": address[:64]}, one)
                    self._listener.send({"taken": session, "number": number}, other)
            case {"second": str(session), "address": str(address), "times": int(times)}:
                relay = self._relays.get(session)
                if relay is not None and relay.channel is not None:
                    relay.channel.send({"second": address[:64], "times": times})
            case {"turned_away": str(why), "address": str(at), "of": str(of), "times": int(times)}:
                self._report_turned_away(why, at, of, times)
            case {"renewed": str(session), "certificate": str(pem)}:
                relay = self._relays.get(session)
                if relay is not None and relay.channel is not None:
                    relay.channel.send({"certificate": pem})

    def _report_turned_away(self, why: str, address: str, of: str, times: int) -> None:
        """Have the control process record visitors that have no session."""
        known = next((each for each in TurnedAway if each.value == why), None)
        now = self._loop.time()
        if known is None or self._line is None:
            return
        if now - self._reported.get(known, -REPORTS_APART) >= REPORTS_APART:
            self._reported[known] = now
            said = {"address": visible(address)[:64], "of": visible(of)[:64], "times": times}
            self._line.say(turned_away=known.value, **said)

    def _enrol(self, digest: str, number: int, opening: dict[str, Any]) -> None:
        """An invitation was used: start its relay. The door may choose only the label and the
        placeholders of its session."""
        invited = self._invited.pop(digest, None)
        try:
            label = convert(opening.get("label"), str)
            texts = convert(opening.get("stand_ins"), dict[str, tuple[str, ...]])
        except ValidationError:
            invited = None
        if invited is None or len(self._relays) + self._starting >= MAX_REMOTE:
            self._refuse(number, _NO_ROOM)
            return
        stand_ins = [ServicePlaceholder(*each) for each in texts.items()][:MAX_SERVICES]
        request = replace(
            invited, label=visible(label)[:MAX_LABEL] or "remote", stand_ins=tuple(stand_ins)
        )
        self._start(RelayProcess(number), request)

    def _refuse(self, number: int, why: str) -> None:
        if self._listener is not None:
            self._listener.send({"refused": why, "number": number})

    # ── relays ────────────────────────────────────────────────────────────────────────────────────

    def _start(self, relay: RelayProcess, request: SessionRequest) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = start_child("keyhole.app.remote.relay", (theirs,), self._env)
        except OSError as error:
            ours.close()
            self._refuse(relay.number, str(error.strerror))
            return
        self._starting += 1
        pidfd = os.pidfd_open(pid)

        def died() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            os.waitpid(pid, 0)

        self._loop.add_reader(pidfd, died)
        first = {"runtime": self._runtime, "opening": to_builtins(request)}
        relay.channel = ParcelChannel(
            self._loop,
            ours,
            lambda message, _: self._of_relay(relay, message),
            lambda: self._gone(relay),
        )
        relay.channel.send(first)

    def _of_relay(self, relay: RelayProcess, message: dict[str, Any]) -> None:
        if self._listener is None:
            return
        match message:
            case {"opened": str(session), "ca": str(ca), "notes": list(notes)} if not relay.session:
                self._starting -= 1
                relay.session = session
                self._relays[session] = relay
                told = {"ca": ca, "notes": notes}
                self._listener.send({"enrolled": session, "number": relay.number, "told": told})
            case {"failed": str(why)} if not relay.session:
                self._refuse(relay.number, visible(why))
            case {"renew": str(key)} if relay.session:
                if self._loop.time() - relay.renewed >= RENEWALS_APART:
                    relay.renewed = self._loop.time()
                    self._listener.send({"renew": relay.session, "key": key})
            case {"closed": True} if relay.session:
                self._listener.send({"closed": relay.session})

    def _gone(self, relay: RelayProcess) -> None:
        """The session has ended: its certificate is no longer accepted."""
        if not relay.session:
            self._starting -= 1
            self._refuse(relay.number, "the session could not be opened")
        elif self._relays.pop(relay.session, None) is not None and self._listener is not None:
            self._listener.send({"gone": relay.session})


def main() -> None:
    """Run as `python -c … LINE PORT`; the first message has its directory."""
    if not stay_with_parent():
        return
    line, port = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (line, port):
        each.set_inheritable(False)
    told = line.recv(MAX_MESSAGE)
    if told:
        asyncio.run(_main(line, port, json.loads(told)))


async def _main(line: socket.socket, port: socket.socket, told: dict[str, Any]) -> None:
    receiver = RemoteReceiver(told["runtime"], told["lifetime"], dict(os.environ))
    channel = SandboxChannel(asyncio.get_running_loop(), line, receiver.told, receiver.over.set)
    receiver.open(channel, port)
    await receiver.over.wait()


if __name__ == "__main__":
    main()
