"""AWS Signature Version 4, written down once more, from its specification: a client and a verifier.

Nothing here is the gateway's own code: what both agree on is the signature.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tests.rigs.gateway.talk import Message

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8}/[^/]+/[^/]+/aws4_request), ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True)
class Keys:
    id: str
    secret: str

    def signature(self, scope: str, to_sign: str) -> str:
        """Derive the day's key, and sign."""
        key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, to_sign.encode(), "sha256").hex()


def canonical(
    method: str, path: str, fields: dict[str, str], signed: str, payload: str, twice: bool
) -> str:
    """The text that is hashed; no query here. S3 alone does not escape a path twice."""
    names = signed.split(";")
    rows = "".join(f"{name}:{' '.join(fields[name].split())}\n" for name in names)
    path = quote(path, safe="/~-._") if twice else path
    return f"{method}\n{path}\n\n{rows}\n{signed}\n{payload}"


def to_sign(stamp: str, scope: str, text: str) -> str:
    """The text that is signed."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"


def signed_request(
    keys: Keys, service: str, path: str, body: bytes, *, declared: str | None = None
) -> bytes:
    """A POST to ok.example; `declared` is what the client says of the body's hash."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{stamp[:8]}/eu-west-1/{service}/aws4_request"
    payload = declared or hashlib.sha256(body).hexdigest()
    fields = {"host": "ok.example", "x-amz-date": stamp}
    if declared:
        fields["x-amz-content-sha256"] = declared
    names = ";".join(sorted(fields))
    text = canonical("POST", path, fields, names, payload, service != "s3")
    signature = keys.signature(scope, to_sign(stamp, scope, text))
    fields["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.id}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    rows = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{rows}".encode() + b"Content-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def verified(keys: Keys, message: Message) -> bool:
    """Whether an origin that knows the keys accepts the request."""
    found = _AUTHORIZATION.fullmatch(message.one("authorization") or "")
    if found is None or found[1] != keys.id:
        return False
    fields = dict(message.fields)
    method, path, _ = message.start.split()
    payload = fields.get("x-amz-content-sha256") or hashlib.sha256(message.body).hexdigest()
    text = canonical(method, path, fields, found[3], payload, "/s3/" not in found[2])
    expected = keys.signature(found[2], to_sign(fields["x-amz-date"], found[2], text))
    return hmac.compare_digest(expected, found[4])
