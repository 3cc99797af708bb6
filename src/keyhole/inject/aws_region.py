"""The AWS region and service of a host, read from its name, and the hosts that are never signed
for.

A signature is good for one service in one region. Both come from the policy (`sigv4`, `region`) or
from the host that it names, never from the client (I4). Called by `sigv4.py` for each
request, and when a policy is read, so that a host of no known region is a fault there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.inject.injection import MINTING_SERVICES
from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from keyhole.inject.injection import SignatureInjection

_CLASSIC = "amazonaws.com"
_SUFFIXES = (_CLASSIC, "amazonaws.com.cn", "amazonaws.eu", "api.aws", "on.aws")
"""The suffixes of AWS's endpoints: classic, China, the European cloud, dual-stack."""

# us-east-1, ap-southeast-4, us-gov-west-1, us-isob-east-1, eusc-de-east-1
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+){1,2}-[0-9]{1,2}")
# s3-eu-west-1.amazonaws.com, from before 2019
_DASHED_S3 = re.compile(rf"s3-({_REGION.pattern})")

_AFTER_REGION = frozenset({"vpce", "es", "aoss"})
"""Labels that some endpoints have behind the region: private links, search domains."""

_MINTING_LABELS = MINTING_SERVICES | {"oidc"}
"""`sso-oauth` answers as oidc.REGION; the others under the name that is signed for."""

_SIGNED_AS = {
    "api.ecr": "ecr",
    "email": "ses",
    "entitlement.marketplace": "aws-marketplace",
    "models-v2-lex": "lex",
    "runtime-v2-lex": "lex",
    "streams.dynamodb": "dynamodb",
}
"""Services that are signed for under another name than the first part of their host's."""

GLOBAL_S3_REGION = "us-east-1"
"""The region of `BUCKET.s3.amazonaws.com`, a name without one."""


def region_of(host: str) -> str | None:
    """The region in an AWS endpoint's name, or None: then the policy must name it."""
    suffix, labels = _split(host)
    # Searched for only in its position: a bucket may be called 'us-west-2'.
    match labels:
        case [*_, region, last] if last in _AFTER_REGION and _REGION.fullmatch(region):
            return region
        case [*_, last] if _REGION.fullmatch(last):
            return last
        case [*_, "s3"] if suffix == _CLASSIC:
            return GLOBAL_S3_REGION
        case [*_, last] if suffix == _CLASSIC and (dashed := _DASHED_S3.fullmatch(last)):
            return dashed[1]
    return None


def region_for(injection: SignatureInjection, host: str) -> str:
    """The region that requests to this host are signed for. Raises Unparsable with what to
    write."""
    if _hands_out_keys(host):
        # STS and IAM answer with keys that work anywhere (I1), whatever is signed for.
        raise Unparsable(f"{host} hands out keys, so nothing is signed for it")
    region = injection.region or region_of(host)
    if region is None:
        raise Unparsable(
            f"the name {host} does not tell its region",
            f'inject = {{ sigv4 = "{injection.service or "sqs"}", region = "us-east-1" }}',
        )
    return region


def service_for(injection: SignatureInjection, host: str) -> str:
    """The service that requests to this host are signed for. Raises Unparsable with what to
    write."""
    if injection.service:
        return injection.service
    suffix, labels = _split(host)
    name = ".".join(labels[:-1]).removesuffix("-fips")
    # Behind a name of the user's own (a bucket, an API) the service stands second: not guessed.
    own = "." in name and name not in _SIGNED_AS
    if not suffix or not name or own or not _REGION.fullmatch(labels[-1]):
        raise Unparsable(
            f"the name {host} does not tell its service", 'inject = { sigv4 = "execute-api" }'
        )
    return _SIGNED_AS.get(name, name)


def _hands_out_keys(host: str) -> bool:
    for label in reversed(_split(host)[1]):
        if label == "s3" or label.startswith("s3-"):
            return False  # the part before it is a bucket, by any name
        if label.removesuffix("-fips") in _MINTING_LABELS or label.startswith("s3express"):
            return True
    return False


def _split(host: str) -> tuple[str, list[str]]:
    """AWS's suffix and the labels before it; empty for a host that is not AWS's."""
    for suffix in _SUFFIXES:
        if host.endswith(f".{suffix}"):
            return suffix, host.removesuffix(f".{suffix}").split(".")
    return "", []
