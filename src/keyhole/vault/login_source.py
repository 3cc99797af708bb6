"""`login:NAME`: the login of a client on this host, or of Keyhole's own, which only the vault
renews.

If two processes use a refresh token that is valid once, the second use ends the login. So a login
is renewed here and nowhere else, before it ends, one at a time: 1. lock, 2. read again, since the
client on the host may have been faster, 3. reserve room for the new file, 4. ask, 5. write, 6. only
then return the new tokens. Sandboxes see placeholders; the refresh token goes to its provider's own
endpoint and into the file it came from (I1).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.system import clock
from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretReading, SecretUnavailable, mark_of
from keyhole.vault.login_file import LoginFile, LoginFileContents
from keyhole.vault.login_lock import locked
from keyhole.vault.login_providers import locate_login, login_provider
from keyhole.vault.secret_lifetime import FRESH, SecretLifetime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef
    from keyhole.vault.login_provider import EndpointAccess, LoginProvider, LoginTokens

OLD = FRESH + 60.0
"""A login is renewed when it is read this many seconds before its end: a little more than the
watcher's margin, since that uses another clock."""

PATIENCE = 10.0
"""Seconds before an endpoint that returned nothing is asked again, by any session (I9)."""


class _Failure(Struct, frozen=True):
    mark: object
    until: float
    why: str


