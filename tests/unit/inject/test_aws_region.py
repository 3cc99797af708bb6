"""The region is told by the host's name at its place, or by the policy; keys are minted nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.aws_region import GLOBAL_S3_REGION, region_for, region_of, service_for
from keyhole.inject.injection import SignatureInjection
from keyhole.model.errors import Unparsable

TOLD = {
    "bedrock-runtime.us-east-1.amazonaws.com": "us-east-1",
    "bedrock-runtime-fips.us-gov-west-1.amazonaws.com": "us-gov-west-1",
    "bedrock-runtime.eu-central-1.api.aws": "eu-central-1",
    "bedrock-runtime.eusc-de-east-1.amazonaws.eu": "eusc-de-east-1",
    "dynamodb.cn-north-1.amazonaws.com.cn": "cn-north-1",
    "vpce-1a-2b.bedrock-runtime.us-east-2.vpce.amazonaws.com": "us-east-2",
    "search-x.ap-south-1.es.amazonaws.com": "ap-south-1",
    "abc.us-west-2.aoss.amazonaws.com": "us-west-2",
    "abc.lambda-url.ap-southeast-4.on.aws": "ap-southeast-4",
    "abc.execute-api.il-central-1.amazonaws.com": "il-central-1",
    "s3.eu-west-1.amazonaws.com": "eu-west-1",
    "buck.s3.eu-west-1.amazonaws.com": "eu-west-1",
    "buck.with.dots.s3.eu-west-1.amazonaws.com": "eu-west-1",
    "buck.s3.dualstack.eu-west-1.amazonaws.com": "eu-west-1",
    "buck.s3-eu-west-1.amazonaws.com": "eu-west-1",
    "buck.s3.amazonaws.com": GLOBAL_S3_REGION,
    "us-west-2.s3.amazonaws.com": GLOBAL_S3_REGION,
    "us-west-2.s3.eu-west-1.amazonaws.com": "eu-west-1",
    "sts.s3.eu-west-1.amazonaws.com": "eu-west-1",
    "vpce.s3.amazonaws.com": GLOBAL_S3_REGION,
}

UNTOLD = [
    "store.corp.example",
    "account.r2.cloudflarestorage.com",
    "amazonaws.com",
    "us-east-1.evil.example",
    "s3.eu-west-1.amazonaws.com.evil.example",
    "s3.eu-west-1.fakeamazonaws.com",
    "buck.s3-accelerate.amazonaws.com",
    "cloudfront.amazonaws.com",
    "buck.s3.amazonaws.com.cn",
    "us-west-2.buck.amazonaws.com",
    "vpce.amazonaws.com",
    "x.vpce.amazonaws.com",
    "s3-x.amazonaws.com",
]

MINTING = [
    "sts.amazonaws.com",
    "sts.us-east-1.amazonaws.com",
    "sts-fips.us-east-1.amazonaws.com",
    "sts.us-east-1.api.aws",
    "vpce-1a-2b.sts.us-east-1.vpce.amazonaws.com",
    "iam.amazonaws.com",
    "iam.us-gov.amazonaws.com",
    "iam.cn-north-1.amazonaws.com.cn",
    "portal.sso.eu-west-1.amazonaws.com",
    "oidc.eu-west-1.amazonaws.com",
    "rolesanywhere.eu-west-1.amazonaws.com",
    "cognito-identity.eu-west-1.amazonaws.com",
    "buck--usw2-az1--x-s3.s3express-usw2-az1.us-west-2.amazonaws.com",
]

HERE, THERE = SignatureInjection("s3"), SignatureInjection("s3", "auto")


@pytest.mark.parametrize("host", TOLD)
def test_the_name_of_an_endpoint_tells_its_region(host: str) -> None:
    assert region_of(host) == TOLD[host]
    assert region_for(HERE, host) == TOLD[host]
    assert region_for(THERE, host) == "auto"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("sqs.eu-west-1.amazonaws.com", "sqs"),
        ("kms-fips.us-gov-west-1.amazonaws.com", "kms"),
        ("email.eu-west-1.amazonaws.com", "ses"),
        ("streams.dynamodb.eu-west-1.amazonaws.com", "dynamodb"),
        ("api.ecr.eu-west-1.amazonaws.com", "ecr"),
    ],
)
def test_the_name_of_an_endpoint_tells_its_service(host: str, name: str) -> None:
    """I4: never what the client signed for."""
    assert service_for(SignatureInjection(""), host) == name
    assert service_for(HERE, host) == "s3"


@pytest.mark.parametrize(
    "host",
    [
        "abc.execute-api.eu-west-1.amazonaws.com",
        "buck.s3.eu-west-1.amazonaws.com",
        "eu-west-1.amazonaws.com",
        "sqs.amazonaws.com",
        "queue.corp.example",
    ],
)
def test_any_other_name_tells_no_service_and_the_policy_has_to(host: str) -> None:
    with pytest.raises(Unparsable, match="does not tell its service"):
        service_for(SignatureInjection(""), host)
    assert str(SignatureInjection("")) == "signature AWS4-HMAC-SHA256 for the service of the host"


@pytest.mark.parametrize("host", UNTOLD)
def test_any_other_name_tells_none_and_the_policy_has_to(host: str) -> None:
    """I4: a region is never guessed, nor taken from what the client signed for."""
    assert region_of(host) is None
    with pytest.raises(Unparsable, match="does not tell its region") as refusal:
        region_for(HERE, host)
    assert refusal.value.hint == 'inject = { sigv4 = "s3", region = "us-east-1" }'
    assert region_for(THERE, host) == "auto"


@pytest.mark.parametrize("host", MINTING)
def test_nothing_is_signed_for_hosts_that_hand_out_keys(host: str) -> None:
    """I1: a key of the account's, in an answer, is a key inside."""
    for injection in (HERE, THERE):
        with pytest.raises(Unparsable, match="hands out keys"):
            region_for(injection, host)


_LABEL = st.sampled_from(
    ["s3", "sts", "vpce", "es", "dualstack", "us-east-1", "s3-us-east-1", "buck", "amazonaws"]
)


@given(st.lists(_LABEL, min_size=1, max_size=5), st.sampled_from(["amazonaws.com", "api.aws", "x"]))
def test_any_name_has_a_region_or_none(labels: list[str], suffix: str) -> None:
    assert region_of(".".join((*labels, suffix))) in {None, "us-east-1"}
