"""Judges requests by their operation, where method and path do not tell it (I3).

A request names its operation (`Action=DeleteQueue`) or carries a mark (`x-amz-copy-source`). The
tables of names and marks are data of the catalogue (`inject/operations.py`). Most requests are
judged by their head, so that a long upload is not collected; a body is read only if it may name the
operation. A request that servers could read in two ways is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.operations import MarkPlace, NamePlace
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed
from keyhole.model.glob import fold, segment_matches
from keyhole.policy.body import EMPTY, ENCODED, BodyJudge, BodyJudgement, refuse_unjudged
from keyhole.wire.parameters import MAX_PARAMETERS, folded, read_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.inject.operations import MarkedPart, OperationTable
    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import Service, ServiceHost
    from keyhole.wire.parameters import Parameter

MAX_BODY = 1 << 20
"""Bytes of a body that may name its operation: AWS accepts forms of 256 KiB, before escapes."""

_is_form = re.compile(
    r"application/x-www-form-urlencoded(?:[ \t]*;[ \t]*charset=\"?utf-8\"?)?", re.IGNORECASE
).fullmatch
_is_name = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}", re.ASCII).fullmatch
_is_target = re.compile(r"(?:[A-Za-z0-9_]+\.)*[A-Za-z][A-Za-z0-9]{0,127}", re.ASCII).fullmatch
_is_word = re.compile(r"[a-z0-9._~-]{1,64}", re.ASCII).fullmatch

Readings = frozenset[str]
_Mark = tuple[str, str, str]
"""A pattern of names, a pattern of values (empty: any value), and the word that opens both."""


class KnownNames:
    """The known names of one part of a request, indexed for look-up."""

    __slots__ = (
        "_closes",
        "_exact",
        "_globs",
        "_harmless",
        "_harmless_globs",
        "_place",
        "_watched",
    )

    def __init__(self, part: MarkedPart) -> None:
        self._place = part.place.value
        self._exact: dict[str, list[_Mark]] = {}
        self._globs: list[_Mark] = []
        for mark in part.marks:
            for name, value in mark.names:
                known = folded(name)
                same = self._globs if "*" in known else self._exact.setdefault(known, [])
                same.append((known, value.lower(), mark.word))
        self._closes = part.harmless is not None
        harmless = [folded(name) for name in part.harmless or ()]
        self._harmless = frozenset(name for name in harmless if "*" not in name)
        self._harmless_globs = tuple(name for name in harmless if "*" in name)
        self._watched = tuple(folded(name) for name in part.watched)

    def word_of(self, readings: Readings, name: str, value: object) -> str:
        """The word that allows a field; empty if the field needs none."""
        if readings <= self._harmless:
            return ""
        for reading in readings:
            # Attack: thousands of names, each compared with every mark (I12).
            for known, pattern, word in [*self._exact.get(reading, []), *self._globs]:
                if segment_matches(known, reading) and (
                    not pattern or segment_matches(pattern, str(value).lower())
                ):
                    return word
        if self._closes and not all(map(self._is_harmless, readings)):
            return f"{self._place}:{name.lower()}"
        return ""

    def _is_harmless(self, reading: str) -> bool:
        if reading in self._harmless or reading in self._exact:
            return True  # a mark with another value
        if any(segment_matches(each, reading) for each in self._harmless_globs):
            return True
        return not any(segment_matches(each, reading) for each in self._watched)


class AskedOperations(Struct):
    """The operations and marks of a request."""

    names: list[str]
    """Operations that it names."""
    mark: str = ""
    """The word of the first mark that is closed."""
    where: str = ""
    """The mark's place in the request."""


