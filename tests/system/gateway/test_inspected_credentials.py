"""What the client calls itself does not travel; one credential is written, at its host (I1, I6)."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Service, echo_head
from tests.rigs.gateway.stage import (
    SECRET,
    STAND_IN,
    Stage,
    make_services,
    service,
    serving,
    set_up,
)
from tests.rigs.gateway.talk import get, head, ok

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    import trustme

Play = tuple[Stage, Service]

QUERY = '{ query = "key" }'
KEY_HEADER = '{ header = "X-Api-Key", value = "{secret}" }'
BASIC = '{ basic_user = "me" }'
BEARER = f"Bearer {SECRET}"


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """A host for each way to write a credential, and one without any."""
    origin = Service()
    names = ("own", "keyed", "basic", "query")
    with (
        serving(origin, tls) as server,
        set_up(authority, make_services(authority, **dict.fromkeys(names, SECRET))) as stage,
    ):
        stage.open(
            service("own", "ok.example")
            + service("keyed", "keyed.ok.example", inject=KEY_HEADER)
            + service("basic", "basic.ok.example", inject=BASIC)
            + service("query", "query.ok.example", inject=QUERY)
            + service("open", "open.ok.example", inject=""),
            ok_example=server,
            keyed_ok_example=server,
            basic_ok_example=server,
            query_ok_example=server,
            open_ok_example=server,
        )
        yield stage, origin


CLAIMS = (
    "Authorization: Bearer mine",
    "authorization: Basic bWluZQ==",
    "Proxy-Authorization: Bearer mine",
    "x-api-key: mine",
    "X-Amz-Security-Token: mine",
    "OpenAI-Organization: mine",
    "cookie: a=b; session=mine",
    "X_Api_Key: mine",
    "X.Api.Key: mine",
)
"""One of each kind; unit/inject/test_credential_stripper.py has all."""


@pytest.mark.parametrize("host", ["ok.example", "keyed.ok.example", "open.ok.example"])
def test_the_clients_own_credentials_do_not_travel(play: Play, host: str) -> None:
    """I6: a key of the attacker's would carry what is sent into the attacker's account."""
    stage, origin = play
    for claim in CLAIMS:
        stage_answer = stage.ask(get("/a", claim, "X-Kept: yes", host=host), name=host).answer()
        assert stage_answer.status == 200
        assert b"mine" not in origin.seen[-1].head, claim
        assert b"bWluZQ" not in origin.seen[-1].head, claim
        assert origin.seen[-1].one("x-kept") == "yes"
    together = get("/a", *CLAIMS, host=host)
    assert stage.ask(together, name=host).answer().status == 200
    assert b"mine" not in origin.seen[-1].head


@pytest.mark.parametrize(
    "query",
    """key=mine api_key=mine API_KEY=mine access_token=mine token=mine %6bey=mine k%65y=mine
        token[]=mine X-Amz-Signature=mine sig=mine key=mine&key=mine key=mine;token=mine""".split(),
)
def test_a_key_in_the_query_does_not_travel(play: Play, query: str) -> None:
    """I6."""
    stage, origin = play
    assert stage.ask(get(f"/a?x=1&{query}&y=2")).answer().status == 200
    assert origin.seen[-1].start == "GET /a?x=1&y=2 HTTP/1.1"
    assert stage.ask(get(f"/a?{query}")).answer().status == 200
    assert b"mine" not in origin.seen[-1].head


@pytest.mark.parametrize(
    ("host", "name", "value"),
    [
        ("ok.example", "authorization", BEARER),
        ("keyed.ok.example", "x-api-key", SECRET),
        (
            "basic.ok.example",
            "authorization",
            "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode(),
        ),
    ],
)
def test_exactly_one_credential_is_written(play: Play, host: str, name: str, value: str) -> None:
    """I6."""
    stage, origin = play
    claims = [f"Authorization: Bearer {STAND_IN}", f"X-Api-Key: {STAND_IN}"]
    assert stage.ask(get("/a", *claims, host=host), name=host).answer().status == 200
    head = origin.seen[-1]
    assert head.all(name) == [value]
    others = {"authorization", "x-api-key"} - {name}
    assert not any(head.all(other) for other in others)
    assert STAND_IN.encode() not in head.head


@pytest.mark.parametrize("query", ["", "?x=1", "?key=mine", "?x=1&key=mine"])
def test_a_credential_in_the_query_is_written_once(play: Play, query: str) -> None:
    """I6."""
    stage, origin = play
    host = "query.ok.example"
    assert stage.ask(get(f"/a{query}", host=host), name=host).answer().status == 200
    kept = "x=1&" if "x=1" in query else ""
    assert origin.seen[-1].start == f"GET /a?{kept}key={SECRET} HTTP/1.1"
    # I8: what is written down has the path alone
    assert not any(SECRET in repr(event) for event in stage.watch.events)


def test_a_host_without_a_credential_gets_none(play: Play) -> None:
    """I1, the control of the above: the secrets of one host are not another's."""
    stage, origin = play
    host = "open.ok.example"
    assert stage.ask(get("/a", host=host), name=host).answer().status == 200
    assert SECRET.encode() not in origin.seen[-1].head


