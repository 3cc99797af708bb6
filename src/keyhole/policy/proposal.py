"""The smallest rules that would allow what was seen, each with its evidence.

Used by `keyhole learn`. A proposal grants nothing by itself: a person picks. None grants a
credential. Only what the catalogue or a preset knows is picked beforehand, because code in the
sandbox chooses what is seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from keyhole.inject.service_hosts import SERVICE_HOSTS, usual_secret
from keyhole.model.decision import Reason
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.ref import short_ref
from keyhole.policy.concern import (
    GUARDED,
    MANY_NAMES,
    OWN_PATTERN,
    PROTECTED,
    TELEMETRY,
    concern_of_host,
    concern_of_path,
    crowded_domains,
)
from keyhole.policy.edit import RuleAddition
from keyhole.policy.explain import USUAL_DEFAULTS, explain, host_fix
from keyhole.policy.recorded_use import RecordedUse, judge_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keyhole.policy.rulebook import Rulebook

SIBLINGS = 5
"""Names at one place of a path from which a rule covers any: fewer are named one by one."""

_UNMENDABLE = frozenset({Reason.DENIED_BY_RULE})
"""What the policy denies by name is the person's word: nothing is proposed against it."""


class KnownHosts(Struct, frozen=True):
    """What is known of hosts beyond the policy."""

    preset: Callable[[Host, int], str | None]
    """The preset of this host's package managers that has a host."""
    is_telemetry: Callable[[str], bool]
    """Whether an agent's profile refuses the host quietly."""


class Proposal(Struct, frozen=True):
    """One line for the policy, and why."""

    addition: RuleAddition
    count: int
    """How often it was used or tried."""
    example: str
    """One of the uses, as the log has it."""
    known: bool = False
    """Whether the catalogue or a preset knows it."""
    concern: str = ""
    """What it looks like, if a person should look twice."""

    @property
    def id(self) -> str:
        """The line's name, for picking it."""
        added = self.addition
        return f"{'.'.join(added.table)}.{added.key} {added.value}"

    @property
    def is_preselected(self) -> bool:
        """Whether it is picked unless a person says no."""
        return self.known and not self.concern

    @property
    def evidence(self) -> str:
        """The comment beside the line."""
        times = "once" if self.count == 1 else f"{self.count} times"
        shown = self.example != self.addition.value
        said = f"seen {times}, as {self.example}" if shown else f"seen {times}"
        return f"{said}; {self.addition.remark}" if self.addition.remark else said


class _SeenRequest(NamedTuple):
    """A request, and the rule for it alone."""

    rule: str
    use: RecordedUse
    times: int


def propose(
    book: Rulebook, uses: Mapping[RecordedUse, int], known: KnownHosts
) -> tuple[Proposal, ...]:
    """The lines for everything that the policy denies: known ones first, then the most used."""
    found: dict[RuleAddition, Proposal] = {}
    requests: dict[tuple[str, str, str], list[_SeenRequest]] = defaultdict(list)
    crowded = crowded_domains(use.host for use in uses)
    for use, count in uses.items():
        decision = judge_use(book, use)
        if decision.allowed or decision.reason in _UNMENDABLE:
            continue
        fix = explain(book, use.target).fix
        if fix is None:
            continue
        added = fix.addition
        concern = _concern_of_rule(use, decision.reason, added)
        if concern:
            # Alone: siblings that are as they should be are not set apart with it.
            _merge(found, Proposal(added, count, str(use), concern=concern))
            continue
        if use.word and added.key in ("allow", "allow_also") and added.table != ("egress",):
            seen = _SeenRequest(str(added.value), use, count)
            requests[".".join(added.table), added.key, use.word].append(seen)
            continue
        _merge(found, _of_host(use, count, added, known, crowded))
    for (table, key, _), alike in requests.items():
        for proposal in _of_requests(tuple(table.split(".")), key, alike):
            _merge(found, proposal)
    return tuple(
        sorted(found.values(), key=lambda p: (not p.is_preselected, bool(p.concern), -p.count))
    )


