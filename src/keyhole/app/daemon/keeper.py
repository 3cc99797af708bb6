"""The keeper: a process beside a data plane that may still read files and start programs.

Started by `keeper_process.py` in the control process. It reads policies that a person accepted, and
the secrets that those name; it watches both, runs `exec:` sources and starts judges. A request
names a session by the path of its policy, never a command or a file: only accepted policies of this
host decide what is run or read (I11). So a data plane that was taken over gets no more than the
secrets of accepted policies.

It serves each data plane in a thread of its own, which knows the sessions of that one alone. When
a data plane ends, the keeper forgets its sessions and goes on, so that the store's passphrase is
typed once. It dies with the control process.
"""

from __future__ import annotations

import base64
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

from keyhole.app.daemon.keeper_process import MAX_WORD, SERVE
from keyhole.app.processes.child import stay_with_parent
from keyhole.app.processes.message_frames import MessageBuffer
from keyhole.app.processes.messages import (
    ChangeRefused,
    KeeperAnswer,
    PolicyReloaded,
    SecretRotated,
    SpendingChanged,
    pack_message,
    packed,
)
from keyhole.app.session.approval_command import run_approval_command
from keyhole.app.session.command_answer import MAX_COMMANDS
from keyhole.app.session.commit_signer import CommitSigner
from keyhole.app.session.session_spending import SessionSpending
from keyhole.app.session.source_watcher import INTERVAL, SourceListener, SourceWatcher
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.provision_reader import ProvisionReader, ProvisionRequest
from keyhole.app.setup.spending_ledger import SpendingLedger
from keyhole.app.setup.tool_store import ToolStore
from keyhole.judge.judge_process import JudgeSpawner
from keyhole.model.errors import KeyholeError, Refused, ResourceUnusable
from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.policy.seen_tools import grants_tools, read_seen
from keyhole.system.faults import mention
from keyhole.vault.memory_guard import guard_memory
from keyhole.vault.store import Store
from keyhole.vault.store_source import MAX_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.processes.messages import KeeperMessage
    from keyhole.policy.policy import Policy

MAX_OPENINGS = 16
"""Sessions that are read at a time; others wait."""

MAX_SIGNING = 4
"""Commits of all sessions that are signed at a time; others wait, each session's in its turn."""

MAX_CONSULTING = 64
"""Commands of `approvals.command` of all sessions that run at a time."""

NO_THREAD = "this host has no process or thread left for the gateway's keeper; try again"

NOTHING = packed(None)

SWEEP_SHARE = 50
"""A sweep that took one second is followed by this many seconds without one: sweeps take 2 % of the
time."""

_M_ARENA_MAX = -8
"""From <malloc.h>. Short-lived threads each hold the roots of a host for a moment; with an arena
for each, the allocator would keep tens of MiB."""


class KeeperShares:
    """What the sessions of all data planes have together."""

    def __init__(self) -> None:
        self.openings = threading.Semaphore(MAX_OPENINGS)
        self.signing = threading.Semaphore(MAX_SIGNING)
        self.consulting = threading.Semaphore(MAX_CONSULTING)


