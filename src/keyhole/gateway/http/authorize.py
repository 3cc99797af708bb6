"""Decides whether a request to one host is allowed, and with which credential.

Each inspected host of a session has one `Authorizer`, which `judging.py` asks for every request. It
decides by policy and caches decisions; it writes nothing and sends nothing.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from keyhole.gateway.git.operation import GIT_ENDINGS, read_operation
from keyhole.gateway.refusal_messages import Form, form_of_call, form_of_signed
from keyhole.gateway.request_facts import make_facts
from keyhole.gateway.requests import AuthorizedRequest, BodyJudging
from keyhole.gateway.upstream.minting import Minting
from keyhole.inject.canary import CANARY
from keyhole.inject.injection import OF_HOST, SignatureInjection
from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.errors import Malformed, RequestUnfit
from keyhole.model.path import RequestPath
from keyhole.model.rule import GRPC
from keyhole.policy.policy import OF_PRESETS
from keyhole.policy.request import RequestFacts, decide_among, decide_query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.http.request import RequestHead, RequestReader
    from keyhole.inject.credential import Credential
    from keyhole.model.decision import Decision
    from keyhole.policy.body import BodyJudge
    from keyhole.policy.policy import Service
    from keyhole.policy.rulebook import HostRules

MAX_DECISIONS = 1024
"""Cached decisions for each host; an agent requests the same few paths again and again."""

MAX_REMEMBERED_TARGET = 512
"""Characters of a target that is cached with its decision."""

UNREAD = (
    "the secret of services.{service} could not be read on the host, so this service is closed; "
    "`keyhole secret test {service}`, typed there, says why"
)
"""The message for a client of a service whose secret is missing."""

Credentials = dict[tuple[str, bool], "Credential | Minting | None"]
"""The keys are the service, and whether the request is git's own: git needs another form of the
credential."""


class Authorizer:
    """The rules of one host."""

    __slots__ = (
        "_closed",
        "_credentials",
        "_decisions",
        "_decoys",
        "_git",
        "_judged",
        "_judges",
        "_rules",
        "_signed",
        "canary",
        "index",
        "mints",
        "reader",
    )

    def __init__(
        self,
        rules: Mapping[str, HostRules],
        credentials: Credentials,
        decoys: tuple[tuple[bytes, str], ...],
        reader: RequestReader,
        closed: frozenset[str] = frozenset(),
        judges: Mapping[str, BodyJudge] = MappingProxyType({}),
    ) -> None:
        """`decoys` are placeholders of services that are not this host's. `reader` reads heads, and
        removes the client's own credentials from them (I6). `closed` are services whose secret
        could not be read; `judges` judge the bodies of services."""
        self._closed = closed
        self.reader = reader
        self._rules = rules
        self._judges = judges
        self._judged: dict[tuple[str, str, str], BodyJudging | None] = {}
        self._credentials = credentials
        self._decoys = decoys
        self.canary = tuple(value for value, owner in decoys if owner == CANARY)
        """Values that are also searched for in bodies. Placeholders are not among them: an agent
        that reads its own environment sends them to its model."""
        self.index = bool(rules) and all(name.startswith(OF_PRESETS) for name in rules)
        """Whether it is a package index of the policy's presets, and nothing else."""
        self._git = any(each.host.git for each in rules.values())
        ways = (way for each in rules.values() for way in each.host.inject)
        signed = (way.service or OF_HOST for way in ways if isinstance(way, SignatureInjection))
        self._signed = next(signed, "")
        self.mints = any(isinstance(each, Minting) for each in credentials.values())
        self._decisions: dict[tuple[str, str, str], RequestDecision] = {}

    def decide(self, head: RequestHead) -> RequestDecision:
        """The policy's decision on a request."""
        if head.dns_message:
            return RequestDecision(reason=Reason.DNS_OVER_HTTPS)
        if head.overrides:
            return RequestDecision(reason=Reason.METHOD_OVERRIDE)
        query = head.query or ""
        if query and not self._git:
            # No rule reads the query, so it is not part of the key: a varying query would empty the
            # cache.
            refusal = decide_query(query)
            if refusal is not None:
                return refusal
            query = ""
        key = (head.word, head.path, query)
        known = self._decisions.get(key)
        if known is not None:
            return known
        decision = decide_among(self._rules.values(), RequestFacts(*key))
        if len(head.path) + len(query) <= MAX_REMEMBERED_TARGET:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def decide_again(self, head: RequestHead, service: str, before: Decision) -> RequestDecision:
        """The decision on a request that was allowed `before`. A person's approval still counts if
        no rule of its service names the request."""
        decision = self.decide(head)
        undecided = decision.reason is Reason.NO_RULE and decision.service == service
        if undecided and before.reason is Reason.APPROVED:
            return RequestDecision(before.verdict, before.reason, before.rule, service)
        return decision

    def authorize(
        self, head: RequestHead, decision: RequestDecision
    ) -> AuthorizedRequest | Minting:
        """An allowed request with its credential; or the token that must be fetched first.

        Raises RequestUnfit if a request to git's endpoints is not in git's form, or if the
        service's secret could not be read.
        """
        service = decision.service or ""
        operation = None
        if self._git:
            operation = read_operation(self._rules[service].service.git, decision, head)
        credential = self._credentials[service, operation is not None]
        if isinstance(credential, Minting):
            minted = credential.current(time.monotonic())
            if minted is None:
                return credential
            credential = minted
        elif credential is None and service in self._closed:
            # The cause is left out: only the person may see paths and commands of the host (I1).
            raise RequestUnfit(Reason.CREDENTIAL_UNAVAILABLE, UNREAD.format(service=service))
        judging = self.find_judging(head, decision, service)
        request = AuthorizedRequest(head, decision, service, credential, operation, judging)
        if judging is not None and judging.judge.judges_heads:
            request.by_head = judging.judge.judge_head(make_facts(request, judging))
        return request

    def find_judging(
        self, head: RequestHead, decision: RequestDecision, service: str
    ) -> BodyJudging | None:
        """The judge of an allowed request, if it wants requests like this one."""
        judge = self._judges.get(service)
        if judge is None:
            return None
        key = (head.word, head.path, f"{service} {decision.rule}")
        if key in self._judged:
            return self._judged[key]
        host = self._rules[service].host
        path = RequestPath.parse(head.path, opaque_slash=host.encoded_slash)
        wanted = judge.wants(host, head.word, path, decision)
        judging = BodyJudging(judge, host, path) if wanted else None
        if len(head.path) <= MAX_REMEMBERED_TARGET:
            if len(self._judged) >= MAX_DECISIONS:
                self._judged.clear()
            self._judged[key] = judging
        return judging

    def authorize_again(self, request: AuthorizedRequest) -> AuthorizedRequest | None:
        """Authorize a request again that another policy allowed; None if this policy denies it.

        The head is parsed again, because the policy decides which of its fields are the client's
        credentials (I6). An equal grant must cover the request: a push that was judged by a
        different grant proves nothing.
        """
        try:
            head = self.reader.parse(request.head.raw)
            decision = self.decide_again(head, request.service, request.decision)
            again = self.authorize(head, decision) if decision.allowed else None
        except (Malformed, RequestUnfit):
            return None
        if not isinstance(again, AuthorizedRequest) or again.service != request.service:
            return None
        if again.by_head is not None and not again.by_head.allowed:
            return None
        was, now = (
            each.operation.grant if each.operation is not None else None
            for each in (request, again)
        )
        return again if was == now else None

    def aging_token(self, service: str) -> Minting | None:
        """The token of a service, if it ends soon and the next one must be fetched."""
        credential = self._credentials[service, False]
        if isinstance(credential, Minting) and credential.is_old(time.monotonic()):
            return credential
        return None

    def form(self, head: RequestHead) -> Form:
        """The form in which the client of this request reads a refusal."""
        if head.word == GRPC:
            return form_of_call(head.lines)
        if self._signed:
            return form_of_signed(self._signed, head.query, head.lines)
        if self._git and head.path.endswith(GIT_ENDINGS):
            return Form.TEXT
        return Form.LFS if self._git and "/info/lfs/" in head.path else Form.JSON

    def service(self, name: str) -> Service:
        """A service of this host."""
        return self._rules[name].service

    def decoys(self, head: bytes) -> Sequence[str]:
        """The services whose placeholder is in this head although the host is not theirs. The
        owner of the canary file counts as one."""
        if not self._decoys:
            return ()
        # Not `in`, which takes four times as long: it asks first whether the value is a number.
        return [service for value, service in self._decoys if head.find(value) >= 0]
