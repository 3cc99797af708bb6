"""Follows what running sessions stand on: their policy files and their secrets.

Used by a run for its own gateway and by the keeper for many. `look` is called four times a second
by one thread; what must be read is read in threads of their own, and whoever follows is told from
those. Nothing that was changed counts before it was accepted (I11).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from keyhole.app.policyfile import Unreadable
from keyhole.app.provider import NOT_ACCEPTED, Provider, Stock, Wanted
from keyhole.model.value import dataclass
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.files.fileplan import Refused
from keyhole.system.faults import mention
from keyhole.vault.interface import Unavailable, mark_of
from keyhole.vault.watch import MAX_PATIENCE, PATIENCE, Followers, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.provision import Provision
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.vault.interface import Given

INTERVAL = 0.25
"""Seconds between two looks: a change is acted on when it was seen twice, so within a second."""


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told, from threads of the following."""

    rotated: Callable[[SecretRef, Secret, tuple[Secret, ...]], None]
    """A new secret, and what belongs to it and must not come back."""
    reloaded: Callable[[Provision], None]
    kept: Callable[[str], None]
    """Something changed that cannot be used: why, and the old stays in force."""


class Following:
    """One session's sources."""

    def __init__(self, provider: Provider, wanted: Wanted, stock: Stock, told: Told) -> None:
        self._provider = provider
        self._wanted = wanted
        self._told = told
        self._lock = threading.Lock()
        self._over = False
        self._busy = False
        self._take(stock)
        self._seen = self._read = self._marks()
        self._again: float | None = None
        """When it is read again though nothing changed."""
        self._patience = PATIENCE
        self._said = ""

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
        """Read the policy now; whether it changed, and why the old one is kept if it is."""
        with self._lock:
            marks = self._marks()
            news = marks != self._read
            changed, why = self._provide(marks)
        if news:
            self._say(why)
        return changed, why

    def touch(self, ref_text: str) -> bool:
        """Read a secret now that somebody says has changed; whether this session has it."""
        return any(self._watch.touch(ref) for ref in self._given if str(ref) == ref_text)

    def close(self) -> None:
        """Look no longer."""
        self._over = True
        self._watch.close()

    def _take(self, stock: Stock) -> None:
        self._stock = stock
        self._given = stock.given
        followers = Followers(self._rotated, self._failed)
        self._watch = Watch(stock.vault, stock.given, followers)
        # As texts: they are looked at for hundreds of sessions, four times a second.
        dossier, places = stock.dossier, self._provider.places
        referred = (r.path for r in dossier.referred if r.hashes_content)
        accepted = self._provider.accepted(dossier.file.path)
        paths = (dossier.file.path, places.user_defaults, accepted, *referred)
        self._paths = tuple(map(str, paths))

    def _marks(self) -> tuple[object, ...]:
        """What changes when anything that the policy is made of does, or its acceptance."""
        return tuple(map(mark_of, self._paths))

    def _reread(self, marks: tuple[object, ...]) -> None:
        try:
            with self._lock:
                # Somebody may have had it read meanwhile, and was told.
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
        # As they were before it is read: a change in between is seen as one. Where the policy now
        # refers to other files, that looks like one, too, and it is read once more.
        if marks != self._read:
            self._patience = PATIENCE
        self._read, self._again = marks, None
        try:
            stock = self._provider.provide(self._wanted)
        except PolicyFaults as error:
            return False, f"the policy is not valid, the old one holds: {_first(error)}"
        except Unavailable as error:
            # What gives it may be away for a moment: a login, a server, a key in a drawer.
            self._again = time.monotonic() + self._patience
            self._patience = min(2 * self._patience, MAX_PATIENCE)
            return False, f"the policy has changed, the old one holds: {error}"
        except (Refused, Unreadable) as error:
            words = NOT_ACCEPTED if NOT_ACCEPTED in str(error) else str(error)
            return False, f"the policy has changed, the old one holds: {words}"
        except Exception as error:  # noqa: BLE001 - others are read after this one (I9)
            return False, f"the policy has changed, the old one holds: {mention(error)}"
        before = self._stock.provision
        if _alike(stock.provision, before):
            stock.vault.close()
            return False, ""
        old = self._watch
        self._take(stock)
        old.close()
        if not self._over:
            self._told.reloaded(stock.provision)
        return True, ""

    def _rotated(self, ref: SecretRef, given: Given) -> None:
        if not self._over:
            self._told.rotated(ref, given.secret, given.hidden)

    def _failed(self, ref: SecretRef, why: str, over: bool) -> None:
        ends = "; the old one has ended" if over else ""
        if not self._over:
            self._told.kept(f"{ref} is not renewed: {why}{ends}")


def _alike(one: Provision, other: Provision) -> bool:
    """Whether a session would not notice. The user's defaults are in no digest: which secrets they
    name is compared, and the rest of them is in what is granted."""
    same = one.digest == other.digest and one.granted == other.granted
    return same and _sources(one) == _sources(other)


def _sources(provision: Provision) -> list[tuple[str, SecretRef | None, float | None]]:
    return [(s.name, s.secret, s.secret_life) for s in provision.policy.services]


def _first(error: PolicyFaults) -> str:
    """The first of the faults, in one line; `keyhole check` shows all."""
    return error.faults[0].render().partition("\n")[0]
