"""A secret that is asked for, and one that cannot be had.

In test_clients.py every kind of source but `unsafe-env:` brings one to a service: `store:`,
`exec:` and `file:`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.errands import Household
from tests.rigs.clients.services import random_text
from tests.rigs.sandbox.screens import Screen, on_a_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

SERVICE = """
[services.billing]
hosts = ["billing.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "{reference}"
allow = ["GET /v1/**"]
"""
CURL = ("curl", "-sS", "https://billing.example/v1/sources")


@pytest.fixture(scope="module")
def household(new_project: Callable[[], Project], services: Services, inside: Inside) -> Household:
    """Whose policy each test writes."""
    return Household(new_project(), services, inside)


def received(services: Services) -> list[str]:
    """The credentials that came with what these tests ask."""
    requests = services.requests("billing.example")
    asked = [dict(r["headers"]) for r in requests if r["path"] == "/v1/sources"]
    return [headers["authorization"] for headers in asked]


def test_an_encrypted_secret_is_used_after_its_passphrase_is_typed(
    household: Household, services: Services
) -> None:
    """I1: asked of the person on their terminal, not of the sandbox. Control: a wrong one."""
    project = household.project
    secret, passphrase = random_text("encrypted-"), random_text("passphrase ")
    with Screen(lambda **ends: project.start("secret", "set", "locked", **ends)) as screen:
        for question, answer in (
            ("a passphrase", passphrase),
            ("the same once more", passphrase),
            ("value of locked", secret),
        ):
            screen.until(question)
            screen.type(f"{answer}\n")
        assert screen.wait() == 0
    household.policy(SERVICE.format(reference="store:locked"))
    with on_a_terminal(project, *CURL) as screen:
        screen.until("passphrase of Keyhole's store")
        screen.type("not the passphrase\n")
        screen.until("not it")
        screen.type(f"{passphrase}\n")
        screen.until("Bearer keyhole-")
        assert screen.wait() == 0
        assert secret not in screen.seen
    assert received(services)[-1] == f"Bearer {secret}"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("store:nothing", "store:nothing"),
        ("exec:false", "exec:false"),
        ("unsafe-env:UNSET_KEY", "UNSET_KEY"),
        ("file:~/no/such", "no/such"),
    ],
)
def test_a_secret_that_cannot_be_had_closes_its_service_alone(
    household: Household, services: Services, reference: str, words: str
) -> None:
    """I3: no request reaches the service, and the sandbox learns nothing of the host (I1). The
    person is told once. Control: the test above, with the same service."""
    before = len(received(services))
    household.policy(SERVICE.format(reference=reference))
    ran = household.project.shell(f"echo offline works; {' '.join(CURL)}")
    assert ran.code == 0
    offline, answer = ran.out.split("\n", 1)
    assert offline == "offline works"
    refused = json.loads(answer)
    assert refused["reason"] == "credential-unavailable"
    assert refused["why"].startswith("the secret of services.billing could not be read")
    assert words not in ran.out
    (line,) = [each for each in ran.err.splitlines() if "services.billing: closed" in each]
    assert words in line
    assert len(received(services)) == before


def test_a_credential_of_systemd_is_used_and_not_seen_inside(
    household: Household, services: Services
) -> None:
    """I1: wherever the variable leads, the file is masked. Control: the one beside it is read."""
    project, secret = household.project, random_text("systemd-")
    place = project.write("credentials/token", secret).parent
    (place / "token").chmod(0o400)
    project.write("credentials/beside", "not a secret")
    household.policy(SERVICE.format(reference="file:$CREDENTIALS_DIRECTORY/token"))
    script = f"{' '.join(CURL)} >/dev/null; cat credentials/beside; cat credentials/token"
    env = {"CREDENTIALS_DIRECTORY": str(place)}
    ran = household.project.shell(script, env=env)
    assert "not a secret" in ran.out
    assert secret not in ran.out + ran.err
    assert received(services)[-1] == f"Bearer {secret}"
    refused = household.project.shell(script)
    assert refused.code == 125
    assert "CREDENTIALS_DIRECTORY is not set" in refused.err


def test_a_missing_secret_that_the_sandbox_could_see_appear_stops_the_run(
    household: Household, services: Services
) -> None:
    """I1: a file that is made while a run lasts cannot be masked in it. Control: one elsewhere."""
    household.policy(SERVICE.format(reference="file:./later"))
    ran = household.project.run("true")
    assert ran.code == 125
    assert "lies where the sandbox sees it" in ran.err
    household.policy(SERVICE.format(reference="file:~/later"))
    assert household.project.run("true").code == 0
