"""Uses that a person should look at twice before a rule allows them.

Code in the sandbox chooses what it does in a learning run, so what was seen is no proof of need.
The words say what a use looks like; a use without a concern may still be hostile.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.host import Host

METADATA = "looks like a cloud's metadata service"
CREDENTIALS = "looks like an endpoint that gives out credentials"
TELEMETRY = "looks like telemetry"
DATA_IN_NAME = "looks like data in a name"
DATA_IN_PATH = "looks like data in a path"
MANY_NAMES = "one of many names below one domain"
OTHER_SCRIPT = "a name in another script, which may look like another"
GUARDED = "an endpoint that the catalogue guards: it lists, makes or moves credentials"
OWN_PATTERN = "a pattern that the code itself wrote"
PROTECTED = "a branch that is protected until a rule names it"

MANY = 10
"""Names below one domain: mirrors and shards are fewer, data in names is more."""
_LONG_NAME = 100
_LONG_LABEL = 32
_DENSE_PART = 14
"""Letters between hyphens from which their entropy says something."""
_DENSE_BITS = 3.4
"""Bits a letter: words have about 3, base32 of random bytes has 3.5 and more in a label."""
_LONG_SEGMENT = 80
_LONG_PATH = 300

_METADATA_NAMES = frozenset({"metadata", "instance-data", "metadata.google.internal"})
_CREDENTIAL_LABELS = frozenset(
    "sts oauth oauth2 login signin accounts auth auth0 sso iam secretsmanager kms vault".split()
)
_TELEMETRY_LABELS = frozenset(
    "telemetry sentry statsig analytics metrics stats segment amplitude posthog bugsnag mixpanel "
    "otel intake datadoghq honeycomb newrelic rudderstack crashlytics".split()
)
_WORDS = re.compile(r"[a-z0-9]+")


def concern_of_host(host: Host) -> str:
    """What a name looks like; empty if like nothing in particular."""
    labels = host.name.split(".")
    if host.name in _METADATA_NAMES or labels[-1] == "internal":
        return METADATA
    if len(host.name) > _LONG_NAME or any(map(_is_dense, labels)):
        return DATA_IN_NAME
    if any(label.startswith("xn--") for label in labels):
        return OTHER_SCRIPT
    words = {word for label in labels[:-1] for word in _WORDS.findall(label)}
    if words & _TELEMETRY_LABELS:
        return TELEMETRY
    return CREDENTIALS if words & _CREDENTIAL_LABELS else ""


def concern_of_path(path: str) -> str:
    """What a path looks like."""
    segments = path.split("/")
    long = len(path) > _LONG_PATH or any(len(each) > _LONG_SEGMENT for each in segments)
    return DATA_IN_PATH if long else ""


def crowded_domains(hosts: Iterable[Host]) -> frozenset[str]:
    """The domains that have many names below them."""
    count = Counter(host.name.partition(".")[2] for host in set(hosts))
    return frozenset(domain for domain, names in count.items() if domain and names > MANY)


def _is_dense(label: str) -> bool:
    """Whether a label is longer or more random than people's names are."""
    if len(label) >= _LONG_LABEL:
        return True
    return any(len(part) >= _DENSE_PART and _bits(part) >= _DENSE_BITS for part in label.split("-"))


def _bits(part: str) -> float:
    """Bits of entropy a letter, of a part that mixes letters and digits."""
    if part.isalpha() or part.isdigit():
        return 0.0
    shares = [count / len(part) for count in Counter(part).values()]
    return -sum(share * math.log2(share) for share in shares)
