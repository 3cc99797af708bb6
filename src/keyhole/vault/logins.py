"""`login:NAME`: the login of a client on this host, of which the vault is the one renewer.

A refresh token that can be used once has one owner, or the second user of it ends the login. So a
login is renewed here and nowhere else, before it ends, one at a time: 1. lock, 2. read again, since
the client on the host may have been faster, 3. reserve what the new file needs, 4. ask, 5. write,
6. only now hand out what was given. Sandboxes see placeholders; the refresh token goes to its
provider's own endpoint and into the file it came from (I1).
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING

from keyhole.model.secret import Secret
from keyhole.model.text import visible
from keyhole.model.value import dataclass, replace
from keyhole.vault.custody import seal
from keyhole.vault.interface import Reading, Unavailable, mark_of
from keyhole.vault.lives import FRESH, Life, now
from keyhole.vault.loginfile import Contents, LoginFile, Unfit
from keyhole.vault.loginlock import Busy, locked
from keyhole.vault.providers import PROVIDERS, locate_login

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.model.secret import SecretRef
    from keyhole.vault.provider import Provider, Tokens
    from keyhole.vault.tokenendpoint import Reach

OLD = FRESH + 60.0
"""Seconds before its end from which on a login is renewed when it is read: a little earlier than
the watch reads it, whose clock is another one."""

PATIENCE = 10.0
"""Seconds before an endpoint that gave nothing is asked again, by whichever session (I9)."""


@dataclass(frozen=True, slots=True)
class _Failure:
    mark: object
    until: float
    why: str


class Failures:
    """What could not be renewed lately. Share one among the vaults of a process: sessions that need
    the same login must not each ask for themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[Path, _Failure] = {}

    def note(self, file: Path, why: str, *, lasting: bool) -> None:
        """Until a while has passed; if it is lasting, until the file is another."""
        until = math.inf if lasting else now() + PATIENCE
        with self._lock:
            self._failed[file] = _Failure(mark_of(file), until, why)

    def recall(self, file: Path) -> str:
        """Why it is not tried now; empty where it is."""
        with self._lock:
            failure = self._failed.get(file)
        if failure and now() < failure.until and mark_of(file) == failure.mark:
            return failure.why
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A login as it was read."""

    contents: Contents
    tokens: Tokens

    @property
    def left(self) -> float:
        """Seconds for which it is still good."""
        return math.inf if self.tokens.expires is None else self.tokens.expires - time.time()

    @property
    def renewable(self) -> bool:
        return bool(self.tokens.refresh)


class LoginSource:
    """Logins of this host, read for a session and renewed for all who use them."""

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        writable: tuple[Path, ...],
        reach: Reach | None,
        failures: Failures,
    ) -> None:
        self._home = home
        self._env = env
        self._writable = writable
        self._reach = reach
        self._failures = failures
        self._renewing = threading.Lock()
        self._over = threading.Event()

    def read(self, ref: SecretRef) -> Reading:
        """The access token, renewed first if it is about to end."""
        provider, path = PROVIDERS[ref.locator], locate_login(ref, self._home, self._env)
        if not os.path.lexists(path):
            why = f"there is no {visible(str(path))}; log in on this host: {provider.again}"
            raise Unavailable(ref, why)
        try:
            file = LoginFile(path, self._writable)
        except Unfit as error:
            raise Unavailable(ref, str(error)) from None
        try:
            return self._read(ref, provider, file)
        except Unfit as error:
            raise Unavailable(ref, str(error)) from None
        finally:
            file.close()

    def mark(self, ref: SecretRef) -> object:
        """Of the file: the client on the host may renew the login, or log in as somebody else."""
        return mark_of(locate_login(ref, self._home, self._env))

    def close(self) -> None:
        """Begin nothing any more, and wait for what is under way: a token that was spent is lost
        unless its successor is written."""
        self._over.set()
        with self._renewing:
            pass

    def _read(self, ref: SecretRef, provider: Provider, file: LoginFile) -> Reading:
        held, why = _load(provider, file), ""
        if held.left < OLD and held.renewable:
            held, why = self._renew(provider, file, held)
        if held.left <= 0:
            why = why or f"log in again on this host: {provider.again}"
            raise Unavailable(ref, f"the login has ended; {why}")
        reading = _reading(held)
        if not why:
            return reading
        return replace(reading, warning=f"{visible(str(ref))} was not renewed: {why}")

    def _renew(self, provider: Provider, file: LoginFile, held: _Held) -> tuple[_Held, str]:
        """The login as it is afterwards, and why it is not renewed."""
        with self._renewing:
            if self._over.is_set():
                return held, "the session is over"
            if self._reach is None:
                return held, "it cannot be renewed here"
            try:
                with locked(file.directory, provider.locks(file.home), self._over):
                    return self._renew_locked(provider, file, held, self._reach)
            except Busy as error:
                # Whoever was busy may have renewed it meanwhile.
                found = _load(provider, file)
                return found, "" if found.left >= OLD else str(error)

    def _renew_locked(
        self, provider: Provider, file: LoginFile, seen: _Held, reach: Reach
    ) -> tuple[_Held, str]:
        file.recover()
        held = _load(provider, file)
        # Another renewer was faster; what it got may well be good for less than `OLD`.
        if held.left >= OLD or (_differ(seen, held) and held.left > 0) or not held.renewable:
            return held, ""
        why = self._failures.recall(file.real)
        if why:
            return held, why
        held, why, lasting = _exchange(provider, file, held, reach)
        if why:
            self._failures.note(file.real, why, lasting=lasting)
        return held, why


def _load(provider: Provider, file: LoginFile) -> _Held:
    """Read, or Unfit."""
    contents = file.read()
    tokens = provider.tokens(contents.document)
    if isinstance(tokens, str):
        shown = visible(str(file.real))
        raise Unfit(f"{shown}: {tokens}; log in on this host: {provider.again}")
    return _Held(contents, tokens)


def _exchange(
    provider: Provider, file: LoginFile, held: _Held, reach: Reach
) -> tuple[_Held, str, bool]:
    """Spend the refresh token: what is held afterwards, why it failed, and whether for good."""
    from keyhole.vault.tokenendpoint import ask  # it brings sockets and TLS

    replacement, asked = file.prepare(), time.time()
    answer = ask(provider.request(held.contents.document, held.tokens), reach)
    try:
        current = _load(provider, file)
    except Unfit:
        replacement.discard()  # the person logged out meanwhile
        raise
    if current.tokens.refresh != held.tokens.refresh:
        # A client without a lock was faster, or the person logged in anew: theirs stays.
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
    provider: Provider, held: _Held, answer: Mapping[str, object], asked: float
) -> _Held | None:
    document = provider.renewed(held.contents.document, dict(answer), asked)
    if document is None:
        return None
    tokens = provider.tokens(document)
    return None if isinstance(tokens, str) else _Held(Contents(document), tokens)


def _differ(one: _Held, other: _Held) -> bool:
    return one.tokens.access != other.tokens.access


def _reading(held: _Held) -> Reading:
    tokens, moment = held.tokens, now()
    life = Life(moment, moment + held.left) if tokens.expires is not None else None
    hidden = tuple(Secret(text) for text in (tokens.refresh, *tokens.others) if text)
    return replace(seal(tokens.access.encode("ascii")), life=life, hidden=hidden)
