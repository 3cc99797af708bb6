"""`keyhole secret set/list/test/rotate/rm`: the store. A value comes from a prompt or a pipe.

Never from an argument: the shell keeps those in its history, and /proc shows them to everyone.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.places import POLICY_NAME
from keyhole.app.policyfile import Unreadable, open_policy
from keyhole.app.secretuse import known_secrets, uses_of_defaults, uses_of_policy
from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import columns, paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places
from keyhole.model.secret import Secret, SecretRef, Source
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.vault.custody import MAX_SIZE, admit, seal
from keyhole.vault.interface import Unavailable
from keyhole.vault.memory import guard_memory
from keyhole.vault.store import DIRECTORY, MAX_NAME, Store, StoreUnusable, is_name
from keyhole.vault.stored import Locked, unlock
from keyhole.vault.storefile import Kept

if TYPE_CHECKING:
    import argparse

    from keyhole.app.secretuse import Known
    from keyhole.vault.envelope import StoreKey
    from keyhole.vault.interface import Reading

MIN_PASSPHRASE = 12
"""Characters of a passphrase: whoever has a copy of the store can try them at leisure."""


def run(options: argparse.Namespace) -> int:
    """Keep, list, try or forget."""
    store = Store(find_places().state / DIRECTORY)
    try:
        if options.action == "list":
            return _list(store, as_json=options.json)
        guard_memory()
        _check_name(options.name)
        if options.action == "test":
            from keyhole.cli.secrettest import test  # it brings the gateway and the sandbox

            return test(options)
        if options.action == "rm":
            return _remove(store, options.name)
        if options.action == "rotate":
            return _replace(store, options)
        return _set(store, options)
    except (StoreUnusable, Unavailable, Locked) as error:
        raise CliError(str(error)) from None


def ask_passphrase(again: bool) -> Secret | None:
    """The store's passphrase, from the terminal; None where there is none, or no answer."""
    line = type_passphrase(again)
    return Secret(line.decode("utf-8", "surrogateescape")) if line else None


def type_passphrase(again: bool) -> bytes:
    """The same as it was typed, for whoever hands it on; empty for none."""
    return _line("that is not it; once more: " if again else "passphrase of Keyhole's store: ")


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
    _keep(store, name, how, unsafe_short=options.unsafe_short)
    verb = "replaced" if before else "kept"
    print(f'{verb} {name} ({_painted(how)}); a policy names it by secret = "store:{name}"')
    return EXIT_OK


def _replace(store: Store, options: argparse.Namespace) -> int:
    """Another value where the old one is kept; then whoever uses it is told."""
    from keyhole.cli.secretrotate import pass_on  # it brings the control socket's client

    name = options.name
    before = store.find(name)
    if before is None:
        raise CliError(f"the store has no {name}; `keyhole secret set {name}` keeps one")
    if before.kept is Kept.ENCRYPTED and not has_terminal():
        raise CliError("there is no terminal to ask for the store's passphrase on; type it in one")
    _keep(store, name, before.kept, unsafe_short=options.unsafe_short)
    print(f"replaced {name} ({_painted(before.kept)})")
    return pass_on(name, end_sessions=options.end_sessions)


def _keep(store: Store, name: str, how: Kept, *, unsafe_short: bool) -> None:
    """Ask for the value, and keep it if it may be kept."""
    reading = _value(name)
    admit(SecretRef(Source.STORE, name), reading, unsafe_short=unsafe_short)
    if how is Kept.PLAIN:
        store.keep_plain(name, reading, unsafe_short=unsafe_short)
    elif how is Kept.KEYRING:
        store.keep_in_keyring(name, reading, unsafe_short=unsafe_short)
    else:
        store.keep_encrypted(name, reading, _key(store), unsafe_short=unsafe_short)
    if reading.short:
        note = f"{name} is too short to be removed from answers that repeat it"
        print(f"{paint('note', 'yellow', stream=sys.stderr)}: {note}", file=sys.stderr)


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


def _list(store: Store, *, as_json: bool) -> int:
    """The store, and what is named here: by the policy in this directory, and by your defaults."""
    places, uses = find_places(), []
    directory = Path.cwd()
    if Path(POLICY_NAME).exists():
        try:
            file = open_policy(Path(POLICY_NAME), places, FileCatalogue())
            directory, uses = file.directory, uses_of_policy(file, str(places.user_defaults))
        except (PolicyFaults, Unreadable):
            note = f"{POLICY_NAME} is not valid, so what it uses is not known; `keyhole check`"
            print(f"{paint('note', 'yellow', stream=sys.stderr)}: {note}", file=sys.stderr)
    uses += uses_of_defaults(places)
    known = known_secrets(store.entries(), uses, places, directory, environment())
    if as_json:
        print_json([_known_json(one) for one in known])
    elif not known:
        print("nothing is stored yet; `keyhole secret set NAME` keeps a secret")
    else:
        now = time.time()
        rows = [(visible(str(one.ref)), one.kept, _age(one, now), _used(one)) for one in known]
        head = ("SECRET", "KEPT", "AGE", "USED BY")
        print("\n".join(columns([head, *rows], indent="")))
    return EXIT_OK


def _known_json(known: Known) -> dict[str, object]:
    since = known.since
    return {
        "id": known.id,
        "reference": str(known.ref),
        "source": known.ref.source,
        "kept": known.kept,
        "since": since and datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "used": [{"service": use.service, "file": use.file} for use in known.used],
    }


def _age(known: Known, now: float) -> str:
    if known.since is None:
        return "–"
    seconds = max(now - known.since, 0.0)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "new"


def _used(known: Known) -> str:
    found = [f"services.{use.service} ({visible(Path(use.file).name)})" for use in known.used]
    return ", ".join(found) or "nothing here"


def _painted(kept: Kept) -> str:
    return paint(kept, "yellow") if kept is Kept.PLAIN else kept


def _remove(store: Store, name: str) -> int:
    if not store.remove(name):
        raise CliError(f"the store has no {name}; `keyhole secret list` shows what it has")
    print(f"removed {name}")
    return EXIT_OK
