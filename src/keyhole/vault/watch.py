"""Follows the secrets of running sessions in their sources, and hands on those that change.

Made by `app` with what a vault gave; the gateway is handed the new secret by `Followers.changed`
and goes on with the old one until then. Files and the store are looked at, since the kernel's
notices are lost over links, bind mounts and networks; what a command printed, and a login, is
renewed before its life is over. What is read again is judged again, as the first time (I11). Nobody
is asked anything: the terminal is the command's by now.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.system.faults import mention
from keyhole.vault import lives
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.model.secret import SecretRef
    from keyhole.vault.interface import Given
    from keyhole.vault.vault import Vault

INTERVAL = 0.25
"""Seconds between two looks. A change is acted on when it was seen twice, so within half a second
and a read; a look at a secret takes about 15 µs."""

PATIENCE = 10.0
"""Seconds until a source that gave nothing is read again, doubled each time up to the next one."""
MAX_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Followers:
    """Who is told. Called from threads of the watch, for one secret one after the other."""

    changed: Callable[[SecretRef, Given], None]
    """The new secret; the old one is no longer to be sent, but may still come back (I7)."""
    failed: Callable[[SecretRef, str, bool], None]
    """Why there is no new one; True: the life of the old one is over. Said once, until it heals."""


class Watch:
    """The secrets of one vault, looked at by one thread; each is renewed by one at a time."""

    def __init__(
        self,
        vault: Vault,
        given: Mapping[SecretRef, Given],
        followers: Followers,
        clock: Callable[[], float] = lives.now,
    ) -> None:
        self._vault = vault
        self._clock = clock
        self._followers = followers
        self._followed = [_Followed(ref, one) for ref, one in given.items()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="secrets", daemon=True)
        vault.hush()

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no longer, and end commands that are under way; nobody is told any more."""
        self._over.set()
        self._vault.close()
        if self._thread.is_alive():
            self._thread.join()

    def touch(self, ref: SecretRef) -> bool:
        """Somebody says that it has changed: read it with the next look. Whether it is followed."""
        found = [one for one in self._followed if one.ref == ref]
        for one in found:
            one.touched = True
        return bool(found)

    def look(self) -> None:
        """Look at each once; what must be read is read in a thread of its own."""
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
        """Hand on what is read, or say why there is nothing."""
        try:
            # One that the person insisted on at the start may be short again.
            given = self._vault.fetch(one.ref, unsafe_short=one.given.unscrubbed)
        except Unavailable as error:
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
    """One secret: what was given, and what was seen of its source since."""

    def __init__(self, ref: SecretRef, given: Given) -> None:
        self.ref = ref
        self.busy = False
        self.take(given)

    def take(self, given: Given) -> None:
        """This one is current."""
        self.given = given
        self.touched = False
        self.told: bool | None = None
        """What was said of a failure: nothing, or whether the life was over."""
        self._seen = self._failed = given.mark
        self._patience = PATIENCE
        self._not_before = given.life.renewal if given.life else 0.0

    def is_due(self, mark: object, moment: float) -> bool:
        """Whether its source is to be read now."""
        if self.touched or (self.given.life and moment >= self._not_before):
            return True
        if mark is None:
            return False
        # Seen twice: whoever writes it is done, and a later write has a later time.
        settled, self._seen = mark == self._seen, mark
        if not settled or mark == self.given.mark:
            return False
        return mark != self._failed or moment >= self._not_before

    def wait(self, moment: float) -> None:
        """Nothing was to be had: not again at once, unless its source changes."""
        self.touched = False
        self._failed = self._seen
        self._not_before = moment + self._patience
        self._patience = min(self._patience * 2, MAX_PATIENCE)

    def is_over(self, moment: float) -> bool:
        """Whether what was given must no longer be used."""
        return self.given.life is not None and moment >= self.given.life.ends
