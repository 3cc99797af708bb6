"""Judges the requests to a model: which features of the provider, which models, how long (I3).

The rules are data of the catalogue (`inject/model_api.py`). A body is walked once, with all rules,
and only where a rule leads; the cost grows with the body and not with the rules (I9).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from keyhole.inject.model_api import UNMETERED
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.glob import segment_matches
from keyhole.model.query import parse_query
from keyhole.model.rule import BODILESS, WEBSOCKET
from keyhole.policy.body import BodyJudge, BodyJudgement, refuse_unjudged
from keyhole.policy.model_lengths import AnswerLength
from keyhole.policy.model_paths import find_api, models_in_path, names_endpoint
from keyhole.policy.model_rules import MAX_NAME, compile_rules, fold_name, matches, text_of
from keyhole.wire.strict_json import KEPT_TEXT

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from keyhole.inject.model_api import BodyRule, ModelApi
    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.model_rules import RuleNode
    from keyhole.policy.policy import Service, ServiceHost
    from keyhole.wire.strict_json import JsonValue

    _Waiting = tuple[Sequence[JsonValue], RuleNode, JsonValue]
    """Values, their place, and the object that they stand in."""

VALUES_OF_A_SLICE = 1000
"""Values that are looked at before other sessions have their turn: half a millisecond."""

VALUES_OF_A_LOOK = 40
"""Values for which one counts that is compared with patterns. Attack: 90,000 different texts, of
which a thousand take 20 ms (I12)."""

MAX_FINDINGS = 8
"""Closed features that a refusal names."""

MAX_FLAGS = 64
"""Values of one field of the head. Attack: a head of 32 KiB with 16,000 flags took a second, in
which no other session was served (I12)."""

MAX_MODELS = 64
"""Models that a request names, where the policy says which are granted (I12)."""

_is_word = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}").fullmatch


class ClosedFeature(Struct, frozen=True):
    """One thing that a request asks for and that is closed."""

    reason: Reason
    rule: str
    why: str
    """What it asks for, and the word that would open it."""


class ModelJudge(BodyJudge):
    """The judge of one service."""

    kept_text = KEPT_TEXT

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._open = frozenset(service.features)
        self.fields = frozenset(
            name
            for host in service.hosts
            for judged in host.judged
            if judged.api is not None
            for name, _ in judged.api.fields
        )
        own = (f"{service.rule}.allow[", f"{service.rule}.allow_also[")
        self._named = frozenset(
            ranked.id
            for host in service.hosts
            for ranked in host.rules
            if ranked.id.startswith(own) and names_endpoint(ranked.rule)
        )
        """Rules of the policy that name an endpoint, and so open it although it is not judged."""

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """As `BodyJudge`: all requests that have a body, but those that ask for nothing."""
        if not host.judged:
            return False
        found = find_api(host, word, path)
        if found is not None:
            api = found.api
            return api is not None and (not api.unread or self._is_unmetered(api))
        if word in BODILESS:
            return False
        return decision.reason is not Reason.APPROVED and decision.rule not in self._named

    def _is_unmetered(self, api: ModelApi) -> bool:
        """Whether a request is refused because no budget of the policy would count its price."""
        return api.unmetered and UNMETERED in self._service.closed_features

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`."""
        return _run(self.judge_in_slices(facts))

    def judge_message(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`."""
        return _run(self.judge_message_in_slices(facts))

    def judge_message_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """As `BodyJudge`."""
        return self._judge(facts, message=True)

    def judge_in_slices(self, facts: BodyFacts) -> Generator[None, None, BodyJudgement]:
        """As `BodyJudge`."""
        return self._judge(facts, message=False)

    def _judge(self, facts: BodyFacts, *, message: bool) -> Generator[None, None, BodyJudgement]:
        found = find_api(facts.host, facts.word, facts.path)
        if found is None or found.api is None:
            endpoint = f"{facts.word} {facts.path.raw}"
            return refuse_unjudged(
                facts, f'allow_also = ["{endpoint}"] opens the endpoint, whatever it is asked for'
            )
        request = _Request(self._service, self._open, found.api, facts)
        handshake = facts.word == WEBSOCKET and not message
        if self._is_unmetered(found.api):
            # Attack: thousands of images under a budget that reads tokens alone (I9).
            request.refuse_unmetered()
        elif handshake:
            request.look_at_head()
        elif facts.flaw or not isinstance(facts.json, dict):
            return refuse_unjudged(facts if facts.flaw else _no_object(facts))
        else:
            request.look_at_head()
            yield from request.walk(facts.json)
            request.look_at_rest()
        return request.judgement()


class _Request:
    """One request while it is judged."""

    __slots__ = ("_api", "_facts", "_findings", "_length", "_models", "_open", "_service", "_write")

    def __init__(
        self, service: Service, opened: frozenset[str], api: ModelApi, facts: BodyFacts
    ) -> None:
        self._service = service
        self._open = opened
        self._api = api
        self._facts = facts
        self._findings: dict[str, ClosedFeature] = {}
        self._models: dict[str, None] = {}
        self._length = AnswerLength(service.max_tokens)
        self._write: dict[str, str] = {}

    def look_at_head(self) -> None:
        """Look at the fields and at the model of path and query."""
        for name, rule in self._api.fields:
            flags = {flag.strip(): None for flag in self._facts.fields.get(name, "").split(",")}
            if len(flags) > MAX_FLAGS:
                self._close(name, f"has more than {MAX_FLAGS} values")
                continue
            for flag in filter(None, flags):
                self._check(rule, flag, f"{name}: ", None)
        for name in models_in_path(self._facts.host, self._facts.word, self._facts.path):
            self._name_model(name)
        if "model" in parse_query(self._facts.query):
            self._name_model(_query_value(self._facts.query, "model"))
        if self._api.unbounded and self._service.max_tokens is not None:
            self._over("a session of this API has no length that could be bounded")

    def _name_model(self, name: str) -> None:
        """Note a model that stands beside the body; some ask for a feature by their name."""
        self._models[name] = None
        for rule in self._api.rules:
            if rule.at == ("model",):
                self._check(rule, name, "the model", None)

    def refuse_unmetered(self) -> None:
        """Its price would not be counted."""
        self._ask_for(UNMETERED, "no tokens are reported for it, so that no budget counts it")

    def walk(self, body: JsonValue) -> Generator[None, None, None]:
        """Look at every value to which a rule leads. Yields every `VALUES_OF_A_SLICE`."""
        left, findings = VALUES_OF_A_SLICE, self._findings
        # Lists wait as they are: one of 100,000 is not copied in one slice.
        waiting: list[_Waiting] = [((body,), compile_rules(self._api), None)]
        while waiting:
            values, node, parent = waiting.pop()
            looks, known = node.looks, node.known
            for value in values:
                left -= 1
                if isinstance(value, list):
                    waiting.append((value, node, parent))
                elif looks:
                    left -= self._look_at(value, node, parent)
                if isinstance(value, dict) and node.leads:
                    respelt: set[RuleNode] = set()
                    for name, inner in value.items():
                        left -= 1
                        try:
                            child = known[name]
                        except KeyError:
                            child = self._meet(value, node, name, respelt)
                            left -= VALUES_OF_A_LOOK
                            if len(findings) >= MAX_FINDINGS:
                                return
                            if left < 0:
                                left = VALUES_OF_A_SLICE
                                yield
                        if child is None:
                            continue
                        if isinstance(inner, list):
                            if child.counts:
                                left -= self._look_at(inner, child, value)
                            else:
                                waiting.append((inner, child, value))
                        elif isinstance(inner, dict):
                            waiting.append(((inner,), child, value))
                        elif child.looks and inner not in child.plain:
                            left -= self._look_at(inner, child, value)
                    if node.missing:
                        self._look_for_missing(value, node, respelt)
                if findings and len(findings) >= MAX_FINDINGS:
                    return
                if left < 0:
                    left = VALUES_OF_A_SLICE
                    yield

    def _look_at(self, value: JsonValue, node: RuleNode, parent: JsonValue) -> int:
        """Look at one value. Returns what that costs, in values of a slice."""
        if node.model and isinstance(value, str) and len(self._models) <= MAX_MODELS:
            self._models[value] = None
        if node.tokens:
            self._over(self._length.read_tokens(value, node.place))
        if node.answers:
            self._over(self._length.read_number(value, node.place))
        if node.prompts:
            self._length.read_prompts(value, node.place)
        if node.values:
            text = text_of(value)
            known = node.plain if isinstance(value, str) else node.literals
            if text in known:
                return 0
            if not node.remember_value(text, known):
                for rule in node.values:
                    self._check(rule, text, node.place, parent)
            return VALUES_OF_A_LOOK
        return 0

    def _look_for_missing(
        self, value: dict[str, JsonValue], node: RuleNode, respelt: set[RuleNode]
    ) -> None:
        for wanted, rule in node.missing:
            if wanted.name in value or wanted in respelt or rule.missing in self._open:
                continue
            if rule.written and not node.place:
                self._write[rule.at[0]] = rule.written
            else:
                self._ask_for(rule.missing, f"{wanted.place} is missing")

    def _meet(
        self, value: dict[str, JsonValue], node: RuleNode, name: str, respelt: set[RuleNode]
    ) -> RuleNode | None:
        """Look at a member's name that is not known at this place, and find where it leads."""
        child = node.find(name)
        if not node.remember_name(name):
            for rule in node.members:
                self._check(rule, name, node.place, value)
        if child is None or child is node.within:
            return child
        if child in respelt or (name != child.name and child.name in value):
            # Attack: two spellings, of which the provider reads the other one.
            self._close(node.place_of(name), "stands there in two spellings")
        elif child.exact and not self._api.is_spelling(name, child.name):
            # Attack: the provider does not know this spelling and takes its own default.
            self._close(node.place_of(name), f"is spelled {child.name}")
        respelt.add(child)
        return child

    def look_at_rest(self) -> None:
        """What was not found, and what only the whole body shows."""
        self._over(self._length.excess)
        if self._length.is_missing(self._api.needed_tokens):
            first = self._api.tokens[0]
            if self._api.tokens_written:
                self._write[first[0]] = str(self._length.each)
            else:
                self._over(f"{'.'.join(first)} is missing")

    # ── findings ──────────────────────────────────────────────────────────────────────────────────

    def _check(self, rule: BodyRule, text: str, place: str, parent: JsonValue) -> None:
        """Look at a value by one rule."""
        said = f"{place} {_shown(text)}".strip()
        for feature, patterns in rule.features:
            if matches(patterns, text, folded=True):
                if feature not in self._open and not _is_excused(rule, feature, parent):
                    self._ask_for(feature, said)
                return
        if matches(rule.harmless, text, folded=rule.members):
            return
        if rule.otherwise:
            if rule.otherwise not in self._open:
                self._ask_for(rule.otherwise, said)
            return
        word = f"{rule.kind}:{text}"
        if word not in self._open:
            if _is_word(text):
                self._ask_for(word, f"{said}, which is not known")
            else:
                self._close(said, "is not known, and no word opens it")

    def _find(self, key: str, feature: ClosedFeature) -> None:
        """Note a finding, once; a refusal names a few."""
        if len(self._findings) < MAX_FINDINGS:
            self._findings.setdefault(key, feature)

    def _ask_for(self, word: str, what: str) -> None:
        service = self._service
        self._find(
            word,
            ClosedFeature(
                Reason.FEATURE_CLOSED,
                f"catalogue.{self._api.name}.{word}",
                f"it asks for {word} ({what}), which {service.rule} leaves closed; "
                f'features = ["{word}"] opens it',
            ),
        )

    def _close(self, what: str, why: str) -> None:
        rule = f"catalogue.{self._api.name}"
        said = f"{_shown(what)} {why}"
        self._find(said, ClosedFeature(Reason.FEATURE_CLOSED, rule, said))

    def _over(self, what: str) -> None:
        """Note what is wrong with the length of the answers; an empty text: nothing."""
        if not what:
            return
        rule = f"{self._service.rule}.max_tokens"
        why = f"{what}, and {rule} is {self._service.max_tokens}"
        self._find(rule, ClosedFeature(Reason.OVER_LIMIT, rule, why))

    def judgement(self) -> BodyJudgement:
        """All that was found, as one decision."""
        facts, allowed = self._facts, self._service.models
        if allowed:
            for name in self._models or {"": None}:
                if not any(segment_matches(pattern, name) for pattern in allowed):
                    self._refuse_model(name)
            if len(self._models) > MAX_MODELS:
                self._refuse_model("", f"it names more than {MAX_MODELS} models, beyond")
        findings = list(self._findings.values())
        if findings:
            first = findings[0]
            decision = RequestDecision(
                Verdict.DENY, first.reason, first.rule, facts.decision.service
            )
            return BodyJudgement(decision, "; ".join(each.why for each in findings))
        if not self._write:
            return BodyJudgement(facts.decision)
        return self._written()

    def _refuse_model(self, name: str, fault: str = "it names no model, as wanted by") -> None:
        rule = f"{self._service.rule}.models"
        why = f"the model {_shown(name)} is not in {rule}" if name else f"{fault} {rule}"
        self._find(why, ClosedFeature(Reason.MODEL_NOT_GRANTED, rule, why))

    def _written(self) -> BodyJudgement:
        """The body with what it left out, behind its first brace: all else stays as it came."""
        facts, body = self._facts, self._facts.body
        members = ", ".join(f'"{name}": {value}' for name, value in self._write.items())
        if not body:
            decision = RequestDecision(
                Verdict.DENY, Reason.FEATURE_CLOSED, f"catalogue.{self._api.name}",
                facts.decision.service,
            )  # fmt: skip
            return BodyJudgement(decision, f"a long body must say itself: {members}")
        at = body.index(b"{") + 1
        comma = b", " if facts.json else b""
        return BodyJudgement(
            facts.decision, body=b"%b%b%b%b" % (body[:at], members.encode(), comma, body[at:])
        )


def _is_excused(rule: BodyRule, feature: str, parent: JsonValue) -> bool:
    if not isinstance(parent, dict):
        return False
    for excused, name, expected in rule.excused:
        # Attack: an excuse beside another feature's value, or in two spellings.
        if excused == feature and name in parent and text_of(parent[name]) == expected:
            folded = fold_name(name)
            return sum(fold_name(each) == folded for each in parent) == 1
    return False


def _shown(text: str) -> str:
    short = text[:MAX_NAME]
    return f'"{short}"' if len(text) <= MAX_NAME else f'"{short}…"'


def _query_value(query: str, name: str) -> str:
    found = [pair.partition("=")[2] for pair in query.split("&") if pair.startswith(f"{name}=")]
    return found[0] if len(found) == 1 else ""


def _no_object(facts: BodyFacts) -> BodyFacts:
    return structs.replace(facts, flaw="it is not an object")


def _run(slices: Generator[None, None, BodyJudgement]) -> BodyJudgement:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            judgement: BodyJudgement = end.value
            return judgement