@pytest.mark.parametrize(
    "option",
    ["authorization", "Authorization, X-A", "close, authorization", "host", "content-length"],
)
def test_connection_cannot_nominate_what_the_gateway_writes(play: Play, option: str) -> None:
    """I6: RFC 9110 §7.6.1 has nominated fields removed, which would strip the credential."""
    stage, origin = play
    request = head("POST", "/a", f"Connection: {option}", "X-A: b", "Content-Length: 5") + b"hello"
    assert stage.ask(request).answer().status == 200
    seen = origin.seen[-1]
    assert seen.all("authorization") == [BEARER]
    assert seen.all("host") == ["ok.example"]
    assert seen.body == b"hello"
    assert seen.one("connection") is None
    assert (seen.one("x-a") is None) is ("X-A" in option)


@pytest.mark.parametrize(
    "line",
    [
        "X-Original-URL: /admin",
        "X_Original_URL: /admin",
        "X-Forwarded-Host: other.example",
        "X-Forwarded-For: 127.0.0.1",
        "X-Remote-User: root",
        "X-Acme-Api-Key: theirs",
        "TE: trailers",
        "Proxy-Connection: keep-alive",
    ],
)
def test_what_would_serve_another_request_than_the_judged_one_is_removed(
    play: Play, line: str
) -> None:
    """I4: more are in unit/inject/test_field_families.py."""
    stage, origin = play
    assert stage.ask(get("/a", line, "X-Kept: yes")).answer().status == 200
    assert origin.seen[-1].one(line.partition(":")[0].lower()) is None
    assert origin.seen[-1].one("x-kept") == "yes"


@pytest.mark.parametrize(
    "request_",
    [
        get("/a", "X-HTTP-Method-Override: DELETE"),
        get("/a", "X_HTTP_Method_Override: DELETE"),
        get("/a?_method=DELETE"),
        get("/a?b=c&%5fmethod=DELETE"),
    ],
)
def test_what_names_another_method_is_refused(play: Play, request_: bytes) -> None:
    """I3: removed, it would change what was asked; passed, what was judged. The control is the
    same request without."""
    stage, origin = play
    before = len(origin.seen)
    talk = stage.ask(request_, get("/a?method=DELETE"))
    answer = talk.answer()
    assert answer.status == 403
    assert json.loads(answer.body)["reason"] == "method-override"
    assert stage.watch.until("method-override", path="/a")
    assert talk.answer().status == 200
    assert [seen.start for seen in origin.seen[before:]] == ["GET /a?method=DELETE HTTP/1.1"]


@pytest.mark.parametrize("name", ["Content-Type", "Content-Encoding", "If-Match", "Range"])
def test_a_field_that_may_stand_once_is_refused_when_it_stands_twice(play: Play, name: str) -> None:
    """I4: of two lines, one server takes the first and another the last."""
    stage, origin = play
    before = len(origin.seen)
    answer = stage.ask(get("/a", f"{name}: a", f"{name}: b")).answer()
    assert answer.status == 400
    assert json.loads(answer.body)["reason"] == "http-malformed"
    assert len(origin.seen) == before
    assert stage.ask(get("/a", f"{name}: a", "X-A: a", "X-A: b")).answer().status == 200


def test_an_upgrade_to_http_2_is_removed(play: Play) -> None:
    """I4: behind it, requests would be neither read nor judged."""
    stage, origin = play
    lines = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"]
    for upgrade in (lines, ["Connection: upgrade", "Upgrade: TLS/1.3, h2c, websocket"]):
        assert stage.ask(get("/a", *upgrade)).answer().status == 200
        seen = origin.seen[-1]
        assert not {"upgrade", "http2-settings", "connection"} & {name for name, _ in seen.fields}