class RenewalFailures:
    """Recent failures of renewals. Share one among the vaults of a process: sessions that need the
    same login must not each ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[Path, _Failure] = {}

    def note(self, file: Path, why: str, *, lasting: bool) -> None:
        """Record a failure: for a while, or, if it is lasting, until the file changes."""
        until = math.inf if lasting else clock.now() + PATIENCE
        with self._lock:
            self._failed[file] = _Failure(mark_of(file), until, why)

    def recall(self, file: Path) -> str:
        """Why a renewal is not tried now; empty if it may be."""
        with self._lock:
            failure = self._failed.get(file)
        if failure and clock.now() < failure.until and mark_of(file) == failure.mark:
            return failure.why
        return ""


class _Held(Struct, frozen=True, eq=False):
    """A login as it was read."""

    contents: LoginFileContents
    tokens: LoginTokens

    @property
    def left(self) -> float:
        """Seconds until it ends."""
        return math.inf if self.tokens.expires is None else self.tokens.expires - time.time()

    @property
    def renewable(self) -> bool:
        return bool(self.tokens.refresh)


class LoginSource:
    """Logins of this host, read for a session and renewed for all sessions that use them."""

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        writable: tuple[Path, ...],
        reach: EndpointAccess | None,
        failures: RenewalFailures,
        audiences: Mapping[SecretRef, frozenset[str]],
    ) -> None:
        self._home = home
        self._env = env
        self._writable = writable
        self._reach = reach
        self._failures = failures
        self._audiences = audiences
        self._renewing = threading.Lock()
        self._over = threading.Event()

    def read(self, ref: SecretRef) -> SecretReading:
        """The access token, renewed first if it is about to end."""
        provider, path = login_provider(ref.locator), locate_login(ref, self._home, self._env)
        if not os.path.lexists(path):
            why = f"there is no {visible(str(path))}; log in on this host: {provider.again}"
            raise SecretUnavailable(ref, why)
        try:
            file = LoginFile(path, self._writable)
        except ResourceUnusable as error:
            raise SecretUnavailable(ref, str(error)) from None
        try:
            return self._read(ref, provider, file)
        except ResourceUnusable as error:
            raise SecretUnavailable(ref, str(error)) from None
        finally:
            file.close()

    def mark(self, ref: SecretRef) -> object:
        """The mark of the file: the client on the host may renew the login, or use another
        account."""
        return mark_of(locate_login(ref, self._home, self._env))

    def close(self) -> None:
        """Begin no further renewal, and wait for those that have begun: a spent token is lost
        unless its successor is written."""
        self._over.set()
        with self._renewing:
            pass

    def _read(self, ref: SecretRef, provider: LoginProvider, file: LoginFile) -> SecretReading:
        held, why = _load(provider, file), ""
        before = held
        hosts = self._audiences.get(ref, frozenset())
        objection = provider.objection(held.contents.document, hosts)
        if objection:
            raise SecretUnavailable(ref, objection)
        if held.left < OLD and held.renewable:
            held, why = self._renew(provider, file, held)
        if held.left <= 0:
            why = why or f"log in again on this host: {provider.again}"
            raise SecretUnavailable(ref, f"the login has ended; {why}")
        reading = _reading(held, before)
        if not why:
            return reading
        return replace(reading, warning=f"{visible(str(ref))} was not renewed: {why}")

    def _renew(self, provider: LoginProvider, file: LoginFile, held: _Held) -> tuple[_Held, str]:
        """The resulting login, and the reason when it was not renewed."""
        with self._renewing:
            if self._over.is_set():
                return held, "the session is over"
            if self._reach is None:
                return held, "it cannot be renewed here"
            with contextlib.ExitStack() as locks:
                try:
                    locks.enter_context(
                        locked(file.directory, provider.locks(file.home), self._over)
                    )
                except ResourceUnusable as error:
                    # The lock's holder may have renewed it meanwhile.
                    found = _load(provider, file)
                    return found, "" if found.left >= OLD else str(error)
                return self._renew_locked(provider, file, held, self._reach)

    def _renew_locked(
        self, provider: LoginProvider, file: LoginFile, seen: _Held, reach: EndpointAccess
    ) -> tuple[_Held, str]:
        file.recover()
        held = _load(provider, file)
        # Another process was faster; its login may be valid for less than `OLD`.
        if held.left >= OLD or (_differ(seen, held) and held.left > 0) or not held.renewable:
            return held, ""
        why = self._failures.recall(file.real)
        if why:
            return held, why
        held, why, lasting = _exchange(provider, file, held, reach)
        if why:
            self._failures.note(file.real, why, lasting=lasting)
        return held, why


def _load(provider: LoginProvider, file: LoginFile) -> _Held:
    """Read the login. Raises ResourceUnusable."""
    contents = file.read()
    tokens = provider.tokens(contents.document)
    if isinstance(tokens, str):
        shown = visible(str(file.real))
        raise ResourceUnusable(f"{shown}: {tokens}; log in on this host: {provider.again}")
    return _Held(contents, tokens)


def _exchange(
    provider: LoginProvider, file: LoginFile, held: _Held, reach: EndpointAccess
) -> tuple[_Held, str, bool]:
    """Use the refresh token. Returns the new tokens, the error, and whether the error is final."""
    from keyhole.vault.token_endpoint import request_token  # it brings sockets and TLS

    replacement, asked = file.prepare(), time.time()
    answer = request_token(provider.request(held.contents.document, held.tokens), reach)
    try:
        current = _load(provider, file)
    except ResourceUnusable:
        replacement.discard()  # the person logged out meanwhile
        raise
    if current.tokens.refresh != held.tokens.refresh:
        # A client without a lock was faster, or the person logged in again: theirs stays.
        replacement.discard()
        return current, "", False
    renewed = _renewed(provider, current, answer.document or {}, asked)
    if renewed is None:
        replacement.discard()
        why = answer.why or "the endpoint gave no token"
        if answer.spent:
            why = f"{why}; log in again on this host: {provider.again}"
        return current, why, answer.spent
    failed = replacement.finish(renewed.contents)
    if failed:
        why = f"its new tokens cannot be written to {visible(str(file.real))} ({failed})"
        return renewed, f"{why}; they serve this session, then log in again: {provider.again}", True
    return renewed, "", False


def _renewed(
    provider: LoginProvider, held: _Held, answer: Mapping[str, object], asked: float
) -> _Held | None:
    document = provider.renewed(held.contents.document, dict(answer), asked)
    if document is None:
        return None
    tokens = provider.tokens(document)
    return None if isinstance(tokens, str) else _Held(LoginFileContents(document), tokens)


def _differ(one: _Held, other: _Held) -> bool:
    return one.tokens.access != other.tokens.access


def _reading(held: _Held, before: _Held) -> SecretReading:
    """The secret, and what belongs to it. A service may still know the tokens that were renewed a
    moment ago, and they may still be good: they must not come back, either (I7)."""
    tokens, moment = held.tokens, clock.now()
    life = SecretLifetime(moment, moment + held.left) if tokens.expires is not None else None
    old = (before.tokens.access, before.tokens.refresh) if _differ(held, before) else ()
    hidden = tuple(Secret(text) for text in (tokens.refresh, *tokens.others, *old) if text)
    return replace(seal_secret(tokens.access.encode("ascii")), life=life, hidden=hidden)
