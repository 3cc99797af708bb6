"""`exec:COMMAND`: a secret that a program of the host prints.

The program is the one that the person accepted with the policy, by its absolute path; no shell
reads the words, and it sees an environment of its own. A caller has refused programs that lie where
the sandbox can write, and should refuse `source_paths.trusted_paths` there as well (I11).
"""

from __future__ import annotations

import os
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.model.text import visible
from keyhole.system import clock
from keyhole.vault.custody import MAX_SIZE
from keyhole.vault.interface import SecretReading, SecretUnavailable
from keyhole.vault.printed_secret import read_printed
from keyhole.vault.secret_lifetime import SecretLifetime
from keyhole.vault.source_paths import SETTINGS_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef
    from keyhole.system.child import Children, ChildResult

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of the command: the system's, because the person's own may lead through other
directories."""

MAX_AT_ONCE = 8
"""Commands at a time: each may be a password manager's interpreter with some 100 MiB."""

MAX_SHOWN = 600
"""Characters of standard error that are shown: a few lines, in which programs explain a failure."""

REPEATED = 8
"""If this many bytes in a row are printed to both outputs, they count as a part of the secret."""

_WORDS = "USER LOGNAME LANG LC_ALL DBUS_SESSION_BUS_ADDRESS DISPLAY WAYLAND_DISPLAY".split()


class CommandSource:
    """Commands of the policy, each by the program that was accepted for it."""

    def __init__(
        self,
        programs: Mapping[SecretRef, Path],
        directory: Path,
        home: Path,
        env: Mapping[str, str],
        children: Children,
        lives: Mapping[SecretRef, float] = MappingProxyType({}),
        changed: Callable[[SecretRef], Path | None] = lambda _: None,
    ) -> None:
        """`lives` has the seconds that are meant where a command declares none; `changed` finds a
        file of a command that is not as it was accepted."""
        self._changed = changed
        self._lives = lives
        self._programs = programs
        self._directory = directory
        self._home = home
        self._env = minimal_environment(env, home)
        self._children = children
        self._places = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._lock = threading.Lock()
        self._kept: dict[SecretRef, SecretReading] = {}
        self._asking: dict[SecretRef, threading.Lock] = {}

    def read(self, ref: SecretRef) -> SecretReading:
        """The output of the command, if it succeeds; reused for as long as the output declares.

        A caller that comes while it runs waits and gets the same.
        """
        with self._lock:
            asking = self._asking.setdefault(ref, threading.Lock())
        with asking:
            kept = self._kept.get(ref)
            if kept and kept.life and clock.now() < min(kept.life.renewal, kept.life.ends):
                return kept
            reading = self._ask(ref)
            if reading.life:
                self._kept[ref] = reading
            return reading

    def mark(self, ref: SecretRef) -> object:
        """None: no change can be seen before its lifetime ends."""
        return None

    def _ask(self, ref: SecretRef) -> SecretReading:
        program = self._programs.get(ref)
        if program is None or not program.is_absolute():
            name = visible(ref.argv[0]) if ref.argv else "?"
            raise SecretUnavailable(
                ref, f"{name} was not found; install it, or write its whole path"
            )
        changed = self._changed(ref)
        if changed is not None:
            # Attack: the accepted program is replaced, and runs when the secret is renewed (I11).
            raise SecretUnavailable(
                ref, f"{visible(str(changed))} has changed since it was accepted"
            )
        argv = [str(program), *map(self._located, ref.argv[1:])]
        asked = clock.now()
        with self._places:
            try:
                ended = self._children.run(argv, self._env, MAX_SIZE)
            except OSError as error:
                why = (error.strerror or "cannot be started").lower()
                raise SecretUnavailable(ref, f"{visible(argv[0])}: {why}") from None
        failed = _failure(ended)
        if failed:
            raise SecretUnavailable(ref, failed)
        if not ended.printed:
            raise SecretUnavailable(ref, f"the command printed nothing{_said(ended)}")
        reading = read_printed(ended.printed, asked)
        seconds = self._lives.get(ref)
        if reading.secret is None or reading.life or seconds is None:
            return reading
        return replace(reading, life=SecretLifetime(asked, asked + seconds))

    def _located(self, word: str) -> str:
        """The file that a word names by a path, as it was judged: relative to the policy, not to
        `/`."""
        if "/" not in word:
            return word
        path = self._home / word[2:] if word.startswith("~/") else self._directory / word
        return str(path) if os.path.isfile(path) else word


def minimal_environment(env: Mapping[str, str], home: Path) -> dict[str, str]:
    """An environment without tokens of the person's shell, PYTHONPATH, LD_PRELOAD and relative
    paths."""
    found = {name: env[name] for name in _WORDS if name in env}
    found |= {name: env[name] for name in SETTINGS_VARIABLES if env.get(name, "").startswith("/")}
    return {"LANG": "C.UTF-8"} | found | {"HOME": str(home), "PATH": SEARCH_PATH}


def _failure(ended: ChildResult) -> str:
    if ended.stopped:
        return f"the command {ended.stopped}{_said(ended)}"
    if ended.status < 0:
        return f"the command was ended by signal {-ended.status}{_said(ended)}"
    if ended.status:
        return f"the command ended with {ended.status}{_said(ended)}"
    return ""


def _said(ended: ChildResult) -> str:
    """The end of its standard error, unless that repeats the standard output."""
    # `set -x`, or a tool that logs what it answers, and fails then.
    if not _runs(ended.printed).isdisjoint(_runs(ended.complaint)):
        return "; what it complained of repeats what it printed, so it is not shown"
    lines = ended.complaint.decode("utf-8", "replace").split("\n")
    text = " | ".join(visible(line.strip()) for line in lines if line.strip())
    if not text:
        return ""
    return f" and said: {text if len(text) <= MAX_SHOWN else '…' + text[-MAX_SHOWN:]}"


def _runs(data: bytes) -> set[bytes]:
    return {data[at : at + REPEATED] for at in range(len(data) - REPEATED + 1)}
