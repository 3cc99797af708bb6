"""The list of hosts for hints is the catalogue's."""

from __future__ import annotations

from keyhole.inject.catalogue import McpLogin
from keyhole.inject.service_hosts import LOGGED_IN, SERVICE_HOSTS, usual_secret
from tests.rigs.inject.shelf import NAMES, service


def test_every_host_that_gets_a_credential_is_listed() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for name in NAMES:
        for pattern in (p for host in service(name).hosts if host.inject for p in host.hosts):
            found[str(pattern)] = (*found.get(str(pattern), ()), name)
    assert found == SERVICE_HOSTS, "enter it in inject/service_hosts.py"


def test_services_that_a_person_logs_in_to_are_listed() -> None:
    servers = {name: service(name).mcp for name in NAMES if not service(name).needs_hosts}
    by_login = {name for name, one in servers.items() if one and one.login is McpLogin.OAUTH}
    assert by_login == LOGGED_IN, "enter it in inject/service_hosts.py"
    assert usual_secret("linear-mcp") == ("login:linear-mcp", "keyhole login linear-mcp")
    assert usual_secret("linear") == ("store:linear", "keyhole secret set linear")
