"""The keeper: a process beside a long-lived gateway that may still read files and start programs.

Started by `daemon.py` before the gateway locks itself down. It reads policies that a person
accepted, and the secrets that those name; it follows both, runs `exec:` sources and starts judges.
It is asked for a session by the path of its policy, never for a command or a file: what may be run
or read is what is accepted on this host (I11), so that a gateway that was taken over gets no more
out of it than the secrets of accepted policies. It dies with the gateway.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.companion import stay_with_parent
from keyhole.app.following import INTERVAL, Following, Told
from keyhole.app.message import Frames, packed
from keyhole.app.places import Places
from keyhole.app.policyfile import Unreadable
from keyhole.app.provider import Provider, Wanted
from keyhole.model.secret import Secret
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.bailiff import Bailiff
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.programs import Missing
from keyhole.vault.interface import Unavailable
from keyhole.vault.memory import guard_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_OPENINGS = 16
"""Sessions that are read at a time; others wait their turn."""

NO_THREAD = "this host has no process or thread left for the gateway's keeper; try again"

SWEEP_SHARE = 50
"""How many times as long as a sweep took passes until the next one: it is to take 2 % at most."""

_M_ARENA_MAX = -8
"""From <malloc.h>. Threads come and go here, each with the roots of a host for a moment: an arena
for each of them would keep tens of MiB."""


class Keeper:
    """Serves one gateway until it hangs up."""

    def __init__(
        self,
        link: socket.socket,
        judges: socket.socket,
        provider: Provider,
        frames: Frames,
    ) -> None:
        """`frames` has what came with the first one, of one that was not whole yet."""
        self._link = link
        self._frames = frames
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

    def serve(self, heard: Sequence[bytes] = ()) -> None:
        """Answer until the gateway is gone; `heard` was asked before this was ready."""
        for frame in heard:
            self._hear(json.loads(frame))
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
                    data = self._link.recv(65536)
                    if not data:
                        return
                    for frame in self._frames.feed(data):
                        self._hear(json.loads(frame))
                if time.monotonic() >= looked + INTERVAL:
                    looked = time.monotonic()
                    self._look()
        finally:
            for _, following in self._sessions():
                following.close()
            self._bailiff.close()

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
                answer = ("answer", number, None, f"a fault of Keyhole's ({type(error).__name__})")
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
        """In this thread: a judge dies with the one that started it. False: the gateway is gone."""
        if not self._judges.recv(16):
            return False
        try:
            control, pidfd = self._bailiff.start()
        except (OSError, Missing) as error:
            self._judges.send(str(error).encode()[:4096])
            return True
        with control:
            socket.send_fds(self._judges, [b"ok"], [control.fileno(), pidfd])
        os.close(pidfd)
        return True

    def _send(self, value: object) -> None:
        data = packed(value)
        with self._sending:
            try:
                self._link.sendall(data)
            except OSError:
                os._exit(0)  # the gateway is gone, and with it the reason to be here


def _in_background(work: Callable[[], None]) -> bool:
    """Whether a thread does it. Attack: sandboxes of the user that take all processes there are,
    and with them the keeper of everybody else."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        return False
    return True


def main() -> None:
    """The process: `python -m keyhole.app.keeper LINK JUDGES`, its places in the first frame."""
    if not stay_with_parent():
        return
    with contextlib.suppress(AttributeError):  # musl has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    guard_memory()
    link, judges = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for each in (link, judges):
        os.set_inheritable(each.fileno(), False)
    heard: list[bytes] = []
    frames = Frames()
    while not heard:
        data = link.recv(65536)
        if not data:
            return
        heard = frames.feed(data)
    gc.freeze()
    # A gateway that was asked something while this process started has asked already.
    first, *others = heard
    Keeper(link, judges, _provider(json.loads(first), dict(os.environ)), frames).serve(others)


def _provider(first: Mapping[str, str], env: dict[str, str]) -> Provider:
    places = Places(
        Path(first["home"]), Path(first["config"]), Path(first["state"]), Path(first["runtime"])
    )
    passphrase = Secret(first["passphrase"]) if first["passphrase"] else None

    def ask(again: bool) -> Secret | None:
        return None if again else passphrase

    return Provider(places, env, FileCatalogue(), ask if passphrase else None)


if __name__ == "__main__":
    main()
