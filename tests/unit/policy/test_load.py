"""A policy file becomes a Policy, or says everything that is wrong with it at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keyhole.inject.injection import BasicInjection, HeaderInjection
from keyhole.inject.slots import Slot
from keyhole.inject.token_usage import UsageFormat
from keyhole.model.glob import Glob
from keyhole.model.host import Host
from keyhole.model.rule import AccessRule
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.policy.budget import Budget, ServiceLimits
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.load import PolicyText, load
from keyhole.policy.mcp_grant import McpGrant, ServerRequest, ToolGrant, read_resource
from keyhole.policy.policy import Tier
from keyhole.policy.request import RequestFacts, decide_request
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.schema import KEYS, ApiAccess, HomeMode, HttpVersion, RuntimeName
from tests.rigs.policies import CATALOGUE, WORLD, faults, loaded, messages

OWN = """
[services.{0}]
hosts  = ["{1}"]
inject = {{ header = "x-key", value = "{{secret}}" }}
secret = "store:{0}"
allow  = ["{2}"]
"""


def sharing(allow: str, first: str = "GET,POST /a/**") -> str:
    """Two services at one host."""
    return OWN.format("one", "api.own.example", first) + OWN.format("two", "api.own.example", allow)


FULL = """
[sandbox]
runtime = "docker"
image = "debian:12"
writable = [".", "~/cache"]
readable = ["/opt/tools"]
unsafe_paths = ["~/.aws"]
env = { MODE = "ci" }
pass_env = ["EDITOR"]
changes = "direct"
git_hooks = true
git_user = "Ada King <ada@corp.example>"
sign = "ssh:~/.ssh/agent_ed25519.pub"
volumes = { "/cache" = "cache", "~/.cargo/registry" = "crates-1" }
home = "fresh"
caches = []
publish = [8123, "5173:3000", "0:3001"]
host_ports = [11434, 5432]
inbound = ["8080 from 192.0.2.0/24"]
[egress]
allow = ["example.org", "*.example.org", "db.corp.example:5432"]
presets = ["python", "node"]
[services.model]
secret = "store:model"
requests_per_second = 3
concurrent_requests = 2
bodies = { "POST /v1/messages" = "1MiB" }
[services.model.budget]
requests = 100
upload = "1MiB"
download = "2MiB"
tokens = 50000000
session = "5 USD"
day = "20USD"
month = "99.50 USD"
ask = "75%"
[services.model.prices]
m-1 = { input = "3 USD", output = "15 USD" }
[services.thinker]
secret = "store:thinker"
features = ["web-search", "tool:shiny"]
models = ["small-*"]
max_tokens = 4000
[services.queues]
hosts = ["queues.corp.example"]
secret = "store:queues"
operations = ["Describe*", "copy", "query:torrent"]
[services.forge]
secret = "exec:gh auth token"
secret_life = "1h"
repos = ["Acme/Widgets.git", "acme/docs/"]
push = ["agent/*"]
create = false
force = true
delete = true
tags = ["v*"]
protect = ["release/**"]
deny_paths = ["ci/**"]
push_options = ["ci.skip"]
api = "pull-requests"
[services.billing]
hosts = ["billing.corp.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/.secrets/billing"
allow = ["GET /v1/**", "POST /v1/quotes"]
allow_also = ["PUT /v1/quotes/*"]
deny = ["GET /v1/admin/**"]
strip = ["header:x-corp"]
unsafe_keep = ["header:x-user-id"]
env = ["BILLING_KEY"]
placeholder = "bk-{hex:32}"
encoded_slash = true
http = "2"
unsafe_passthrough = ["billing.corp.example"]
unsafe_return = ["cookie:billing_sid", "header:ETag"]
[services.server]
tools = ["list_*", { name = "get_issue", where = { team = ["ENG", "OPS"], limit = 10 } }]
resources = ["docs://guide/*"]
prompts = ["review_*"]
server_requests = ["roots"]
endpoints = ["/mcp?read_only=true"]
pin = true
[services.tracker]
hosts = ["mcp.tracker.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "login:tracker"
allow = ["POST /mcp"]
[services.tracker.login]
url = "https://mcp.tracker.example/mcp"
issuer = "https://auth.tracker.example"
client = "keyhole-at-work"
client_secret = "store:tracker-client"
scopes = ["read"]
[limits]
requests_per_second = 7
concurrent_requests = 6
connections = 8
connections_per_second = 9
dns_per_second = 10
upload = "1GB"
download = "2GiB"
body = "1 MiB"
body_time = "1m"
memory = "512MiB"
processes = 11
cpus = 1.5
home = "2GiB"
on_decoy = "freeze"
ttl = "1h30m"
idle = "90s"
audit_per_second = 12
[approvals]
ask = ["hosts", "pushes"]
wait = "90s"
most_pending = 5
command = "notify --ask"
[upstream]
ca_file = "~/ca.pem"
proxy = "http://proxy.corp.example:3128"
private = ["*.corp.example"]
[upstream.connect]
"billing.corp.example:443" = "10.0.3.7:8443"
"example.org:443" = "[2001:db8::1]:443"
"""


def test_every_key_of_the_reference_is_read_into_its_type() -> None:
    policy = loaded(FULL).policy
    assert policy.sandbox.runtime is RuntimeName.DOCKER
    assert policy.sandbox.writable == (".", "~/cache")
    assert policy.sandbox.env == (("MODE", "ci"),)
    assert policy.sandbox.volumes == (("/cache", "cache"), ("~/.cargo/registry", "crates-1"))
    assert (policy.sandbox.home, policy.sandbox.caches) == (HomeMode.FRESH, ())
    assert policy.limits.home == 2 << 30
    assert list(map(str, policy.sandbox.publish)) == ["8123", "5173:3000", "0:3001"]
    assert policy.sandbox.host_ports == (11434, 5432)
    assert policy.sandbox.uses_ports
    assert not loaded("").policy.sandbox.uses_ports
    assert [str(p) for p in policy.allow] == [
        "example.org",
        "*.example.org",
        "db.corp.example:5432",
    ]
    model, thinker, queues, forge, billing, server, _ = policy.services
    assert queues.operations == ("Describe*", "copy", "query:torrent")
    assert model.secret == SecretRef(SecretScheme.STORE, "model")
    assert thinker.features == ("web-search", "tool:shiny")
    assert (thinker.models, thinker.max_tokens) == (("small-*",), 4000)
    assert forge.git is not None
    assert sorted(map(str, forge.git.repos)) == ["acme/docs", "acme/widgets"]
    assert (forge.git.create, forge.git.force, forge.git.delete) == (False, True, True)
    assert forge.git.deny_paths == (Glob(("ci", "**")),)
    assert forge.git.push_options == {"ci.skip"}
    assert forge.git.api is ApiAccess.PULL_REQUESTS
    assert forge.git.user == "token-user"
    assert billing.hosts[0].inject == (HeaderInjection("Authorization", "Bearer {secret}"),)
    assert billing.hosts[0].encoded_slash
    assert (billing.http, model.http) == (HttpVersion.HTTP2, None)
    named = (Slot.parse("cookie:billing_sid"), Slot.parse("header:etag"))
    assert billing.returned == billing.hosts[0].returned == named
    # A cookie that comes back must be able to go.
    assert billing.hosts[0].keep == (Slot.parse("header:X-User-Id"), *named[:1])
    assert model.returned == model.hosts[0].returned == ()
    assert billing.placeholder is not None
    assert server.mcp == McpGrant(
        (ToolGrant("list_*"), ToolGrant("get_issue", (("team", ("ENG", "OPS")), ("limit", (10,))))),
        (read_resource("docs://guide/*"),), ("review_*",), frozenset({ServerRequest.ROOTS}),
        ("/mcp?read_only=true",), pin=True,
    )  # fmt: skip
    assert billing.mcp is None
    assert model.limits == ServiceLimits(
        3, 2, ((AccessRule.parse("POST /v1/messages"), 2**20),),
        Budget(100, 2**20, 2**21, 50_000_000, 5 * 10**9, 20 * 10**9, 99_500_000_000, 75),
    )  # fmt: skip
    assert (forge.limits, billing.limits) == (None, None)
    assert model.hosts[0].usage == (UsageFormat.OPENAI,)
    assert policy.limits.requests_per_second == 7
    assert policy.limits.concurrent_requests == 6
    assert policy.limits.body == 1024**2
    assert policy.limits.ttl == 5400.0
    assert [(str(e), str(a)) for e, a in policy.upstream.connect] == [
        ("billing.corp.example:443", "10.0.3.7:8443"),
        ("example.org:443", "[2001:db8::1]:443"),
    ]


def test_the_full_policy_names_every_key_there_is() -> None:
    written = loaded(FULL)
    found = {".".join("N" if i == 1 and p[0] == "services" else str(s) for i, s in enumerate(p))
             for p in written.project}  # fmt: skip
    assert {key.dotted for key in KEYS} - found == {"services.N.use", "services.N.forge"}


def test_an_empty_policy_grants_nothing() -> None:
    """I3: every default denies."""
    policy = loaded("").policy
    assert (policy.allow, policy.services, policy.presets) == ((), (), ())
    assert policy.sandbox.writable == (".",)
    assert policy.upstream.connect == ()


def test_all_faults_are_told_at_once_with_their_places() -> None:
    found = faults(
        """
[egress]
allow = ["example.org", "bad host", "*.com", "x:99999"]
presets = ["pyton"]
[services.model]
secert = "store:x"
[services.forge]
secret = "sk-live-1234"
repos = ["acme/widgets", "https://git.example/acme/docs"]
[services.modle]
[limits]
ttl = "1 day"
"""
    )
    places = " ".join(f"{f.span.line}:{f.span.column}" for f in found)
    assert places == "4:25 4:37 4:46 5:12 7:1 9:10 10:26 11:11 13:7"


def test_a_secret_written_into_the_policy_is_not_repeated() -> None:
    """I1: messages end up in CI logs, so neither they nor the quoted line show it."""
    fault = faults('[services.model]\nsecret = "sk-live-1234"  # mine')[0]
    assert "sk-live-1234" not in fault.render()
    assert '3 | secret = "…"  # mine' in fault.render()
    assert loaded('[services.model]\nsecret = "store:sk"').policy.services[0].secret


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        # keys
        ("[egres]", "unknown key 'egres' at the top of the policy", "did you mean 'egress'?"),
        ("[limits]\nrequest_per_second = 1", "unknown key", "requests_per_second"),
        ("allow = []", "unknown key 'allow' at the top", "egress.allow or services.N.allow"),
        ("[upstream]\nzzz = 1", "unknown key 'zzz' in [upstream]", "known here: ca_file"),
        ("egress = 3", "'egress' is a table", "[egress]"),
        ("services = 3", "'services' is a table", "[services]"),
        ("[services]\nmodel = 3", "'model' is a table", "[services.model]"),
        ('[services."a b"]', "a service's name has letters", None),
        # types
        ("[egress]\nallow = 'example.org'", "a list is expected, not a text", '["example.org"]'),
        ("[egress]\nallow = [1]", "a text is expected, not a number", None),
        ("[egress]\nallow = [1979-05-27]", "a text is expected, not a date", None),
        ("[sandbox]\ngit_hooks = 'yes'", "true or false is expected, not a text", None),
        ("[sandbox]\nenv = ['A']", "a table is expected, not a list", None),
        ("[sandbox]\nenv = { A = 1 }", "a variable's value is a text", None),
        ("[sandbox]\nenv = { 'A-B' = '1' }", "a variable's name has", None),
        ("[sandbox]\npass_env = ['A=B']", "a variable's name has", None),
        ("[sandbox]\nimage = ''", "at least one character", None),
        ('[sandbox]\nwritable = ["a\\u0000b"]', "no control characters", None),
        ("[sandbox]\nruntime = 'dokcer'", "one of bwrap, docker, podman", "docker"),
        ("[sandbox]\nruntime = 'zzzz'", "one of bwrap, docker, podman", None),
        ("[sandbox]\nimage = 'x'", "an image is for docker or podman", 'runtime = "docker"'),
        ("[sandbox]\nvolumes = { '/c' = 'x' }", "volumes are for docker", 'runtime = "docker"'),
        ("[sandbox]\nruntime = 'docker'\nimage = 'x'\nhome = 'keep'", "is for bwrap", None),
        ("[sandbox]\nruntime = 'podman'\nimage = 'x'\ncaches = ['npm']", "are for bwrap", None),
        ("[sandbox]\nhome = 'keeps'", "one of fresh, keep is expected", "keep"),
        ("[sandbox]\ncaches = ['nmp']", "one of pip, npm, uv, cargo", "npm"),
        ("[sandbox]\nvolumes = { 'c' = 'x' }", "a place is a plain path", None),
        ("[sandbox]\nvolumes = { '~' = 'x' }", "a place is a plain path", None),
        ("[sandbox]\nvolumes = { '/a/../etc' = 'x' }", "a place is a plain path", None),
        ("[sandbox]\nvolumes = { '/c/' = 'x' }", "a place is a plain path", None),
        ("[sandbox]\nvolumes = { '/c' = '../x' }", "a volume's name has up to 63", None),
        ("[sandbox]\npublish = 8123", "a list is expected, not a number", None),
        ("[sandbox]\npublish = [true]", 'a port is expected, as 8123 or "5173:3000"', None),
        ("[sandbox]\npublish = ['a:3000']", 'a port is expected, as 8123 or "5173:3000"', None),
        ("[sandbox]\npublish = ['3000:']", 'a port is expected, as 8123 or "5173:3000"', None),
        ("[sandbox]\npublish = ['03000']", 'a port is expected, as 8123 or "5173:3000"', None),
        ("[sandbox]\npublish = [80]", "a port is a number from 1024 to 65535", None),
        ("[sandbox]\npublish = ['80:3000']", "a port is a number from 1024 to 65535", None),
        ("[sandbox]\npublish = ['0:80']", "a port is a number from 1024 to 65535", None),
        ("[sandbox]\npublish = [0]", "a port is a number from 1024 to 65535", None),
        ("[sandbox]\npublish = [15001]", "port 15001 inside is the door's own", None),
        ("[sandbox]\npublish = [3000, '3000:3001']", "port 3000 of this host is named twice", None),
        (f"[sandbox]\npublish = {list(range(3000, 3017))}", "at most 16 ports are published", None),
        ("[sandbox]\nhost_ports = ['5432']", "a port is expected, as 11434", None),
        ("[sandbox]\nhost_ports = [22]", "a port is a number from 1024 to 65535", None),
        ("[sandbox]\nhost_ports = [15001]", "port 15001 inside is the door's own", None),
        (f"[sandbox]\nhost_ports = {list(range(3000, 3017))}", "at most 16 ports are used", None),
        (
            "[sandbox]\npublish = ['0:3000']\nhost_ports = [3000]",
            "port 3000 inside is published, and cannot lead to the host too",
            None,
        ),
        ("[limits]\nconnections = true", "a whole number is expected, not a boolean", None),
        ("[limits]\nconnections = 1.5", "a whole number is expected, not a number", None),
        ("[limits]\nconnections = 0", "a number from 1 to", None),
        ("[limits]\ncpus = '2'", "a number is expected, not a text", None),
        ("[limits]\ncpus = true", "a number is expected, not a boolean", None),
        ("[limits]\ncpus = 0", "a number from 0.01 to", None),
        ("[limits]\ncpus = nan", "a number from 0.01 to", None),
        ("[limits]\ncpus = inf", "a number from 0.01 to", None),
        ("[limits]\nbody = '5mb'", "a size is a number and a unit", "5MiB"),
        ("[limits]\nidle = '5'", "a duration is numbers with units", None),
        # hosts
        ("[egress]\nallow = ['*.com']", "covers the public suffix 'com'", "name the hosts"),
        ("[egress]\nallow = ['*.co.uk']", "covers the public suffix 'co.uk'", None),
        ("[egress]\nallow = ['*.example']", "covers the public suffix 'pages.example'", None),
        ("[egress]\nallow = ['10.0.0.1']", "an IP address is not a host name", "upstream.connect"),
        ("[egress]\nallow = ['a.example', 'A.example']", "named twice", None),
        ("[egress]\nallow = ['https://a.example/x']", "no scheme", "a.example"),
        ("[upstream]\nprivate = ['a.example:80']", "a port has no meaning here", "a.example"),
        ("[upstream]\nproxy = 'socks5://x'", "a proxy is written as", None),
        ("[upstream]\nproxy = 'http://u:p@x.example:1'", "credential does not stand", None),
        ("[upstream.connect]\n'a.example' = '10.0.0.1:1'", "a host and port", "a.example:443"),
        ("[upstream.connect]\n'a.example:443' = '10.0.0.1'", "an address and port", None),
        ("[upstream.connect]\n'a.example:443' = 'b:1'", "an IP address is expected", None),
        ("[upstream.connect]\n'a.example:443' = '::1:1'", "in brackets", "[::1]:1"),
        # services
        ("[services.modell]", "must name its hosts", "did you mean [services.model]?"),
        ("[services.zzzz]", "must name its hosts", 'hosts = ["api.corp.example"]'),
        ("[services.x]\nuse = 'modle'", "the catalogue has no 'modle'", "did you mean 'model'?"),
        ("[services.x]\nuse = 'zzzzz'", "the catalogue has no 'zzzzz'", "`keyhole services`"),
        ("[services.tenant]", "a host of their own", 'hosts = ["YOURS.tenant.example"]'),
        ("[services.x]\nhosts = ['x.example']", "says what it allows", 'allow = ["GET /**"]'),
        ("[services.x]\nhosts = ['x.example']\nallow = ['GET /**']\nsecret = 'store:x'",
         "how is the secret written?", "Bearer {secret}"),
        ("[services.x]\nhosts = ['x.example:80']\nallow = ['GET /**']\nsecret = 'store:x'\n"
         "inject = { query = 'k' }", "never sent over plain HTTP", None),
        ("[services.model]\nrepos = ['a/b']", "'repos' is for git services", 'forge = "github"'),
        ("[services.model]\nunsafe_passthrough = ['z.example']", "is not one of its hosts", None),
        ("[services.model]\nunsafe_passthrough = ['api.model.example:8443']", "not one of", None),
        ("[services.model]\nunsafe_return = ['query:token']", "an answer has no query", "cookie:"),
        ("[services.model]\nunsafe_return = ['header:Set-Cookie']", "one by one", "cookie:NAME"),
        ("[services.model]\nunsafe_return = ['cookie:*']", "at the end of its name", None),
        ("[services.forge]\nrepos = ['a/b', 'A/B.git']", "named twice", None),
        ("[services.forge]\nrepos = ['a']", "not a repository of the forge kind", "acme/widgets"),
        ("[services.forge]\npush = ['refs/heads/x']", "written without", "x"),
        ("[services.forge]\ndeny_paths = ['a/../b']", "no empty, '.' or '..' segment", None),
        ("[services.forge]\ndeny_paths = ['a**']", "'**' stands alone", None),
        ('[services.forge]\npush_options = ["\u00e4"]', "one line of printable ASCII", None),
        ("[services.forge]\nforge = 'githbu'", "one of github", "github"),
        ("[services.model]\nhttp = 2", "one of 1.1, 2 is expected", '"2"'),
        ("[services.model]\nhttp = '3'", "one of 1.1, 2 is expected", None),
        ("[services.model]\nallow = ['get /x']", "not a method a rule may name", "GET"),
        ("[services.model]\nallow = ['GET x']", "starts with '/'", "/x"),
        ("[services.model]\nallow = ['GET  /x']", "one space between", "GET,POST /v1/**"),
        ("[services.model]\nsecret = 'env:KEY'", "visible to every process", "unsafe-env:NAME"),
        ("[services.model]\ninject = 'Bearer'", "a table is expected, not a text", "header"),
        ("[services.model]\ninject = { heder = 'a' }", "'inject' has no 'heder'", "header"),
        ("[services.model]\nstrip = ['x-org']", "a slot is", "header:x-org"),
        ("[services.model]\nunsafe_keep = ['query:x']", "by its whole name", "header:x-user-id"),
        ("[services.model]\nunsafe_keep = ['header:x-*']", "by its whole name", "header:x-user-id"),
        ("[services.model]\nunsafe_keep = ['header:Authorization']", "never travels", None),
        ("[services.model]\nallow = ['websocket /x']", "is not a method", "WEBSOCKET"),
        ("[services.model]\nallow = ['PUT+body /x']", "is not a method", "PUT"),
        ("[services.model]\nplaceholder = 'x'", "a shape has a run", None),
        # overlaps
        ("[egress]\nallow = ['api.model.example']\n[services.model]", "overlaps", "passthrough"),
        ("[egress]\nallow = ['*.model.example']\n[services.model]", "overlaps", None),
        ("[services.model]\n[services.two]\nuse = 'model'", "a host of services.model too", None),
        (sharing("HEAD /A/*"), "and services.two.allow[0] allows what services.one.allow[0] does",
         "no request is allowed by both"),
        ("[services.forge]\nrepos = ['a/b']\n" + OWN.format("two", "git.example", "GET /x"),
         "a host of services.forge too, and git is served there", None),
        (sharing("GET /b", "GET /a").replace("[\"GET /a\"]", "[\"GET /a\"]\nhttp = '1.1'")
         + "http = '2'", 'services.one has http = "1.1"', "pin one version"),
        ("[services.forge]\nrepos = ['a/b']\n[services.two]\nuse = 'forge'\nrepos = ['A/b']",
         "a/b is granted by services.forge too", "grant it once"),
        ("[services.forge]\nrepos = ['a/b']\nhttp = '2'\n"
         "[services.two]\nuse = 'forge'\nrepos = ['a/c']\nhttp = '1.1'",
         'services.forge has http = "2"', "pin one version for both"),
    ],
)  # fmt: skip
def test_a_mistake_says_what_to_do(text: str, said: str, hint: str | None) -> None:
    rendered = messages(text)
    assert said in rendered
    if hint:
        assert hint in rendered.split(said, 1)[1]


@pytest.mark.parametrize("version", ["", "version = 2", "version = true", "version = '1'"])
def test_a_policy_says_version_1(version: str) -> None:
    with pytest.raises(PolicyFaults) as caught:
        load(PolicyText("k", version.encode()), None, WORLD)
    assert "version" in caught.value.faults[0].render()
    assert load(PolicyText("k", b"version = 1"), None, WORLD).policy.allow == ()


def test_ports_keep_a_tunnel_and_a_service_of_one_name_apart() -> None:
    policy = loaded("[egress]\nallow = ['api.model.example:5432']\n[services.model]").policy
    assert len(policy.services) == 1


def test_two_services_share_a_host_where_each_request_is_of_one_of_them() -> None:
    """I4: the path chooses whose credential is sent. What neither allows is refused."""
    book = Rulebook(loaded(sharing("GET /b/**", "GET /a/**")).policy)
    host = Host("api.own.example")
    chosen = {
        path: decide_request(book, host, 443, RequestFacts("GET", path))
        for path in ("/a/x", "/b/x", "/c")
    }
    assert [(each.allowed, each.service) for each in chosen.values()] == [
        (True, "one"),
        (True, "two"),
        (False, "one"),
    ]


@pytest.mark.parametrize("hosts", ["['api.own.example', 'b.example']", "['*.own.example']"])
def test_no_service_tunnels_a_host_that_another_inspects(hosts: str) -> None:
    """I3, I4: whichever stands first. Controls: both tunnel it, or neither inspects it."""
    one = OWN.format("one", "b.example", "GET /a").replace('["b.example"]', hosts)
    two = OWN.format("two", "api.own.example", "GET /b")
    tunnels = "unsafe_passthrough = ['api.own.example']\n"
    said = "api.own.example is a host of services.two too: a host is tunnelled or inspected"
    for text in (one + tunnels + two, two + one + tunnels):
        assert said in messages(text)
    both = one.replace(hosts, "['api.own.example']") + tunnels + two + tunnels
    assert len(loaded(both).policy.services) == 2
    assert len(loaded(one + tunnels + two.replace("api.own", "api.other")).policy.services) == 2


def test_a_shared_host_has_one_name_in_both_services() -> None:
    """I3: of two patterns the more exact one alone counts, so rules of the other would not."""
    for first, second in (("*.own", "api.own"), ("api.own", "*.own")):
        one = OWN.format("one", f"{first}.example", "GET /a")
        text = one + OWN.format("two", f"{second}.example", "GET /b")
        said = f"{second}.example is a host of services.one too, by {first}.example: only hosts"
        assert said in messages(text)


def test_a_policys_own_injection_makes_every_line_of_its_secret_a_secret() -> None:
    """I7: the catalogue knows which lines are names only for its own way of injecting."""
    named = CATALOGUE["model"].hosts[0]
    entry = replace(CATALOGUE["model"], hosts=(replace(named, names=((2, "0000"),)),))
    world = replace(WORLD, catalogue={"model": entry})
    for own, names in (("", ((2, "0000"),)), ("inject = { query = 'k' }", ())):
        text = f"version = 1\n[services.model]\n{own}\n".encode()
        host = load(PolicyText("keyhole.toml", text), None, world).policy.services[0].hosts[0]
        assert host.names == names


def test_rules_that_are_too_many_to_compare_are_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9. Control: one pair more is enough."""
    text = sharing("GET /b", 'GET /a", "GET /c')
    monkeypatch.setattr("keyhole.policy.build.MAX_RULE_PAIRS", 2)
    assert len(loaded(text).policy.services) == 2
    monkeypatch.setattr("keyhole.policy.build.MAX_RULE_PAIRS", 1)
    assert "too many to compare" in messages(text)


def test_two_accounts_share_a_forge_when_their_repositories_differ() -> None:
    text = "[services.forge]\nrepos = ['a/b']\n[services.two]\nuse = 'forge'\nrepos = ['c/d']"
    assert [s.name for s in loaded(text).policy.services] == ["forge", "two"]


def test_own_hosts_take_the_first_entrys_place_and_drop_the_others() -> None:
    service = loaded("[services.model]\nhosts = ['m.corp.example']").policy.services[0]
    assert [str(p) for p in service.patterns] == ["m.corp.example"]
    assert service.hosts[0].inject == (HeaderInjection("x-api-key", "{secret}"),)


def test_an_own_injection_leaves_hosts_without_a_credential_as_they_are() -> None:
    """I6: a host that takes pre-signed addresses gets no credential by an override either."""
    text = "[services.model]\ninject = { header = 'X', value = '{secret}' }"
    api, cdn = loaded(text).policy.services[0].hosts
    assert api.inject == (HeaderInjection("X", "{secret}"),)
    assert cdn.inject == ()


def test_a_git_host_of_ones_own_needs_only_its_forge_kind() -> None:
    text = "[services.work]\nforge = 'gitlab'\nhosts = ['g.corp.example']\nsecret = 'store:g'"
    service = loaded(text + "\nrepos = ['a/b/c']").policy.services[0]
    assert service.git is not None
    assert service.hosts[0].git
    assert service.hosts[0].inject == (BasicInjection("oauth2"),)


def test_a_basic_user_of_ones_own_is_gits_user_too() -> None:
    text = "[services.forge]\nsecret = 'store:g'\ninject = { basic_user = 'me' }"
    service = loaded(text).policy.services[0]
    assert service.git is not None
    assert service.git.user == "me"


def test_an_allow_rule_opens_a_guarded_endpoint_only_by_naming_it() -> None:
    text = "[services.model]\nallow = ['POST /v1/**', 'GET /v1/keys/mine']"
    rules = loaded(text).policy.services[0].hosts[0].rules
    tiers = {r.id: r.tier for r in rules}
    assert tiers["services.model.allow[0]"] is Tier.ALLOW
    assert tiers["services.model.allow[1]"] is Tier.OPENING


# The user's own defaults


def test_user_defaults_lie_under_the_project() -> None:
    user = "[limits]\nttl = '2h'\nidle = '3h'\n[services.model]\nsecret = 'store:mine'\n"
    policy = loaded("[limits]\nidle = '5m'\n[services.model]", user).policy
    assert (policy.limits.ttl, policy.limits.idle) == (7200.0, 300.0)
    assert str(policy.services[0].secret) == "store:mine"


def test_the_projects_secret_wins_over_the_users() -> None:
    user = "[services.model]\nsecret = 'store:mine'\n"
    policy = loaded("[services.model]\nsecret = 'store:theirs'", user).policy
    assert str(policy.services[0].secret) == "store:theirs"


def test_a_service_that_only_the_user_names_is_not_granted() -> None:
    assert loaded("", "[services.model]\nsecret = 'store:mine'").policy.services == ()


@pytest.mark.parametrize(
    "change", ["hosts = ['evil.example']", "inject = { query = 'k' }", "use = 'model'"]
)
def test_a_default_secret_does_not_follow_a_changed_service(change: str) -> None:
    """I1: a cloned policy cannot aim the user's default secret at a host of its own."""
    user = "[services.model]\nsecret = 'store:mine'"
    assert "your default secret is not used" in messages(f"[services.model]\n{change}", user)
    named = loaded(f"[services.model]\n{change}\nsecret = 'store:mine'", user).policy
    assert str(named.services[0].secret) == "store:mine"


@pytest.mark.parametrize(
    "upstream",
    [
        "[upstream.connect]\n'api.model.example:443' = '192.0.2.1:443'",
        "[upstream]\nproxy = 'http://evil.example:1'\nca_file = './ca.pem'",
    ],
)
def test_a_default_secret_does_not_follow_a_redirected_host(upstream: str) -> None:
    """I1: neither another address nor a proxy with its own certificates gets it unnamed."""
    user = "[services.model]\nsecret = 'store:mine'"
    assert "your default secret of services.model" in messages(
        f"[services.model]\n{upstream}", user
    )
    named = loaded(f"[services.model]\nsecret = 'store:mine'\n{upstream}", user).policy
    assert str(named.services[0].secret) == "store:mine"
    assert loaded("[services.model]\n[upstream]\nca_file = 'x'", user).policy.services
    other = "[services.model]\n[upstream.connect]\n'other.example:443' = '192.0.2.1:443'"
    assert loaded(other, user).policy.services


def test_faults_of_the_users_file_are_told_beside_the_projects() -> None:
    rendered = messages("[egres]", "[egress]\nallow = ['x.example']")
    assert "config.toml:1:2: unknown key 'egress'" in rendered
    assert "keyhole.toml:2:2: unknown key 'egres'" in rendered
    assert "config.toml:1:3: not TOML" in messages("[[", "[x")


# Notes, places and what waits


def test_what_can_never_work_is_noted_not_refused() -> None:
    notes = loaded("[services.forge]\n[upstream.connect]\n'a.example:443' = '10.0.0.1:1'").notes
    assert [n.message for n in notes] == [
        "no rule allows a.example:443",
        "services.forge grants no repository",
    ]
    assert notes[0].span.line == 4


def test_a_rule_has_its_line() -> None:
    policy = loaded("[egress]\nallow = [\n'a.example',\n'b.example',\n]")
    assert policy.place("egress.allow[1]") == "keyhole.toml:5"
    assert policy.place("default") is None


def test_only_what_a_command_prints_has_a_life_of_its_own() -> None:
    service = "[services.model]\nsecret_life = '30m'\n"
    assert loaded(service + "secret = 'exec:token'").policy.services[0].secret_life == 1800
    for other in ("secret = 'store:m'", ""):
        with pytest.raises(PolicyFaults) as caught:
            loaded(service + other)
        assert [fault.span.line for fault in caught.value.faults] == [3]
