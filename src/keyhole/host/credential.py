"""A credential found in the host's settings: the secret and the one way it is written.

Made by the learners, kept by `Draft`, handed on inside a `PresetHost`. Its characters never leave
the `Secret`; what is shown, logged or given inside is built without them (I1).
"""

from __future__ import annotations

from keyhole.inject.injection import HeaderInjection, Injection, parse_injection
from keyhole.model.errors import Unparsable
from keyhole.model.secret import Secret
from keyhole.model.value import dataclass, field, replace

MAX_SECRET = 8192
"""Characters of a credential: the longest known, a cloud's access token, has some 4,000."""


@dataclass(frozen=True, slots=True, eq=False)
class Credential:
    """Make it with `basic`, `bearer`, `encoded_basic` or `raw`."""

    inject: Injection
    secret: Secret
    _mark: int = field(repr=False)
    where: str = ""
    """Where it was read, if elsewhere than the URL it is for."""

    @classmethod
    def basic(cls, user: str, password: str) -> Credential:
        """A user and a password, as in a URL's userinfo."""
        return cls._of(parse_injection({"basic_user": user}), password)

    @classmethod
    def bearer(cls, token: str) -> Credential:
        """A token that goes behind `Bearer`."""
        return cls._of(HeaderInjection("Authorization", "Bearer {secret}"), token)

    @classmethod
    def encoded_basic(cls, text: str) -> Credential:
        """User and password, already in base64."""
        return cls._of(HeaderInjection("Authorization", "Basic {secret}"), text)

    @classmethod
    def raw(cls, value: str) -> Credential:
        """The header's whole value."""
        return cls._of(HeaderInjection("Authorization", "{secret}"), value)

    @classmethod
    def _of(cls, inject: Injection, text: str) -> Credential:
        # A line break would write a header of its own into the request.
        if not text.isprintable() or (isinstance(inject, HeaderInjection) and not text.isascii()):
            raise Unparsable("a credential has no control characters")
        if not text.strip() or len(text) > MAX_SECRET:
            raise Unparsable(f"a credential has 1 to {MAX_SECRET} characters")
        return cls(inject, Secret(text), hash((inject, text)))

    def found_in(self, where: str) -> Credential:
        """The same, with the place where it was read."""
        return replace(self, where=where)

    def same_as(self, other: Credential) -> bool:
        """Whether both write the same; a `Secret` itself is never compared."""
        return self._mark == other._mark
