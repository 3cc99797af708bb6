"""Lines that a person types without an echo: a secret's value, and the store's passphrase."""

from __future__ import annotations

import getpass
import os
import warnings
from typing import TYPE_CHECKING

from keyhole.model.secret import Secret

if TYPE_CHECKING:
    from keyhole.vault.store_source import PassphrasePrompt

MIN_PASSPHRASE = 12
"""Characters of a passphrase: an attacker with a copy of the store can guess without a limit."""


def passphrase_prompt() -> PassphrasePrompt | None:
    """A function that asks for the store's passphrase; None without a terminal."""
    return ask_passphrase if has_terminal() else None


def ask_passphrase(again: bool) -> Secret | None:
    """Ask for the store's passphrase; None without a terminal or an answer."""
    line = type_passphrase(again)
    return Secret(line.decode("utf-8", "surrogateescape")) if line else None


def type_passphrase(again: bool) -> bytes:
    """Ask for the passphrase, and return the bytes that were typed; empty for none."""
    return read_line("that is not it; once more: " if again else "passphrase of Keyhole's store: ")


def has_terminal() -> bool:
    """Whether /dev/tty can be opened, so that a person can type without an echo."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def new_passphrase() -> tuple[Secret | None, str]:
    """Ask twice for a new passphrase; returns it, or None and the reason."""
    first = read_line(f"a passphrase for Keyhole's store ({MIN_PASSPHRASE} characters or more): ")
    if len(first.decode("utf-8", "replace")) < MIN_PASSPHRASE:
        return None, f"a passphrase has {MIN_PASSPHRASE} characters or more"
    if read_line("the same once more: ") != first:
        return None, "the two differ"
    return Secret(first.decode("utf-8", "surrogateescape")), ""


def read_line(text: str) -> bytes:
    """Read one line from the terminal without an echo; empty without a terminal."""
    if not has_terminal():
        return b""
    with warnings.catch_warnings():
        # If the echo cannot be turned off, getpass would warn and read all the same.
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(text).encode("utf-8", "surrogateescape")
        except (EOFError, getpass.GetPassWarning):
            return b""
