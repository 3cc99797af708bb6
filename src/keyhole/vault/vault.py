"""The vault: every source behind one `fetch`, and all that a session needs fetched at once.

Made by `app` for one policy from what `cli` hands over; it reads neither argv nor environment. It
keeps nothing but what a command printed for a declared time: what it gives is the caller's to hold,
and only what was asked for is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.model.secret import SecretRef, Source
from keyhole.model.value import dataclass, field, replace
from keyhole.vault.child import Children
from keyhole.vault.command import CommandSource
from keyhole.vault.custody import admit
from keyhole.vault.files import FileSource
from keyhole.vault.interface import Given, SeveralUnavailable, Unavailable
from keyhole.vault.keyrings import Keyrings, KeyringSource
from keyhole.vault.logins import Failures, LoginSource
from keyhole.vault.store import Store
from keyhole.vault.stored import Ask, StoreSource
from keyhole.vault.variable import VariableSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from keyhole.vault.interface import SecretSource
    from keyhole.vault.tokenendpoint import Reach


@dataclass(frozen=True, slots=True)
class Ground:
    """What the sources stand on, as values."""

    home: Path
    directory: Path
    """The policy's, which relative paths start from."""
    store: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold tokens
    programs: Mapping[SecretRef, Path] = field(default_factory=dict)
    """For each `exec:` reference the program that was accepted with the policy."""
    lives: Mapping[SecretRef, float] = field(default_factory=dict)
    """For each `exec:` reference the seconds that it lives, where the command does not say."""
    writable: tuple[Path, ...] = ()
    """Trees that the sandbox can write."""
    ask: Ask | None = None
    """Asks for the store's passphrase; None without a terminal."""
    keyrings: Keyrings = field(default_factory=Keyrings)
    reach: Reach | None = None
    """By which a login is renewed; None: it is used as it is, while it lasts."""
    failures: Failures = field(default_factory=Failures)
    """Of renewals. One for all vaults of a process."""
    changed: Callable[[SecretRef], Path | None] = lambda _: None
    """For an `exec:` reference a file of its command that is not as it was accepted."""


class Vault:
    """Fetches secrets by reference. Make one for each session's policy."""

    def __init__(self, ground: Ground) -> None:
        self._children = Children()
        self._stored = StoreSource(Store(ground.store, ground.keyrings), ground.ask)
        self._logins = LoginSource(
            ground.home, ground.env, ground.writable, ground.reach, ground.failures
        )
        self._sources: dict[Source, SecretSource] = {
            Source.FILE: FileSource(ground.directory, ground.home, ground.writable, ground.env),
            Source.EXEC: CommandSource(
                ground.programs,
                ground.directory,
                ground.home,
                ground.env,
                self._children,
                ground.lives,
                ground.changed,
            ),
            Source.UNSAFE_ENV: VariableSource(dict(ground.env)),
            Source.STORE: self._stored,
            Source.KEYRING: KeyringSource(ground.keyrings),
            Source.LOGIN: self._logins,
        }

    def fetch(self, ref: SecretRef, *, unsafe_short: bool = False) -> Given:
        """One secret, read now; Unavailable says why not."""
        source = self._sources[ref.source]
        # Before it is read: a change in between is seen as one, not missed.
        mark = source.mark(ref)
        return replace(admit(ref, source.read(ref), unsafe_short=unsafe_short), mark=mark)

    def mark(self, ref: SecretRef) -> object:
        """What differs from `Given.mark` once the secret may have changed; None: never."""
        return self._sources[ref.source].mark(ref)

    def hush(self) -> None:
        """Ask nobody for a passphrase from here on."""
        self._stored.hush()

    def close(self) -> None:
        """End the commands that are under way; none is started any more. The renewal of a login is
        waited for."""
        self._children.close()
        self._logins.close()

    def fetch_all(
        self, refs: Iterable[SecretRef], *, unsafe_short: bool = False
    ) -> dict[SecretRef, Given]:
        """Each once, all commands and logins at the same time; Unavailable names all that cannot
        be had."""
        wanted = tuple(dict.fromkeys(refs))
        found: dict[SecretRef, Given | Unavailable] = {}

        def fetch(ref: SecretRef) -> None:
            try:
                found[ref] = self.fetch(ref, unsafe_short=unsafe_short)
            except Unavailable as error:
                found[ref] = error

        slow = [ref for ref in wanted if ref.source in (Source.EXEC, Source.LOGIN)]
        threads = [threading.Thread(target=fetch, args=(ref,)) for ref in slow]
        try:
            for thread in threads:
                thread.start()
            # Meanwhile, and here: a question for a passphrase belongs to the caller's thread.
            for ref in wanted:
                if ref not in slow:
                    fetch(ref)
            for thread in threads:
                thread.join()
        except BaseException:
            self._children.close()  # a person who gave up does not wait for a time limit
            raise
        return _all(wanted, found)


def _all(
    wanted: tuple[SecretRef, ...], found: Mapping[SecretRef, Given | Unavailable]
) -> dict[SecretRef, Given]:
    given: dict[SecretRef, Given] = {}
    missing: list[Unavailable] = []
    for ref in wanted:
        match found.get(ref):
            case Given() as one:
                given[ref] = one
            case Unavailable() as error:
                missing.append(error)
            case None:
                missing.append(Unavailable(ref, "it was not read: an error in Keyhole itself"))
    if len(missing) == 1:
        raise missing[0]
    if missing:
        raise SeveralUnavailable(tuple(missing))
    return given
