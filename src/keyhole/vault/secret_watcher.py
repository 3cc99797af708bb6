"""Watches the sources of running sessions' secrets, and passes on those that change.

Made by `app` with the secrets of a vault; the gateway gets a new secret by `SecretListener.changed`
and uses the old one until then. Files and the store are polled, since the kernel's notifications
are lost over links, bind mounts and networks; the output of a command, and a login, are renewed
before they expire. Each later read is checked like the first (I11). There is no prompt: the
terminal belongs to the command by then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.system.clock import now
from keyhole.system.faults import mention
from keyhole.vault.interface import SecretUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.model.secret import SecretRef
    from keyhole.vault.interface import FetchedSecret
    from keyhole.vault.vault import Vault

INTERVAL = 0.25
"""Seconds between two polls. A change is acted on when it was seen twice, so within half a second
and a read; polling a secret takes about 15 µs."""

PATIENCE = 10.0
"""Seconds until a source that failed is read again, doubled each time up to the next constant."""
MAX_PATIENCE = 300.0


class SecretListener(Struct, frozen=True):
    """Callbacks, which are called from the watcher's threads, one at a time for each secret."""

    changed: Callable[[SecretRef, FetchedSecret], None]
    """The new secret; the old one is no longer to be sent, but may still come back (I7)."""
    failed: Callable[[SecretRef, str, bool], None]
    """Report why there is no new one; True: the old one has expired. Reported once until it
    recovers."""


class SecretWatcher:
    """Polls the secrets of one vault in one thread; each is renewed by one thread at a time."""

    def __init__(
        self,
        vault: Vault,
        given: Mapping[SecretRef, FetchedSecret],
        followers: SecretListener,
        clock: Callable[[], float] = now,
    ) -> None:
        self._vault = vault
        self._clock = clock
        self._followers = followers
        self._followed = [_Followed(ref, one) for ref, one in given.items()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="secrets", daemon=True)
        vault.hush()

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching, end running commands, and report nothing more."""
        self._over.set()
        self._vault.close()
        if self._thread.is_alive():
            self._thread.join()

    def touch(self, ref: SecretRef) -> bool:
        """The secret is reported to have changed: read it with the next poll. Returns whether it is
        watched."""
        found = [one for one in self._followed if one.ref == ref]
        for one in found:
            one.touched = True
        return bool(found)

    def look(self) -> None:
        """Poll each source once; reads happen in threads of their own."""
        moment = self._clock()
        for one in self._followed:
            if not one.busy and one.is_due(self._vault.mark(one.ref), moment):
                one.busy = True
                try:
                    threading.Thread(target=self._renew, args=(one,), daemon=True).start()
                except RuntimeError:  # the host has no thread left; the next look tries again
                    one.busy = False

    def _run(self) -> None:
        while not self._over.wait(INTERVAL):
            self.look()

    def _renew(self, one: _Followed) -> None:
        try:
            failure = self._read(one)
            if failure and not self._over.is_set():
                self._fail(one, failure)
        finally:
            one.busy = False

    def _read(self, one: _Followed) -> str:
        """Report the new secret, or return why there is none."""
        try:
            # One that the person insisted on at the start may be short again.
            given = self._vault.fetch(one.ref, unsafe_short=one.given.unscrubbed)
        except SecretUnavailable as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the watch must outlive a fault of a source
            return f"it was not read: {mention(error)}"
        one.take(given)
        if not self._over.is_set():
            self._followers.changed(one.ref, given)
        return ""

    def _fail(self, one: _Followed, why: str) -> None:
        moment = self._clock()
        one.wait(moment)
        over = one.is_over(moment)
        if over is not one.told:
            one.told = over
            self._followers.failed(one.ref, why, over)


class _Followed:
    """One secret: its present value, and the state of its source."""

    def __init__(self, ref: SecretRef, given: FetchedSecret) -> None:
        self.ref = ref
        self.busy = False
        self.take(given)

    def take(self, given: FetchedSecret) -> None:
        """Make this the current secret."""
        self.given = given
        self.touched = False
        self.told: bool | None = None
        """The failure that was last reported: none, or whether the secret had expired."""
        self._seen = self._failed = given.mark
        self._patience = PATIENCE
        self._not_before = given.life.renewal if given.life else 0.0

    def is_due(self, mark: object, moment: float) -> bool:
        """Whether its source is to be read now."""
        if self.touched or (self.given.life and moment >= self._not_before):
            return True
        if mark is None:
            return False
        # Seen twice: the writer is done, and a later write has a later time.
        settled, self._seen = mark == self._seen, mark
        if not settled or mark == self.given.mark:
            return False
        return mark != self._failed or moment >= self._not_before

    def wait(self, moment: float) -> None:
        """The read failed: wait before the next one, unless the source changes."""
        self.touched = False
        self._failed = self._seen
        self._not_before = moment + self._patience
        self._patience = min(self._patience * 2, MAX_PATIENCE)

    def is_over(self, moment: float) -> bool:
        """Whether the current secret must no longer be used."""
        return self.given.life is not None and moment >= self.given.life.ends
