"""One inspected host of a session, shared by all its connections: judge, writer and pool.

`authorizer` decides on a request, `outbound` writes it for the origin, and `pool` keeps connections
for the next one. The door makes it with the first connection, and again when the policy changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.http.authorize import Authorizer, Credentials
from keyhole.gateway.http.outbound import RANGES, OutboundWriter
from keyhole.gateway.tls import HTTP1, HTTP2, PROTOCOLS
from keyhole.gateway.upstream.minting import Minting
from keyhole.gateway.upstream.origin import Origin
from keyhole.gateway.upstream.pool import OriginPool
from keyhole.http.request import RequestReader, Treatment
from keyhole.inject.credential_stripper import CredentialStripper, written_slots
from keyhole.inject.injection import SignatureInjection
from keyhole.inject.response_fields import CONDITIONS, ResponseFields
from keyhole.inject.sigv4 import WRITTEN_NAMES
from keyhole.inject.slots import Slot, SlotLocation
from keyhole.model.host import DEFAULT_PORT
from keyhole.policy.schema import HttpVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from keyhole.gateway.body_judges import BodyJudges
    from keyhole.gateway.git.lfs import LargeFiles, Transfer
    from keyhole.gateway.http.searched import Searched
    from keyhole.gateway.session import Interception
    from keyhole.inject.credential import Credential
    from keyhole.inject.token_usage import UsageFormat
    from keyhole.model.host import Host
    from keyhole.policy.rulebook import HostRules, Rulebook
    from keyhole.wire.upload_pack import ServerAbilities

_COLLECTED_ALWAYS = ("sec-websocket-key", "sec-websocket-protocol", "sec-websocket-extensions")
_COLLECTED_WHEN_SCANNED = (
    "accept-encoding",
    "accept-charset",
    "grpc-accept-encoding",
    "connect-accept-encoding",
    *(name.decode("ascii") for name in RANGES),
)
"""Fields that would make the response impossible to scan: encoded, or a part of it (I7)."""


_PINNED = {HttpVersion.HTTP1: (HTTP1,), HttpVersion.HTTP2: (HTTP2,)}
"""The protocol that is offered to clients (ALPN) where a policy names one version."""


class HostFacts:
    """The facts about one host, from the policy and the session's credentials."""

    def __init__(
        self,
        book: Rulebook,
        interception: Interception,
        searched: Searched,
        host: Host,
        port: int,
        judges: BodyJudges,
    ) -> None:
        self.host = host
        self.port = port
        self.authority = host.name if port == DEFAULT_PORT else f"{host.name}:{port}"
        self.searched = searched
        self.rules: dict[str, HostRules] = {
            rules.service.name: rules for rules in book.services(host, port)
        }
        self.judges = {
            name: judge
            for name, rules in self.rules.items()
            if (judge := judges.of(rules.service)) is not None
        }
        self.credentials: Credentials = {
            (name, git): interception.credential(rules, git=git)
            for name, rules in self.rules.items()
            for git in (False, True)
        }
        # One account's secret may come back in another's response, also from another port (I7).
        written = [
            interception.credential(rules, git=git)
            for rules in book.rules_of_name(host)
            for git in (False, True)
        ]
        self.minting = [each for each in written if isinstance(each, Minting)]
        self.needles = searched.of(host)
        counted = any(map(_counts_tokens, self.rules.values()))
        read = any(judge.reads_answers for judge in self.judges.values())
        self.scanned = bool(self.needles or self.minting or counted or read)
        """Whether responses are scanned or read, so that they must not be encoded."""
        # A key that is signed with is not sent, so nothing that is derived from it comes back; the
        # session token beside it is too long to be guessed by a digest.
        sent = [each for each in written if isinstance(each, Minting) or not _signs(each)]
        self.tags = searched.tags.of(host.name) if any(sent) else None
        collect = any(written) or self.scanned
        self.stripper = self._make_stripper(self.rules, collect=collect)
        """Reads requests before it is known which service they belong to."""
        self.strippers = (
            {name: self._make_stripper([name], collect=collect) for name in self.rules}
            if len(self.rules) > 1
            else dict.fromkeys(self.rules, self.stripper)
        )
        """Those of each service: a field that one keeps is not passed on for another (I6)."""
        self.fields = self._fields() if any(written) or self.needles else None

    def treat(self, name: bytes) -> Treatment:
        """The treatment of a client's field. One that only some of the services keep is collected,
        and decided on when the service is known."""
        kind = self.stripper.treat(name)
        if kind is Treatment.KEEP and any(
            each.treat(name) is not kind for each in self.strippers.values()
        ):
            return Treatment.COLLECT
        return kind

    def _make_stripper(self, keeping: Iterable[str], *, collect: bool) -> CredentialStripper:
        """The client's fields that are removed, those that are checked before they are passed on,
        and those that these services keep."""
        served = [rules.host for rules in self.rules.values()]
        merged = {name for each in served for name, _ in each.merge}
        if self.tags is not None:
            merged |= {name.decode("ascii") for name in CONDITIONS}
        collected = (*_COLLECTED_ALWAYS, *(_COLLECTED_WHEN_SCANNED if collect else ()), *merged)
        strip = [slot for each in served for slot in (*each.strip, *written_slots(each.inject))]
        if any(isinstance(way, SignatureInjection) for each in served for way in each.inject):
            strip += [Slot(SlotLocation.HEADER, name.decode("ascii")) for name in WRITTEN_NAMES]
        keep = [slot for name in keeping for slot in self.rules[name].host.keep]
        return CredentialStripper(strip, keep, collected)

    def _fields(self) -> ResponseFields:
        """The fields of a response that are passed on."""
        served = [rules.host for rules in self.rules.values()]
        cookies = [
            slot for each in served for slot in each.keep if slot.place is SlotLocation.COOKIE
        ]
        returned = [slot for each in served for slot in each.returned]
        return ResponseFields((*cookies, *returned), self.tags)