def test_a_placeholder_at_a_host_it_was_not_made_for_is_noted(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I1: somebody tries what it opens; it opens nothing."""
    origin = Service()
    services = make_services(authority, own=SECRET)
    services.placeholders["other"] = "pk-of-another-service-0123456789"
    with serving(origin, tls) as server, set_up(authority, services) as stage:
        stage.open(service("own", "ok.example"), ok_example=server)
        assert stage.ask(get("/a", f"X-A: {STAND_IN}")).answer().status == 200
        assert not stage.watch.reasons("decoy")
        stolen = services.placeholders["other"]
        assert stage.ask(get("/a", f"Authorization: Bearer {stolen}")).answer().status == 200
        event = stage.watch.until("decoy-used")
        assert (event.rule, event.host) == ("services.other", "ok.example")
        assert stolen.encode() not in origin.seen[-1].head


def test_fields_go_on_as_they_are_and_in_order(play: Play) -> None:
    stage, origin = play
    lines = ["User-Agent: x/1", "x-b: \xe4", "X-A:  two  words ", "Accept: */*", "x-b: again"]
    assert stage.ask(get("/a", *lines)).answer().status == 200
    rows = origin.seen[-1].head.split(b"\r\n")[1:]
    assert rows == [
        b"Host: ok.example",
        b"User-Agent: x/1",
        b"x-b: \xe4",
        b"X-A: two  words",
        b"Accept: */*",
        b"x-b: again",
        b"Accept-Encoding: identity",
        f"Authorization: {BEARER}".encode(),
    ]


def test_what_would_make_an_answer_unreadable_is_not_asked_for(play: Play) -> None:
    """I7: encoded, or a few bytes at a time, a secret passes the scan."""
    stage, origin = play
    lines = ["Accept-Encoding: gzip, br", "Range: bytes=0-3", "If-Range: x"]
    assert stage.ask(get("/a", *lines)).answer().status == 200
    seen = origin.seen[-1]
    assert seen.all("accept-encoding") == ["identity"]
    assert seen.one("range") is seen.one("if-range") is None
    # The control: where nothing is scanned, they pass.
    host = "open.ok.example"
    assert stage.ask(get("/a", *lines, host=host), name=host).answer().status == 200
    assert origin.seen[-1].one("accept-encoding") == "gzip, br"
    assert origin.seen[-1].one("range") == "bytes=0-3"


def test_curl_gets_an_answer_and_never_the_credential(
    authority: trustme.CA, tls: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """I1, I7: with an unmodified client, the credential is used and not seen."""
    origin = Service(echo_head)
    with serving(origin, tls) as server, set_up(authority) as stage:
        bundle = tmp_path_factory.mktemp("trust") / "bundle.pem"
        bundle.write_bytes(stage.services.authority.pem)
        bundle.parent.chmod(0o755)
        stage.open(service("own", "ok.example", allow="GET /a/**"), ok_example=server)
        done = stage.namespace.run(
            "curl", "-sS", "--cacert", str(bundle), "-H", f"Authorization: Bearer {STAND_IN}",
            "https://ok.example/a/b", "https://ok.example/a/c?x=1", "https://ok.example/z",
        )  # fmt: skip
        assert SECRET not in done.stdout
        assert done.stdout.count(f"Bearer {STAND_IN}") == 2
        assert '"retry": false' in done.stdout
        assert [seen.one("authorization") for seen in origin.seen] == [BEARER] * 2
        assert server.connections == 1


def test_two_services_of_one_host_have_a_credential_and_connections_each(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I4, I6: accounts that share a host share nothing else."""
    kind = b"Content-Type: application/x-git-upload-pack-advertisement"
    origin = Service(lambda _: ok(b"000eversion 2\n0000", kind))
    services = make_services(authority, own=SECRET, second="sk-other-0123456789abcdefghi")
    with serving(origin, tls) as server, set_up(authority, services) as stage:
        stage.open(forge("own", "a/one") + forge("second", "b/two"), ok_example=server)
        for _ in range(2):
            for repository in ("a/one", "b/two"):
                path = f"/{repository}.git/info/refs?service=git-upload-pack"
                assert stage.ask(get(path)).answer().status == 200
        one, two, one_again, two_again = origin.seen
        assert one.one("authorization") == one_again.one("authorization") == BEARER
        assert two.one("authorization") == "Bearer sk-other-0123456789abcdefghi"
        assert one.connection == one_again.connection
        assert two.connection == two_again.connection
        assert one.connection != two.connection


def test_a_field_that_one_service_keeps_is_not_passed_on_for_another_of_the_host(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I6. Control: it is passed on for the service that keeps it, as is a field without a claim."""
    origin = Service()
    services = make_services(authority, own=SECRET, second="sk-other-0123456789abcdefghi")
    keeping = service("own", "ok.example", allow="GET /a/**")
    keeping += "unsafe_keep = ['header:x-user-id']\nunsafe_return = ['cookie:session']\n"
    fields = ("X-User-Id: mine", "Cookie: session=mine; other=x", "X-Kept: yes")
    with serving(origin, tls) as server, set_up(authority, services) as stage:
        stage.open(keeping + service("second", "ok.example", allow="GET /b/**"), ok_example=server)
        for path in ("/a/x", "/b/x"):
            assert stage.ask(get(path, *fields)).answer().status == 200
        one, other = origin.seen
        assert (one.one("x-user-id"), one.one("cookie")) == ("mine", "session=mine")
        assert not other.all("x-user-id")
        assert not other.all("cookie")
        assert one.one("x-kept") == other.one("x-kept") == "yes"


def forge(name: str, repository: str) -> str:
    """A git service that has one repository."""
    return f"""
[services.{name}]
hosts = ["ok.example"]
forge = "gitea"
repos = ["{repository}"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:/nowhere"
"""
