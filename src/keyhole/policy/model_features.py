"""Judges the requests to a model: which features of the provider, which models, how long (I3).

The rules are data of the catalogue (`inject/model_api.py`). A body is walked once, with all rules,
and only where a rule leads; the cost grows with the body and not with the rules (I9).
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from typing import TYPE_CHECKING

from msgspec import Struct, field, structs

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.glob import ANY_DEPTH, segment_matches
from keyhole.model.query import parse_query
from keyhole.model.rule import BODILESS, WEBSOCKET
from keyhole.policy.body import BodyJudge, BodyJudgement, refuse_unjudged
from keyhole.wire.strict_json import KEPT_TEXT

if TYPE_CHECKING:
    from collections.abc import Generator

    from keyhole.inject.model_api import BodyRule, JudgedPaths, ModelApi
    from keyhole.model.path import RequestPath
    from keyhole.model.rule import AccessRule
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import Service, ServiceHost
    from keyhole.wire.strict_json import JsonValue

VALUES_OF_A_SLICE = 1000
"""Values that are looked at before other sessions have their turn: half a millisecond."""

MAX_FINDINGS = 8
"""Closed features that a refusal names."""

MAX_NAME = 64
"""Characters of a name that is compared in any spelling; none that a rule knows is longer."""

MAX_REMEMBERED = 256
"""Harmless values that are remembered at one place of a body (I9)."""

_MODEL_FOLLOWS = ("models", "model", "deployments")
"""Segments of a path that a model's name follows."""

_is_word = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}").fullmatch

Words = tuple[str, ...]


class ClosedFeature(Struct, frozen=True):
    """One thing that a request asks for and that is closed."""

    reason: Reason
    rule: str
    why: str
    """What it asks for, and the word that would open it."""


class _Node(Struct, eq=False):
    """A place in a body that a rule speaks of, or that leads to one."""

    children: dict[str, _Node] = field(default_factory=dict)
    values: list[BodyRule] = field(default_factory=list)
    members: list[BodyRule] = field(default_factory=list)
    missing: list[tuple[str, BodyRule]] = field(default_factory=list)
    model: bool = False
    tokens: bool = False
    plain: set[str] = field(default_factory=set)
    """Values that were found to be harmless; most bodies have the same few hundreds of times."""
    plain_members: set[str] = field(default_factory=set)


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
            return found.api is not None
        if word in BODILESS:
            return False
        return decision.reason is not Reason.APPROVED and decision.rule not in self._named

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
        if handshake:
            request.look_at_head()
        elif facts.flaw or not isinstance(facts.json, dict):
            return refuse_unjudged(facts if facts.flaw else _no_object(facts))
        else:
            request.look_at_head()
            yield from request.walk(facts.json)
            request.look_at_rest(facts.json)
        return request.judgement()


