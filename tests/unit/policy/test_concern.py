"""What a use looks like."""

from __future__ import annotations

import pytest

from keyhole.model.host import Host
from keyhole.policy import concern
from keyhole.policy.concern import concern_of_host, concern_of_path, crowded_domains


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("files.example", ""),
        ("objects.githubusercontent.com", ""),
        ("storage-europe-west1.example", ""),
        ("metadata.google.internal", concern.METADATA),
        ("anything.internal", concern.METADATA),
        ("sts.eu-west-1.amazonaws.com", concern.CREDENTIALS),
        ("oauth2.example", concern.CREDENTIALS),
        ("http-intake.logs.example", concern.TELEMETRY),
        ("o123.ingest.sentry.io", concern.TELEMETRY),
        ("xn--exmple-cua.example", concern.OTHER_SCRIPT),
        ("mfzwizltoq2gk3tfmq7.evil.example", concern.DATA_IN_NAME),
        ("a" * 40 + ".evil.example", concern.DATA_IN_NAME),
        (".".join(["word"] * 25), concern.DATA_IN_NAME),
    ],
)
def test_a_name_says_what_it_looks_like(name: str, looks: str) -> None:
    assert concern_of_host(Host(name)) == looks


def test_a_long_path_looks_like_data() -> None:
    assert concern_of_path("/repos/acme/widgets/pulls/1") == ""
    assert concern_of_path("/" + "a" * 90) == concern.DATA_IN_PATH
    assert concern_of_path("/abc" * 80) == concern.DATA_IN_PATH


def test_many_names_below_one_domain_are_a_crowd() -> None:
    few = [Host(f"m{n}.mirror.example") for n in range(concern.MANY)]
    many = [Host(f"m{n}.evil.example") for n in range(concern.MANY + 1)]
    assert crowded_domains([*few, *many, *many]) == {"evil.example"}
