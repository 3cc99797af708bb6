"""A catalogue file is read whole and strictly; a mistake in it is named by its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.catalogue import (
    McpLogin,
    McpServer,
    ServiceKind,
    extended,
    parse_template,
)
from keyhole.inject.injection import BasicInjection, HeaderInjection
from keyhole.inject.slots import Slot, SlotLocation
from keyhole.inject.table_values import Confidence, describe_knowledge
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.https_url import HttpsUrl
from keyhole.model.repository import Forge
from keyhole.model.rule import AccessRule

TOP = """
title = "A service"
kind  = "llm"
sure  = "tested"
looked_at = "2026-07-01"
"""
HOST = """
[[host]]
hosts = ["api.example"]
"""

WHOLE = """
title       = "A forge"
kind        = "forge"
sure        = "documented"
looked_at   = "2026-07-01"
notes       = ["One.", "Two."]
env         = ["FORGE_TOKEN", "_x1"]
placeholder = "ft_{alnum:40}"
placeholders = { _x1 = "{b64:40}" }
forge       = "gitea"
git_user    = ""

[[host]]
hosts         = ["git.example", "*.git.example:8443"]
inject        = { basic_user = "" }
git           = true
encoded_slash = true
ranges        = true
probe         = "GET /a/me"
probe_headers = { version = "1" }
strip         = ["header:x-otp"]
keep          = ["cookie:cf_*"]
merge         = { "x-beta" = "one" }
names         = { 2 = "nobody" }
allow         = ["GET /a"]
deny          = ["* /b/**"]
api_read      = ["GET /c/{repo}"]
api_write     = ["POST /d/{repo}"]
bodies        = ["DELETE+body /e/*"]

