"""`keyhole secret set/list/rm`: Keyhole's own store. A value comes from a prompt or standard input.

Never from an argument: the shell keeps those in its history, and /proc shows them to everyone.
"""

from __future__ import annotations

import getpass
import os
import sys
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import columns, paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.model.secret import Secret, SecretRef, Source
from keyhole.vault.custody import MAX_SIZE, admit, seal
from keyhole.vault.interface import Unavailable
from keyhole.vault.store import DIRECTORY, MAX_NAME, Store, StoreUnusable, is_name
from keyhole.vault.stored import Locked, unlock
from keyhole.vault.storefile import Entry, Kept

if TYPE_CHECKING:
    import argparse

    from keyhole.vault.envelope import StoreKey
    from keyhole.vault.interface import Reading

MIN_PASSPHRASE = 12
"""Characters of a passphrase: whoever has a copy of the store can try them at leisure."""


def run(options: argparse.Namespace) -> int:
    """Keep, list or forget."""
    store = Store(find_places().state / DIRECTORY)
    try:
        if options.action == "list":
            return _list(store.entries(), as_json=options.json)
        _check_name(options.name)
        if options.action == "rm":
            return _remove(store, options.name)
        return _set(store, options)
    except (StoreUnusable, Unavailable, Locked) as error:
        raise CliError(str(error)) from None


def ask_passphrase(again: bool) -> Secret | None:
    """The store's passphrase, from the terminal; None where there is none, or no answer."""
    text = "that is not it; once more: " if again else "passphrase of Keyhole's store: "
    return _prompt(text)


def has_terminal() -> bool:
    """Whether a person can be asked without an echo, wherever standard input leads."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _check_name(name: str) -> None:
    if not is_name(name):
        # Not echoed: it may be the secret itself.
        raise CliError(
            f"NAME has at most {MAX_NAME} letters, digits, '.', '_' and '-'; the value is asked for"
        )


def _set(store: Store, options: argparse.Namespace) -> int:
    name = options.name
    before = store.find(name)
    how = _way(store, options)
    if how is Kept.ENCRYPTED and not has_terminal():
        raise CliError(
            "there is no terminal to ask for the store's passphrase on; with --plain the secret "
            "is kept in a file that only you can read, and is not encrypted"
        )
    reading = _value(name)
    admit(SecretRef(Source.STORE, name), reading, unsafe_short=options.unsafe_short)
    if how is Kept.PLAIN:
        store.keep_plain(name, reading, unsafe_short=options.unsafe_short)
    elif how is Kept.KEYRING:
        store.keep_in_keyring(name, reading, unsafe_short=options.unsafe_short)
    else:
        key = _key(store)
        store.keep_encrypted(name, reading, key, unsafe_short=options.unsafe_short)
    verb = "replaced" if before else "kept"
    print(f'{verb} {name} ({_painted(how)}); a policy names it by secret = "store:{name}"')
    if reading.short:
        note = f"{name} is too short to be removed from answers that repeat it"
        print(f"{paint('note', 'yellow', stream=sys.stderr)}: {note}", file=sys.stderr)
    return EXIT_OK


def _way(store: Store, options: argparse.Namespace) -> Kept:
    """The keyring, where there is one: it is unlocked with the session, and no run has to ask."""
    if options.plain:
        return Kept.PLAIN
    if options.encrypted or not store.keyrings.usable:
        return Kept.ENCRYPTED
    return Kept.KEYRING


def _value(name: str) -> Reading:
    """What was typed or piped, as a Secret that has not been judged yet."""
    if not sys.stdin.isatty():
        return seal(sys.stdin.buffer.read(MAX_SIZE + 1))
    line = _line(f"value of {name} (not shown): ")
    if not line:
        raise CliError("nothing was typed, so nothing is kept")
    return seal(line)


def _key(store: Store) -> StoreKey:
    """The store's key: opened, or made with the first secret that is encrypted."""
    if store.key_file is not None:
        return unlock(store, ask_passphrase)
    from keyhole.vault.envelope import COST, make_key

    passphrase, wrong = _new_passphrase()
    if passphrase is None:
        raise CliError(f"{wrong}; nothing is kept")
    key, file = make_key(passphrase, COST)
    store.keep_key_file(file)
    return key


def _new_passphrase() -> tuple[Secret | None, str]:
    """A passphrase that was typed twice, or what is wrong with it; it raises nothing."""
    first = _line(f"a passphrase for Keyhole's store ({MIN_PASSPHRASE} characters or more): ")
    if len(first.decode("utf-8", "replace")) < MIN_PASSPHRASE:
        return None, f"a passphrase has {MIN_PASSPHRASE} characters or more"
    if _line("the same once more: ") != first:
        return None, "the two differ"
    return Secret(first.decode("utf-8", "surrogateescape")), ""


def _prompt(text: str) -> Secret | None:
    line = _line(text)
    return Secret(line.decode("utf-8", "surrogateescape")) if line else None


def _line(text: str) -> bytes:
    """One line of the terminal, without an echo; empty where there is no terminal."""
    if not has_terminal():
        return b""
    with warnings.catch_warnings():
        # Where the echo cannot be turned off, getpass would warn and go on.
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(text).encode("utf-8", "surrogateescape")
        except (EOFError, getpass.GetPassWarning):
            return b""


def _list(entries: tuple[Entry, ...], *, as_json: bool) -> int:
    if as_json:
        print_json([_entry_json(entry) for entry in entries])
    elif not entries:
        print("nothing is stored yet; `keyhole secret set NAME` keeps a secret")
    else:
        rows = [(f"store:{e.name}", _when(e), _painted(e.kept)) for e in entries]
        print("\n".join(columns(rows, indent="")))
    return EXIT_OK


def _entry_json(entry: Entry) -> dict[str, str]:
    since = datetime.fromtimestamp(entry.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reference = f"store:{entry.name}"
    return {"id": entry.name, "reference": reference, "kept": entry.kept, "since": since}


def _when(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.since).strftime("%Y-%m-%d %H:%M")


def _painted(kept: Kept) -> str:
    return paint(kept, "yellow") if kept is Kept.PLAIN else kept


def _remove(store: Store, name: str) -> int:
    if not store.remove(name):
        raise CliError(f"the store has no {name}; `keyhole secret list` shows what it has")
    print(f"removed {name}")
    return EXIT_OK
