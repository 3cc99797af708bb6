"""`login` of a service: what a policy may say of how a person logs in (I1, I3)."""

from __future__ import annotations

import pytest

from keyhole.policy.service_login import ServiceLogin
from tests.rigs.policies import faults, loaded

SERVICE = """
[services.tracker]
hosts  = ["mcp.tracker.example", "api.tracker.example:8443"]
secret = "login:tracker"
inject = { header = "Authorization", value = "Bearer {secret}" }
allow  = ["POST /mcp"]
"""


def test_without_a_word_the_service_itself_says_how() -> None:
    [service] = loaded(SERVICE).policy.services
    assert service.login == ServiceLogin()
    assert service.credential_hosts == ("mcp.tracker.example", "api.tracker.example:8443")


def test_a_policy_names_the_url_the_issuer_the_client_and_the_scopes() -> None:
    [service] = loaded(
        SERVICE
        + """
login.url = "https://mcp.tracker.example/mcp"
login.issuer = "https://auth.tracker.example"
login.client = "keyhole-at-work"
login.client_secret = "store:tracker-client"
login.scopes = ["read", "https://scopes.example/write"]
"""
    ).policy.services
    login = service.login
    assert login.url is not None
    assert login.issuer is not None
    assert (login.url.target, login.issuer.text) == ("/mcp", "https://auth.tracker.example")
    assert (login.client, str(login.client_secret)) == ("keyhole-at-work", "store:tracker-client")
    assert login.scopes == ("read", "https://scopes.example/write")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('login.url = "http://mcp.tracker.example/"', "not an https URL"),
        ('login.url = "https://auth.tracker.example/"', "not one of its hosts"),
        ('login.url = "https://api.tracker.example/"', "not one of its hosts"),
        ('login.issuer = "https://user@auth.example"', "user name"),
        ('login.client = "two words"', "printable ASCII"),
        ('login.client_secret = "file:x"\nlogin.client = "a"', "kept in the store"),
        ('login.client_secret = "store:x"', "whose secret is it"),
        ('login.scopes = ["read write"]', "an item of its own"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(line: str, why: str) -> None:
    assert any(why in fault.message for fault in faults(SERVICE + line))


def test_only_a_login_is_logged_in_to() -> None:
    found = faults(SERVICE.replace("login:tracker", "store:tracker") + 'login.client = "a"')
    assert ["only a login is logged in to" in fault.message for fault in found] == [True]
    assert found[0].hint == 'secret = "login:tracker"'
    without = SERVICE.replace('secret = "login:tracker"\n', "")
    assert any("only a login" in f.message for f in faults(without + 'login.client = "a"'))
