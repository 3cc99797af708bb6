"""What does not work says why: to the client, to the person, and in the log (I4, I8)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.errands import Household

if TYPE_CHECKING:
    from collections.abc import Callable

    import trustme

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project, Ran
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

URL = "https://billing.example/v1/echo"

ERRANDS = {
    "good": f"curl -sS {URL}",
    "untrusted": "curl -sS -w '\\n%{http_code}' https://untrusted.example/v1/echo",
    "distrusting": f"for i in 1 2 3; do curl -sS --cacert stranger.pem {URL}; echo $?; done",
    "pinned": "curl -sS --cacert origin-ca.pem -H 'Authorization: Bearer of-the-client' "
    "https://pinned.example/anything",
    "decoy": f'curl -sS -H "Authorization: Bearer $ANTHROPIC_API_KEY" {URL}',
    "own": 'curl -sS -H "X-Api-Key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models/x',
    "denied": f"curl -sS -X DELETE {URL}",
    "elsewhere": "curl -sS https://evil.example/ || echo no",
    "bodied": f"curl -sS -X GET -d a=b {URL}",
    "overridden": f"curl -sS -X POST -d a=b -H 'X-HTTP-Method-Override: DELETE' {URL}",
    "socket": f"curl -sS --http1.1 -H 'Connection: Upgrade' -H 'Upgrade: websocket' "
    f"-H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' {URL}",
    "claiming": f"curl -sS -H 'X-Forwarded-For: 127.0.0.1' -H 'X_Real_IP: 127.0.0.1' "
    f"-H 'X-Acme-Token: theirs' -H 'X-Kept: yes' {URL}/claims",
    "env": "printf %s $ANTHROPIC_API_KEY",
}


class Ruin:
    """One run in which much goes wrong."""

    def __init__(self, household: Household, stranger: trustme.CA) -> None:
        household.project.write("stranger.pem", stranger.cert_pem.bytes().decode())
        ended, self.ran = household.errands(ERRANDS)
        self.said: dict[str, str] = {name: each["out"] for name, each in ended.items()}
        self.events = household.project.events()
        self.log: Ran = household.project("log")

    def event(self, **wanted: str) -> list[dict[str, Any]]:
        """The events of which all this is true."""
        return [e for e in self.events if all(e.get(k) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def ruin(
    new_project: Callable[[], Project], services: Services, inside: Inside, stranger: trustme.CA
) -> Ruin:
    """All of it in one sandbox."""
    return Ruin(Household(new_project(), services, inside), stranger)


@pytest.mark.parametrize(
    ("name", "method", "reason"),
    [
        ("bodied", "GET+body", "body-not-granted"),
        ("overridden", "POST", "method-override"),
        ("socket", "WEBSOCKET", "websocket-not-granted"),
    ],
)
def test_what_the_method_alone_does_not_grant_is_refused(
    ruin: Ruin, services: Services, name: str, method: str, reason: str
) -> None:
    """I3: `GET,POST /v1/**` covers none of these. Control: a plain GET there is served."""
    answer = json.loads(ruin.said[name])
    assert (answer["error"], answer["reason"]) == ("denied", reason)
    (event,) = ruin.event(kind="request", reason=reason)
    assert event["details"] == {"method": method, "path": "/v1/echo"}
    asked = {r["method"] for r in services.requests("billing.example") if r["path"] == "/v1/echo"}
    assert asked == {"GET"}
    assert json.loads(ruin.said["good"])["host"] == "billing.example"


def test_what_claims_who_asks_does_not_arrive(ruin: Ruin, services: Services) -> None:
    """I4, I6: nginx and what is behind it get neither; the control is a field that claims nothing.
    (nginx drops fields with `_` itself, but for that it need not be trusted.)"""
    asked = [r for r in services.requests("billing.example") if r["path"] == "/v1/echo/claims"]
    names = {name for name, _ in asked[0]["headers"]}
    assert "x-kept" in names
    assert not {"x-forwarded-for", "x_real_ip", "x-real-ip", "x-acme-token"} & names


def test_an_origin_whose_certificate_nobody_trusts_is_a_502_that_says_so(
    ruin: Ruin, services: Services
) -> None:
    """I4: never a bypass. Control: the same service's other host is reached in the same run."""
    body, _, status = ruin.said["untrusted"].rpartition("\n")
    answer = json.loads(body)
    assert status == "502"
    assert (answer["error"], answer["reason"]) == ("failed", "upstream-certificate")
    assert "issuer certificate" in answer["why"]
    assert services.requests("untrusted.example") == []
    assert json.loads(ruin.said["good"])["host"] == "billing.example"
    assert "failed untrusted.example:443 (the origin's certificate" in ruin.ran.err


