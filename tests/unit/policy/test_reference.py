"""What is shown of a policy: its grants, its values, its reference, a first draft."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from keyhole.inject.injection import BasicInjection
from keyhole.inject.preset import Preset, PresetHost
from keyhole.model.decision import Reason
from keyhole.model.host import Host, HostPattern
from keyhole.model.rule import AccessRule
from keyhole.model.secret import Secret
from keyhole.policy.effective_values import effective_values
from keyhole.policy.explain import explain
from keyhole.policy.policy_draft import (
    MAKE_KEY,
    DraftServer,
    DraftService,
    DraftSigning,
    PolicyDraft,
    write_policy,
)
from keyhole.policy.presets import join_presets
from keyhole.policy.reference import json_schema, key_table
from keyhole.policy.request import RequestFacts, decide_request
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.schema import DEFAULT_DENY_PATHS, KEYS
from keyhole.policy.summary import OPENED, summarise
from keyhole.policy.target import parse_target
from tests.rigs.policies import CATALOGUE, loaded
from tests.unit.policy.test_load import FULL


def summary(text: str) -> dict[str, str | None]:
    lines = summarise(loaded(text).policy)
    return {f"{line.subject}: {line.text}": line.alarm for line in lines}


def test_a_home_that_stays_is_marked_and_a_cache_is_named() -> None:
    lines = summary('[sandbox]\nhome = "keep"\ncaches = ["npm", "uv"]\n')
    assert lines["sandbox: keeps its home for later runs"]
    assert lines["sandbox: keeps caches of npm, uv"] is None
    assert not [line for line in summary('[sandbox]\nhome = "fresh"\n') if "keeps" in line]


def test_all_that_reaches_into_the_host_is_marked() -> None:
    """I11: what a hostile policy would want is what a person is shown first."""
    lines = summary(FULL)
    assert "billing: clients speak HTTP/2 alone" in lines
    marked = {text for text, alarm in lines.items() if alarm}
    assert marked == {
        "sandbox: signs commits with ~/.ssh/agent_ed25519.pub",
        "sandbox: unsafe paths ~/.aws",
        "sandbox: passes EDITOR",
        "sandbox: keeps /cache (cache), ~/.cargo/registry (crates-1)",
        "sandbox: publishes port 8123, 3000, 3001",
        "sandbox: reaches port 11434, 5432 of this host",
        "sandbox: lets peers connect to port 8080 from 192.0.2.0/24",
        "approvals: asks notify --ask",
        "forge: secret exec:gh auth token",
        "forge: pushes agent/* (forward, force, delete)",
        "forge: protects release/**",
        "forge: pushes CI definitions",
        "forge: push options ci.skip",
        "billing: secret file:~/.secrets/billing",
        "billing: tunnels billing.corp.example",
        "billing: returns cookie:billing_sid, header:etag",
        "billing: keeps the client's x-user-id",
        "queues: secret store:queues",
        "server: answers the server's roots",
        "thinker: opens web-search, tool:shiny",
        "tracker: secret login:tracker",
        "upstream: private addresses for *.corp.example",
        "upstream: billing.corp.example:443 is dialled at 10.0.3.7:8443",
        "upstream: example.org:443 is dialled at [2001:db8::1]:443",
        "upstream: trusts certificates of ~/ca.pem",
        "upstream: goes through http://proxy.corp.example:3128",
    }


def test_a_secret_that_goes_where_the_catalogue_says_is_no_alarm() -> None:
    lines = summary("[services.model]\nsecret = 'store:m'")
    assert lines["model: secret store:m"] is None
    moved = summary("[services.model]\nsecret = 'store:m'\nhosts = ['evil.example']")
    assert moved["model: secret store:m"] == "sends it where this policy says"


def test_the_allow_of_a_git_service_is_shown_and_what_it_opens_is_marked() -> None:
    """I10: an `allow` beside `repos` is a grant as well. Control: without it there is no line."""
    text = "[services.forge]\nsecret = 'store:f'\nrepos = ['a/b']\n"
    assert not [line for line in summary(text) if "allows" in line]
    lines = summary(f"{text}allow = ['POST /repos/a/b/keys', 'GET /emojis']")
    assert lines["forge: allows GET /emojis"] is None
    assert lines["forge: allows POST /repos/a/b/keys"] == OPENED
    assert lines["forge: API read"] is None
    bare = summary("[services.g]\nhosts = ['g.example']\nforge = 'generic'\nallow = ['PUT /x']")
    assert bare["g: allows PUT /x"] is None


def test_rules_that_differ_between_hosts_are_shown_with_their_hosts() -> None:
    lines = summary("[services.model]\nallow = ['POST /v1/files', 'GET /v1/x']")
    assert lines["model: allows GET /v1/x at api.model.example"] is None
    assert lines["model: allows POST /v1/files at api.model.example"] == OPENED
    assert lines["model: allows GET /** at cdn.model.example"] is None


def test_a_service_of_ones_own_is_marked_where_the_catalogue_guards_the_same_host() -> None:
    """I10: under another name no guard holds. Control: elsewhere, and what no guard names."""
    text = "[services.x]\nhosts = ['{host}']\nallow = ['POST /v1/{path}', 'GET /ok']"

    def alarms(host: str, path: str) -> list[str | None]:
        policy = loaded(text.format(host=host, path=path)).policy
        lines = summarise(policy, CATALOGUE.values())
        return [line.alarm for line in lines if line.text.startswith("allows")]

    guarded = (
        "covers what is guarded in the service model, which can mint, list or move credentials "
        "or data"
    )
    assert alarms("api.model.example", "**") == [None, guarded]
    assert alarms("*.model.example", "keys/x") == [None, guarded]
    assert alarms("api.model.example", "chat") == [None]
    assert alarms("other.example", "**") == [None]
    model = loaded("[services.model]").policy
    assert not [line for line in summarise(model, CATALOGUE.values()) if line.alarm]


def test_a_wildcard_host_that_gets_a_secret_is_marked() -> None:
    """I1: a name that somebody else registers under it would get the secret."""
    head = "[services.x]\nhosts = ['*.corp.example', 'a.example']\nallow = []\n"
    secret = "secret = 'store:x'\ninject = { header = 'A', value = '{secret}' }"
    marked = "x: secret for *.corp.example"
    assert summary(head + secret)[marked] == "any *.corp.example host gets it"
    assert marked not in summary(head)
    git = "[services.x]\nhosts = ['*.corp.example']\nforge = 'generic'\nsecret = 'store:x'"
    assert marked in summary(git)


def test_the_image_is_shown() -> None:
    text = "[sandbox]\nruntime = 'docker'\nimage = 'debian:12'"
    assert "sandbox: image debian:12" in summary(text)


def test_an_empty_policy_writes_the_project_and_grants_no_more() -> None:
    assert summary("") == {"sandbox: bwrap, writes .": None}
    viewed = summary("[sandbox]\nchanges = 'review'")
    assert viewed == {"sandbox: bwrap, works on a view of ., whose changes you review": None}
    nothing = summary("[sandbox]\nwritable = []\n[services.forge]")
    assert "sandbox: bwrap, writes nothing" in nothing
    assert "forge: repositories nothing" in nothing


def test_bodies_websockets_and_kept_headers_are_shown() -> None:
    """I11: what is granted beside the methods is seen before it is accepted."""
    text = (
        "[services.own]\nhosts = ['own.example']\n"
        "allow = ['GET /x', 'GET+body /_search', 'WEBSOCKET /live']\n"
    )
    assert "own: allows GET /x, GET+body /_search, WEBSOCKET /live" in summary(text)
    assert values(text)["services.own.allow"][0] == "[GET /x, GET+body /_search, WEBSOCKET /live]"
    kept = summary(text + "unsafe_keep = ['header:X-User-Id']")
    assert kept["own: keeps the client's x-user-id"] == "it says itself who asks"
    assert not any("keeps" in line for line in summary(text))


def test_pushing_ci_definitions_is_marked() -> None:
    text = "[services.forge]\nrepos = ['a/b']\npush = ['x']\ndeny_paths = []"
    assert summary(text)["forge: pushes CI definitions"]
    decoy = text.replace("deny_paths = []", "deny_paths = ['zz']\nprotect = ['zz']")
    assert summary(decoy)["forge: pushes CI definitions"]
    assert summary(decoy)["forge: protects zz"]
    mine = [path for path in DEFAULT_DENY_PATHS if path not in ("netlify.toml", "vercel.json")]
    few = text.replace("deny_paths = []", f"deny_paths = {mine}")
    assert summary(few)["forge: pushes vercel.json, netlify.toml"]
    kept = text.replace("\ndeny_paths = []", "")
    assert "forge: pushes CI definitions" not in summary(kept)


def test_many_hosts_of_the_catalogue_are_counted_but_the_policys_own_are_all_shown() -> None:
    names = [f"h{i}.example" for i in range(9)]
    text = f"[services.tenant]\nhosts = {names}\nsecret = 'store:t'"
    shown = next(t for t in summary(text) if t.startswith("tenant: inspects"))
    assert all(name in shown for name in names)
    lines = summarise(join_presets(loaded("").policy, [big_preset(9)])[0])
    assert lines[-2].text.endswith("3 more")


def big_preset(count: int) -> Preset:
    hosts = (PresetHost(HostPattern.parse(f"i{n}.example")) for n in range(count))
    return Preset("python", tuple(hosts))


# Values


def values(text: str, user: str | None = None) -> dict[str, tuple[str, str]]:
    policy = loaded(text, user)
    return {v.key: (v.text, v.source) for v in effective_values(policy, policy.policy)}


def test_each_value_says_where_it_is_from() -> None:
    found = values(
        "[limits]\nttl = '90m'\n[services.model]\n[services.forge]\nrepos = ['a/b']",
        "[limits]\nbody = '1MiB'\n[services.model]\nsecret = 'store:mine'",
    )
    assert found["limits.ttl"] == ("1h30m", "keyhole.toml:3")
    assert found["limits.body"] == ("1MiB", "config.toml:2")
    assert found["limits.idle"] == ("4h", "default")
    assert found["egress.allow"] == ("[]", "default")
    assert found["services.model.secret"] == ("store:mine", "config.toml:4")
    assert found["services.model.env"] == ("[MODEL_KEY]", "catalogue model")
    assert found["services.model.hosts"][1] == "catalogue model"
    assert "keyhole services show model" in found["services.model.allow"][0]
    assert found["services.forge.force"] == ("false", "default")


def test_values_are_written_as_a_person_writes_them() -> None:
    found = values(FULL)
    assert found["sandbox.git_hooks"][0] == "true"
    assert found["services.billing.allow"][0] == "[GET /v1/**, POST /v1/quotes]"
    assert found["services.billing.placeholder"][0] == "bk-{hex:32}"
    assert found["limits.memory"][0] == "512MiB"
    assert found["limits.cpus"][0] == "1.5"
    single = values("[services.tenant]\nhosts = ['t.example']")
    assert single["services.tenant.allow"] == ("[GET /**]", "catalogue tenant")


# Presets


def test_a_preset_becomes_a_service_that_only_reads() -> None:
    """I1, I6: its credential is injected at its host and nowhere else, and publishing is denied."""
    preset = Preset(
        "node",
        (
            PresetHost(
                HostPattern.parse("npm.corp.example"),
                (AccessRule.parse("GET /**"), AccessRule.parse("POST /-/npm/v1/security/**")),
                BasicInjection("me"),
                Secret("hunter2-hunter2"),
            ),
            PresetHost(HostPattern.parse("mirror.example:80")),
        ),
        sources=("~/.npmrc",),
        notes=("a note",),
    )
    policy, notes = join_presets(loaded("[egress]\npresets = ['node']").policy, [preset])
    book = Rulebook(policy)
    npm = Host.parse("npm.corp.example")

    def reason(method: str, path: str) -> Reason:
        return decide_request(book, npm, 443, RequestFacts(method, path)).reason

    assert reason("GET", "/@scope%2fname") is Reason.RULE
    assert reason("POST", "/-/npm/v1/security/audits") is Reason.RULE
    assert reason("PUT", "/@scope%2fname") is Reason.NO_RULE
    assert reason("POST", "/-/npm/v1/tokens") is Reason.NO_RULE
    assert reason("POST", "/-/npm/v1/security/x%2f..%2f..%2ftokens") is Reason.PATH_MALFORMED
    assert notes == ("preset.node: a note",)
    found = explain(book, parse_target(("https://npm.corp.example/x",), "GET"))
    assert found.injected == ("header Authorization: Basic me:{secret}",)
    assert "hunter2" not in repr(policy)
    written = effective_values(loaded(""), policy)
    assert ("preset.node", "npm.corp.example, mirror.example:80", "~/.npmrc") in [
        (v.key, v.text, v.source) for v in written
    ]


def test_what_the_file_says_of_a_host_speaks_before_a_preset() -> None:
    text = "[egress]\nallow = ['i0.example']\n[services.x]\nhosts = ['i1.example']\nallow = []"
    policy, notes = join_presets(loaded(text).policy, [big_preset(3)])
    assert [str(p) for p in policy.services[1].patterns] == ["i2.example"]
    assert notes == (
        "preset.python: i0.example is left to egress.allow",
        "preset.python: i1.example is left to services.x",
    )


def test_presets_share_a_mirror_each_with_its_own_rules_and_credential() -> None:
    """I4: a credential goes to the path it was found for, and nowhere else on the host."""
    mirror = HostPattern.parse("mirror.corp.example")
    reads = (AccessRule.parse("GET /npm/**"),)
    node = PresetHost(mirror, reads, BasicInjection("n"), Secret("s" * 20))
    presets = [Preset("python", (PresetHost(mirror),)), Preset("node", (node,))]
    book = Rulebook(join_presets(loaded("").policy, presets)[0])

    def injected(path: str) -> tuple[str, ...]:
        target = parse_target((f"https://mirror.corp.example{path}",), "GET")
        found = explain(book, target)
        assert found.decision.allowed
        return found.injected

    assert injected("/npm/x") == ("header Authorization: Basic n:{secret}",)
    assert injected("/pypi/x") == ()


# The reference


def test_the_schema_accepts_what_the_reader_accepts() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())
    jsonschema.validate(tomllib.loads("version = 1\n" + FULL), json_schema())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 2",
        "version = 1\n[egres]",
        "version = 1\n[services.x]\nsecert = 'store:x'",
        "version = 1\n[services.x]\nsecret = 'sk-live'",
        "version = 1\n[limits]\nbody = '5mb'",
        "version = 1\n[limits]\nconnections = 0",
        "version = 1\n[sandbox]\nruntime = 'vm'",
        "version = 1\n[egress]\nallow = ['a.example', 'a.example']",
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), json_schema())


def test_the_schema_completes_services_and_presets() -> None:
    schema = json_schema(["github", "anthropic"], ["python", "node"])
    jsonschema.Draft7Validator.check_schema(schema)
    services = schema["properties"]["services"]
    assert list(services["properties"]) == ["anthropic", "github"]
    text = """version = 1
