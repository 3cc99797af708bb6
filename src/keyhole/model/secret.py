"""A secret that cannot be printed, and the reference by which a policy names one.

`Secret` travels from the vault to the place that writes it into a request; `reveal()` is the only
way to its characters and is called in few places, which a test counts.
"""

from __future__ import annotations

import enum
import re
import shlex
from typing import NoReturn

from msgspec import Struct

from keyhole.model.errors import Unparsable


class Secret:
    """Characters that must not reach a log, a message, a pickle or a comparison."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        """The characters, for the code that writes them into a request."""
        return self.__value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __str__(self) -> NoReturn:
        raise TypeError("a secret cannot be turned into text")

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError("a secret cannot be formatted")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("secrets are not compared")

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret cannot be a key")


class SecretScheme(enum.StrEnum):
    """The scheme of a reference: where a secret is kept."""

    STORE = "store"
    KEYRING = "keyring"
    FILE = "file"
    EXEC = "exec"
    UNSAFE_ENV = "unsafe-env"
    LOGIN = "login"
    GITHUB_APP = "github-app"
    KUBE = "kube"


LOGINS = ("claude", "codex", "google")
"""The clients whose logins on this host can be used: Claude Code, Codex and Gemini CLI. Every other
name after `login:` is that of a login which `keyhole login` made."""

MAX_LOGIN_NAME = 64
"""Characters of a login's name, which is a file's name too."""

MAX_APP_ID = 48
"""Characters of an app's id: a number, or a client id of 20."""

_KUBE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_KUBE_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,251}")
"""A Secret's name is a DNS subdomain; its keys are file names, and never `..`."""

MAX_REFERENCE_LENGTH = 1024
"""Characters of a reference: a path or a short command line."""


class SecretRef(Struct, frozen=True):
    """Which secret, never its value: `store:NAME`, `keyring:SERVICE/NAME`, `file:PATH`, …"""

    source: SecretScheme
    locator: str

    @classmethod
    def parse(cls, text: str) -> SecretRef:
        """Read `SOURCE:LOCATOR`; anything else might be the secret itself and is not echoed."""
        scheme, colon, locator = text.partition(":")
        known = ", ".join(f"{s}:" for s in SecretScheme)
        if not colon or scheme not in set(SecretScheme):
            if scheme == "env":
                raise Unparsable(
                    "a variable is visible to every process of the user", "unsafe-env:NAME"
                )
            raise Unparsable(
                f"a secret is named by a reference ({known}), never written in the policy"
            )
        if not locator.strip() or len(locator) > MAX_REFERENCE_LENGTH:
            raise Unparsable(f"'{scheme}:' wants what to read after the colon")
        if any(ord(c) < 0x20 or ord(c) == 0x7F for c in locator):
            raise Unparsable("a reference has no control characters")
        source = SecretScheme(scheme)
        _CHECKS[source](locator)
        return cls(source, locator)

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of an `exec:` reference; no shell reads them."""
        return tuple(shlex.split(self.locator)) if self.source is SecretScheme.EXEC else ()

    def __str__(self) -> str:
        return f"{self.source}:{self.locator}"


def _check_name(locator: str) -> None:
    if not all(c.isascii() and (c.isalnum() or c in "._-") for c in locator):
        raise Unparsable("a stored secret's name has letters, digits, '.', '_' and '-'")


def _check_keyring(locator: str) -> None:
    service, slash, name = locator.partition("/")
    if not (service and slash and name):
        raise Unparsable("a keyring entry is SERVICE/NAME")


def _check_exec(locator: str) -> None:
    try:
        words = shlex.split(locator)
    except ValueError as error:
        raise Unparsable(f"the command's quoting is off: {error}") from None
    if not words or not words[0]:
        raise Unparsable("'exec:' wants a command")


def _check_variable(locator: str) -> None:
    if not locator.isidentifier() or not locator.isascii():
        raise Unparsable("'unsafe-env:' wants the name of one variable")


def _check_login(locator: str) -> None:
    if locator.lower() in LOGINS and locator not in LOGINS:
        raise Unparsable("a client's login is written in small letters", f"login:{locator.lower()}")
    plain = all(c.isascii() and (c.isalnum() or c in "._-") for c in locator)
    if not plain or locator.startswith(".") or len(locator) > MAX_LOGIN_NAME:
        raise Unparsable(
            f"'login:' wants {', '.join(LOGINS)}, or the name of a login: at most "
            f"{MAX_LOGIN_NAME} letters, digits, '.', '_' and '-'"
        )


def _check_app(locator: str) -> None:
    if not (locator.isascii() and locator.isalnum()) or len(locator) > MAX_APP_ID:
        raise Unparsable("'github-app:' wants the app's id, a number, or its client id")


def _check_kube(locator: str) -> None:
    name, slash, key = locator.partition("/")
    if not (_KUBE_NAME.fullmatch(name) and slash and _KUBE_KEY.fullmatch(key)):
        raise Unparsable("a Secret of the cluster is NAME/KEY")


def _check_nothing(locator: str) -> None:
    """A file's path is judged where it is opened."""


_CHECKS = {
    SecretScheme.STORE: _check_name,
    SecretScheme.KEYRING: _check_keyring,
    SecretScheme.FILE: _check_nothing,
    SecretScheme.EXEC: _check_exec,
    SecretScheme.UNSAFE_ENV: _check_variable,
    SecretScheme.LOGIN: _check_login,
    SecretScheme.GITHUB_APP: _check_app,
    SecretScheme.KUBE: _check_kube,
}