[[host]]
hosts  = ["api.git.example"]
inject = [
  { header = "A", value = "{secret:1}" },
  { header = "B", value = "{secret:2}" },
]
"""


def test_the_day_on_which_a_client_was_run_is_said_or_that_there_was_none() -> None:
    looked, never = parse_template("x", TOP + HOST), TOP.replace("looked_at", "#")
    said = describe_knowledge(looked.sure, looked.looked_at)
    assert said == "tested, looked at 2026-07-01"
    other = parse_template("x", never + HOST)
    assert describe_knowledge(other.sure, other.looked_at) == "tested, not looked at"


def test_every_key_of_a_file_is_read() -> None:
    template = parse_template("forge", WHOLE)
    assert (template.name, template.title) == ("forge", "A forge")
    assert (template.kind, template.sure, template.looked_at) == (
        ServiceKind.FORGE,
        Confidence.DOCUMENTED,
        "2026-07-01",
    )
    assert template.notes == ("One.", "Two.")
    assert template.env == ("FORGE_TOKEN", "_x1")
    assert template.placeholder is not None
    assert template.placeholder.text == "ft_{alnum:40}"
    assert [(name, shape.text) for name, shape in template.placeholders] == [("_x1", "{b64:40}")]
    assert (template.forge, template.git_user) == (Forge.GITEA, "")
    assert not template.needs_hosts
    git, api = template.hosts
    assert git.hosts == (HostPattern.parse("git.example"), HostPattern.parse("*.git.example:8443"))
    assert git.inject == (BasicInjection(""),)
    assert (git.git, git.encoded_slash, git.ranges) == (True, True, True)
    assert git.probe == AccessRule.parse("GET /a/me")
    assert git.probe_headers == (("version", "1"),)
    assert (api.probe, api.probe_headers) == (None, ())
    assert git.strip == (Slot(SlotLocation.HEADER, "x-otp"),)
    assert git.keep == (Slot(SlotLocation.COOKIE, "cf_*"),)
    assert git.merge == (("x-beta", "one"),)
    assert (git.names, api.names) == (((2, "nobody"),), ())
    assert git.allow == (AccessRule.parse("GET /a"),)
    assert git.deny == (AccessRule.parse("* /b/**"),)
    assert git.api_read == (AccessRule.parse("GET /c/{repo}"),)
    assert git.api_write == (AccessRule.parse("POST /d/{repo}"),)
    assert (git.bodies, api.bodies) == ((AccessRule.parse("DELETE+body /e/*"),), ())
    assert api.inject == (HeaderInjection("A", "{secret:1}"), HeaderInjection("B", "{secret:2}"))


def test_what_a_file_does_not_say_is_nothing() -> None:
    """I3: a key that is left out grants nothing."""
    template = parse_template("small", TOP + HOST)
    (host,) = template.hosts
    assert (template.notes, template.env, template.placeholder) == ((), (), None)
    assert (template.placeholders, template.forge, template.git_user) == ((), None, None)
    assert (host.allow, host.deny, host.api_read, host.api_write) == ((), (), (), ())
    assert (host.inject, host.strip, host.keep, host.merge) == ((), (), (), ())
    assert (host.git, host.encoded_slash, host.ranges, host.example) == (False, False, False, "")


def test_a_service_whose_users_have_hosts_of_their_own_gives_an_example() -> None:
    template = parse_template("tenant", TOP + '[[host]]\nexample = "YOURS.tenant.example"\n')
    assert template.needs_hosts
    assert template.hosts[0].example == "YOURS.tenant.example"


@pytest.mark.parametrize(
    ("host", "name", "knows"),
    [
        ('example = "YOURS.tenant.example"', "mine.tenant.example", True),
        ('example = "YOURS.tenant.example"', "*.tenant.example", True),
        ('example = "YOURS.tenant.example"', "tenant.example", False),
        ('example = "YOURS.tenant.example"', "a.b.tenant.example", False),
        ('example = "YOURS.tenant.example"', "mine.tenantxexample", False),
        ('example = "YOURS.tenant.example"', "mine.tenant.example.evil.example", False),
        ('example = "B.s3.REGION.aws.example"', "my-b.s3.eu-west-1.aws.example", True),
        # What stands for a server of one's own says nothing of it.
        ('example = "git.corp.example"', "git.corp.example", False),
        ('hosts = ["api.example"]', "api.example", True),
        ('hosts = ["api.example"]', "api.corp.example", False),
    ],
)
def test_a_host_is_known_where_it_is_the_vendors(host: str, name: str, knows: bool) -> None:
    """I4: what a server does with a body is known of no other."""
    (entry,) = parse_template("x", f"{TOP}[[host]]\n{host}\n").hosts
    assert entry.knows(HostPattern.parse(name)) is knows


SHAPE = '\nplaceholder = "{hex:32}"'
OWN = 'env = ["A"]\nplaceholder = "{{hex:40}}"\nplaceholders = {{ {} = "{{hex:32}}" }}'

IN_THE_HEAD = [
    ("title = ", "x: Invalid value"),
    (TOP, "x: no [[host]]"),
    (TOP + "host = []", "x: no [[host]]"),
    (TOP + '[host]\nhosts = ["a.example"]', "x.host: a list is expected"),
    (TOP + "host = [1]", "x.host[0]: a table is expected"),
    (TOP + "colour = 1" + HOST, "x: unknown key 'colour'"),
    (TOP.replace("title", "#") + HOST, "x.title: a text is missing"),
    (TOP.replace('"A service"', '""') + HOST, "x.title: a text is missing"),
    (TOP.replace('"A service"', "7") + HOST, "x.title: a text is missing"),
    (TOP.replace('"llm"', '"toy"') + HOST, "x.kind: 'toy' is not a valid ServiceKind"),
    (TOP.replace("kind", "#") + HOST, "x.kind: None is not a valid ServiceKind"),
    (TOP.replace('"tested"', '"maybe"') + HOST, "x.sure: 'maybe' is not a valid Confidence"),
    (TOP.replace("looked_at", "since") + HOST, "x: unknown key 'since'"),
    (TOP.replace('"2026-07-01"', "2026-07-01") + HOST, "x.looked_at: a text is missing"),
    (TOP.replace("2026-07-01", "2026-13-01") + HOST, "x.looked_at: a day is expected"),
    (TOP.replace("2026-07-01", "2026-07-1") + HOST, "x.looked_at: a day is expected"),
    (TOP.replace("2026-07-01", "2026-07") + HOST, "x.looked_at: a day is expected"),
    (TOP + 'notes = "one"' + HOST, "x.notes: a list is expected"),
    (TOP + "notes = [1]" + HOST, "x.notes[0]: a text is missing"),
    (TOP + 'env = ["K"]' + HOST, "x: 'env' and 'placeholder' come together"),
    (TOP + SHAPE + HOST, "x: 'env' and 'placeholder' come together"),
    (TOP + "env = []" + SHAPE + HOST, "x: 'env' and 'placeholder' come together"),
    (TOP + 'env = "KEY"' + SHAPE + HOST, "x.env: a list is expected"),
    (TOP + 'env = ["A=B"]' + SHAPE + HOST, "x.env[0]: the name of a variable"),
    (TOP + 'env = ["A", "1A"]' + SHAPE + HOST, "x.env[1]: the name of a variable"),
    (TOP + 'env = ["A"]\nplaceholder = "{hex:3}"' + HOST, "x.placeholder: a shape has a run"),
    (TOP + 'env = ["A"]\nplaceholder = 7' + HOST, "x.placeholder: a text is missing"),
    (TOP + OWN.format("B") + HOST, "x: 'placeholders' gives shapes to variables of 'env'"),
    (TOP + OWN.format("A").replace("hex:32", "hex:3") + HOST, "x.placeholders: a shape has a run"),
    (TOP + 'env = ["A"]\nplaceholders = ["A"]' + SHAPE + HOST, "x.placeholders: a table is"),
    (TOP + 'forge = "sourceforge"' + HOST, "x.forge: 'sourceforge' is not a valid Forge"),
    (TOP + 'git_user = "a:b"' + HOST, "x.git_user: a Basic user"),
    (TOP + "git_user = 1" + HOST, "x.git_user: every value of 'inject' is text"),
]

INJECT = 'inject = { query = "k" }\n'
IN_A_HOST = [
    (HOST + "color = 1", "x.host[0]: unknown key 'color'"),
    (HOST + HOST + "color = 1", "x.host[1]: unknown key 'color'"),
    ('[[host]]\nhost = ["a.example"]', "x.host[0]: unknown key 'host'"),
    ("[[host]]", "x.host[0]: either 'hosts', or the 'example'"),
    (HOST + 'example = "a.example"', "x.host[0]: either 'hosts', or the 'example'"),
    ("[[host]]\nhosts = []", "x.host[0]: either 'hosts', or the 'example'"),
    ('[[host]]\nexample = ""', "x.host[0].example: a text is missing"),
    ('[[host]]\nhosts = "a.example"', "x.host[0].hosts: a list is expected"),
    ('[[host]]\nhosts = ["a.example", "10.0.0.1"]', "x.host[0].hosts[1]: an IP address"),
    ("[[host]]\nhosts = [1]", "x.host[0].hosts[0]: a text is missing"),
    (HOST + 'inject = "Bearer"', "x.host[0].inject: a list is expected"),
    (HOST + 'inject = ["Bearer"]', "x.host[0].inject[0]: a table is expected"),
    (HOST + 'inject = { header = "Te", value = "{secret}" }', "x.host[0].inject[0]: 'Te' frames"),
    (HOST + 'inject = [{ query = "k" }, { query = "" }]', "x.host[0].inject[1]: 'query' names"),
    (HOST + 'git = "false"', "x.host[0].git: true or false"),
    (HOST + "git = 0", "x.host[0].git: true or false"),
    (HOST + 'encoded_slash = "no"', "x.host[0].encoded_slash: true or false"),
    (HOST + 'probe = "GET /a"', "x.host[0]: a 'probe' is for a host with 'inject'"),
    (HOST + 'probe_headers = { a = "b" }', "x.host[0]: a 'probe' is for a host with 'inject'"),
    (HOST + 'probe = "POST /a"', "x.host[0].probe: a probe is a GET of one path"),
    (HOST + 'probe = "GET /a/*"', "x.host[0].probe: a probe is a GET of one path"),
    (HOST + 'probe = "GET /{repo}"', "x.host[0].probe: a probe is a GET of one path"),
    (HOST + "probe = 1", "x.host[0].probe: a text is missing"),
    (HOST + INJECT + 'probe = "GET /a"\nprobe_headers = 1', "x.host[0].probe_headers: a table"),
    (HOST + "ranges = 1", "x.host[0].ranges: true or false"),
    (HOST + 'strip = "header:x"', "x.host[0].strip: a list is expected"),
    (HOST + 'strip = ["x"]', "x.host[0].strip[0]: a slot is"),
    (HOST + 'keep = ["header:*"]', "x.host[0].keep[0]: a slot's '*'"),
    (HOST + 'merge = ["a"]', "x.host[0].merge: a table is expected"),
    (HOST + "merge = { a = 1 }", "x.host[0].merge: a text is missing"),
    (HOST + 'names = { a = "b" }', "x.host[0].names: a name is given by its line of the secret"),
    (HOST + "names = { 1 = 2 }", "x.host[0].names: a text is missing"),
    (HOST + 'allow = "GET /"', "x.host[0].allow: a list is expected"),
    (HOST + 'allow = ["GET /", "get /"]', "x.host[0].allow[1]: 'get' is not a method"),
    (HOST + "allow = [1]", "x.host[0].allow[0]: a text is missing"),
    (HOST + 'bodies = ["DELETE /"]', "x.host[0].bodies[0]: a request with a body is named"),
    (HOST + 'deny = ["* a"]', "x.host[0].deny[0]: a rule's path starts with '/'"),
    (HOST + 'api_read = ["GET"]', "x.host[0].api_read[0]: a rule is methods"),
    (HOST + 'api_write = ["TRACE /"]', "x.host[0].api_write[0]: 'TRACE' is not a method"),
]


@pytest.mark.parametrize(
    ("text", "said"), [*IN_THE_HEAD, *((TOP + text, said) for text, said in IN_A_HOST)]
)
def test_a_mistake_is_named_by_its_place(text: str, said: str) -> None:
    """The control is the file above that has every key."""
    with pytest.raises(Unparsable) as refusal:
        parse_template("x", text)
    assert refusal.value.message.startswith(said)


SERVER = """
[mcp]
endpoint = "https://mcp.example/mcp"
login    = "token"
reads    = ["get_*"]
"""
BASE = (
    TOP
    + """
