"""The slots of a request: places that can carry a credential, and the ones that are removed.

The client's own credentials do not travel (I6): on an inspected host every slot below and every
slot that the service adds is removed before one credential is written.
"""

from __future__ import annotations

import enum
import re

from msgspec import Struct

from keyhole.model.errors import Unparsable


class SlotLocation(enum.StrEnum):
    """The part of a request that a slot is in."""

    HEADER = "header"
    QUERY = "query"
    COOKIE = "cookie"


_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Slot(Struct, frozen=True, order=True):
    """One place that may carry a credential; names are compared in lower case."""

    place: SlotLocation
    name: str

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Read `header:NAME`, `query:NAME` or `cookie:NAME`; a final `*` covers a prefix."""
        place, colon, name = text.partition(":")
        if not colon or place not in set(SlotLocation) or not _NAME.fullmatch(name):
            raise Unparsable(
                "a slot is 'header:NAME', 'query:NAME' or 'cookie:NAME'", f"header:{text}"
            )
        if "*" in name[:-1] or name == "*":
            raise Unparsable("a slot's '*' stands at the end of its name")
        return cls(SlotLocation(place), name.lower())

    def covers(self, place: SlotLocation, name: str) -> bool:
        """Whether this is the slot of that name."""
        if place is not self.place:
            return False
        if self.name.endswith("*"):
            return name.lower().startswith(self.name[:-1])
        return name.lower() == self.name

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def parse_returned(text: str) -> Slot:
    """A place of an answer: `cookie:NAME` or `header:NAME`, with a final `*` for a prefix."""
    if text.partition(":")[0] == SlotLocation.QUERY:
        raise Unparsable("an answer has no query", "cookie:NAME or header:NAME")
    slot = Slot.parse(text)
    if slot.place is SlotLocation.HEADER and slot.covers(SlotLocation.HEADER, "set-cookie"):
        raise Unparsable("cookies are named one by one", "cookie:NAME")
    return slot


_HEADERS = """
authorization proxy-authorization cookie
x-api-key api-key apikey x-goog-api-key x-goog-user-project x-goog-iam-*
ocp-apim-subscription-key private-token job-token deploy-token sudo
x-auth-email x-auth-key x-auth-user-service-key x-auth-token
dd-api-key dd-application-key x-nuget-apikey npm-otp
x-github-otp x-gitea-otp x-forgejo-otp signature x-ssh-certificate x-sentry-auth
x-amz-security-token chatgpt-account-id x-openai-actor-authorization
openai-organization openai-project stripe-account stripe-context
x-serverless-authorization x-authorization x-access-token x-vault-token
cf-access-client-id cf-access-client-secret
x-forwarded-access-token remote-user x-forwarded-user x-remote-user
"""
_QUERY_KEYS = """
key api_key apikey access_token private_token job_token token auth application_key
oauth_token auth_token authorization bearer_token client_secret refresh_token id_token
sentry_key sig x-amz-* $httpheaders
"""

GLOBAL_SLOTS = tuple(
    sorted(
        {Slot.parse(f"header:{name}") for name in _HEADERS.split()}
        | {Slot.parse(f"query:{name}") for name in _QUERY_KEYS.split()}
    )
)
"""Removed on every inspected host, whatever the service; `field_families.py` recognises further
headers by their words."""
