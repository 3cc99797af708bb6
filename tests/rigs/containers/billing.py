"""A service behind a credential, for projects whose sandboxes are containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import ok

if TYPE_CHECKING:
    import trustme

    from tests.rigs.gateway.talk import Message

_POLICY = """
[services.billing]
hosts  = ["origin.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:~/key"
allow  = ["GET /**"]
env    = ["THE_KEY"]
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"origin.example:443" = "{address}"
"""


class Billing:
    """An origin that remembers the credentials it was sent."""

    def __init__(self, authority: trustme.CA) -> None:
        self.seen: list[str] = []
        self._origin = Origin(Service(self._answer), tls_for(authority, "origin.example"))
        self.close = self._origin.close
        self.policy = _POLICY.format(address=self._origin.address)

    def _answer(self, message: Message) -> bytes:
        self.seen.append(message.one("authorization") or "")
        return ok(f"hello {message.target}".encode())
