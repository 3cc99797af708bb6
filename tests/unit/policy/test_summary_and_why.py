"""Two views of one policy: whatever `why` allows is in the summary, and what is guarded is marked.

The summary is read here as a person reads it, from its lines alone: a request is shown if a line
names it. Policies are random, over the whole catalogue and services of their own; each guarded
endpoint of the catalogue is asked for (I3, I10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.inject.preset import Preset, PresetHost
from keyhole.model.decision import Route
from keyhole.model.host import Host, HostPattern
from keyhole.model.path import RequestPath
from keyhole.model.rule import ANY_METHOD, AccessRule
from keyhole.policy.build import PolicyContext
from keyhole.policy.explain import explain
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.load import PolicyText, load
from keyhole.policy.presets import join_presets
from keyhole.policy.request import RequestFacts
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import OPENED, summarise
from keyhole.policy.target import HostTarget, RequestTarget
from tests.rigs.policies import covered_suffix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.inject.catalogue import ServiceTemplate
    from keyhole.policy.policy import Policy
    from keyhole.policy.summary import GrantLine

CATALOGUE = FileCatalogue()
WORLD = PolicyContext(CATALOGUE, covered_suffix, ("python", "node"))
REPOSITORY = "acme/web"
FORGES = [name for name in CATALOGUE if CATALOGUE[name].forge and "azure" not in name]
OWN_HOSTS = ["own.example", "*.wild.example", "odd.example:8443"]


@dataclass(frozen=True)
class Shown:
    """What the lines say of one subject."""

    hosts: tuple[str, ...]
    allows: tuple[tuple[AccessRule, tuple[str, ...], bool], ...]
    """A rule, at which hosts (none: at all of them), and whether the line is marked."""
    repositories: tuple[str, ...]
    pushes: bool
    git_marked: frozenset[str]
    """The verbs of the lines on git that are marked."""
    level: str

    @classmethod
    def read(cls, lines: list[GrantLine]) -> Shown:
        """From the text, as it is printed."""
        found: dict[str, list[tuple[str, bool]]] = {}
        for line in lines:
            verb, _, rest = line.text.partition(" ")
            found.setdefault(verb, []).append((rest, line.alarm is not None))
        allows = []
        for rest, marked in found.get("allows", []):
            texts, _, at = rest.partition(" at ")
            places = tuple(at.split(", ")) if at else ()
            allows += [(AccessRule.parse(text), places, marked) for text in _rules(texts)]
        return cls(
            tuple(name for rest, _ in found["inspects"] for name in rest.split(", ")),
            tuple(allows),
            tuple(name for rest, _ in found.get("repositories", []) for name in rest.split(", ")),
            "pushes" in found or "creates" in found,
            frozenset(verb for verb, said in found.items() if any(marked for _, marked in said)),
            next((rest for rest, _ in found.get("API", [])), "off"),
        )


def _rules(texts: str) -> list[str]:
    """Rules are parted by a comma and a space; methods by a comma alone."""
    return texts.split(", ")


def shown_of(lines: tuple[GrantLine, ...], subject: str) -> Shown:
    return Shown.read([line for line in lines if line.subject == subject])


# Requests to try


def requests_of(rule: AccessRule) -> Iterator[RequestFacts]:
    """Some requests that a rule speaks of."""
    methods = ("GET", "POST") if ANY_METHOD in rule.methods else sorted(rule.methods - {"HEAD"})
    for deep in ((), ("x", "y")):
        segments: list[str] = []
        for segment in rule.path.segments:
            segments += deep if segment == "**" else [segment.replace("*", "x")]
        path = "/" + "/".join(segments).replace("{repo}", REPOSITORY)
        for method in methods[:2]:
            yield RequestFacts(method, path.replace("/x/x", f"/{REPOSITORY}", 1))


def tried(policy: Policy) -> Iterator[tuple[Host, int, RequestFacts]]:
    """At every host: its rules, the catalogue's guards of every entry that has it, git's own."""
    for service in policy.services:
        for entry in service.hosts:
            rules = [ranked.rule for ranked in entry.rules]
            for pattern in entry.patterns[:1]:
                host = Host.parse(f"a.{pattern.host}") if pattern.subdomains else pattern.host
                asked = [request for rule in rules for request in requests_of(rule)]
                asked += [request for guard in guards_at(host) for request in requests_of(guard)]
                asked += [
                    RequestFacts("GET", f"/{REPOSITORY}/info/refs", "service=git-upload-pack"),
                    RequestFacts("GET", f"/{REPOSITORY}/info/refs", "service=git-receive-pack"),
                    RequestFacts("POST", f"/{REPOSITORY}/git-upload-pack"),
                    RequestFacts("POST", f"/{REPOSITORY}/git-receive-pack"),
                    RequestFacts("GET", "/nothing/of/the/kind"),
                    RequestFacts("PUT", "/v1/x"),
                    RequestFacts("WEBSOCKET", "/v1/x"),
                    RequestFacts("GET+body", "/v1/x"),
                    RequestFacts("DELETE+body", "/v1/x"),
                ]
                yield from ((host, pattern.port, request) for request in dict.fromkeys(asked))


_GUARDS: dict[Host, list[AccessRule]] = {}


def guards_at(host: Host) -> list[AccessRule]:
    if host not in _GUARDS:
        _GUARDS[host] = [
            guard
            for template in CATALOGUE.values()
            for entry in template.hosts
            if any(pattern.matches(host) for pattern in entry.hosts)
            for guard in entry.deny
        ]
    return _GUARDS[host]


# Is it shown?


def _speaks(rule: AccessRule, request: RequestFacts) -> bool:
    path = RequestPath.parse(request.path, opaque_slash=True)
    return rule.allows(request.method) and rule.path.matches(path.segments)


def _guards(rule: AccessRule, request: RequestFacts) -> bool:
    path = RequestPath.parse(request.path, opaque_slash=True)
    return rule.speaks_of(request.method) and rule.path.folded().matches(path.folded())


def is_shown(
    shown: Shown,
    service: str | None,
    host: Host,
    port: int,
    request: RequestFacts,
    *,
    guarded: bool,
) -> bool:
    def at(places: tuple[str, ...]) -> bool:
        known = [place for place in places if not place.endswith(" more")]
        return len(known) < len(places) or any(
            pattern.port == port and pattern.matches(host) for pattern in map(_pattern, known)
        )

    if not at(shown.hosts):
        return False
    is_git = request.query.startswith("service=") or request.path.endswith(
        ("/git-receive-pack", "/git-upload-pack")
    )
    writes = "receive" in request.query + request.path
    marks = {"pushes", "creates"} if writes else {"repositories"}
    told = not guarded or bool(marks & shown.git_marked)
    if is_git and told and REPOSITORY in shown.repositories and (shown.pushes or not writes):
        return True
    if any(
        _speaks(rule, request) and (not places or at(places)) and (marked or not guarded)
        for rule, places, marked in shown.allows
    ):
        return True
    return not guarded and any(
        _guards(_expanded(rule), request) for rule in _level_rules(service, shown.level)
    )


def _pattern(text: str) -> HostPattern:
    return HostPattern.parse(text)


def _level_rules(service: str | None, level: str) -> list[AccessRule]:
    """What `keyhole services show` lists under the level that the summary names."""
    if service is None or level == "off":
        return []
    entries = CATALOGUE[service].hosts
    rules = [rule for entry in entries for rule in entry.api_read]
    if level == "pull-requests":
        rules += [rule for entry in entries for rule in entry.api_write]
    return rules


def _expanded(rule: AccessRule) -> AccessRule:
    return AccessRule.parse(rule.text.replace("{repo}", REPOSITORY))


def unshown(policy: Policy, templates: dict[str, str]) -> list[tuple[str, str]]:
    """Every request that is allowed and not shown, or guarded and not marked."""
    lines = summarise(policy, CATALOGUE.values())
    book = Rulebook(policy)
    missing = []
    views: dict[str, Shown] = {}
    for host, port, request in tried(policy):
        found = explain(book, RequestTarget(host, port, request))
        if not found.decision.allowed:
            continue
        if found.route is Route.TUNNEL:
            if not _tunnel_shown(lines, host, port):
                missing.append((f"{host}:{port}", "tunnel"))
            continue
        name = str(found.service)
        guarded = not str(found.decision.rule).startswith("catalogue.") and any(
            _guards(guard, request) for guard in guards_at(host)
        )
        if name not in views:
            views[name] = shown_of(lines, name)
        shown = views[name]
        template = templates.get(name)
        if not is_shown(shown, template, host, port, request, guarded=guarded):
            missing.append((f"{host}:{port}", f"{request.method} {request.path}"))
    for pattern in policy.allow:
        host = Host.parse(f"a.{pattern.host}") if pattern.subdomains else pattern.host
        assert explain(book, HostTarget(host, pattern.port)).decision.allowed
        if not _tunnel_shown(lines, host, pattern.port):
            missing.append((str(pattern), "tunnel"))
    return missing


def _tunnel_shown(lines: tuple[GrantLine, ...], host: Host, port: int) -> bool:
    texts = [line.text for line in lines if line.subject == "tunnels to"]
    texts += [line.text.removeprefix("tunnels ") for line in lines if line.text.startswith("tunn")]
    patterns = [HostPattern.parse(name) for text in texts for name in text.split(", ")]
    return any(p.port == port and p.matches(host) for p in patterns)


# Policies

_SEGMENTS = st.sampled_from(["v1", "user", "keys", "x", "*", "**", "repos", "graphql"])
_RANDOM_RULES = st.builds(
    lambda method, segments: f"{method} /" + "/".join(segments),
    st.sampled_from(
        [
            "GET",
            "POST",
            "*",
            "GET,DELETE",
            "POST,PUT,PATCH,DELETE",
            "WEBSOCKET",
            "GET+body,POST",
            "DELETE+body",
        ]
    ),
    st.lists(_SEGMENTS, max_size=4),
)


@st.composite
def _service(draw: st.DrawFn, taken: set[str]) -> tuple[str, str, str | None]:
    """Its name, its table, and its catalogue entry."""
    template: str | None = draw(st.sampled_from([*CATALOGUE, *FORGES * 4]))
    own = draw(st.integers(0, 3)) == 0
    words: dict[str, object] = {}
    known = CATALOGUE[str(template)]
    forge = known.forge is not None
    if own:
        template, name = None, draw(st.sampled_from(["mine", "other"]))
        pool = [str(p) for entry in known.hosts for p in entry.hosts] + OWN_HOSTS
        words["hosts"] = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique=True))
        if draw(st.booleans()):
            words["inject"] = {"header": "Authorization", "value": "Bearer {secret}"}
            words["secret"] = "store:x"
        forge = draw(st.booleans())
        if forge:
            words["forge"] = draw(st.sampled_from(["github", "gitea", "generic"]))
    else:
        name = str(template)
        if known.needs_hosts:
            words["hosts"] = [_example(known)]
        words["secret"] = "store:x"
    texts = [rule.text for entry in known.hosts for rule in (*entry.deny, *entry.allow)]
    exact = [f"{r.method} {r.path}" for e in known.hosts for d in e.deny for r in requests_of(d)]
    rules = st.one_of(
        st.sampled_from(texts or ["GET /**"]), st.sampled_from(exact or ["GET /x"]), _RANDOM_RULES
    ).filter(lambda text: "{repo}" not in text)
    if own or draw(st.booleans()):
        words["allow"] = draw(st.lists(rules, max_size=4, unique=True))
    if draw(st.booleans()):
        words["deny"] = draw(st.lists(rules, max_size=2, unique=True))
    if forge:
        words["repos"] = draw(st.sampled_from([[], [REPOSITORY]]))
        words["push"] = draw(st.sampled_from([[], ["agent/*"]]))
        words["api"] = draw(st.sampled_from(["off", "read", "pull-requests"]))
    if draw(st.integers(0, 5)) == 0:
        hosts = [str(p) for entry in known.hosts for p in entry.hosts]
        words["unsafe_passthrough"] = list(words.get("hosts", hosts))[:1]  # type: ignore[call-overload]
    if name in taken:
        reject()
    taken.add(name)
    table = "\n".join(f"{key} = {_toml(value)}" for key, value in words.items())
    return name, f"[services.{name}]\n{table}\n", template


def _example(known: ServiceTemplate) -> str:
    return known.hosts[0].example.replace("REGION", "eu-west-1").lower()


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return f"'{value}'"


@st.composite
def _policies(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    tunnels = draw(st.lists(st.sampled_from(["t.example", "*.u.example", "v.example:22"]),
                            max_size=2, unique=True))  # fmt: skip
    text = f"version = 1\n[egress]\nallow = {_toml(tunnels)}\n"
    taken: set[str] = set()
    templates = {}
    for _ in range(draw(st.integers(1, 2))):
        name, table, template = draw(_service(taken))
        text += table
        if template:
            templates[name] = template
    return text, templates


GIT_AT_A_DOWNLOAD_HOST = f"""
version = 1
[services.own]
hosts = ['codeload.github.com']
forge = 'github'
allow = []
repos = ['{REPOSITORY}']
push = ['agent/*']
api = 'off'
"""


def parsed(text: str) -> Policy:
    return load(PolicyText("keyhole.toml", text.encode()), None, WORLD).policy


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])  # fmt: skip
@given(_policies())
@example((GIT_AT_A_DOWNLOAD_HOST, {}))
def test_whatever_is_allowed_is_shown_and_whatever_is_guarded_is_marked(
    made: tuple[str, dict[str, str]],
) -> None:
    """I3, I10: for random policies."""
    text, templates = made
    try:
        policy = parsed(text)
    except PolicyFaults:
        reject()
    assert unshown(policy, templates) == [], text


def test_git_at_a_host_that_the_catalogue_has_for_downloads_is_marked() -> None:
    """I10. Control: the same repository at the forge's own host."""
    for host, marked in (("codeload.github.com", True), ("git.corp.example", False)):
        text = GIT_AT_A_DOWNLOAD_HOST.replace("codeload.github.com", host)
        lines = summarise(parsed(text), CATALOGUE.values())
        pushes = [line for line in lines if line.text.startswith("pushes")]
        assert [bool(line.alarm) for line in pushes] == [marked], lines


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_guarded_endpoint_that_is_opened_is_marked(name: str) -> None:
    """I10: each guard of each entry, opened by the very words that it has.

    Control: without the opening the same endpoints are refused, and no line is marked so.
    """
    known = CATALOGUE[name]
    hosts = f"hosts = ['{_example(known)}']\n" if known.needs_hosts else ""
    head = f"version = 1\n[services.{name}]\n{hosts}"
    closed = summarise(parsed(head), CATALOGUE.values())
    assert not [line for line in closed if line.alarm and "guarded" in line.alarm]
    guards = [g.text for e in known.hosts if e.inject or len(known.hosts) == 1 for g in e.deny]
    policy = parsed(f"{head}allow = {_toml(list(dict.fromkeys(guards)))}")
    lines = summarise(policy, CATALOGUE.values())
    marked = {line.text.partition(" at ")[0] for line in lines if line.alarm == OPENED}
    assert marked == {f"allows {guard}" for guard in guards}
    assert unshown(policy, {name: name}) == []


