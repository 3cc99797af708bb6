"""The keeper: a process beside a data plane that may still read files and start programs.

Started by `keeping.py` in the control process. It reads policies that a person accepted, and the
secrets that those name; it follows both, runs `exec:` sources and starts judges. It is asked for a
session by the path of its policy, never for a command or a file: what may be run or read is what is
accepted on this host (I11), so that a data plane that was taken over gets no more out of it than
the secrets of accepted policies.

It serves one data plane at a time. When that one ends, the keeper forgets its sessions and waits
for the next one, so that nobody types the store's passphrase twice. It dies with the control
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.companion import stay_with_parent
from keyhole.app.following import INTERVAL, Following, Told
from keyhole.app.keeping import MAX_WORD, SERVE
from keyhole.app.message import Frames, packed
from keyhole.app.places import Places
from keyhole.app.policyfile import Unreadable
from keyhole.app.provider import Provider, Wanted
from keyhole.model.secret import Secret
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.bailiff import Bailiff
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.programs import Missing
from keyhole.system.faults import mention
from keyhole.vault.interface import Unavailable
from keyhole.vault.memory import guard_memory
from keyhole.vault.store import Store
from keyhole.vault.stored import MAX_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OPENINGS = 16
"""Sessions that are read at a time; others wait their turn."""

NO_THREAD = "this host has no process or thread left for the gateway's keeper; try again"

SWEEP_SHARE = 50
"""How many times as long as a sweep took passes until the next one: it is to take 2 % at most."""

_M_ARENA_MAX = -8
"""From <malloc.h>. Threads come and go here, each with the roots of a host for a moment: an arena
for each of them would keep tens of MiB."""


class Keeper:
    """Serves one data plane until that hangs up."""

    def __init__(self, link: socket.socket, judges: socket.socket, provider: Provider) -> None:
        self._link = link
        self._frames = Frames()
        self._judges = judges
        self._provider = provider
        self._sending = threading.Lock()
        self._turns = threading.Semaphore(MAX_OPENINGS)
        self._lock = threading.Lock()
        self._opening: set[str] = set()
        self._followed: dict[str, Following] = {}
        self._forgotten = False
        self._next_sweep = 0.0
        self._bailiff = Bailiff()

    def serve(self) -> None:
        """Answer until the data plane is gone."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._judges, select.POLLIN)
        looked = time.monotonic()
        try:
            while True:
                left = looked + INTERVAL - time.monotonic()
                for descriptor, _ in poll.poll(max(0.0, left) * 1000):
                    if descriptor == self._judges.fileno():
                        if not self._start_judge():
                            return
                        continue
                    data = _receive(self._link, 65536)
                    if not data:
                        return
                    for frame in self._frames.feed(data):
                        self._hear(json.loads(frame))
                if time.monotonic() >= looked + INTERVAL:
                    looked = time.monotonic()
                    self._look()
        finally:
            with self._lock:
                self._opening.clear()  # what is still being read is not followed
            for _, following in self._sessions():
                following.close()
            self._bailiff.close()
            self._link.close()
            self._judges.close()

    # ── what is asked ─────────────────────────────────────────────────────────────────────────────

    def _hear(self, asked: dict[str, Any]) -> None:
        match asked["do"]:
            case "open":
                self._opening.add(asked["session"])
                self._in_thread(asked["number"], lambda: self._open(asked))
            case "end":
                with self._lock:
                    # One that is still being read is not followed when it has been.
                    self._opening.discard(asked["session"])
                    following = self._followed.pop(asked["session"], None)
                if following is not None:
                    self._forgotten = True
                    if not _in_background(following.close):
                        following.close()
            case "reload":
                self._in_thread(asked["number"], self._reload)
            case "touch":
                self._in_thread(asked["number"], lambda: self._touch(asked["reference"]))

    def _open(self, asked: dict[str, Any]) -> object:
        session = str(asked["session"])
        wanted = Wanted(
            Path(asked["policy"]), str(asked["search_path"]), tuple(map(Path, asked["writable"]))
        )
        try:
            with self._turns:
                stock = self._provider.provide(wanted)
        except BaseException:
            with self._lock:
                self._opening.discard(session)
            raise

        def tell(what: str) -> Callable[..., None]:
            return lambda *words: self._send((what, session, *words))

        told = Told(tell("rotated"), tell("reloaded"), tell("kept"))
        with self._lock:
            awaited = session in self._opening
            self._opening.discard(session)
            if awaited:
                self._followed[session] = Following(self._provider, wanted, stock, told)
        if not awaited:  # whoever asked has left meanwhile
            stock.vault.close()
            raise Refused("the session has ended")
        return stock.provision

    def _reload(self) -> object:
        return {session: following.reload() for session, following in self._sessions()}

    def _touch(self, reference: str) -> object:
        return [session for session, following in self._sessions() if following.touch(reference)]

    def _sessions(self) -> list[tuple[str, Following]]:
        with self._lock:
            return list(self._followed.items())

    def _in_thread(self, number: int, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                answer = ("answer", number, work(), "")
            except PolicyFaults as error:
                words = "; ".join(fault.render().partition("\n")[0] for fault in error.faults)
                answer = ("answer", number, None, words)
            except (Refused, Unreadable, Unavailable) as error:
                answer = ("answer", number, None, str(error))
            except Exception as error:  # noqa: BLE001 - the keeper outlives a fault of one session
                answer = ("answer", number, None, mention(error))
            self._send(answer)

        if not _in_background(run):
            self._send(("answer", number, None, NO_THREAD))

    def _look(self) -> None:
        for _, following in self._sessions():
            # What fails in one session's must not take all along, and is tried again (I9).
            with contextlib.suppress(Exception):
                following.look()
        self._bailiff.bury()
        begun = time.monotonic()
        if self._forgotten and begun >= self._next_sweep:
            # What was followed hangs together in cycles, secrets included (I1).
            self._forgotten = False
            gc.collect()
            self._next_sweep = begun + SWEEP_SHARE * (time.monotonic() - begun)

    def _start_judge(self) -> bool:
        """In this thread: a judge dies with the one that started it. False: nobody asks now."""
        if not _receive(self._judges, 16):
            return False
        try:
            control, pidfd = self._bailiff.start()
        except (OSError, Missing) as error:
            with contextlib.suppress(OSError):  # its end is heard by reading
                self._judges.send(str(error).encode()[:4096])
            return True
        with control, contextlib.suppress(OSError):
            socket.send_fds(self._judges, [b"ok"], [control.fileno(), pidfd])
        os.close(pidfd)
        return True

    def _send(self, value: object) -> None:
        data = packed(value)
        # What was read for a data plane that has ended is for nobody.
        with self._sending, contextlib.suppress(OSError):
            self._link.sendall(data)


def _in_background(work: Callable[[], None]) -> bool:
    """Whether a thread does it. Attack: sandboxes of the user that take all processes there are,
    and with them the keeper of everybody else."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _receive(sock: socket.socket, most: int) -> bytes:
    """What comes; nothing at its end, however that came about."""
    try:
        return sock.recv(most)
    except OSError:
        return b""


def main() -> None:
    """The process: `python -c … CONTROL`; its places come as the first message."""
    if not stay_with_parent():
        return
    with contextlib.suppress(AttributeError):  # musl has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    guard_memory()
    control = _Control(int(sys.argv[1]))
    first = control.hear()
    if first is None:
        return
    places = Places(*(Path(first[name]) for name in ("home", "config", "state", "runtime")))
    try:
        passphrase = _passphrase(control, places)
    except WrongPassphrase as wrong:
        control.say(failed=str(wrong))
        return
    control.say(ready=True)

    def ask(again: bool) -> Secret | None:
        return None if again else passphrase

    provider = Provider(places, dict(os.environ), FileCatalogue(), ask if passphrase else None)
    gc.freeze()
    while ends := control.next_data_plane():
        Keeper(*ends, provider).serve()
        gc.collect()


class _Control:
    """The control process: words, and data planes to serve, which may come at any time."""

    def __init__(self, descriptor: int) -> None:
        self._sock = socket.socket(fileno=descriptor)
        self._sock.set_inheritable(False)
        self._ends: deque[tuple[socket.socket, socket.socket]] = deque()

    def hear(self) -> dict[str, Any] | None:
        """The next words; None when it is gone."""
        while True:
            data = self._receive()
            if not data:
                return None
            if data != SERVE:
                words: dict[str, Any] = json.loads(data)
                return words

    def next_data_plane(self) -> tuple[socket.socket, socket.socket] | None:
        """What the next one is served on; None when no one comes any more."""
        while not self._ends:
            if not self._receive():
                return None
        return self._ends.popleft()

    def _receive(self) -> bytes:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, MAX_WORD, 2)
        except OSError:
            return b""
        if len(descriptors) == 2:
            link, judges = (socket.socket(fileno=each) for each in descriptors)
            self._ends.append((link, judges))
        return data

    def say(self, **words: object) -> None:
        """Its end is heard by listening."""
        with contextlib.suppress(OSError):
            self._sock.send(json.dumps(words).encode())


class WrongPassphrase(Exception):
    """Nobody knew the store's passphrase."""


def _passphrase(control: _Control, places: Places) -> Secret | None:
    """Asked for where something in the store is encrypted, and seen to be the right one."""
    file = Store(places.store).key_file
    if file is None:
        return None
    from keyhole.vault.envelope import Damaged, open_key  # it brings a cipher library

    for attempt in range(MAX_TRIES):
        control.say(ask=attempt > 0)
        text = (control.hear() or {}).get("passphrase")
        passphrase = Secret(text) if text is not None else None
        try:
            if passphrase is None or open_key(file, passphrase) is not None:
                return passphrase
        except Damaged:
            return None  # sessions that want something of it are told so
    raise WrongPassphrase("that is not the store's passphrase")


if __name__ == "__main__":
    main()
