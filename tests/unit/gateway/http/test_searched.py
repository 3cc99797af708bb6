"""What is searched for in a host's answers grows with the secrets that were sent there (I7)."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from keyhole.gateway.http.searched import MAX_PAST, Searched
from keyhole.gateway.session import Interception
from keyhole.inject.credential import Credential, make_credential
from keyhole.inject.injection import HeaderInjection
from keyhole.model.host import Host
from keyhole.model.secret import Secret
from tests.rigs.gateway.stage import service
from tests.rigs.policies import book

if TYPE_CHECKING:
    from keyhole.policy.rulebook import HostRules

RULES = book(service("own", "*.ok.example", "ok.example") + service("two", "two.example"))
A, B = Host("a.ok.example"), Host("b.ok.example")


def secret(number: int) -> str:
    return f"sk-{number:04}-abcdefghijklmnop"


def writing(own: str | None) -> Interception:
    """The service's secret; the other service has one that stays."""
    ways = (HeaderInjection("Authorization", "Bearer {secret}"),)
    made = {"two": make_credential(Secret(secret(9999)), ways, (), "stand-in")}
    if own is not None:
        made["own"] = make_credential(Secret(own), ways, (), "stand-in")

    def credential(rules: HostRules, *, git: bool = False) -> Credential | None:
        return made.get(rules.service.name)

    return Interception(None, None, credential, {})  # type: ignore[arg-type]


def finds(searched: Searched, host: Host, number: int) -> bool:
    return searched.of(host).found_in(f"({secret(number)})".encode())


def test_a_host_is_searched_for_the_secrets_of_its_own_services_of_now_and_before() -> None:
    searched = Searched(RULES, writing(secret(0)))
    shared = searched.of(A)
    searched.change(RULES, writing(secret(1)))
    searched.change(RULES, None)
    searched.change(RULES, writing(None))
    assert searched.of(A) is shared
    for host in (A, B):
        assert finds(searched, host, 0)
        assert finds(searched, host, 1)
        assert not finds(searched, host, 9999)
    assert finds(searched, Host("two.example"), 9999)
    assert not finds(searched, Host("two.example"), 0)
    assert not searched.of(Host("no.example"))


def test_changes_that_change_no_secret_add_nothing() -> None:
    searched = Searched(RULES, writing(secret(0)))
    size = len(searched.of(A))
    for _ in range(100):
        searched.change(RULES, writing(secret(0)))
    assert len(searched.of(A)) == size
    assert searched._past == {}


def test_secrets_that_were_replaced_long_ago_are_forgotten_in_the_end() -> None:
    """I9: every one of them costs a search of every answer."""
    searched = Searched(RULES, writing(secret(0)))
    for number in range(1, 2 * MAX_PAST):
        searched.change(RULES, writing(secret(number)))
    last = 2 * MAX_PAST - 1
    assert all(finds(searched, A, number) for number in range(last - MAX_PAST, last + 1))
    assert not finds(searched, A, last - MAX_PAST - 1)


def test_names_that_nobody_talks_to_take_no_memory() -> None:
    """I9: under a wildcard the sandbox chooses them."""
    searched = Searched(RULES, writing(secret(0)))
    kept = searched.of(A)
    for number in range(100):
        assert searched.of(Host(f"n{number}.ok.example"))
    gc.collect()
    assert len(searched._hosts) == 1
    assert searched.of(A) is kept