def test_a_client_that_does_not_trust_the_ca_is_reported_once_with_what_to_do(ruin: Ruin) -> None:
    """Control: with the CA of the sandbox's own bundle, the same client is served."""
    assert ruin.said["distrusting"].split() == ["60"] * 3
    lines = [line for line in ruin.ran.err.splitlines() if "does not trust" in line]
    assert len(lines) == 1
    assert "billing.example" in lines[0]
    for word in ("/etc/keyhole/bundle.pem", "SSL_CERT_FILE", "unsafe_passthrough"):
        assert word in lines[0]
    assert ruin.event(reason="client-distrusts", host="billing.example")


def test_a_host_that_is_passed_through_gets_the_clients_bytes_and_no_credential(
    ruin: Ruin, services: Services
) -> None:
    """I6's other side: TLS is the origin's own (the client verified it), and so is the header."""
    assert json.loads(ruin.said["pinned"])["headers"]["authorization"] == "Bearer of-the-client"
    assert services.keys.billing not in json.dumps(services.requests("pinned.example"))
    tunnels = ruin.event(kind="connect", host="pinned.example")
    assert tunnels
    assert not ruin.event(kind="request", host="pinned.example")


def test_a_placeholder_that_turns_up_elsewhere_is_an_event_of_its_own(
    ruin: Ruin, services: Services
) -> None:
    """I1, I8. It does not arrive there. Control: where it belongs it is no event."""
    decoys = ruin.event(kind="decoy")
    assert [(e["reason"], e["host"]) for e in decoys] == [("decoy-used", "billing.example")]
    held = ruin.said["env"]
    assert held.startswith("sk-ant-api03-")
    assert held not in json.dumps(services.requests("billing.example"))
    assert json.loads(ruin.said["own"])["id"] == "fake"


def test_a_placeholder_authorises_nothing(ruin: Ruin, services: Services) -> None:
    """I1: whoever takes it out of the sandbox has nothing. Control: the key itself."""
    host, header = "api.anthropic.com", "x-api-key"
    assert services.ask_directly(host, header, ruin.said["env"]) == 401
    assert services.ask_directly(host, header, services.keys.anthropic) == 200


def test_the_log_shows_each_request_and_which_rule_spoke(ruin: Ruin) -> None:
    """I8."""
    good = ruin.event(kind="request", verdict="allow", host="billing.example")
    told = {(e["rule"], e["details"]["method"], e["details"]["path"]) for e in good}
    rule, paths = "services.billing.allow[0]", ("/v1/echo", "/v1/echo/claims")
    assert told == {(rule, "GET", path) for path in paths}
    assert {e["reason"] for e in good} == {"rule", "secret-scrubbed"}
    denied = ruin.event(kind="request", verdict="deny", host="billing.example")
    assert {(e["reason"], e["details"]["method"]) for e in denied} == {
        ("no-rule", "DELETE"),
        ("body-not-granted", "GET+body"),
        ("method-override", "POST"),
        ("websocket-not-granted", "WEBSOCKET"),
    }
    assert ruin.event(verdict="deny", host="evil.example")
    assert ruin.log.code == 0
    for words in (
        "allow  request   billing.example",
        "deny   request   billing.example",
        "deny   decoy     billing.example",
        "decoy-used",
        "upstream-certificate",
        "client-distrusts",
    ):
        assert words in ruin.log.out


def test_neither_the_log_nor_the_person_is_told_a_secret(ruin: Ruin, services: Services) -> None:
    """I8."""
    everything = ruin.log.out + json.dumps(ruin.events) + ruin.ran.err
    assert "billing.example" in everything
    assert not [key for key in services.keys.all() if key in everything]
