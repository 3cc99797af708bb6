"""`store:NAME`: a secret of Keyhole's own store, whose passphrase is asked for at most once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.vault.interface import Reading, Unavailable
from keyhole.vault.store import Store, StoreUnusable
from keyhole.vault.storefile import Kept

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef
    from keyhole.vault.envelope import StoreKey

Ask: TypeAlias = Callable[[bool], Secret | None]
"""Asks a person for the passphrase; True: the one before was not it. None: there is no answer."""

MAX_TRIES = 3


class Locked(Exception):
    """The store's key cannot be had; the message says why."""


def unlock(store: Store, ask: Ask | None) -> StoreKey:
    """The key of what is encrypted, by asking for the passphrase."""
    from keyhole.vault.envelope import Damaged, open_key  # it brings a cipher library

    file = store.key_file
    if file is None:
        raise Locked("the store has lost its key; set its secrets again")
    if ask is None:
        raise Locked("it is encrypted, and there is no terminal to ask for the passphrase on")
    for attempt in range(MAX_TRIES):
        passphrase = ask(attempt > 0)
        if passphrase is None:
            raise Locked("no passphrase was given")
        try:
            key = open_key(file, passphrase)
        except Damaged:
            raise Locked("the store's key file is damaged; set its secrets again") from None
        if key is not None:
            return key
    raise Locked("that is not the store's passphrase")


class StoreSource:
    """The store, read for a run."""

    def __init__(self, store: Store, ask: Ask | None) -> None:
        self._store = store
        self._ask = ask
        self._key: StoreKey | None = None
        self._lock = threading.Lock()

    def read(self, ref: SecretRef) -> Reading:
        """The secret under this name."""
        name = ref.locator
        try:
            entry = self._store.find(name)
            if entry is None:
                command = f"`keyhole secret set {visible(name)}`"
                raise Unavailable(ref, f"the store has none of this name; {command} keeps one")
            key = self._opened() if entry.kept is Kept.ENCRYPTED else None
            return self._store.load(name, key)
        except (StoreUnusable, Locked) as error:
            raise Unavailable(ref, str(error)) from None

    def mark(self, ref: SecretRef) -> object:
        """Of its file, which is replaced with the secret, wherever that is kept."""
        return self._store.mark(ref.locator)

    def hush(self) -> None:
        """Ask nobody from here on: the terminal is the command's by now."""
        with self._lock:
            self._ask = None

    def _opened(self) -> StoreKey:
        with self._lock:
            if self._key is None:
                self._key = unlock(self._store, self._ask)
            return self._key
