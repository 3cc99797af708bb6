"""A credential found in the host's settings: the secret and the one way it is written.

Made by the learners, kept by `Draft`, passed on inside a `PresetHost`. Its characters never leave
the `Secret`; texts that are shown, logged or given to the sandbox are built without them (I1).
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from keyhole.inject.injection import HeaderInjection, Injection, parse_injection
from keyhole.model.errors import Unparsable
from keyhole.model.redacted import redacted_repr
from keyhole.model.secret import Secret

MAX_SECRET = 8192
"""Characters of a credential: the longest known, a cloud's access token, has some 4,000."""


class FoundCredential(Struct, frozen=True, eq=False):
    """Make it with `basic`, `bearer`, `encoded_basic` or `raw`."""

    inject: Injection
    secret: Secret
    _mark: int
    where: str = ""
    """The file that it was read from, if it was not in the URL that it is for."""

    __repr__ = redacted_repr("_mark")

    @classmethod
    def basic(cls, user: str, password: str) -> FoundCredential:
        """A user and a password, as in a URL's userinfo."""
        return cls._of(parse_injection({"basic_user": user}), password)

    @classmethod
    def bearer(cls, token: str) -> FoundCredential:
        """A token that is sent after `Bearer`."""
        return cls._of(HeaderInjection("Authorization", "Bearer {secret}"), token)

    @classmethod
    def encoded_basic(cls, text: str) -> FoundCredential:
        """User and password, already in base64."""
        return cls._of(HeaderInjection("Authorization", "Basic {secret}"), text)

    @classmethod
    def raw(cls, value: str) -> FoundCredential:
        """The header's whole value."""
        return cls._of(HeaderInjection("Authorization", "{secret}"), value)

    @classmethod
    def _of(cls, inject: Injection, text: str) -> FoundCredential:
        # Attack: a line break would add a header to the request.
        if not text.isprintable() or (isinstance(inject, HeaderInjection) and not text.isascii()):
            raise Unparsable("a credential has no control characters")
        if not text.strip() or len(text) > MAX_SECRET:
            raise Unparsable(f"a credential has 1 to {MAX_SECRET} characters")
        return cls(inject, Secret(text), hash((inject, text)))

    def found_in(self, where: str) -> FoundCredential:
        """The same, with the place where it was read."""
        return replace(self, where=where)

    def same_as(self, other: FoundCredential) -> bool:
        """Whether both have the same characters, compared without revealing the `Secret`."""
        return self._mark == other._mark
