"""`keyhole secret test`: through a real sandbox, door and gateway, to a service that answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.errands import Household
from tests.rigs.clients.services import random_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project, Ran
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

POLICY = """
[services.anthropic]
secret = "store:claude"
allow = ["POST /v1/messages"]
[services.billing]
hosts = ["billing.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/git"
allow = ["POST /v1/nothing"]
[services.untrusted]
hosts = ["untrusted.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/git"
allow = ["GET /**"]
[services.keyless]
hosts = ["plain.example"]
allow = ["GET /**"]
"""


@pytest.fixture(scope="module")
def household(new_project: Callable[[], Project], services: Services, inside: Inside) -> Household:
    made = Household(new_project(), services, inside)
    made.policy(POLICY)
    return made


def keep(household: Household, value: str) -> None:
    ran = household.project("secret", "set", "claude", "--plain", text=value.encode())
    assert ran.code == 0, ran


def attempt(household: Household, name: str, *words: str) -> Ran:
    """And no secret, nor anything of the answer, is in what it says (I8)."""
    ran = household.project("secret", "test", name, "--trust", *words)
    said = ran.out + ran.err
    assert not any(key in said for key in household.services.keys.all())
    assert "claude-" not in said
    return ran


def test_a_service_accepts_the_right_secret_and_refuses_another(
    household: Household, services: Services
) -> None:
    """The request is the catalogue's, with the credential, although the policy allows only POST."""
    keep(household, services.keys.anthropic)
    ran = attempt(household, "claude")
    assert (ran.code, ran.err) == (0, "")
    words = "accepted  services.anthropic  GET https://api.anthropic.com/v1/models  200\n"
    assert ran.out == words
    [*_, seen] = services.requests("api.anthropic.com")
    headers = dict(seen["headers"])
    assert (seen["method"], seen["path"]) == ("GET", "/v1/models")
    assert headers["x-api-key"] == services.keys.anthropic
    assert headers["anthropic-version"] == "2023-06-01"
    keep(household, random_text("sk-ant-api03-other"))
    ran = attempt(household, "claude", "--json")
    assert ran.code == 1
    [row] = json.loads(ran.out)
    assert (row["id"], row["verdict"], row["status"]) == ("anthropic", "refused", 401)


def test_what_the_catalogue_does_not_know_is_named_by_a_path(
    household: Household, services: Services
) -> None:
    ran = attempt(household, "billing")
    assert ran.code == 2
    assert "--path" in ran.err
    ran = attempt(household, "billing", "--path", "/v1/me")
    assert ran.code == 0
    assert ran.out == "accepted  services.billing  GET https://billing.example/v1/me  200\n"
    [*_, seen] = services.requests("billing.example")
    assert dict(seen["headers"])["authorization"] == f"Bearer {services.keys.git}"
    ran = attempt(household, "billing", "--path", "/v1/away")
    assert (ran.code, ran.out.split()[0]) == (2, "unclear")
    for path in ("v1", "/v1/*", "/v1?key=x", "/v1 x"):
        assert attempt(household, "billing", "--path", path).code == 2


def test_an_origin_that_cannot_be_verified_is_not_given_the_secret(
    household: Household, services: Services
) -> None:
    """I4: as in any run."""
    before = len(services.requests("untrusted.example"))
    ran = attempt(household, "untrusted", "--path", "/v1/me")
    assert ran.code == 2
    assert ran.out.startswith("not reached")
    assert len(services.requests("untrusted.example")) == before


@pytest.mark.parametrize("name", ["nobody", "keyless"])
def test_a_secret_that_no_service_uses_is_not_tried(household: Household, name: str) -> None:
    ran = attempt(household, name)
    assert ran.code == 2
    assert "no service of this policy uses it" in ran.err


def test_a_policy_that_nobody_accepted_has_nothing_asked(
    household: Household, services: Services
) -> None:
    """I11: it could name a command of this host, or another place for the secret to go."""
    household.policy(POLICY + "# changed\n")
    before = len(services.requests("api.anthropic.com"))
    ran = household.project("secret", "test", "claude")
    assert ran.code == 2
    assert "not accepted" in ran.err
    assert len(services.requests("api.anthropic.com")) == before
    assert attempt(household, "claude").code in (0, 1)  # the control