[[host]]
example = "mcp.corp.example"
inject  = { header = "Authorization", value = "Bearer {secret}" }
allow   = ["POST /**"]
deny    = ["* /token"]
"""
)


def test_a_file_that_extends_another_has_its_rules_for_hosts_of_its_own() -> None:
    text = TOP + 'extends = "base"\n' + SERVER + HOST + 'allow = ["POST /mcp"]\n'
    assert extended(text) == "base"
    assert extended(BASE) == ""
    made = parse_template("x", text, base=BASE)
    assert made.mcp == McpServer(
        HttpsUrl.parse("https://mcp.example/mcp"), McpLogin.TOKEN, ("get_*",)
    )
    (host,) = made.hosts
    assert not made.needs_hosts
    assert [str(rule.text) for rule in (*host.allow, *host.deny)] == ["POST /mcp", "* /token"]
    assert host.inject == (HeaderInjection("Authorization", "Bearer {secret}"),)
    alone = parse_template("x", TOP + "[mcp]\n" + HOST)
    assert alone.mcp == McpServer()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "base"\n' + HOST, "x.extends: the name of another file"),
        ("mcp = true\n" + HOST, "x.mcp: "),
        ('mcp = { endpoint = "http://mcp.example" }\n' + HOST, "x.mcp: endpoint: it is not an"),
        ('mcp = { login = "by mail" }\n' + HOST, "x.mcp: login: "),
        ("mcp = { write = [] }\n" + HOST, "x.mcp: mcp"),
    ],
)
def test_a_mistake_about_a_server_is_named_by_its_place(text: str, said: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        parse_template("x", TOP + text)
    assert refusal.value.message.startswith(said)


@given(st.text(max_size=40))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    for typed in (text, TOP + HOST + text):
        try:
            template = parse_template("x", typed)
        except Unparsable:
            continue
        assert template.hosts
