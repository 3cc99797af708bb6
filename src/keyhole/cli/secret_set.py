"""`keyhole secret set` and `rotate`: a value is read from a prompt or a pipe, and kept."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.paint import paint
from keyhole.cli.passphrase import ask_passphrase, has_terminal, new_passphrase, read_line
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.vault.custody import MAX_SIZE, admit_reading, seal_secret
from keyhole.vault.store_file import StorageForm
from keyhole.vault.store_source import unlock

if TYPE_CHECKING:
    import argparse

    from keyhole.vault.envelope import StoreKey
    from keyhole.vault.interface import SecretReading
    from keyhole.vault.store import Store


def set_secret(store: Store, options: argparse.Namespace) -> int:
    """Store a value, new or in the place of another."""
    name = options.name
    before = store.find(name)
    how = _way(store, options)
    if how is StorageForm.ENCRYPTED and not has_terminal():
        raise CliError(
            "there is no terminal to ask for the store's passphrase on; with --plain the secret "
            "is kept in a file that only you can read, and is not encrypted"
        )
    _keep(store, name, how, unsafe_short=options.unsafe_short)
    verb = "replaced" if before else "kept"
    print(f'{verb} {name} ({_painted(how)}); a policy names it by secret = "store:{name}"')
    return EXIT_OK


def replace_secret(store: Store, options: argparse.Namespace) -> int:
    """Store another value in the same way, and tell the sessions that use it."""
    from keyhole.cli.secret_rotate import pass_on  # imports the control client

    name = options.name
    before = store.find(name)
    if before is None:
        raise CliError(f"the store has no {name}; `keyhole secret set {name}` keeps one")
    if before.kept is StorageForm.ENCRYPTED and not has_terminal():
        raise CliError("there is no terminal to ask for the store's passphrase on; type it in one")
    _keep(store, name, before.kept, unsafe_short=options.unsafe_short)
    print(f"replaced {name} ({_painted(before.kept)})")
    return pass_on(name, end_sessions=options.end_sessions)


def _keep(store: Store, name: str, how: StorageForm, *, unsafe_short: bool) -> None:
    """Read the value, and store it if it is admitted.

    The passphrase is asked for first: a person who does not know it types no secret.
    """
    key, new_key = _key(store) if how is StorageForm.ENCRYPTED else (None, None)
    reading = _value(name)
    admit_reading(SecretRef(SecretScheme.STORE, name), reading, unsafe_short=unsafe_short)
    if how is StorageForm.PLAIN:
        store.keep_plain(name, reading, unsafe_short=unsafe_short)
    elif how is StorageForm.KEYRING:
        store.keep_in_keyring(name, reading, unsafe_short=unsafe_short)
    elif key is not None:
        if new_key is not None:
            store.keep_key_file(new_key)
        store.keep_encrypted(name, reading, key, unsafe_short=unsafe_short)
    if reading.short:
        note = f"{name} is too short to be removed from responses that repeat it"
        print(f"{paint('note', 'yellow', stream=sys.stderr)}: {note}", file=sys.stderr)


def _way(store: Store, options: argparse.Namespace) -> StorageForm:
    """The keyring if there is one: it is unlocked with the desktop, so that no run has to ask."""
    if options.plain:
        return StorageForm.PLAIN
    if options.encrypted or not store.keyrings.usable:
        return StorageForm.ENCRYPTED
    return StorageForm.KEYRING


def _value(name: str) -> SecretReading:
    """The value that was typed or piped; it is not checked yet."""
    if not sys.stdin.isatty():
        return seal_secret(sys.stdin.buffer.read(MAX_SIZE + 1))
    line = read_line(f"value of {name} (not shown): ")
    if not line:
        raise CliError("nothing was typed, so nothing is kept")
    return seal_secret(line)


def _key(store: Store) -> tuple[StoreKey, bytes | None]:
    """Open the store's key, or make it and its file for the first encrypted secret."""
    if store.key_file is not None:
        return unlock(store, ask_passphrase), None
    from keyhole.vault.envelope import COST, make_key

    passphrase, wrong = new_passphrase()
    if passphrase is None:
        raise CliError(f"{wrong}; nothing is kept")
    return make_key(passphrase, COST)


def _painted(kept: StorageForm) -> str:
    return paint(kept, "yellow") if kept is StorageForm.PLAIN else kept
