"""What a forge lends is searched for, and what is no secret is let be (I7)."""

from __future__ import annotations

import base64

import pytest

from keyhole.inject.transfer_secrets import MAX_SEARCHED, is_credential, transfer_secrets
from keyhole.wire.lfs_response import StorageAddress, TransferAction

OID = "0123456789abcdef" * 4
TOKEN = "gitauth-v1-7Hq2LmZp0xWc4RtY8uKs"
SIGNATURE = "74a3af149d1ed193d9a792026527c59cd9e4773f42a18f003a3a4759bbe1da21"
S3 = (
    "https://media.storage.example/alambic/01/23?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Date=20260101T000000Z&X-Amz-Expires=900&X-Amz-Signature={SIGNATURE}&token=1"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJkYXRhIjp7ImFjdG9yIjoib21hciJ9fQ.ylp2GQbI2_Ij_b6MQJcHTMBahxTlxs"
BASIC = base64.b64encode(f"omar:{JWT}".encode()).decode()


def action(href: str = S3, **header: str) -> TransferAction:
    """An action; names of fields are written with `_`."""
    fields = tuple((name.replace("_", "-"), value) for name, value in header.items())
    return TransferAction(StorageAddress.parse(href), fields)


@pytest.mark.parametrize(
    ("kept", "secret"),
    [
        (action(), SIGNATURE),
        (action(Authorization=f"RemoteAuth {TOKEN}"), TOKEN),
        (action(Authorization=f"Bearer {JWT}"), JWT),
        (action(Authorization=f"Basic {BASIC}"), BASIC),
        (action(Authorization=f"Basic {BASIC}"), JWT),
        (action(Authorization="Basic " + base64.b64encode(TOKEN.encode()).decode()), TOKEN),
        (action(Authorization="Basic not-base64-not-base64"), "not-base64-not-base64"),
        (action(Authorization=f"AWS4-HMAC-SHA256 Credential=x, Signature={SIGNATURE}"), SIGNATURE),
        (action(PRIVATE_TOKEN="only-small-letters-in-it"), "only-small-letters-in-it"),
        (action(X_Any=TOKEN), TOKEN),
        (action("https://s.example/x?sig=AbC%2F0123456789abcdef%3D"), "AbC/0123456789abcdef="),
        (action("https://s.example/x?sig=AbC%2F0123456789abcdef%3D"), "AbC%2F0123456789abcdef%3D"),
    ],
)  # fmt: skip
def test_what_a_forge_lends_is_searched_for(kept: TransferAction, secret: str) -> None:
    """I7: as it is, encoded, and when a server shows a part of it."""
    needles = transfer_secrets(kept, OID)
    assert needles.found_in(b"<x>" + secret.encode() + b"</x>")
    shown = needles.replace(secret.encode())
    assert secret[-16:].encode() not in shown
    assert needles.found_in(base64.b64encode(secret.encode()))


def test_what_is_no_secret_is_not_searched_for() -> None:
    """Or downloads that hold it would be broken: constants, dates, names, the object's own oid."""
    kept = action(
        f"{S3}&oid={OID}&response-content-disposition=attachment%3Bfilename%3Dbuild-2026-x86.bin"
        "&X-Amz-SignedHeaders=host%3Bx-amz-content-sha256&X-Amz-Credential=AKIA0123456789ABCDEF",
        Authorization=f"AWS4-HMAC-SHA256 Credential=AKIA0123456789ABCDEF/20260101/s3, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={SIGNATURE}",
        X_Amz_Content_Sha256=OID,
        Content_Type="application/octet-stream;version=2",
        X_Words="nothing but small words in here",
    )
    needles = transfer_secrets(kept, OID)
    for text in (
        OID,
        "AWS4-HMAC-SHA256",
        "20260101T000000Z",
        "AKIA0123456789ABCDEF",
        "attachment;filename=build-2026-x86.bin",
        "application/octet-stream;version=2",
        "x-amz-content-sha256",
        "nothing but small words",
    ):
        assert not needles.found_in(text.encode()), text
    assert needles.found_in(SIGNATURE.encode())
    assert not transfer_secrets(action("https://s.example/x"), OID)


def test_of_a_long_secret_its_end_is_gone() -> None:
    """I9: to search for all of it costs more than its end is worth to a thief."""
    token = "aB3-" * 500 + TOKEN
    needles = transfer_secrets(action(Authorization=f"Bearer {token}"), OID)
    assert token[-MAX_SEARCHED:].encode() not in needles.replace(token.encode())


def test_a_field_is_known_as_a_credential_by_its_name() -> None:
    assert is_credential("Authorization")
    assert not is_credential("Content-Type")
