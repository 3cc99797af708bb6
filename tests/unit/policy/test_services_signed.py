"""Services whose requests are signed: regions, key-minting hosts, placeholders of two shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.inject.injection import GoogleInjection, SignatureInjection
from keyhole.policy.build import PolicyContext
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.load import PolicyText, load
from tests.rigs.inject.shelf import service as template
from tests.rigs.policies import covered_suffix

if TYPE_CHECKING:
    from keyhole.policy.policy import Service

NAMES = ("aws-s3", "bedrock", "vertex-service-account")
WORLD = PolicyContext({name: template(name) for name in NAMES}, covered_suffix, ())


def service(text: str) -> Service:
    file = PolicyText("keyhole.toml", b"version = 1\n" + text.encode())
    return load(file, None, WORLD).policy.services[0]


def fault(text: str) -> str:
    with pytest.raises(PolicyFaults) as refusal:
        service(text)
    return "\n".join(found.render() for found in refusal.value.faults)


BUCKET = "[services.aws-s3]\nhosts = ['buck.s3.eu-west-1.amazonaws.com']\nsecret = 'store:aws'\n"
OWN = "[services.x]\nallow = ['GET /**']\nsecret = 'store:aws'\n"


def test_a_variable_may_have_a_placeholder_of_its_own_shape() -> None:
    found = service(BUCKET)
    assert found.env == ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert found.placeholder is not None
    assert found.placeholder.text == "AKIA{base32:16}"
    assert [(name, shape.text) for name, shape in found.placeholders] == [
        ("AWS_SECRET_ACCESS_KEY", "{b64:40}")
    ]


def test_a_shape_goes_with_its_variable_and_a_policy_of_ones_own_has_none() -> None:
    assert service(BUCKET + "env = ['MY_KEY']").placeholders == ()
    assert service(BUCKET + "env = ['AWS_SECRET_ACCESS_KEY']").placeholders
    assert service(OWN + "hosts = ['x.example']\ninject = { query = 'k' }").placeholders == ()


def test_an_entry_says_whether_pieces_may_be_asked_for() -> None:
    assert service(BUCKET).hosts[0].ranges
    bedrock = "[services.bedrock]\nhosts = ['bedrock-runtime.eu-west-1.amazonaws.com']"
    assert not service(bedrock).hosts[0].ranges
    assert not service(OWN + "hosts = ['x.example']\ninject = { query = 'k' }").hosts[0].ranges


def test_a_region_is_told_by_the_host_or_said() -> None:
    """I4: never what the client signed for."""
    assert service(BUCKET).hosts[0].inject == (SignatureInjection("s3"),)
    store = "hosts = ['store.corp.example']\ninject = { sigv4 = 's3', region = 'auto' }"
    assert service(OWN + store).hosts[0].inject == (SignatureInjection("s3", "auto"),)
    said = fault(OWN + "hosts = ['store.corp.example']\ninject = { sigv4 = 's3' }")
    assert "does not tell its region" in said
    assert 'region = "us-east-1"' in said


@pytest.mark.parametrize("host", ["sts.eu-west-1.amazonaws.com", "iam.amazonaws.com"])
@pytest.mark.parametrize("region", ["", ", region = 'us-east-1'"])
def test_no_policy_signs_for_hosts_that_hand_out_keys(host: str, region: str) -> None:
    """I1."""
    good = "buck.s3.eu-west-1.amazonaws.com"
    inject = f"inject = {{ sigv4 = 's3'{region} }}"
    assert service(f"{OWN}hosts = ['{good}']\n{inject}")
    said = fault(f"{OWN}hosts = ['{good}', '{host}']\n{inject}")
    assert f"{host} hands out keys" in said


@pytest.mark.parametrize("name", ["sts", "iam"])
def test_no_policy_signs_for_services_that_hand_out_keys(name: str) -> None:
    """I1."""
    hosts = "hosts = ['x.eu-west-1.amazonaws.com']\n"
    assert service(f"{OWN}{hosts}inject = {{ sigv4 = 's3' }}")
    said = fault(f"{OWN}{hosts}inject = {{ sigv4 = '{name}' }}")
    assert f"'{name}' hands out keys" in said


def test_a_token_is_minted_from_a_key_file() -> None:
    text = "[services.vertex-service-account]\nhosts = ['europe-west1-aiplatform.googleapis.com']"
    assert service(text).hosts[0].inject == (GoogleInjection(("cloud-platform",)),)
