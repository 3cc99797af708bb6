"""`keyring:SERVICE/NAME`: a secret of the desktop's keyring, through the `keyring` library.

Used by the vault, and by the store for its entries there. The library would also load backends from
a variable, a settings file or any installed package. None of them is used here, because each names
code that would run in the process that holds the secrets (I11), and some store plain text or
nothing. The library is imported at the first use: that takes longer than most runs' start.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.model.redacted import redacted_repr
from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretReading, SecretUnavailable

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
"""The lowest priority of a backend that the library itself recommends."""

MAX_SECONDS = 60.0
"""Seconds for an answer: a locked keyring prompts for its password, and without a visible desktop
the prompt never ends."""

NONE_HERE = "there is no keyring here: no Secret Service or KWallet answers on the session bus"

NOT_INSTALLED = (
    "the desktop's keyring needs the Python package keyring, which is not installed here: "
    "pip install 'keyhole[keyring]'"
)


class Backend(Protocol):
    """The library's interface, as far as it is used."""

    def get_password(self, service: str, username: str) -> str | None:
        """The text; None if there is none."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Store it."""

    def delete_password(self, service: str, username: str) -> None:
        """Remove it."""


class _Answer(Struct, frozen=True):
    """The result of an action: a failure in words, or none."""

    failure: str = ""
    text: str | None = None

    __repr__ = redacted_repr("text")


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
    """This host's keyring, found at the first use."""

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
        """Whether a keyring was found."""
        return self._opened() is not None

    def read(self, service: str, name: str) -> SecretReading:
        """The secret, or why it cannot be read; nothing is raised while the characters are in
        scope."""
        answer = self._ask(lambda backend: backend.get_password(service, name))
        if answer.failure:
            return SecretReading(flaw=answer.failure)
        if answer.text is None:
            return SecretReading(flaw="the keyring has none of this name")
        return seal_secret(answer.text.encode("utf-8", "surrogatepass"))

    def keep(self, service: str, name: str, secret: Secret) -> None:
        """Store or replace an entry. Raises ResourceUnusable."""
        from keyhole.vault.envelope import unencrypted

        answer = self._ask(
            lambda backend: backend.set_password(service, name, unencrypted(secret).decode())
        )
        if answer.failure:
            raise ResourceUnusable(answer.failure)

    def forget(self, service: str, name: str) -> None:
        """Remove the entry if it is there. Raises ResourceUnusable."""

        def forget(backend: Backend) -> None:
            if backend.get_password(service, name) is not None:
                backend.delete_password(service, name)

        answer = self._ask(forget)
        if answer.failure:
            raise ResourceUnusable(answer.failure)

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
            installed = importlib.util.find_spec("keyring") is not None
            return _Answer(NONE_HERE if installed else NOT_INSTALLED)
        answers: list[_Answer] = []
        self._within(lambda: answers.append(_acted(act, backend)))
        late = f"the keyring did not answer within {self._seconds:.0f} seconds; unlock it first"
        return answers[0] if answers else _Answer(late)

    def _within(self, act: Callable[[], None]) -> None:
        """Run it in a thread, which is abandoned when the time is over."""
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(self._seconds)


def _acted(act: Callable[[Backend], str | None], backend: Backend) -> _Answer:
    try:
        return _Answer(text=act(backend))
    except Exception as error:  # noqa: BLE001 - backends raise what their buses raise
        kind = type(error).__name__
    # The text of a foreign error is not shown: it may quote the secret (I8).
    if kind in ("KeyringLocked", "LockedException"):
        return _Answer("the keyring is locked, and was not unlocked")
    return _Answer(f"the keyring failed ({kind})")


class KeyringSource:
    """Entries of the keyring that other programs keep there."""

    def __init__(self, keyrings: Keyrings) -> None:
        self._keyrings = keyrings

    def read(self, ref: SecretRef) -> SecretReading:
        """The entry, by service and name."""
        service, _, name = ref.locator.partition("/")
        reading = self._keyrings.read(service, name)
        if reading.secret is None:
            raise SecretUnavailable(ref, reading.flaw)
        return reading

    def mark(self, ref: SecretRef) -> object:
        """None: reading might show a prompt to the person, several times a second."""
        return None