def test_what_presets_bring_is_shown_too() -> None:
    """I10: with the hosts and the rules that this host's settings name."""
    mirror = PresetHost(
        HostPattern.parse("mirror.corp.example"), (AccessRule.parse("GET /npm/**"),)
    )
    presets = [Preset("node", (mirror, PresetHost(HostPattern.parse("other.example"))))]
    policy, _ = join_presets(parsed("version = 1\n[egress]\npresets = ['node']"), presets)
    assert unshown(policy, {}) == []
    lines = summarise(policy)
    assert "allows GET /npm/** at mirror.corp.example" in [line.text for line in lines]


def test_a_reader_of_a_summary_that_hides_a_rule_notices() -> None:
    """The control of this file: a view that leaves out a git service's `allow` is caught."""
    policy = parsed("version = 1\n[services.github]\nallow = ['POST /user/keys']")
    assert unshown(policy, {"github": "github"}) == []
    honest = summarise(policy, CATALOGUE.values())
    hiding = tuple(line for line in honest if "/user/keys" not in line.text)
    plain = tuple(type(line)(line.subject, line.text) for line in honest)
    api = Host.parse("api.github.com")
    asked = RequestFacts("POST", "/user/keys")
    for lines, expected in ((honest, True), (hiding, False), (plain, False)):
        shown = shown_of(lines, "github")
        assert is_shown(shown, "github", api, 443, asked, guarded=True) is expected