class Keeper:
    """Serves one data plane until it closes the connection."""

    def __init__(
        self,
        link: socket.socket,
        judges: socket.socket,
        provider: ProvisionReader,
        shares: KeeperShares,
    ) -> None:
        self._link = link
        self._frames = MessageBuffer()
        self._judges = judges
        self._provider = provider
        self._sending = threading.Lock()
        self._shares = shares
        self._lock = threading.Lock()
        self._opening: set[str] = set()
        self._followed: dict[str, SourceWatcher] = {}
        self._signers: dict[str, CommitSigner] = {}
        self._ledger = SpendingLedger(provider.places.spending)
        self._spending: dict[str, SessionSpending] = {}
        self._consulting: dict[str, int] = {}
        """Commands of `approvals.command` that run, by session."""
        self._forgotten = False
        self._next_sweep = 0.0
        self._spawner = JudgeSpawner()

    def serve(self) -> None:
        """Answer until the data plane has ended."""
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
                self._opening.clear()  # sources that are still being read are not watched
            for _, following in self._sessions():
                following.close()
            self._spawner.close()
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
                    # A session that ends while it is being read is not watched afterwards.
                    self._opening.discard(asked["session"])
                    following = self._followed.pop(asked["session"], None)
                    self._signers.pop(asked["session"], None)
                    self._spending.pop(asked["session"], None)
                if following is not None:
                    self._forgotten = True
                    if not _in_background(following.close):
                        following.close()
            case "reload":
                self._in_thread(asked["number"], self._reload)
            case "sign":
                self._in_thread(asked["number"], lambda: self._sign(asked))
            case "consult":
                self._in_thread(asked["number"], lambda: self._consult(asked))
            case "spent":
                self._count_spent(str(asked["session"]), asked["said"])
            case "tools":
                self._remember_tools(asked)
            case "touch":
                self._in_thread(asked["number"], lambda: self._touch(asked["reference"]))

    def _open(self, asked: dict[str, Any]) -> object:
        session = str(asked["session"])
        wanted = ProvisionRequest(
            Path(asked["policy"]), str(asked["search_path"]), tuple(map(Path, asked["writable"]))
        )
        try:
            with self._shares.openings:
                stock = self._provider.provide(wanted)
        except BaseException:
            with self._lock:
                self._opening.discard(session)
            raise

        told = SourceListener(
            lambda ref, new, hidden: self._send(SecretRotated(ref, new, hidden, session)),
            lambda provision: self._send(PolicyReloaded(packed(provision), session)),
            lambda why: self._send(ChangeRefused(why, session)),
        )
        with self._lock:
            awaited = session in self._opening
            self._opening.discard(session)
            if awaited:
                self._followed[session] = SourceWatcher(self._provider, wanted, stock, told)
                self._spending[session] = SessionSpending(self._ledger)
        if not awaited:  # the caller has left meanwhile
            stock.vault.close()
            raise Refused("the session has ended")
        return stock.provision

    def _reload(self) -> object:
        return {session: following.reload() for session, following in self._sessions()}

    def _remember_tools(self, asked: dict[str, Any]) -> None:
        """Remember tools of an MCP server, for the policy of a session that is served."""
        with self._lock:
            following = self._followed.get(str(asked["session"]))
        service = str(asked["service"])
        if following is None or not grants_tools(following.policy, service):
            return
        with contextlib.suppress(OSError):
            store = ToolStore(self._provider.places.tools)
            store.note(following.examined.file.path, service, read_seen(asked["seen"]))

    def _sign(self, asked: dict[str, Any]) -> object:
        session = str(asked["session"])
        with self._lock:
            following = self._followed.get(session)
            if following is None:
                raise Refused("the session has ended")
            signer = self._signers.get(session)
            if signer is None:
                places, env = self._provider.places, self._provider.env
                writable = following.writable
                signer = CommitSigner(places, env, writable, self._shares.signing)
                self._signers[session] = signer
        return signer.sign(following.policy, base64.b64decode(asked["commit"]))

    def _consult(self, asked: dict[str, Any]) -> object:
        """Run the command of a session's policy for a question."""
        session = str(asked["session"])
        with self._lock:
            following = self._followed.get(session)
            running = self._consulting.get(session, 0)
            if following is None:
                raise Refused("the session has ended")
            if running >= MAX_COMMANDS or not self._shares.consulting.acquire(blocking=False):
                raise Refused("too many commands run")
            self._consulting[session] = running + 1
        try:
            home, env = self._provider.places.home, self._provider.env
            return run_approval_command(following.examined, home, env, asked["ask"])
        finally:
            self._shares.consulting.release()
            with self._lock:
                self._consulting[session] -= 1
                if not self._consulting[session]:
                    del self._consulting[session]

    def _count_spent(self, session: str, said: dict[str, object]) -> None:
        """Add what a session spent to the account. A report that finds no thread is made up for by
        the next look."""
        with self._lock:
            following, spending = self._followed.get(session), self._spending.get(session)
        if following is None or spending is None:
            return
        if spending.hear(following.policy, said):
            self._settle_spending(session, spending, following.policy)

    def _settle_spending(self, session: str, spending: SessionSpending, policy: Policy) -> None:
        def work() -> None:
            told = spending.settle(policy)
            if told:
                self._send(SpendingChanged(told, session))

        _in_background(work)

    def _touch(self, reference: str) -> object:
        return [session for session, following in self._sessions() if following.touch(reference)]

    def _sessions(self) -> list[tuple[str, SourceWatcher]]:
        with self._lock:
            return list(self._followed.items())

    def _in_thread(self, number: int, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                answer = KeeperAnswer(number, packed(work()))
            except KeyholeError as error:
                answer = KeeperAnswer(number, NOTHING, str(error))
            except Exception as error:  # noqa: BLE001 - the keeper outlives a fault of one session
                answer = KeeperAnswer(number, NOTHING, mention(error))
            self._send(answer)

        if not _in_background(run):
            self._send(KeeperAnswer(number, NOTHING, NO_THREAD))

    def _look(self) -> None:
        stamp = self._ledger.stamp()
        for session, following in self._sessions():
            # A failure of one session must not stop the sweep of the others, and is tried again
            # (I9).
            with contextlib.suppress(Exception):
                following.look()
                spending = self._spending.get(session)
                if spending is not None and spending.is_behind(following.policy, stamp):
                    self._settle_spending(session, spending, following.policy)
        self._spawner.reap_ended()
        begun = time.monotonic()
        if self._forgotten and begun >= self._next_sweep:
            # Watchers, with their secrets, are in reference cycles (I1).
            self._forgotten = False
            gc.collect()
            self._next_sweep = begun + SWEEP_SHARE * (time.monotonic() - begun)

    def _start_judge(self) -> bool:
        """Start a judge in this thread: a judge dies with the thread that started it. Returns False
        when no request is pending."""
        if not _receive(self._judges, 16):
            return False
        try:
            control, pidfd = self._spawner.start()
        except (OSError, ResourceUnusable) as error:
            with contextlib.suppress(OSError):  # its end shows when reading
                self._judges.send(visible(str(error)).encode()[:4096])
            return True
        with control, contextlib.suppress(OSError):
            socket.send_fds(self._judges, [b"ok"], [control.fileno(), pidfd])
        os.close(pidfd)
        return True

    def _send(self, message: KeeperMessage) -> None:
        data = pack_message(message)
        # A result for a data plane that has ended is dropped.
        with self._sending, contextlib.suppress(OSError):
            self._link.sendall(data)


def _in_background(work: Callable[[], None]) -> bool:
    """Run it in a thread, and return whether one could be started. Attack: the user's sandboxes use
    up all processes of the user, and so would end the keeper of all other sessions."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _receive(sock: socket.socket, most: int) -> bytes:
    """Receive bytes; empty at the end of the connection, also after an error."""
    try:
        return sock.recv(most)
    except OSError:
        return b""


def main() -> None:
    """Run as `python -c … CONTROL`; the first message has its directories."""
    if not stay_with_parent():
        return
    with contextlib.suppress(AttributeError):  # musl has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    guard_memory()
    control = _Control(int(sys.argv[1]))
    first = control.hear()
    if first is None:
        return
    places = HostPaths(*(Path(first[name]) for name in ("home", "config", "state", "runtime")))
    try:
        passphrase = _passphrase(control, places)
    except ResourceUnusable as wrong:
        control.say(failed=str(wrong))
        return
    control.say(ready=True)

    def ask(again: bool) -> Secret | None:
        return None if again else passphrase

    provider = ProvisionReader(
        places, dict(os.environ), FileCatalogue(), ask if passphrase else None
    )
    gc.freeze()
    shares = KeeperShares()
    serving: list[threading.Thread] = []
    while ends := control.next_data_plane():
        keeper = Keeper(*ends, provider, shares)
        serving = [each for each in serving if each.is_alive()]
        serving.append(_serve_apart(keeper))
    for each in serving:  # until their data planes have ended
        each.join()


def _serve_apart(keeper: Keeper) -> threading.Thread:
    """Serve a data plane in a thread. Attack: the user's sandboxes use up all processes of the user
    while a lost data plane is replaced; then it waits until there is a thread."""

    def serve() -> None:
        keeper.serve()
        gc.collect()

    while True:
        thread = threading.Thread(target=serve)
        try:
            thread.start()
        except RuntimeError:
            time.sleep(INTERVAL)
        else:
            return thread


class _Control:
    """The connection to the control process: messages, and sockets of data planes to serve."""

    def __init__(self, descriptor: int) -> None:
        self._sock = socket.socket(fileno=descriptor)
        self._sock.set_inheritable(False)
        self._ends: deque[tuple[socket.socket, socket.socket]] = deque()

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when the control process has ended."""
        while True:
            data = self._receive()
            if not data:
                return None
            if data != SERVE:
                words: dict[str, Any] = json.loads(data)
                return words

    def next_data_plane(self) -> tuple[socket.socket, socket.socket] | None:
        """The sockets of the next data plane; None when there will be no other."""
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
        """Send a message. An error shows when reading."""
        with contextlib.suppress(OSError):
            self._sock.send(json.dumps(words).encode())


def _passphrase(control: _Control, places: HostPaths) -> Secret | None:
    """Ask for the store's passphrase if something in the store is encrypted, and check it."""
    file = Store(places.store).key_file
    if file is None:
        return None
    from keyhole.vault.envelope import open_key  # it brings a cipher library

    for attempt in range(MAX_TRIES):
        control.say(ask=attempt > 0)
        text = (control.hear() or {}).get("passphrase")
        passphrase = Secret(text) if text is not None else None
        try:
            if passphrase is None or open_key(file, passphrase) is not None:
                return passphrase
        except ResourceUnusable:
            return None  # sessions that need it get the reason
    raise ResourceUnusable("that is not the store's passphrase")


if __name__ == "__main__":
    main()
