"""The catalogue's files: those with a host of a policy are found without reading the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import keyhole.inject
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.policy.summary import summarise
from tests.rigs.policies import book

CATALOGUE = FileCatalogue()
FILES = Path(keyhole.inject.__path__[0]) / "services"


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_s_text_has_the_last_two_labels_of_its_hosts(name: str) -> None:
    """By these it is found: a host that is spelled in another way would not be."""
    text = (FILES / f"{name}.toml").read_text("utf-8")
    for host in CATALOGUE[name].hosts:
        for pattern in host.hosts:
            labels = pattern.host.name.split(".")
            assert len(labels) > 1
            assert ".".join(labels[-2:]) in text


def own(host: str) -> str:
    return f'[services.own]\nhosts = ["{host}"]\nallow = ["* /**"]\n'


@pytest.mark.parametrize("name", CATALOGUE)
def test_entries_that_share_a_host_with_a_policy_are_found(name: str) -> None:
    for host in CATALOGUE[name].hosts:
        for pattern in host.hosts[:1]:
            policy = book(own(str(pattern))).policy
            found = FileCatalogue().near(policy)
            assert CATALOGUE[name] in found
            assert summarise(policy, found) == summarise(policy, CATALOGUE.values())


def test_entries_of_other_hosts_are_not_read() -> None:
    assert FileCatalogue().near(book(own("billing.nowhere.test")).policy) == ()
    assert FileCatalogue().near(book("").policy) == ()