class OperationJudge(BodyJudge):
    """The judge of one service."""

    most = MAX_BODY
    judges_heads = True

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        tables = [table for host in service.hosts for table in host.operations]
        self._known = {id(part): KnownNames(part) for table in tables for part in table.parts}
        self.fields = frozenset(_fields(tables))
        self._words = frozenset(service.operations)

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """As `BodyJudge`. A rule of the policy opens an endpoint, and no operation there."""
        return find_table(host, word, path) is not None

    def judge_head(self, facts: BodyFacts) -> BodyJudgement | None:
        """As `BodyJudge`."""
        table = find_table(facts.host, facts.word, facts.path)
        if table is None:
            return BodyJudgement(facts.decision)
        try:
            asked = self._look_at_head(table, facts)
            decides = _body_decides(table, facts)
        except Malformed as error:
            return self._refuse_unclear(facts, error.why)
        said = self._decide(table, facts, asked, whole=not decides)
        if not decides or not said.allowed:
            return said
        return refuse_unjudged(facts) if facts.flaw == ENCODED else None

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`: a body that decides, after the head has asked for nothing closed."""
        table = find_table(facts.host, facts.word, facts.path)
        if table is None:
            return refuse_unjudged(facts)
        try:
            asked = self._look_at_head(table, facts)
            self._look_at_body(table, facts, asked)
        except Malformed as error:
            return self._refuse_unclear(facts, error.why)
        return self._decide(table, facts, asked, whole=True)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def _look_at_head(self, table: OperationTable, facts: BodyFacts) -> AskedOperations:
        asked = AskedOperations([])
        parameters = list(_read(facts.query, "the query"))
        for place, name in table.named:
            if place is NamePlace.QUERY:
                asked.names += _name_among(parameters, name, "the query")
            elif place is NamePlace.HEADER and name.lower() in facts.fields:
                asked.names.append(_target(facts.fields[name.lower()], name))
            elif place is NamePlace.PATH:
                asked.names += _name_after(facts.path, name)
        for part in table.parts:
            if part.place is MarkPlace.QUERY:
                self._look_at_parameters(part, parameters, asked)
            elif part.place is MarkPlace.HEADER:
                for name, value in facts.fields.items():
                    self._look_at(part, frozenset((folded(name),)), name, value, asked)
        return asked

    def _look_at_body(
        self, table: OperationTable, facts: BodyFacts, asked: AskedOperations
    ) -> None:
        fields = [part for part in table.parts if part.place is MarkPlace.FIELD]
        if _is_form(facts.fields.get("content-type", "")):
            parameters = list(_read(facts.body.decode("latin-1"), "the form"))
            for place, name in table.named:
                if place is NamePlace.FORM:
                    asked.names += _name_among(parameters, name, "the form")
            for part in fields:
                self._look_at_parameters(part, parameters, asked)
            return
        if facts.flaw or not isinstance(facts.json, dict):
            raise Malformed(facts.flaw or "the body is not an object")
        for place, name in table.named:
            if place is NamePlace.GRAPHQL:
                asked.names += _mutations(facts.json.get(name))
        if len(facts.json) > MAX_PARAMETERS:
            raise Malformed(f"its body has more than {MAX_PARAMETERS} members")
        for part in fields:
            for member, value in facts.json.items():
                self._look_at(part, frozenset((folded(member),)), member, value, asked)

    def _look_at_parameters(
        self, part: MarkedPart, parameters: Iterable[Parameter], asked: AskedOperations
    ) -> None:
        for each in parameters:
            self._look_at(part, each.names, each.name, each.value, asked)

    def _look_at(
        self, part: MarkedPart, readings: Readings, name: str, value: object, asked: AskedOperations
    ) -> None:
        if asked.mark:
            return  # the first that is closed decides
        word = self._known[id(part)].word_of(readings, name, value)
        if word and word not in self._words:
            if ":" in word and not _is_word(word.partition(":")[2]):
                raise Malformed(f"a name in its {part.place} is not known")
            asked.mark, asked.where = word, f"{part.place} {name}"

    # ── deciding ──────────────────────────────────────────────────────────────────────────────────

    def _decide(
        self, table: OperationTable, facts: BodyFacts, asked: AskedOperations, *, whole: bool
    ) -> BodyJudgement:
        """`whole`: the whole request was read, not only its head."""
        graphql = any(place is NamePlace.GRAPHQL for place, _ in table.named)
        if len(asked.names) > 1 and not graphql:
            return self._refuse_unclear(facts, "it names an operation in two places")
        if whole and table.required and not asked.names:
            return self._refuse_unclear(facts, "it names no operation")
        for name in asked.names:
            if not self._opens(table, name):
                return self._refuse_closed(facts, name, "")
        if asked.mark:
            return self._refuse_closed(facts, asked.mark, f" ({asked.where})")
        return BodyJudgement(facts.decision)

    def _opens(self, table: OperationTable, name: str) -> bool:
        guards = [g for g in map(fold, table.guarded) if segment_matches(g, fold(name))]
        for pattern in (*self._service.operations, *(() if guards else table.open)):
            inside = all(segment_matches(guard, fold(pattern)) for guard in guards)
            if inside and segment_matches(pattern, name):
                return True
        return False

    def _refuse_closed(self, facts: BodyFacts, word: str, where: str) -> BodyJudgement:
        rule = f"catalogue.{self._service.template}.{word}"
        why = f"it asks for {word}{where}, which {self._service.rule} leaves closed"
        decision = RequestDecision(
            Verdict.DENY, Reason.OPERATION_CLOSED, rule, facts.decision.service
        )
        return BodyJudgement(decision, f'{why}; operations = ["{word}"] opens it')

    def _refuse_unclear(self, facts: BodyFacts, why: str) -> BodyJudgement:
        by = facts.decision
        decision = RequestDecision(Verdict.DENY, Reason.OPERATION_UNCLEAR, by.rule, by.service)
        return BodyJudgement(decision, f"it is not clear which operation it asks for: {why}")


def find_table(host: ServiceHost, word: str, path: RequestPath) -> OperationTable | None:
    """The first table of a host that applies to a request."""
    readings = [path.folded()]
    other = path.split_reading if host.encoded_slash else None
    if other is not None:
        readings.append(other.folded())
    for table in host.operations:
        for rule in table.on:
            if rule.speaks_of(word) and any(map(rule.path.folded().matches, readings)):
                return table
    return None


def _fields(tables: Iterable[OperationTable]) -> Iterator[str]:
    """The names of fields that the tables mention."""
    for table in tables:
        yield from (name.lower() for place, name in table.named if place is NamePlace.HEADER)
        for part in table.parts:
            if part.place is MarkPlace.HEADER:
                yield from (name for mark in part.marks for name, _ in mark.names)
                if part.harmless is not None:
                    yield from part.watched


def _body_decides(table: OperationTable, facts: BodyFacts) -> bool:
    """Whether the body must be read. Raises Malformed if it cannot be read."""
    if facts.flaw == EMPTY or not (table.reads_forms or table.reads_json):
        return False
    media = facts.fields.get("content-type", "")
    if _is_form(media):
        if table.reads_forms:
            return True
    elif table.reads_json and facts.flaw in ("", ENCODED) and media:
        return True
    elif any(segment_matches(each, media.lower()) for each in table.media):
        return False
    raise Malformed("its body has no type, or one that is not read")


def _read(text: str, where: str) -> Iterator[Parameter]:
    try:
        yield from read_parameters(text)
    except Malformed as error:
        raise Malformed(f"{where}: {error.why}") from None


def _name_among(parameters: list[Parameter], name: str, where: str) -> list[str]:
    """The operation that a field names: a set of none or one."""
    wanted = folded(name)
    found = [each for each in parameters if wanted in each.names]
    if not found:
        return []
    # Attack: `Action=ListQueues&Action=DeleteQueue`, `%41ction=`, `action=`, `;Action=`: the server
    # may run another operation than the one that was judged.
    if len(found) > 1:
        raise Malformed(f"{name} stands twice in {where}")
    (each,) = found
    if each.name != name or not each.plain or not _is_name(each.value):
        raise Malformed(f"{name} is not written plainly in {where}")
    return [each.value]


def _name_after(path: RequestPath, name: str) -> list[str]:
    segments = path.segments
    at = [i for i, segment in enumerate(segments) if fold(segment) == fold(name)]
    if not at:
        return []
    if len(at) > 1 or len(segments) != at[0] + 2 or not _is_name(segments[-1]):
        raise Malformed(f"the path does not end with one operation behind /{name}/")
    return [segments[-1]]


def _target(value: str, name: str) -> str:
    if not _is_target(value):
        raise Malformed(f"{name} is not one plain name")
    return value.rpartition(".")[2]


def _mutations(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise Malformed("the document is not in the body")
    from keyhole.policy.graphql.root_fields import changing_fields

    return changing_fields(text)