[egress]
presets = ["python"]
[services.github]
repos = ["acme/widgets"]
[services.my-own]
use = "anthropic"
"""
    jsonschema.validate(tomllib.loads(text), schema)
    for wrong in (('"python"', '"pyhton"'), ('"anthropic"', '"antropic"'), ("repos", "repso")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(text.replace(*wrong)), schema)


def test_the_reference_has_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `([^`]+)`", key_table(), re.MULTILINE)
    assert rows == [key.dotted for key in KEYS]
    schema: dict[str, Any] = json_schema()
    assert schema["properties"]["limits"]["properties"]["ttl"]["description"].endswith("1d.")


# A first draft


def test_a_draft_recommends_a_key_for_agents_or_names_the_one_that_is_there() -> None:
    service = DraftService("forge", "store:forge", "acme/widgets")
    person = "Ada <ada@corp.example>"
    advised = write_policy(PolicyDraft((), (service,), DraftSigning(person)))
    assert f"`{MAKE_KEY}`" in advised
    assert loaded(advised.replace("version = 1\n", "", 1)).policy.sandbox.sign is None
    signed = write_policy(PolicyDraft((), (service,), DraftSigning(person, ready=True)))
    box = loaded(signed.replace("version = 1\n", "", 1)).policy.sandbox
    assert box.sign == "~/.ssh/agent_ed25519.pub"
    assert str(box.git_user) == person


def test_a_draft_is_a_valid_policy() -> None:
    draft = PolicyDraft(
        ("python",),
        (
            DraftService("model", "store:model"),
            DraftService("forge", "exec:gh auth token", "acme/widgets"),
            DraftService("git", "store:git", "Team/x", "git.corp.example", "generic"),
        ),
    )
    text = write_policy(draft).replace("version = 1\n", "", 1)
    policy = loaded(text).policy
    assert [s.name for s in policy.services] == ["model", "forge", "git"]
    assert policy.presets == ("python",)
    assert policy.services[2].git is not None
    assert loaded(write_policy(PolicyDraft()).replace("version = 1\n", "", 1)).policy.services == ()


def test_a_service_without_a_secret_yet_is_a_comment_and_a_repository_is_read_without_one() -> None:
    draft = PolicyDraft(
        (),
        (
            DraftService("model", "store:model", title="Agent", fix="keyhole secret set model"),
            DraftService("forge", "exec:gh auth token", "acme/widgets", fix="gh auth login"),
        ),
        schema="file:///state/policy.schema.json",
    )
    text = write_policy(draft)
    assert text.startswith("#:schema file:///state/policy.schema.json\n# ")
    assert "# Agent\n# When `keyhole secret set model` has made" in text
    policy = loaded(text.replace("version = 1\n", "", 1)).policy
    (forge,) = policy.services
    assert (forge.name, forge.secret) == ("forge", None)
    # With the marks taken away it is valid, too.
    opened = re.sub(r"^# (\[services|secret)", r"\1", text, flags=re.MULTILINE)
    services = loaded(opened.replace("version = 1\n", "", 1)).policy.services
    assert [str(service.secret) for service in services] == ["store:model", "exec:gh auth token"]


SERVER = DraftServer(
    "tracker",
    "A server",
    "login:tracker",
    "mcp.tracker.example",
    "https://mcp.tracker.example/api/mcp",
    ("get_*", "list_*"),
    "keyhole login tracker",
    narrowed=True,
)


def test_a_server_is_written_before_its_login_is_made() -> None:
    """`keyhole login` is for a service that the policy has."""
    text = write_policy(PolicyDraft(servers=(SERVER,)))
    assert "# A server\n[services.tracker]\n" in text
    assert 'secret = "login:tracker"   # `keyhole login tracker` makes it\n' in text
    assert "which may be a token" in text
    text = text.replace('use    = "mcp"', 'use = "server"')
    (service,) = loaded(text.replace("version = 1\n", "", 1)).policy.services
    assert str(service.login.url) == "https://mcp.tracker.example/api/mcp"
    assert service.mcp is not None
    assert [str(tool) for tool in service.mcp.tools] == ["get_*", "list_*"]
    known = write_policy(PolicyDraft(servers=(DraftServer("server", "Known", tools=("a",)),)))
    assert '[services.server]\ntools  = ["a"]' in known


def test_a_server_that_only_the_project_names_is_a_comment() -> None:
    text = write_policy(PolicyDraft(servers=(replace(SERVER, agreed=False),)))
    assert loaded(text.replace("version = 1\n", "", 1)).policy.services == ()
    assert "# [services.tracker]\n" in text


def test_advice_about_a_better_secret_stands_above_the_service() -> None:
    service = DraftService("forge", "store:forge", "acme/widgets", advice="an app's is safer")
    text = write_policy(PolicyDraft((), (service,)))
    assert "# an app's is safer\n[services.forge]\n" in text


def test_a_hostile_remote_cannot_write_keys_into_a_draft() -> None:
    text = write_policy(
        PolicyDraft((), (DraftService("git", 'store:"]\n[egress]\nallow=["evil"', 'a"\nb'),))
    )
    tree = tomllib.loads(text)
    assert tree["egress"]["allow"] == []
    assert tree["services"]["git"]["repos"] == ['a"\nb']
