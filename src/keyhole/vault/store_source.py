"""`store:NAME`: a secret of Keyhole's own store; its passphrase is prompted for at most once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.vault.interface import SecretReading, SecretUnavailable
from keyhole.vault.store_file import StorageForm

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef
    from keyhole.vault.envelope import StoreKey
    from keyhole.vault.store import Store

PassphrasePrompt: TypeAlias = Callable[[bool], Secret | None]
"""Asks a person for the passphrase; True after a wrong one. None: there was no answer."""

MAX_TRIES = 3


def unlock(store: Store, ask: PassphrasePrompt | None) -> StoreKey:
    """Ask for the passphrase and open the store's key."""
    from keyhole.vault.envelope import open_key  # it brings a cipher library

    file = store.key_file
    if file is None:
        raise ResourceUnusable("the store has lost its key; set its secrets again")
    if ask is None:
        raise ResourceUnusable(
            "it is encrypted, and there is no terminal to ask for the passphrase on"
        )
    for attempt in range(MAX_TRIES):
        passphrase = ask(attempt > 0)
        if passphrase is None:
            raise ResourceUnusable("no passphrase was given")
        try:
            key = open_key(file, passphrase)
        except ResourceUnusable:
            raise ResourceUnusable(
                "the store's key file is damaged; set its secrets again"
            ) from None
        if key is not None:
            return key
    raise ResourceUnusable("that is not the store's passphrase")


class StoreSource:
    """The store, read for a run."""

    def __init__(self, store: Store, ask: PassphrasePrompt | None) -> None:
        self._store = store
        self._ask = ask
        self._key: StoreKey | None = None
        self._lock = threading.Lock()

    def read(self, ref: SecretRef) -> SecretReading:
        """The secret under this name."""
        name = ref.locator
        try:
            entry = self._store.find(name)
            if entry is None:
                command = f"`keyhole secret set {visible(name)}`"
                raise SecretUnavailable(
                    ref, f"the store has none of this name; {command} keeps one"
                )
            key = self._opened() if entry.kept is StorageForm.ENCRYPTED else None
            return self._store.load(name, key)
        except ResourceUnusable as error:
            raise SecretUnavailable(ref, str(error)) from None

    def mark(self, ref: SecretRef) -> object:
        """The mark of its file, which is replaced with the secret, wherever the value is."""
        return self._store.mark(ref.locator)

    def hush(self) -> None:
        """Do not prompt any more: the terminal now belongs to the command."""
        with self._lock:
            self._ask = None

    def _opened(self) -> StoreKey:
        with self._lock:
            if self._key is None:
                self._key = unlock(self._store, self._ask)
            return self._key
