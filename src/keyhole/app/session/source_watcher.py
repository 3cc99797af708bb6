"""Watches the policy files and secrets of running sessions.

Used by a run for its own gateway and by the keeper for many. One thread calls `look` four times a
second; reads happen in threads of their own, which call the listeners. A changed policy takes
effect only after it was accepted (I11).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.provision_reader import (
    NOT_ACCEPTED,
    ProvisionReader,
    ProvisionRequest,
    SourcedProvision,
)
from keyhole.model.errors import KeyholeError
from keyhole.policy.fault import PolicyFaults
from keyhole.system.faults import mention
from keyhole.vault.interface import mark_of
from keyhole.vault.secret_watcher import MAX_PATIENCE, PATIENCE, SecretListener, SecretWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.provision import Provision
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.policy import Policy
    from keyhole.vault.interface import FetchedSecret

INTERVAL = 0.25
"""Seconds between two looks: a change is acted on when it was seen twice, so within a second."""


class SourceListener(Struct, frozen=True):
    """The listener, called from threads of the watcher."""

    rotated: Callable[[SecretRef, Secret, tuple[Secret, ...]], None]
    """Called with a new secret, and with values that belong to it and must not come back."""
    reloaded: Callable[[Provision], None]
    kept: Callable[[str], None]
    """Called with the reason when a change cannot be used: the old values stay in force."""


class SourceWatcher:
    """One session's sources."""

    def __init__(
        self,
        provider: ProvisionReader,
        wanted: ProvisionRequest,
        stock: SourcedProvision,
        told: SourceListener,
    ) -> None:
        self._provider = provider
        self._wanted = wanted
        self._told = told
        self._lock = threading.Lock()
        self._over = False
        self._busy = False
        self._take(stock)
        self._seen = self._marks()
        # The session was read a moment ago, or before a person answered a question: a file that
        # has changed since then is read again.
        self._read = self._marks(stock.examined.marks)
        self._again = time.monotonic() + PATIENCE if stock.missing else None
        """When the source is read again although nothing changed."""
        self._patience = PATIENCE
        self._said = ""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._stock.provision.policy

    @property
    def examined(self) -> ExaminedPolicy:
        """The policy in force, with the files that it refers to as they were accepted."""
        return self._stock.examined

    @property
    def writable(self) -> tuple[Path, ...]:
        """The trees that the sandbox can write."""
        return self._wanted.writable

    def look(self) -> None:
        """Look at everything once."""
        self._watch.look()
        marks = self._marks()
        settled, self._seen = marks == self._seen, marks
        if settled and not self._busy and self._is_due(marks):
            self._busy = True
            try:
                threading.Thread(target=self._reread, args=(marks,), daemon=True).start()
            except RuntimeError:  # the host has no thread left; the next look tries again
                self._busy = False

    def reload(self) -> tuple[bool, str]:
        """Read the policy now. Returns whether it changed, and the reason if the old one is
        kept."""
        with self._lock:
            marks = self._marks()
            news = marks != self._read
            changed, why = self._provide(marks)
        if news:
            self._say(why)
        return changed, why

    def touch(self, ref_text: str) -> bool:
        """Read a secret that is said to have changed. Returns whether this session has it."""
        if any(str(ref) == ref_text for ref in self._stock.missing):
            self._again = time.monotonic()  # the next look reads it
            return True
        return any(self._watch.touch(ref) for ref in self._given if str(ref) == ref_text)

    def close(self) -> None:
        """Stop watching."""
        self._over = True
        self._watch.close()

    def _take(self, stock: SourcedProvision) -> None:
        self._stock = stock
        self._given = stock.given
        followers = SecretListener(self._rotated, self._failed)
        self._watch = SecretWatcher(stock.vault, stock.given, followers)
        # As texts: they are compared for hundreds of sessions, four times a second.
        examined, places = stock.examined, self._provider.places
        referred = (r.path for r in examined.referred if r.hashes_content)
        accepted = self._provider.accepted(examined.file.path)
        paths = (examined.file.path, places.user_defaults, accepted, *referred)
        self._paths = tuple(map(str, paths))

    def _marks(self, known: Mapping[Path, object] | None = None) -> tuple[object, ...]:
        """A value that changes with any file of the policy, with its acceptance, and with a secret
        that could not be read. A mark that is known is not taken now."""
        missing = (self._stock.vault.mark(ref) for ref in self._stock.missing)
        earlier = {str(path): mark for path, mark in known.items()} if known else {}
        files = (earlier.get(path) or mark_of(path) for path in self._paths)
        return (*files, *missing)

    def _reread(self, marks: tuple[object, ...]) -> None:
        try:
            with self._lock:
                # It may have been read and reported meanwhile.
                due, news = self._is_due(marks), marks != self._read
                _, why = self._provide(marks) if due else (False, "")
            if news or why != self._said:
                self._say(why)
        finally:
            self._busy = False

    def _is_due(self, marks: tuple[object, ...]) -> bool:
        return marks != self._read or (self._again is not None and time.monotonic() >= self._again)

    def _say(self, why: str) -> None:
        self._said = why
        if why and not self._over:
            self._told.kept(why)

    def _provide(self, marks: tuple[object, ...]) -> tuple[bool, str]:
        # The marks from before it is read: a change in between is seen as one. If the policy now
        # refers to other files, that looks like a change too, and it is read once more.
        if marks != self._read:
            self._patience = PATIENCE
        self._read, self._again = marks, None
        try:
            stock = self._provider.provide(self._wanted)
        except PolicyFaults as error:
            return False, f"the policy is not valid, the old one holds: {error}"
        except KeyholeError as error:
            words = NOT_ACCEPTED if NOT_ACCEPTED in str(error) else str(error)
            return False, f"the policy has changed, the old one holds: {words}"
        except Exception as error:  # noqa: BLE001 - others are read after this one (I9)
            return False, f"the policy has changed, the old one holds: {mention(error)}"
        if stock.missing:
            # A source may be unavailable for a moment: a login, a server, a hardware key.
            self._again = time.monotonic() + self._patience
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        before = self._stock
        if not stock.missing.keys() <= before.missing.keys():
            stock.vault.close()
            why = "; ".join(stock.missing.values())
            return False, f"the policy has changed, the old one holds: {why}"
        same = _alike(stock.provision, before.provision)
        if same and stock.missing.keys() == before.missing.keys():
            stock.vault.close()
            return False, ""
        old = self._watch
        self._take(stock)
        old.close()
        if same:
            for ref in before.missing:
                if ref in stock.given:
                    self._rotated(ref, stock.given[ref])
        elif not self._over:
            self._told.reloaded(stock.provision)
        return True, ""

    def _rotated(self, ref: SecretRef, given: FetchedSecret) -> None:
        if not self._over:
            self._told.rotated(ref, given.secret, given.hidden)

    def _failed(self, ref: SecretRef, why: str, over: bool) -> None:
        ends = "; the old one has ended" if over else ""
        if not self._over:
            self._told.kept(f"{ref} is not renewed: {why}{ends}")


def _alike(one: Provision, other: Provision) -> bool:
    """Whether a session would notice no difference. The user's defaults are in no digest: the
    secrets that they name are compared here, and the rest of them is part of the granted digest."""
    same = one.digest == other.digest and one.granted == other.granted
    return same and _sources(one) == _sources(other)


def _sources(provision: Provision) -> list[tuple[str, SecretRef | None, float | None]]:
    return [(s.name, s.secret, s.secret_life) for s in provision.policy.services]
