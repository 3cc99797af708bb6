"""The list of hosts for hints is the catalogue's."""

from __future__ import annotations

from keyhole.inject.service_hosts import SERVICE_HOSTS
from tests.rigs.inject.shelf import NAMES, service


def test_every_host_that_gets_a_credential_is_listed() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for name in NAMES:
        for pattern in (p for host in service(name).hosts if host.inject for p in host.hosts):
            found[str(pattern)] = (*found.get(str(pattern), ()), name)
    assert found == SERVICE_HOSTS, "enter it in inject/service_hosts.py"
