"""Properties of whole policies: silence is no, one target one verdict, allow only adds (I3, I4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.model.decision import RequestDecision, Route
from keyhole.model.host import Host
from keyhole.policy.egress import decide_dns, decide_egress
from keyhole.policy.request import RequestFacts, decide_request
from tests.rigs.policies import book

if TYPE_CHECKING:
    from keyhole.policy.rulebook import Rulebook

NAMES = st.sampled_from(
    ["a.example", "b.example", "x.a.example", "y.x.a.example", "c.test", "xa.example", "a.test"]
)
PATTERNS = st.sampled_from(
    ["a.example", "b.example", "*.a.example", "*.x.a.example", "c.test:8443", "a.test", "*.c.test"]
)
PORTS = st.sampled_from([443, 80, 8443])
SEGMENTS = st.sampled_from(["v1", "users", "keys", "x.json", "7", "admin"])
RULES = st.builds(
    lambda method, segments: f"{method} /" + "/".join(segments),
    st.sampled_from(["GET", "POST", "*", "GET,DELETE"]),
    st.lists(st.one_of(SEGMENTS, st.sampled_from(["*", "**", "x*", "*.json"])), max_size=4),
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "DELETE", "PUT"])
PATHS = st.lists(SEGMENTS, max_size=5).map(lambda s: "/" + "/".join(s))


def tunnels(patterns: list[str]) -> Rulebook:
    listed = ", ".join(f'"{p}"' for p in dict.fromkeys(patterns))
    return book(f"[egress]\nallow = [{listed}]")


def service(allow: list[str], deny: list[str]) -> Rulebook:
    def listed(rules: list[str]) -> str:
        return ", ".join(f'"{r}"' for r in dict.fromkeys(rules))

    return book(
        f"[services.s]\nhosts = ['s.example']\nallow = [{listed(allow)}]\ndeny = [{listed(deny)}]"
    )


def decide(rulebook: Rulebook, method: str, path: str) -> RequestDecision:
    return decide_request(rulebook, Host.parse("s.example"), 443, RequestFacts(method, path))


@given(st.lists(PATTERNS, max_size=5), NAMES, PORTS)
def test_a_connection_is_allowed_only_if_a_pattern_covers_it(
    patterns: list[str], name: str, port: int
) -> None:
    decision = decide_egress(tunnels(patterns), Host.parse(name), port)
    covered = any(
        (p.partition(":")[2] or "443") == str(port)
        and (
            name.endswith(p.partition(":")[0][1:]) if p.startswith("*") else
            name == p.partition(":")[0]
        )
        for p in patterns
    )  # fmt: skip
    assert decision.allowed is covered
    assert (decision.route is Route.NONE) is not covered


@given(st.lists(PATTERNS, max_size=5), NAMES, PORTS)
def test_whatever_can_be_connected_to_can_be_resolved(
    patterns: list[str], name: str, port: int
) -> None:
    rulebook = tunnels(patterns)
    if decide_egress(rulebook, Host.parse(name), port).allowed:
        assert decide_dns(rulebook, name, 1, 1).allowed


@given(st.lists(PATTERNS, max_size=4), PATTERNS, NAMES, PORTS)
def test_a_further_pattern_never_denies_a_connection(
    patterns: list[str], more: str, name: str, port: int
) -> None:
    host = Host.parse(name)
    if decide_egress(tunnels(patterns), host, port).allowed:
        assert decide_egress(tunnels([*patterns, more]), host, port).allowed


@settings(max_examples=200)
@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=2), RULES, METHODS, PATHS)
def test_adding_an_allow_never_denies_and_removing_one_never_allows(
    allow: list[str], deny: list[str], more: str, method: str, path: str
) -> None:
    before = decide(service(allow, deny), method, path).allowed
    after = decide(service([*allow, more], deny), method, path).allowed
    assert after or not before


@settings(max_examples=200)
@given(st.lists(RULES, max_size=3), st.lists(RULES, max_size=2), RULES, METHODS, PATHS)
def test_adding_a_deny_never_allows(
    allow: list[str], deny: list[str], more: str, method: str, path: str
) -> None:
    before = decide(service(allow, deny), method, path).allowed
    after = decide(service(allow, [*deny, more]), method, path).allowed
    assert before or not after


@given(METHODS, PATHS)
def test_without_an_allow_rule_everything_is_denied(method: str, path: str) -> None:
    assert not decide(service([], []), method, path).allowed


@settings(max_examples=300)
@given(st.data(), st.lists(RULES, max_size=4), st.lists(RULES, max_size=2), METHODS, PATHS)
def test_two_spellings_of_one_path_get_one_verdict(
    data: st.DataObject, allow: list[str], deny: list[str], method: str, path: str
) -> None:
    spelt = "".join(
        data.draw(st.sampled_from([c, f"%{ord(c):02x}", f"%{ord(c):02X}"])) if c != "/" else c
        for c in path
    )
    if data.draw(st.booleans()) and path != "/":
        spelt += "/"
    rulebook = service(allow, deny)
    one, two = decide(rulebook, method, path), decide(rulebook, method, spelt)
    assert (one.verdict, one.reason, one.rule) == (two.verdict, two.reason, two.rule)


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_request_raises(path: str, query: str) -> None:
    rulebook = service(["* /**"], [])
    decision = decide_request(
        rulebook, Host.parse("s.example"), 443, RequestFacts("GET", path, query)
    )
    assert decision.reason