class InspectedHost:
    """One host of one session."""

    def __init__(
        self,
        book: Rulebook,
        interception: Interception,
        files: LargeFiles,
        searched: Searched,
        host: Host,
        port: int,
        judges: BodyJudges,
    ) -> None:
        facts = self._facts = HostFacts(book, interception, searched, host, port, judges)
        reader = RequestReader(host.name, port, facts.treat, {})
        decoys = tuple(_decoys(interception, facts.rules))
        self.interception = interception
        self.authorizer = Authorizer(
            facts.rules, facts.credentials, decoys, reader, interception.closed, facts.judges
        )
        self.outbound = OutboundWriter(facts, files)
        self.pool = OriginPool()
        self.origin = Origin(host, port, {}, facts.fields)
        pinning = book.pinned_by(host, port)
        self.http = None if pinning is None else pinning.http
        """The one version of HTTP that clients may speak; None: either."""
        self.http_rule = "" if pinning is None else f"{pinning.rule}.http"
        self.protocols = PROTOCOLS if self.http is None else _PINNED[self.http]
        """Offered to clients, by their names in ALPN."""
        self.abilities: dict[tuple[str, str], ServerAbilities] = {}
        """The abilities of repositories' servers, by service and path."""

    def takes(self, protocols: Collection[str]) -> bool:
        """Whether a client that speaks one of these protocols may be served."""
        return self.http is None or not set(self.protocols).isdisjoint(protocols)

    def usage(self, service: str) -> tuple[UsageFormat, ...]:
        """How responses of a service report their tokens; none where they may be encoded, because
        nothing else reads them and no budget counts."""
        return self._facts.rules[service].host.usage if self._facts.scanned else ()

    def origin_of(self, transfer: Transfer | None) -> Origin:
        """The server that a request goes to."""
        return self.origin if transfer is None else Origin(transfer.host, transfer.port, {})


def _decoys(interception: Interception, rules: Iterable[str]) -> Iterable[tuple[bytes, str]]:
    """Placeholders of other services, which have no meaning at this host."""
    own = {value for name in rules for value in interception.stand_ins.get(name, ())}
    for service, values in interception.stand_ins.items():
        yield from ((value, service) for value in values if value not in own)


def _signs(credential: Credential | None) -> bool:
    return credential is None or credential.signer is not None


def _counts_tokens(rules: HostRules) -> bool:
    """Whether responses must not be encoded, because their tokens are counted."""
    limits = rules.service.limits
    return bool(rules.host.usage and limits is not None and limits.budget.counts_tokens)
