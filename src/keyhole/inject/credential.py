"""Turns a secret into the lines written into requests and the needles searched for in responses.

Called by the composition root when a session starts and when a token was refreshed. The only
module of this room that reveals a secret. Its results go to the gateway and nowhere else; neither a
message nor a `repr` contains a character of the secret (I1, I8).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from msgspec import Struct

from keyhole.inject.injection import (
    MAX_PARTS,
    BasicInjection,
    GoogleInjection,
    HeaderInjection,
    QueryInjection,
    SignatureInjection,
)
from keyhole.inject.renderings import LAST_LATIN_1
from keyhole.inject.scrub import Needles
from keyhole.inject.sigv4 import SigningKey, read_keys
from keyhole.model.errors import CredentialUnusable, Unparsable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.inject.injection import Injection
    from keyhole.model.secret import Secret

_FIELD = re.compile(r"\{(secret(?::(?:base64|[0-9]))?)\}")


class Credential(Struct, frozen=True, eq=False):
    """The credential for requests to one host, ready to be written."""

    lines: tuple[bytes, ...] = ()
    """Header fields, as `Name: value` and CRLF."""
    names: frozenset[bytes] = frozenset()
    """The names of those fields, in lower case."""
    query: str = ""
    """Fields to add to the query, encoded; empty when there is none."""
    merge: tuple[tuple[bytes, bytes], ...] = ()
    """Lower-case header names, and the flag that must be among the comma-separated values."""
    needles: Needles = Needles.none()
    signer: SigningKey | None = None
    """The key, where requests are signed instead; then only signed fields are written."""

    def __repr__(self) -> str:
        return "Credential(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential cannot be pickled or copied")

    __copy__ = __reduce__


def make_credential(
    secret: Secret,
    injections: Iterable[Injection],
    merge: Iterable[tuple[str, str]],
    placeholder: str,
    hidden: Iterable[Secret] = (),
    names: Iterable[tuple[int, str]] = (),
) -> Credential:
    """Render a secret for one host. For a Google injection the secret is the minted token.

    Secrets in `hidden` belong to the same login: responses are searched for them, and no request
    gets them.

    A secret of several parts has each on a line of its own, and so may the placeholder. Lines in
    `names` are not secret, but clients see another name in responses: that of their placeholder.
    """
    parts = _split(secret.reveal())
    ways = tuple(injections)
    signs = any(isinstance(way, SignatureInjection) for way in ways)
    written = _CredentialFields(parts, placeholder, dict(names), signs=signs)
    for way in ways:
        written.add(way, secret)
    for other in hidden:
        written.needles |= Needles.of(other.reveal(), written.stand)
    if written.needles.is_part_of(placeholder.encode()):
        raise CredentialUnusable("the secret is a placeholder: store the real one")
    return Credential(
        lines=tuple(b"%b: %b\r\n" % field for field in written.fields),
        names=frozenset(name.lower() for name, _ in written.fields),
        query="&".join(written.query),
        merge=tuple((name.lower().encode("ascii"), flag.encode("ascii")) for name, flag in merge),
        needles=written.needles,
        signer=written.signer,
    )


def _split(text: str) -> list[str]:
    """The parts of a secret, one a line; commands and editors end the last line, too."""
    lines = text.removesuffix("\n").split("\n")
    parts = [line.removesuffix("\r") for line in lines]
    if len(parts) > MAX_PARTS:
        raise CredentialUnusable(f"the secret has more than {MAX_PARTS} lines")
    if not all(parts):
        raise CredentialUnusable(
            "the secret is empty" if len(parts) == 1 else "the secret has an empty line"
        )
    # CR, LF and NUL would end the field or the head; other controls are read differently by
    # different servers.
    if not all(part.isprintable() for part in parts):
        raise CredentialUnusable("the secret has a control character")
    if any(part != part.strip() for part in parts):
        raise CredentialUnusable("the secret has a space at an end, where servers do not see it")
    return parts


class _CredentialFields:
    """Collects the fields of a credential."""

    def __init__(
        self, parts: list[str], placeholder: str, names: Mapping[int, str], *, signs: bool
    ) -> None:
        """`names` has the replacements of lines that are not secret."""
        self._parts = parts
        self._stands = placeholder.split("\n")
        self.fields: list[tuple[bytes, bytes]] = []
        self.query: list[str] = []
        self.signer: SigningKey | None = None
        self.needles = Needles.none()
        if signs:
            names = {1: self.stand}  # an access key's id is in every signature
        for line, part in enumerate(parts, 1):
            if line in names:
                self.needles |= Needles.of_name(part, names[line])
            else:
                self.needles |= Needles.of(part, self._stand(line - 1))

    @property
    def stand(self) -> str:
        """The usual placeholder."""
        return self._stands[0]

    def add(self, injection: Injection, secret: Secret) -> None:
        match injection:
            case HeaderInjection(header, value):
                self._add_field(header, _FIELD.sub(self._fill, value))
            case BasicInjection(user):
                self._add_field("Authorization", f"Basic {self._encode(f'{user}:', self._whole())}")
            case GoogleInjection():
                self._add_field("Authorization", f"Bearer {self._whole()}")
            case QueryInjection(key):
                self.query.append(f"{key}={quote(self._whole(), safe='')}")
            case _:
                try:
                    self.signer = read_keys(secret, injection, self._stand(0), self._stand(1))
                except Unparsable as error:
                    raise CredentialUnusable(error.message) from None

    def _stand(self, part: int) -> str:
        return self._stands[part] if part < len(self._stands) else self._stands[0]

    def _add_field(self, name: str, value: str) -> None:
        if max(value) > LAST_LATIN_1:
            raise CredentialUnusable("the secret has a character that a header cannot carry")
        field = name.encode("ascii")
        if field.lower() in {known.lower() for known, _ in self.fields}:
            raise CredentialUnusable(f"two credentials for one header, {name}")
        self.fields.append((field, value.encode("latin-1")))

    def _fill(self, found: re.Match[str]) -> str:
        match found[1]:
            case "secret":
                return self._whole()
            case "secret:base64":
                # `user:password` for Basic; a server that decodes it may echo the password alone.
                user, colon, password = self._whole().partition(":")
                if not colon:
                    return self._encode("", user)
                self.needles |= Needles.of(password, self._stand(0))
                return self._encode(user + colon, password)
        number = int(found[1][-1])
        if number > len(self._parts):
            raise CredentialUnusable(f"the secret has no line {number}")
        return self._parts[number - 1]

    def _whole(self) -> str:
        if len(self._parts) > 1:
            raise CredentialUnusable("the secret has several lines where one is expected")
        return self._parts[0]

    def _encode(self, before: str, secret: str) -> str:
        text, needles = Needles.encoded(before, secret, self._stand(0))
        self.needles |= needles
        return text
