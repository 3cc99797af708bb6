"""Services that need more than a header: signatures, minted tokens, plain HTTP, git (I3, I6)."""

from __future__ import annotations

import json
import ssl
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from keyhole.certs.authority import Authority
from keyhole.gateway import bodies, body_memory
from keyhole.gateway.upstream import minting
from keyhole.inject.sigv4 import EVENTS
from tests.rigs.gateway.aws import UNSIGNED, Keys, signed_request, verified
from tests.rigs.gateway.origins import Service, echo_head, web
from tests.rigs.gateway.rig import Services
from tests.rigs.gateway.stage import Stage, make_services, service, serving, set_up
from tests.rigs.gateway.talk import Message, Talk, get, head, ok
from tests.rigs.inject.events import signature_of, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

PATIENCE = 20.0

# ── AWS ───────────────────────────────────────────────────────────────────────────────────────────

REAL = Keys("AKIAREALREALREALREAL", "real/secret+key0123456789abcdefghijklmno")
STAND = Keys("AKIAKEYHOLE234567ABC", "keyhole+/bcdefghijklmnopqrstuvwxyz012345")
OTHER = Keys("AKIAATTACKERATTACKER", "attacker/key+bcdefghijklmnopqrstuvwxyz01")


@pytest.fixture
def amazon(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[tuple[Stage, Service]]:
    """A service whose requests are signed."""
    origin = Service(lambda message: ok(message.body))
    services = Services(
        {"own": f"{REAL.id}\n{REAL.secret}"},
        {"own": f"{STAND.id}\n{STAND.secret}"},
        Authority.create("t"),
        authority.cert_pem.bytes(),
    )
    inject = '{ sigv4 = "bedrock", region = "eu-west-1" }'
    with serving(origin, tls) as server, set_up(authority, services) as stage:
        stage.open(service("own", "ok.example", inject=inject), ok_example=server)
        yield stage, origin


def test_a_signed_request_is_checked_and_signed_anew(amazon: tuple[Stage, Service]) -> None:
    """I6: the placeholder's signature goes no further; what goes on is signed with the key."""
    stage, origin = amazon
    talk = stage.visit()
    for body in (b'{"a": 1}', b"", b"x" * 100_000):
        talk.send(signed_request(STAND, "bedrock", "/model/a%3Ab/invoke", body))
        assert talk.answer().body == body
        seen = origin.seen[-1]
        assert verified(REAL, seen)
        assert not verified(STAND, seen)
        assert STAND.id.encode() not in seen.head
    # A server of the user's own may leave a body unread, so it gets no request behind one (I4).
    assert [seen.connection for seen in origin.seen] == [1, 2, 2]


def test_a_body_whose_hash_is_not_signed_passes_as_it_comes(amazon: tuple[Stage, Service]) -> None:
    stage, origin = amazon
    request = signed_request(STAND, "bedrock", "/model/a/invoke", b"hello", declared=UNSIGNED)
    talk = stage.visit()
    talk.send(request[:-5])
    talk.send(b"hel", b"lo")
    assert talk.answer().body == b"hello"
    assert verified(REAL, origin.seen[0])


def events_of(keys: Keys, head: bytes, moment: float, *payloads: bytes) -> list[bytes]:
    """A chain of events behind a signed head."""
    prior = head.partition(b"Signature=")[2][:64].decode()
    found = []
    for payload in payloads:
        found.append(signed(payload, prior, moment, keys.secret))
        prior = signature_of(found[-1])
    return found


def events_request(length: int) -> bytes:
    """The head of a bidirectional stream."""
    path = "/model/a/invoke-with-bidirectional-stream"
    request = signed_request(STAND, "bedrock", path, b"", declared=EVENTS)
    return request.replace(b"Content-Length: 0", b"Content-Length: %d" % length)


@pytest.mark.parametrize("step", [0, 7])
def test_events_are_checked_and_signed_anew_as_they_come(
    amazon: tuple[Stage, Service], step: int
) -> None:
    """I6: in a chain that begins with the head's signature, the client's or the gateway's."""
    stage, origin = amazon
    said, moment = (b"one", b"", b"x" * 5000, b""), float(int(time.time()))
    size = sum(len(each) for each in events_of(STAND, b"", moment, *said))
    start = events_request(size)
    body = b"".join(events_of(STAND, start, moment, *said))
    talk = stage.ask(start)
    talk.send(*(body[at : at + (step or size)] for at in range(0, size, step or size)))
    assert talk.answer().status == 200
    seen = origin.seen[0]
    assert verified(REAL, seen)
    assert seen.body == b"".join(events_of(REAL, seen.head, moment, *said))
    assert STAND.id.encode() not in seen.head


def test_an_event_that_the_placeholder_did_not_sign_ends_the_request(
    amazon: tuple[Stage, Service],
) -> None:
    """I4: it is not signed with the real key, nor is what comes after it. Control: the test
    above."""
    stage, origin = amazon
    moment = float(int(time.time()))
    for keys, cut in ((OTHER, 0), (STAND, 1)):
        size = sum(map(len, events_of(STAND, b"", moment, b"one", b"two"))) - cut
        start = events_request(size)
        body = b"".join(events_of(keys, start, moment, b"one", b"two"))[:size]
        assert stage.ask(start, body).answer().status == 400
        assert stage.watch.until("http-malformed")
    assert not origin.seen


def test_what_was_not_signed_with_the_placeholder_is_refused(amazon: tuple[Stage, Service]) -> None:
    """I6: another's signature, a changed body, none at all; the control is above."""
    stage, origin = amazon
    body = b'{"a": 1}'
    good = signed_request(STAND, "bedrock", "/model/a/invoke", body)
    for bad in (
        signed_request(OTHER, "bedrock", "/model/a/invoke", body),
        signed_request(Keys(STAND.id, OTHER.secret), "bedrock", "/model/a/invoke", body),
        signed_request(STAND, "sts", "/model/a/invoke", body),
        good.replace(b"/model/a/", b"/model/b/"),
        good.replace(b'{"a": 1}', b'{"a": 2}'),
        head("POST", "/model/a/invoke", "Content-Length: 1") + b"x",
    ):
        assert stage.ask(bad).answer().status == 403
    assert not origin.seen


def test_a_refused_signature_without_a_body_does_not_end_the_connection(
    amazon: tuple[Stage, Service],
) -> None:
    stage, _ = amazon
    talk = stage.ask(get("/a"), signed_request(STAND, "bedrock", "/model/a/invoke", b"x"))
    assert talk.answer().status == 403
    assert talk.answer().body == b"x"


def test_a_body_that_is_read_whole_is_bounded_and_given_back(
    amazon: tuple[Stage, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: for one request, and for all of a session."""
    stage, origin = amazon
    monkeypatch.setattr(bodies, "MAX_HASHED_BODY", 10_000)
    monkeypatch.setattr(body_memory, "MAX_GATHERED", 15_000)
    handle = stage.handle
    assert handle is not None
    big = signed_request(STAND, "bedrock", "/model/a/invoke", bytes(10_001))
    assert stage.ask(big).answer().status == 413
    half = signed_request(STAND, "bedrock", "/model/a/invoke", bytes(9_000))
    waiting = stage.ask(half[:-1])
    deadline = time.monotonic() + PATIENCE
    while stage.rig.call(lambda: handle._state.gathered) < 8_999:
        assert time.monotonic() < deadline
    assert stage.ask(half).answer().status == 413
    waiting.send(half[-1:])
    assert waiting.answer().status == 200
    assert stage.ask(half).answer().status == 200
    left = stage.ask(half[:-1])
    left.close()
    while stage.rig.call(lambda: handle._state.gathered):
        assert time.monotonic() < deadline
    assert len(origin.seen) == 2


def test_a_body_that_was_announced_is_asked_for_by_the_gateway_itself(
    amazon: tuple[Stage, Service],
) -> None:
    stage, origin = amazon
    request = signed_request(STAND, "bedrock", "/model/a/invoke", b"hello")
    talk = stage.visit()
    talk.send(request[:-5].replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    assert talk.answer().status == 100
    talk.send(b"hello")
    assert talk.answer().body == b"hello"
    assert origin.seen[0].one("expect") is None


# ── Google ────────────────────────────────────────────────────────────────────────────────────────

LOGIN = json.dumps(
    {
        "type": "authorized_user",
        "client_id": "client",
        "client_secret": "client-secret-0123456789",
        "refresh_token": "refresh-token-0123456789",
    }
)


class Issuer(Service):
    """Issues a new token each time, or fails as told."""

    def __init__(self) -> None:
        super().__init__(self._issue)
        self.failing = False
        self.hold: threading.Event | None = None

    def _issue(self, _: Message) -> bytes:
        if self.hold is not None:
            self.hold.wait(PATIENCE)
        if self.failing:
            return ok(b'{"error": "invalid_grant"}', status=b"400 Bad Request")
        answer = {"access_token": token(len(self.seen)), "expires_in": 3600, "token_type": "Bearer"}
        return ok(json.dumps(answer).encode())


def token(number: int) -> str:
    return f"ya29.minted-0123456789-{number}-abcdefgh"


@pytest.fixture
def google(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[tuple[Stage, Service, Issuer]]:
    """A service whose tokens are minted, and who issues them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("oauth2.googleapis.com").configure_cert(context)
    origin, issuer = Service(echo_head), Issuer()
    services = make_services(authority, own=LOGIN)
    inject = '{ google = "cloud-platform" }'
    with (
        serving(origin, tls) as server,
        serving(issuer, context) as issues,
        set_up(authority, services) as stage,
    ):
        stage.open(
            service("own", "ok.example", inject=inject),
            ok_example=server,
            oauth2_googleapis_com=issues,
        )
        yield stage, origin, issuer


def bearers(origin: Service) -> list[str | None]:
    return [seen.one("authorization") for seen in origin.seen]


def test_a_token_is_minted_once_and_written(google: tuple[Stage, Service, Issuer]) -> None:
    """I1, I6, I7: it goes to the service's host, and does not come back."""
    stage, origin, issuer = google
    issuer.hold = threading.Event()
    talks = [stage.ask(get("/a", "Authorization: Bearer mine")) for _ in range(3)]
    talks.append(stage.ask(head("POST", "/a", "Content-Length: 5") + b"hello" + get("/b")))
    while not issuer.seen:
        stage.rig.call(lambda: None)
    issuer.hold.set()
    answers = [talk.answer() for talk in talks] + [talks[-1].answer()]
    assert [answer.status for answer in answers] == [200] * 5
    assert not any(token(1).encode() in answer.body for answer in answers)
    assert bearers(origin) == [f"Bearer {token(1)}"] * 5
    assert len(issuer.seen) == 1
    form = parse_qs(issuer.seen[0].body.decode())
    assert form["refresh_token"] == ["refresh-token-0123456789"]
    assert issuer.seen[0].start == "POST /token HTTP/1.1"


def test_a_client_that_leaves_does_not_take_the_token_from_the_others(
    google: tuple[Stage, Service, Issuer],
) -> None:
    stage, origin, issuer = google
    issuer.hold = threading.Event()
    leaving, staying = stage.ask(get("/a")), stage.ask(get("/b"))
    while not issuer.seen:
        stage.rig.call(lambda: None)
    leaving.close()
    handle = stage.handle
    assert handle is not None
    while stage.rig.call(lambda: len(handle._connections)) > 1:
        pass
    issuer.hold.set()
    assert staying.answer().status == 200
    assert bearers(origin) == [f"Bearer {token(1)}"]


def test_without_a_token_every_request_is_told_why_and_the_issuer_is_left_in_peace(
    google: tuple[Stage, Service, Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, origin, issuer = google
    issuer.failing = True
    talk = stage.ask(get("/1"), get("/2"))
    for _ in range(2):
        answer = talk.answer()
        body = json.loads(answer.body)
        assert (answer.status, body["reason"]) == (502, "credential-unavailable")
        assert "revoked" in body["why"]
    talk.send(get("/3"))
    assert talk.answer().status == 502
    assert not origin.seen
    assert len(issuer.seen) == 1
    # The control: later it is asked again.
    issuer.failing = False
    monkeypatch.setattr(minting, "PATIENCE", 0.0)
    talk.send(get("/4"))
    assert talk.answer().status == 200


def test_an_issuer_that_cannot_prove_its_name_gets_nothing(
    authority: trustme.CA, tls: ssl.SSLContext
) -> None:
    """I4: a refresh token is as good as the account."""
    issuer = Issuer()
    inject = '{ google = "cloud-platform" }'
    with (
        serving(Service(), tls) as server,
        serving(issuer, tls) as impostor,
        set_up(authority, make_services(authority, own=LOGIN)) as stage,
    ):
        own = service("own", "ok.example", inject=inject)
        stage.open(own, ok_example=server, oauth2_googleapis_com=impostor)
        assert stage.ask(get("/a")).answer().status == 502
        assert not issuer.seen


def test_a_token_is_renewed_before_its_end_and_the_last_one_does_not_come_back(
    google: tuple[Stage, Service, Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: the token before is still good for a while."""
    stage, origin, issuer = google
    talk = stage.ask(get("/1"))
    assert talk.answer().status == 200
    with monkeypatch.context() as patch:
        patch.setattr(minting.Minting, "is_old", lambda self, now: True)
        talk.send(get("/2"))
        assert talk.answer().status == 200
        while len(issuer.seen) < 2:
            stage.rig.call(lambda: None)
    while bearers(origin)[-1] != f"Bearer {token(2)}":
        talk.send(get("/3", f"X-Old: {token(1)}"))
        answer = talk.answer()
        assert answer.status == 200
    assert bearers(origin)[:2] == [f"Bearer {token(1)}"] * 2
    assert token(1).encode() not in answer.body
    assert token(2).encode() not in answer.body


# ── plain HTTP ────────────────────────────────────────────────────────────────────────────────────


def test_each_plain_request_to_a_service_is_judged(stage: Stage) -> None:
    """I3: without TLS there is no credential, and still no path that nobody named."""
    with serving(web, None) as server:
        policy = service("own", "ok.example:80", inject="", allow="GET /a/**")
        stage.open(policy, ok_example__80=server)
        plain = Talk(stage.namespace.connect("ok.example", 80))
        plain.send(get("/a/1") + get("/a/2"))
        assert plain.answer().body == b"GET /a/1 HTTP/1.1|"
        assert plain.answer().body == b"GET /a/2 HTTP/1.1|"
        plain.send(get("/b"))
        assert plain.answer().status == 403
        plain.close()
        for refused in (
            head("POST", "/a/1", "Content-Length: 0"),
            get("http://ok.example/b"),
            get("/a/../b"),
            get("/a/1?dns=AAAB"),
        ):
            talk = Talk(stage.namespace.connect("ok.example", 80))
            talk.send(refused)
            assert talk.answer().status in (400, 403)
            talk.close()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (get("/a/1", "Authorization: Bearer x"), "credential-in-the-clear"),
        (get("/a/1", "Cookie: a=b"), "credential-in-the-clear"),
        (get("/a/1?access_token=x"), "credential-in-the-clear"),
        (get("/a/1", "X-HTTP-Method-Override: DELETE"), "method-override"),
        (get("/a/1", "X_HTTP_Method: DELETE"), "method-override"),
        (get("/a/1?_method=DELETE"), "method-override"),
        (get("/a/1", "X-Forwarded-For: 127.0.0.1"), "credential-in-the-clear"),
        (get("/a/1", "X_Acme_Api_Key: x"), "credential-in-the-clear"),
        (get("/a/1", "Accept: application/dns-message"), "dns-over-https"),
        (get("/a/1", "Content-Length: 3") + b"a=b", "body-not-granted"),
        (get("/a/1").replace(b"GET", b"POST", 1), "method-refused"),
    ],
)
def test_no_credential_travels_in_the_clear(stage: Stage, raw: bytes, reason: str) -> None:
    """I6: the bytes go on as they are, so what would be taken off elsewhere is refused here."""
    with serving(web, None) as server:
        policy = service("own", "ok.example:80", inject="", allow="GET,POST /a/**")
        stage.open(policy, ok_example__80=server)
        plain = Talk(stage.namespace.connect("ok.example", 80))
        plain.send(get("/a/1"))
        assert plain.answer().status == 200
        plain.send(raw)
        answer = plain.answer()
        assert (answer.status, reason.encode() in answer.body) == (403, True)
        plain.close()