def _concern_of_rule(use: RecordedUse, reason: str, added: RuleAddition) -> str:
    """What is wrong with the rule for one use alone.

    Attack: code asks for `/v1/*`, or for `/v1/%2A`, and the rule for it allows everything there.
    """
    if reason == Reason.GUARDED_ENDPOINT:
        return GUARDED
    rule = str(added.value)
    if "*" in rule or "?" in rule:
        return OWN_PATTERN
    protected = reason == Reason.REF_PROTECTED or short_ref(use.ref) in USUAL_DEFAULTS
    return PROTECTED if protected and added.key == "push" else ""


def _merge(found: dict[RuleAddition, Proposal], new: Proposal) -> None:
    """Add a proposal to those of other uses for the same line."""
    before = found.get(new.addition)
    if before is None:
        found[new.addition] = new
        return
    concern = before.concern or new.concern
    found[new.addition] = replace(before, count=before.count + new.count, concern=concern)


def _of_host(
    use: RecordedUse, count: int, added: RuleAddition, known: KnownHosts, crowded: frozenset[str]
) -> Proposal:
    """A line that is about a whole host, or about a repository or branch of one."""
    host, port = use.host, use.port
    if added.table != ("egress",) and added.key != "secret":
        return Proposal(added, count, str(use))
    names = SERVICE_HOSTS.get(host.name, ()) if port == DEFAULT_PORT else ()
    if names and added.key == "secret":
        # Without its credential: what code tried is no reason to lend it one.
        others = "".join(f", or [services.{name}]" for name in names[1:])
        remark = f"for its credential add secret = '{usual_secret(names[0])[0]}'{others}"
        added = RuleAddition(("services", names[0]), "use", names[0], False, remark)
        return Proposal(added, count, str(use), known=True)
    concern = concern_of_host(host)
    if known.is_telemetry(host.name):
        concern = TELEMETRY
    if not concern and host.name.partition(".")[2] in crowded:
        concern = MANY_NAMES
    preset = known.preset(host, port)
    if preset is not None:
        line = RuleAddition(("egress",), "presets", preset)
        return Proposal(line, count, str(use), known=True)
    return Proposal(host_fix(host, port).addition, count, str(use), concern=concern)


def _of_requests(
    table: tuple[str, ...], key: str, requests: Iterable[_SeenRequest]
) -> Iterable[Proposal]:
    """Rules for requests of one word to one service; siblings become one rule."""
    rules: dict[tuple[str, ...], tuple[int, RecordedUse]] = {}
    for seen in requests:
        path = tuple(seen.rule.split("/"))
        counted, example = rules.get(path, (0, seen.use))
        rules[path] = (counted + seen.times, example)
    for segments, members in _generalised(list(rules)).items():
        count = sum(rules[each][0] for each in members)
        example = rules[members[0]][1]
        concern = next(filter(None, (concern_of_path(rules[m][1].path) for m in members)), "")
        addition = RuleAddition(table, key, "/".join(segments))
        yield Proposal(addition, count, str(example), concern=concern)


def _generalised(
    paths: list[tuple[str, ...]],
) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """Rules by the paths that they stand for. A segment with many siblings becomes `*`: from the
    last one to the first, so that numbered items join before what they belong to."""
    groups = {path: [path] for path in paths}
    longest = max(map(len, paths), default=0)
    for place in range(longest - 1, 0, -1):
        alike: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
        for path in groups:
            if place < len(path) and path[place]:
                alike[(*path[:place], "*", *path[place + 1 :])].append(path)
        for wide, narrow in alike.items():
            if len(narrow) >= SIBLINGS:
                members = [each for path in narrow for each in groups.pop(path)]
                groups[wide] = [*groups.get(wide, []), *members]
    return groups
