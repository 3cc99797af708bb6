"""`keyring:SERVICE/NAME`: a secret of the desktop's keyring, by way of the `keyring` library.

Asked by the vault, and by the store for what it keeps there. The library would also take backends
from a variable, a settings file or any installed package; here none of them has a say, because each
names code that would run in the process which holds the secrets (I11), and some keep plain text or
nothing. It is imported when a keyring is first asked: that takes longer than most runs' start.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Protocol

from keyhole.model.value import dataclass, field
from keyhole.vault.custody import seal
from keyhole.vault.interface import Reading, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.model.secret import Secret, SecretRef

BACKENDS = (
    ("keyring.backends.SecretService", "Keyring"),
    ("keyring.backends.kwallet", "DBusKeyring"),
    ("keyring.backends.libsecret", "Keyring"),
)
"""Keyrings that a desktop has, and that encrypt what they keep: GNOME's, KeePassXC's, KDE's."""

MIN_PRIORITY = 1.0
"""From here on the library itself recommends a backend."""

MAX_SECONDS = 60.0
"""A locked keyring asks a person for its password; where nobody sees that, it asks for ever."""

NONE_HERE = "there is no keyring here: no Secret Service or KWallet answers on the session bus"


class Backend(Protocol):
    """The library's interface, as far as it is used."""

    def get_password(self, service: str, username: str) -> str | None:
        """The text, None where there is none."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Keep it."""

    def delete_password(self, service: str, username: str) -> None:
        """Forget it."""


class KeyringUnusable(Exception):
    """The keyring cannot be asked, or would not do it; the message says why."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an act came to: a failure in words, or none."""

    failure: str = ""
    text: str | None = field(default=None, repr=False)


def find_backend() -> Backend | None:
    """The desktop's keyring that answers and has the highest priority."""
    best, highest = None, 0.0
    for module, name in BACKENDS:
        try:
            backend = getattr(importlib.import_module(module), name)
            priority = float(backend.priority)
            if priority >= MIN_PRIORITY and priority > highest:
                best, highest = backend(), priority
        except Exception:  # noqa: BLE001, S112 - however it says so, it cannot be used here
            continue
    return best


class Keyrings:
    """This host's keyring, looked for when it is first asked."""

    def __init__(
        self, find: Callable[[], Backend | None] = find_backend, seconds: float = MAX_SECONDS
    ) -> None:
        self._find = find
        self._seconds = seconds
        self._lock = threading.Lock()
        self._looked = False
        self._backend: Backend | None = None

    @property
    def usable(self) -> bool:
        """Whether there is one."""
        return self._opened() is not None

    def read(self, service: str, name: str) -> Reading:
        """The secret, or why it cannot be had; nothing is raised with the characters at hand."""
        answer = self._ask(lambda backend: backend.get_password(service, name))
        if answer.failure:
            return Reading(flaw=answer.failure)
        if answer.text is None:
            return Reading(flaw="the keyring has none of this name")
        return seal(answer.text.encode("utf-8", "surrogatepass"))

    def keep(self, service: str, name: str, secret: Secret) -> None:
        """Keep or replace; raises KeyringUnusable."""
        from keyhole.vault.envelope import plain

        answer = self._ask(
            lambda backend: backend.set_password(service, name, plain(secret).decode())
        )
        if answer.failure:
            raise KeyringUnusable(answer.failure)

    def forget(self, service: str, name: str) -> None:
        """See that it is not there; raises KeyringUnusable."""

        def forget(backend: Backend) -> None:
            if backend.get_password(service, name) is not None:
                backend.delete_password(service, name)

        answer = self._ask(forget)
        if answer.failure:
            raise KeyringUnusable(answer.failure)

    def _opened(self) -> Backend | None:
        with self._lock:
            if not self._looked:
                # In a thread as well: a bus that does not answer is waited for only so long.
                found: list[Backend | None] = []
                self._within(lambda: found.append(self._find()))
                self._backend = found[0] if found else None
                self._looked = True
            return self._backend

    def _ask(self, act: Callable[[Backend], str | None]) -> _Answer:
        backend = self._opened()
        if backend is None:
            return _Answer(NONE_HERE)
        answers: list[_Answer] = []
        self._within(lambda: answers.append(_acted(act, backend)))
        late = f"the keyring did not answer within {self._seconds:.0f} seconds; unlock it first"
        return answers[0] if answers else _Answer(late)

    def _within(self, act: Callable[[], None]) -> None:
        """In a thread that is left behind when the time is over."""
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(self._seconds)


def _acted(act: Callable[[Backend], str | None], backend: Backend) -> _Answer:
    try:
        return _Answer(text=act(backend))
    except Exception as error:  # noqa: BLE001 - backends raise what their buses raise
        kind = type(error).__name__
    # The text of a foreign error is not shown: it may quote what was to be kept (I8).
    if kind in ("KeyringLocked", "LockedException"):
        return _Answer("the keyring is locked, and was not unlocked")
    return _Answer(f"the keyring failed ({kind})")


class KeyringSource:
    """Entries of the keyring that other programs keep there."""

    def __init__(self, keyrings: Keyrings) -> None:
        self._keyrings = keyrings

    def read(self, ref: SecretRef) -> Reading:
        """The entry, by service and name."""
        service, _, name = ref.locator.partition("/")
        reading = self._keyrings.read(service, name)
        if reading.secret is None:
            raise Unavailable(ref, reading.flaw)
        return reading

    def mark(self, ref: SecretRef) -> object:
        """None: to ask might show a person a question, several times a second."""
        return None