class _Request:
    """One request while it is judged."""

    __slots__ = ("_api", "_facts", "_findings", "_models", "_open", "_service", "_tokens", "_write")

    def __init__(
        self, service: Service, opened: frozenset[str], api: ModelApi, facts: BodyFacts
    ) -> None:
        self._service = service
        self._open = opened
        self._api = api
        self._facts = facts
        self._findings: dict[str, ClosedFeature] = {}
        self._models: dict[str, None] = {}
        self._tokens = False
        self._write: dict[str, str] = {}

    def look_at_head(self) -> None:
        """Look at the fields and at the model of path and query."""
        for name, rule in self._api.fields:
            for flag in self._facts.fields.get(name, "").split(","):
                if flag.strip():
                    self._check(rule, flag.strip(), f"{name}: ", None)
        segments = self._facts.path.segments
        for before, segment in itertools.pairwise(segments):
            if before.lower() in _MODEL_FOLLOWS:
                self._models[segment.partition(":")[0]] = None
        if "model" in parse_query(self._facts.query):
            self._models[_query_value(self._facts.query, "model")] = None

    def walk(self, body: JsonValue) -> Generator[None, None, None]:
        """Look at every value to which a rule leads."""
        looked = 0
        waiting: list[tuple[JsonValue, _Node, str, JsonValue]] = [
            (body, compile_rules(self._api), "", None)
        ]
        while waiting and len(self._findings) < MAX_FINDINGS:
            value, node, place, parent = waiting.pop()
            looked += 1
            if looked % VALUES_OF_A_SLICE == 0:
                yield
            if isinstance(value, list):
                waiting.extend((inner, node, place, parent) for inner in reversed(value))
                looked += len(value) // 8
                continue
            if node.model and isinstance(value, str):
                self._models[value] = None
            if node.tokens and value is not None:
                self._look_at_tokens(value, place)
            if node.values:
                text = value if isinstance(value, str) else _text_of(value)
                if text not in node.plain and not _is_plain(node.values, text, node.plain):
                    for rule in node.values:
                        self._check(rule, text, place, parent)
            if isinstance(value, dict) and (node.children or node.members):
                self._look_into(value, node, place, waiting)

    def _look_into(
        self,
        value: dict[str, JsonValue],
        node: _Node,
        place: str,
        waiting: list[tuple[JsonValue, _Node, str, JsonValue]],
    ) -> None:
        seen: set[str] = set()
        for name, inner in value.items():
            folded = fold_name(name)
            if (
                node.members
                and name not in node.plain_members
                and not _is_plain(node.members, name, node.plain_members)
            ):
                for rule in node.members:
                    self._check(rule, name, place, value)
            child = node.children.get(folded)
            if child is None:
                continue
            if folded in seen:
                # Attack: two spellings, of which the provider reads the other one.
                self._close(f"{place}{name}", "stands there in two spellings")
            seen.add(folded)
            waiting.append((inner, child, f"{place}{name[:MAX_NAME]}.", value))
        for name, rule in node.missing:
            if name not in seen and rule.missing not in self._open:
                if rule.written and not place:
                    self._write[rule.at[0]] = rule.written
                else:
                    self._ask_for(rule.missing, f"{place}{rule.at[-1]} is missing")

    def look_at_rest(self, body: dict[str, JsonValue]) -> None:
        """What was not found."""
        most = self._service.max_tokens
        if most is not None and self._api.tokens and not self._tokens:
            first = self._api.tokens[0]
            if self._api.tokens_written:
                self._write[first[0]] = str(most)
            else:
                self._over(f"{'.'.join(first)} is missing")

    # ── findings ──────────────────────────────────────────────────────────────────────────────────

    def _check(self, rule: BodyRule, text: str, place: str, parent: JsonValue) -> None:
        """Look at a value by one rule."""
        said = f"{place.removesuffix('.')} {_shown(text)}".strip()
        for feature, patterns in rule.features:
            if _matches(patterns, text, folded=True):
                if feature not in self._open and not _is_excused(rule, parent):
                    self._ask_for(feature, said)
                return
        if _matches(rule.harmless, text, folded=rule.members):
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

    def _ask_for(self, word: str, what: str) -> None:
        service = self._service
        self._findings.setdefault(
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
        self._findings.setdefault(said, ClosedFeature(Reason.FEATURE_CLOSED, rule, said))

    def _look_at_tokens(self, value: JsonValue, place: str) -> None:
        self._tokens = True
        most = self._service.max_tokens
        if most is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value > most:
            self._over(f"{place.removesuffix('.')} is {_text_of(value)[:MAX_NAME]}")

    def _over(self, what: str) -> None:
        rule = f"{self._service.rule}.max_tokens"
        why = f"{what}, and {rule} is {self._service.max_tokens}"
        self._findings.setdefault(rule, ClosedFeature(Reason.OVER_LIMIT, rule, why))

    def judgement(self) -> BodyJudgement:
        """All that was found, as one decision."""
        facts, allowed = self._facts, self._service.models
        if allowed:
            for name in self._models or {"": None}:
                if not any(segment_matches(pattern, name) for pattern in allowed):
                    self._refuse_model(name)
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

    def _refuse_model(self, name: str) -> None:
        rule = f"{self._service.rule}.models"
        named = f"the model {_shown(name)} is not in" if name else "it names no model, as wanted by"
        why = f"{named} {rule}"
        self._findings.setdefault(why, ClosedFeature(Reason.MODEL_NOT_GRANTED, rule, why))

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


# ── the catalogue's rules ─────────────────────────────────────────────────────────────────────────


def find_api(host: ServiceHost, word: str, path: RequestPath) -> JudgedPaths | None:
    """How requests like this one are judged; None if the catalogue does not say."""
    readings = [path.folded()]
    other = path.split_reading if host.encoded_slash else None
    if other is not None:
        readings.append(other.folded())
    for judged in host.judged:
        for rule in judged.rules:
            glob = rule.path.folded()
            if word in rule.methods and any(map(glob.matches, readings)):
                return judged
    return None


def names_endpoint(rule: AccessRule) -> bool:
    """Whether a rule names one endpoint: it has no `**`, and its last segment is plain."""
    segments = rule.path.segments
    return bool(segments) and ANY_DEPTH not in segments and "*" not in segments[-1]


@functools.lru_cache(maxsize=64)
def compile_rules(api: ModelApi) -> _Node:
    """The rules of an API by place."""
    root = _Node()
    for rule in api.rules:
        node, outer = root, root
        for name in rule.at:
            node, outer = node.children.setdefault(fold_name(name), _Node()), node
        if rule.members:
            node.members.append(rule)
        else:
            node.values.append(rule)
        if rule.missing:
            outer.missing.append((fold_name(rule.at[-1]), rule))
    for places, mark in ((api.model, "model"), (api.tokens, "tokens")):
        for place in places:
            node = root
            for name in place:
                node = node.children.setdefault(fold_name(name), _Node())
            setattr(node, mark, True)
    return root


def fold_name(name: str) -> str:
    """A member's name as readers may take it that know `inputText` and `input_text` as one, or do
    not look at its case."""
    # Attack: names of half a megabyte, of which the cache would keep thousands (I9).
    return _fold_short(name) if len(name) <= MAX_NAME else name


@functools.lru_cache(maxsize=4096)
def _fold_short(name: str) -> str:
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return name.replace("_", "").replace("-", "").lower()


def _is_plain(rules: list[BodyRule], text: str, known: set[str]) -> bool:
    """Whether no rule sees anything in a value, which is then remembered if it is short."""
    for rule in rules:
        named = any(_matches(patterns, text, folded=True) for _, patterns in rule.features)
        if named or not _matches(rule.harmless, text, folded=rule.members):
            return False
    if len(text) <= MAX_NAME and len(known) < MAX_REMEMBERED:
        known.add(text)
    return True


def _is_excused(rule: BodyRule, parent: JsonValue) -> bool:
    if rule.unless is None or not isinstance(parent, dict):
        return False
    name, expected = rule.unless
    return name in parent and _text_of(parent[name]) == expected


def _matches(patterns: Words, text: str, *, folded: bool) -> bool:
    if text in patterns:
        return True
    if folded:
        text = fold_name(text)
        return any(segment_matches(fold_name(pattern), text) for pattern in patterns)
    return any("*" in pattern and segment_matches(pattern, text) for pattern in patterns)


def _text_of(value: JsonValue) -> str:
    match value:
        case str():
            return value
        case None | bool():
            return "null" if value is None else str(value).lower()
        case dict():
            return "{}"
        case _:
            return str(value)


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
