"""A request is signed with the real keys only if its client signed it with the placeholders (I4).

The signatures in `VECTORS` were made by botocore for the keys below, at `NOON`.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.canonical import SignedRequest, canonical_form
from keyhole.inject.injection import SignatureInjection
from keyhole.inject.sigv4 import (
    EMPTY_BODY,
    MAX_HASHED_BODY,
    MAX_KEY_LENGTH,
    MAX_SIGNED_HEADERS,
    MAX_SKEW,
    WRITTEN_NAMES,
    SignatureRefusal,
    SigningKey,
    VerifiedSignature,
    check,
    read_keys,
    sign,
    wants_digest,
)
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.secret import Secret
from tests.rigs.gateway import aws
from tests.rigs.gateway.aws import UNSIGNED

NOON = 1782907200.0  # 2026-07-01 12:00:00 UTC
STAMP = b"20260701T120000Z"
PLACEHOLDER_ID = "AKIAKEYHOLE234567ABC"
PLACEHOLDER_SECRET = "keyhole+/bcdefghijklmnopqrstuvwxyz012345"
REAL_ID = "AKIAREALREALREALREAL"
REAL_SECRET = "real/secret+key0123456789abcdefghijklmno"
SESSION_TOKEN = "session/token+of==temporary/keys"


def keys(service: str, region: str = "", *, token: bool = True) -> SigningKey:
    lines = [REAL_ID, REAL_SECRET, *([SESSION_TOKEN] if token else [])]
    injection = SignatureInjection(service, region)
    return read_keys(Secret("\n".join(lines)), injection, PLACEHOLDER_ID, PLACEHOLDER_SECRET)


@dataclass(frozen=True, slots=True)
class Vector:
    """What botocore made of one request: the client's signature, and that of the real keys."""

    service: str
    region: str
    method: str
    host: str
    target: str
    lines: tuple[bytes, ...]
    signed: str
    payload: str
    body: bytes | None
    by_placeholder: str
    by_real: str

    def request(self) -> SignedRequest:
        path, question, query = self.target.partition("?")
        credential = f"{PLACEHOLDER_ID}/20260701/{self.region}/{self.service}/aws4_request"
        authorization = (
            f"Authorization: AWS4-HMAC-SHA256 Credential={credential}, "
            f"SignedHeaders={self.signed}, Signature={self.by_placeholder}"
        )
        lines = [*self.lines, f"Host: {self.host}".encode(), b"X-Amz-Date: " + STAMP]
        if self.body is None:
            lines.append(f"x-amz-content-sha256: {self.payload}".encode())
        lines += [authorization.encode(), b"User-Agent: Boto3/1.44", b"amz-sdk-request: attempt=1"]
        return SignedRequest(self.host, self.method, path, query if question else None, lines)

    def digest(self) -> str | None:
        return None if self.body is None else hashlib.sha256(self.body).hexdigest()


RUNTIME = "bedrock-runtime.eu-west-1.amazonaws.com"
BUCKET = "buck.s3.eu-west-1.amazonaws.com"

VECTORS = {
    "a name with escapes, a body whose hash is not sent": Vector(
        "bedrock", "eu-west-1", "POST", RUNTIME,
        "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Fx%3A0/invoke",
        (), "host;x-amz-date", "", b'{"a":1}',
        "53aad430be9a226f428f8f8d6161ed94e60cd358647bf23c5abfef96cbe92118",
        "a0bea56688111fbb03a9342a186d9f0f7d2deadfe504d51bd1eabb04bc586429",
    ),
    "a colon that is not escaped, a value with two blanks": Vector(
        "bedrock", "us-gov-west-1", "POST", "bedrock-runtime.us-gov-west-1.amazonaws.com",
        "/model/anthropic.claude-v1:0/converse",
        (b"Content-Type: application/json", b"Accept: a,  b"),
        "accept;content-type;host;x-amz-date", "", b'{"a":1}',
        "d8ef05efbcf0edf1281e980f22d4ed414fd37e16976d98bc1b23cf758df1e0cc",
        "9b564e680361a6e348b34bb852eddaa3d4e2c3584919cf2ccd190fc1b195b6ce",
    ),
    "a query out of order": Vector(
        "bedrock", "eu-west-1", "GET", "bedrock.eu-west-1.amazonaws.com",
        "/foundation-models?byProvider=a%20b%2Bc&byA=~%2A",
        (), "host;x-amz-date", "", b"",
        "533b14d2d5f41db37054fc2ae0346470c855427a0ce9aefba7d22cd0e08327a2",
        "288feabe8dff55eaeb368986f372271cbaa5284d5717c4451218a31750bf2ab3",
    ),
    "an object's name, escaped once": Vector(
        "s3", "eu-west-1", "GET", BUCKET, "/a%20b/%C3%BC%2Bc%3Ad~%21.txt",
        (b"x-amz-checksum-mode: ENABLED", b"Range: bytes=0-5"),
        "host;range;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date", EMPTY_BODY, None,
        "fb198a0c26c5b4bcc65486af1a798ae6c529d3937d089b8adaa46442df625dfc",
        "8291a41958ef3bcd1207977af90612bc7bf3798736f26478622890e7535f78ae",
    ),
    "a bucket's listing, in a region that its name does not tell": Vector(
        "s3", "us-east-1", "GET", "buck.s3.amazonaws.com",
        "/?list-type=2&prefix=a%20b%26%3D%2B%2F%C3%A9&encoding-type=url",
        (), "host;x-amz-content-sha256;x-amz-date", EMPTY_BODY, None,
        "26a451013cfc41ff8d7dde0b732216a2eb9c505ab8bfdefb9d720d560843baa3",
        "42bd5c931f70a97554265d3555aa212f7384d4d018fc2ddabb2807f7eeadc6c3",
    ),
    "an unsigned body, a query without a value": Vector(
        "s3", "eu-west-1", "PUT", BUCKET, "/x?tagging",
        (), "host;x-amz-content-sha256;x-amz-date", "UNSIGNED-PAYLOAD", None,
        "d89a5ac4a47f4c04cea9daa3dc62d68e9632a1e982597b6b2c5277db733ffd28",
        "7fdffcc90e56b1b5000372c7ef8ac280cd402b852a55eb9a874ced45044c553e",
    ),
    "an unsigned body with a trailer": Vector(
        "s3", "eu-west-1", "PUT", BUCKET, "/x",
        (b"Content-Encoding: aws-chunked", b"X-Amz-Trailer: x-amz-checksum-crc32",
         b"X-Amz-Decoded-Content-Length: 5", b"x-amz-meta-a:\tb  c ", b"Expect: 100-continue",
         b"Transfer-Encoding: chunked"),
        "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
        "x-amz-meta-a;x-amz-trailer",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER", None,
        "9829a65be3b21fe3f52f372c9550da1a23049da2a6b3ff3e33ad7cab4f794669",
        "356de8b43eed129db5438e1e0b2f89c73762145e9ae812c2205a047af456aa14",
    ),
    "an operation that a header names": Vector(
        "dynamodb", "ap-southeast-2", "POST", "dynamodb.ap-southeast-2.amazonaws.com", "/",
        (b"X-Amz-Target: DynamoDB_20120810.ListTables",
         b"Content-Type: application/x-amz-json-1.0"),
        "content-type;host;x-amz-date;x-amz-target", "", b"{}",
        "64fbc34737b8e64a1c65c5548653f5d95a453ac0534e8038b84a2337654356f0",
        "7c9408d0199c1072f77ceaeeec0910937ae2c9f27c4c30aec8ffa0ee70d6ef6a",
    ),
}  # fmt: skip

each_vector = pytest.mark.parametrize("name", VECTORS)


def name_of(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()


HOP_BY_HOP = {b"expect", b"transfer-encoding", b"content-length", b"connection"}


def upstream(request: SignedRequest) -> SignedRequest:
    """The request as the gateway sends it on, before it is signed."""
    gone = WRITTEN_NAMES | HOP_BY_HOP
    lines = [line + b"\r\n" for line in request.lines if name_of(line) not in gone]
    return msgspec.structs.replace(request, lines=lines)


def checked(
    signing: SigningKey, request: SignedRequest, digest: str | None = None, now: float = NOON
) -> VerifiedSignature:
    found = check(signing, request, now, digest)
    assert isinstance(found, VerifiedSignature), found
    return found


def flaw(
    signing: SigningKey, request: SignedRequest, digest: str | None = None, now: float = NOON
) -> Reason:
    found = check(signing, request, now, digest)
    assert isinstance(found, SignatureRefusal), found
    assert found.why.isprintable()
    assert not any(secret in found.why for secret in (REAL_ID, REAL_SECRET, SESSION_TOKEN))
    return found.flaw


# ── as AWS has it ─────────────────────────────────────────────────────────────────────────────────


@each_vector
def test_a_request_signed_with_the_placeholders_is_signed_anew_with_the_real_keys(
    name: str,
) -> None:
    """I4, I6: the right signature of the right keys, and nothing of the client's."""
    vector = VECTORS[name]
    signing = keys(vector.service)
    found = checked(signing, vector.request(), vector.digest())
    assert (found.region, found.declared) == (vector.region, vector.body is None)
    lines = sign(signing, found, upstream(vector.request()), NOON)
    authorization = next(line for line in lines if name_of(line) == b"authorization").decode()
    scope = f"20260701/{vector.region}/{vector.service}/aws4_request"
    assert f" Credential={REAL_ID}/{scope}, " in authorization
    assert authorization.endswith(f", Signature={vector.by_real}\r\n")
    assert PLACEHOLDER_ID.encode() not in b"".join(lines)
    assert REAL_SECRET.encode() not in b"".join(lines)


@each_vector
def test_what_is_written_is_the_signature_its_date_the_token_and_the_hash_if_it_was_sent(
    name: str,
) -> None:
    vector = VECTORS[name]
    signing = keys(vector.service)
    found = checked(signing, vector.request(), vector.digest())
    authorization, *others = sign(signing, found, upstream(vector.request()), NOON)
    assert name_of(authorization) == b"authorization"
    declared = [b"X-Amz-Content-Sha256: %s\r\n" % vector.payload.encode()]
    assert others == [
        b"X-Amz-Date: 20260701T120000Z\r\n",
        b"X-Amz-Security-Token: %s\r\n" % SESSION_TOKEN.encode(),
        *(declared if vector.body is None else []),
    ]
    assert {name_of(line) for line in (authorization, *others)} <= WRITTEN_NAMES


def test_keys_without_a_session_token_write_none() -> None:
    vector = VECTORS["an object's name, escaped once"]
    signing = keys("s3", token=False)
    lines = sign(signing, checked(signing, vector.request()), upstream(vector.request()), NOON)
    assert [name_of(line) for line in lines] == [
        b"authorization",
        b"x-amz-date",
        b"x-amz-content-sha256",
    ]


def test_the_hash_of_a_body_is_wanted_where_the_client_does_not_send_it() -> None:
    """boto3 signs it for Bedrock and does not send it, so the body is read first."""
    for vector in VECTORS.values():
        assert wants_digest(vector.request()) is (vector.body is not None)
    vector = VECTORS["a query out of order"]
    signing = keys("bedrock")
    assert flaw(signing, vector.request()) is Reason.SIGNATURE_PAYLOAD
    assert checked(signing, vector.request(), EMPTY_BODY)
    other = hashlib.sha256(b"another body").hexdigest()
    assert flaw(signing, vector.request(), other) is Reason.SIGNATURE_WRONG
    assert MAX_HASHED_BODY >= 25_000_000  # what Bedrock takes


# ── a client of our own, for what no SDK sends ────────────────────────────────────────────────────


def sent(
    line: bytes = b"X-Test: 1",
    *,
    service: str = "s3",
    region: str = "eu-west-1",
    key_id: str = PLACEHOLDER_ID,
    secret: str = PLACEHOLDER_SECRET,
    target: str = "/a/b",
    payload: str = "UNSIGNED-PAYLOAD",
    now: float = NOON,
) -> SignedRequest:
    """A request that is signed with whatever the client pleases: `sign` with other keys."""
    path, question, query = target.partition("?")
    query_or_none = query if question else None
    lines: list[bytes] = [b"Host: " + BUCKET.encode(), line]
    request = SignedRequest(BUCKET, "PUT", path, query_or_none, lines)
    client = SigningKey(key_id, Secret(secret), None, SignatureInjection(service, region), "", "")
    covers = VerifiedSignature(region, service, frozenset({name_of(line)}), payload, declared=True)
    lines += sign(client, covers, request, now)
    return request


def changed(request: SignedRequest, old: str, new: str) -> SignedRequest:
    lines = [line.replace(old.encode(), new.encode()) for line in request.lines]
    assert lines != request.lines, "the control: something was changed"
    return msgspec.structs.replace(request, lines=lines)


def without(request: SignedRequest, name: bytes) -> SignedRequest:
    lines = [line for line in request.lines if name_of(line) != name]
    assert len(lines) < len(request.lines)
    return msgspec.structs.replace(request, lines=lines)


def test_a_client_of_our_own_is_understood() -> None:
    """The control of the tests below."""
    found = checked(keys("s3"), sent())
    assert found.signed == {
        b"host", b"x-amz-content-sha256", b"x-amz-date", b"x-test",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (sent(secret="x" * 40), Reason.SIGNATURE_WRONG),
        (sent(secret=REAL_SECRET), Reason.SIGNATURE_WRONG),
        (sent(key_id=REAL_ID, secret=REAL_SECRET), Reason.SIGNATURE_KEY),
        (sent(key_id="AKIAATTACKERATTACKER", secret="a" * 40), Reason.SIGNATURE_KEY),
        (sent(service="sts"), Reason.SIGNATURE_SCOPE),
        (sent(service="iam"), Reason.SIGNATURE_SCOPE),
        (sent(service="bedrock"), Reason.SIGNATURE_SCOPE),
        (sent(region="us-east-1"), Reason.SIGNATURE_SCOPE),
        (
            msgspec.structs.replace(sent(), host="sts.eu-west-1.amazonaws.com"),
            Reason.SIGNATURE_SCOPE,
        ),
        (msgspec.structs.replace(sent(), host="iam.amazonaws.com"), Reason.SIGNATURE_SCOPE),
        (msgspec.structs.replace(sent(), host="store.corp.example"), Reason.SIGNATURE_SCOPE),
        (
            msgspec.structs.replace(sent(), host="buck.s3.eu-west-3.amazonaws.com"),
            Reason.SIGNATURE_SCOPE,
        ),
    ],
)
def test_another_key_service_region_or_host_is_refused(
    request_: SignedRequest, expected: Reason
) -> None:
    """I4: the policy says what is signed for. I6: someone else's signature is not replaced."""
    assert flaw(keys("s3"), request_) is expected
    assert checked(keys("s3"), sent())


@pytest.mark.parametrize(
    "change",
    [
        {"method": "DELETE"},
        {"path": "/a/c"},
        {"path": "/a%2Fb/"},
        {"query": "acl"},
        {"query": "a=1&b=2"},
    ],
)
def test_what_was_not_signed_is_refused(change: dict[str, str]) -> None:
    assert flaw(keys("s3"), msgspec.structs.replace(sent(), **change)) is Reason.SIGNATURE_WRONG
    assert checked(keys("s3"), sent())


def test_a_changed_header_is_refused_if_it_was_signed() -> None:
    assert flaw(keys("s3"), changed(sent(), "X-Test: 1", "X-Test: 2")) is Reason.SIGNATURE_WRONG
    assert flaw(keys("s3"), changed(sent(), "Host: buck", "Host: duck")) is Reason.SIGNATURE_WRONG
    assert (
        flaw(keys("s3"), changed(sent(), "20260701T120000Z", "20260701T120001Z"))
        is Reason.SIGNATURE_WRONG
    )
    assert (
        flaw(keys("s3"), changed(sent(), "UNSIGNED-PAYLOAD", EMPTY_BODY)) is Reason.SIGNATURE_WRONG
    )
    more = msgspec.structs.replace(sent(), lines=[*sent().lines, b"X-Other: unsigned"])
    assert checked(keys("s3"), more)
    twice = msgspec.structs.replace(sent(), lines=[*sent().lines, b"X-Test: 1"])
    assert flaw(keys("s3"), twice) is Reason.SIGNATURE_WRONG


def test_every_bit_of_a_signature_matters() -> None:
    request = sent()
    found = next(
        m for line in request.lines if (m := re.search(rb"Signature=([0-9a-f]{64})", line))
    )
    signature = found[1].decode()
    for at in (0, 1, 31, 62, 63):
        digit = "0" if signature[at] != "0" else "1"
        wrong = signature[:at] + digit + signature[at + 1 :]
        assert flaw(keys("s3"), changed(request, signature, wrong)) is Reason.SIGNATURE_WRONG


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AWS4-HMAC-SHA256 ", "AWS4-ECDSA-P256-SHA256 "),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256,"),
        ("AWS4-HMAC-SHA256 ", "Bearer "),
        ("aws4_request", "aws4_requests"),
        ("/s3/", "/s3/x/"),
        ("/20260701/", "/2026071/"),
        ("SignedHeaders=", "Signedheaders="),
        ("SignedHeaders=host;", "SignedHeaders=Host;"),
        ("SignedHeaders=host;", "SignedHeaders=é;host;"),
        (", Signature=", ", Signature=0"),
        (", Signature=", ", Sig="),
        (" Credential=", " Credential=x, Credential="),
    ],
)
def test_a_signature_of_another_form_is_refused(old: str, new: str) -> None:
    expected = Reason.SIGNATURE_MISSING if not new.isascii() else Reason.SIGNATURE_FORM
    assert flaw(keys("s3"), changed(sent(), old, new)) is expected


def test_the_older_form_of_a_signature_is_refused() -> None:
    bare = without(sent(), b"authorization")
    older = f"Authorization: AWS {PLACEHOLDER_ID}:c2lnbmF0dXJl".encode()
    assert (
        flaw(keys("s3"), msgspec.structs.replace(bare, lines=[*bare.lines, older]))
        is Reason.SIGNATURE_FORM
    )


def test_a_request_without_a_signature_or_with_two_is_refused() -> None:
    bare = without(sent(), b"authorization")
    assert flaw(keys("s3"), bare) is Reason.SIGNATURE_MISSING
    authorization = next(line for line in sent().lines if name_of(line) == b"authorization")
    twice = msgspec.structs.replace(sent(), lines=[*sent().lines, authorization])
    assert flaw(keys("s3"), twice) is Reason.SIGNATURE_MISSING


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=ab",
        "x-amz-signature=ab",
        "a=b&X-Amz-Signature",
        "X%2DAmz%2DSignature=ab",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=ab",
    ],
)
def test_a_signed_address_is_refused_whatever_its_header_says(query: str) -> None:
    """I6: two signatures in one request; servers differ in which they read."""
    assert flaw(keys("s3"), sent(target=f"/a/b?{query}")) is Reason.SIGNATURE_FORM
    assert checked(keys("s3"), sent(target="/a/b?X-Amz-Signatures=ab"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-test", "SignedHeaders=x-amz-date"),
        ("SignedHeaders=host;", "SignedHeaders="),
        ("SignedHeaders=host;", "SignedHeaders=absent;host;"),
        ("SignedHeaders=host;", "SignedHeaders=host;host;"),
        ("SignedHeaders=host;", "SignedHeaders=;host;"),
        (";x-amz-date;x-test", ";x-test;x-amz-date"),
        ("SignedHeaders=host;", "SignedHeaders=" + "a;" * MAX_SIGNED_HEADERS + "host;"),
    ],
)
def test_the_signed_headers_are_the_hosts_and_those_of_the_request_in_order(
    old: str, new: str
) -> None:
    assert flaw(keys("s3"), changed(sent(), old, new)) is Reason.SIGNATURE_HEADERS


@pytest.mark.parametrize("late", [0, 1, MAX_SKEW, -MAX_SKEW])
def test_a_signature_is_good_for_some_minutes(late: int) -> None:
    assert checked(keys("s3"), sent(), now=NOON + late)


@pytest.mark.parametrize("late", [MAX_SKEW + 1, -MAX_SKEW - 1, 86400, -86400, 1e12, -NOON])
def test_a_signature_of_another_time_is_refused(late: float) -> None:
    """I9: what was captured once is not good for ever."""
    assert flaw(keys("s3"), sent(), now=NOON + late) is Reason.SIGNATURE_DATE


@pytest.mark.parametrize(
    "stamp",
    ["20260702T120000Z", "20260701T120000", "Wed, 01 Jul 2026 12:00:00 GMT", "20260230T120000Z",
     "20260701T250000Z", "", "00010101T000000Z"],
)  # fmt: skip
def test_a_date_that_is_none_or_not_the_day_signed_for_is_refused(stamp: str) -> None:
    assert flaw(keys("s3"), changed(sent(), STAMP.decode(), stamp)) is Reason.SIGNATURE_DATE


@pytest.mark.parametrize("host", [BUCKET, "other.example"])
def test_the_host_may_be_signed_by_its_name_in_http2(host: str) -> None:
    """I4: as AWS's JavaScript SDK does; the value is that of the request's Host."""
    names, stamp = ":authority;x-amz-content-sha256;x-amz-date", STAMP.decode()
    fields = {":authority": host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": stamp}
    scope = "20260701/eu-west-1/s3/aws4_request"
    canonical = aws.canonical("GET", "/a", fields, names, UNSIGNED, False)
    key = aws.Keys(PLACEHOLDER_ID, PLACEHOLDER_SECRET)
    signature = key.signature(scope, aws.to_sign(stamp, scope, canonical))
    authorization = (
        f"Authorization: AWS4-HMAC-SHA256 Credential={PLACEHOLDER_ID}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    lines = [f"Host: {BUCKET}", f"X-Amz-Date: {stamp}", f"X-Amz-Content-Sha256: {UNSIGNED}"]
    written = [line.encode() for line in (*lines, authorization)]
    request = SignedRequest(BUCKET, "GET", "/a", None, written)
    found = check(keys("s3"), request, NOON)
    if host == BUCKET:
        assert isinstance(found, VerifiedSignature)
        onward = msgspec.structs.replace(request, lines=[b"Host: " + BUCKET.encode()])
        assert b"SignedHeaders=host;" in sign(keys("s3"), found, onward, NOON)[0]
    else:
        assert isinstance(found, SignatureRefusal)
        assert found.flaw is Reason.SIGNATURE_WRONG


def test_a_date_is_there_once() -> None:
    twice = msgspec.structs.replace(sent(), lines=[*sent().lines, b"X-Amz-Date: " + STAMP])
    assert flaw(keys("s3"), twice) is Reason.SIGNATURE_DATE
    lines = changed(sent(), "X-Amz-Date", "Date").lines
    by_date = changed(msgspec.structs.replace(sent(), lines=lines), "x-amz-date;", "")
    assert flaw(keys("s3"), by_date) is Reason.SIGNATURE_DATE


@pytest.mark.parametrize(
    "payload",
    [
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
    ],
)
def test_a_body_that_is_signed_piece_by_piece_is_refused_and_the_way_out_is_said(
    payload: str,
) -> None:
    """Each piece's signature is chained to the head's, which is replaced."""
    found = check(keys("s3"), sent(payload=payload), NOON)
    assert isinstance(found, SignatureRefusal)
    assert found.flaw is Reason.SIGNATURE_PAYLOAD
    assert "piece by piece" in found.why
    assert "unsigned" in found.why


@pytest.mark.parametrize("payload", ["x", EMPTY_BODY.upper(), EMPTY_BODY[:-1], "unsigned-payload"])
def test_an_unknown_word_for_the_body_is_refused(payload: str) -> None:
    assert flaw(keys("s3"), sent(payload=payload)) is Reason.SIGNATURE_PAYLOAD
    assert checked(keys("s3"), sent(payload=EMPTY_BODY))


def test_a_hash_that_stands_twice_is_refused() -> None:
    """I4: servers differ in which they read."""
    lines = [*sent().lines, b"X-Amz-Content-Sha256: UNSIGNED-PAYLOAD"]
    assert (
        flaw(keys("s3"), msgspec.structs.replace(sent(), lines=lines)) is Reason.SIGNATURE_PAYLOAD
    )


# ── what is signed anew ───────────────────────────────────────────────────────────────────────────


def signed_headers(lines: tuple[bytes, ...]) -> list[str]:
    found = re.search(rb"SignedHeaders=([^,]+)", lines[0])
    assert found
    return found[1].decode().split(";")


def test_what_does_not_go_on_is_not_signed_and_every_amazon_header_is() -> None:
    """A header that the gateway removed would make the signature wrong at AWS."""
    signing = keys("s3")
    request = sent(b"Accept-Encoding: gzip")
    found = checked(signing, request)
    assert b"accept-encoding" in found.signed
    going = SignedRequest(BUCKET, "PUT", "/a/b", None, [
        f"Host: {BUCKET}\r\n".encode(), b"x-amz-acl: private\r\n", b"x-amz-meta-a: 1\r\n",
        b"User-Agent: x\r\n", b"x-amzn-trace-id: 1\r\n",
    ])  # fmt: skip
    assert signed_headers(sign(signing, found, going, NOON)) == [
        "host", "x-amz-acl", "x-amz-content-sha256", "x-amz-date", "x-amz-meta-a",
        "x-amz-security-token",
    ]  # fmt: skip
    going = msgspec.structs.replace(going, lines=[*going.lines, b"Accept-Encoding: identity\r\n"])
    assert "accept-encoding" in signed_headers(sign(signing, found, going, NOON))


def test_it_is_signed_for_what_goes_on_and_not_for_what_came() -> None:
    """The query was relieved of the client's keys, and the host is written by the gateway."""
    signing = keys("s3")
    found = checked(signing, sent(target="/a/b?token=x&list-type=2"))
    base = [f"Host: {BUCKET}\r\n".encode()]
    relieved = sign(signing, found, SignedRequest(BUCKET, "PUT", "/a/b", "list-type=2", base), NOON)
    came = SignedRequest(BUCKET, "PUT", "/a/b", "token=x&list-type=2", base)
    assert relieved[0] != sign(signing, found, came, NOON)[0]
    as_client = msgspec.structs.replace(
        signing, placeholder_id=REAL_ID, placeholder_secret=REAL_SECRET
    )
    going = SignedRequest(BUCKET, "PUT", "/a/b", "list-type=2", [*base, *relieved])
    assert isinstance(check(as_client, going, NOON), VerifiedSignature)


def test_it_is_dated_now() -> None:
    signing = keys("s3")
    found = checked(signing, sent(), now=NOON + 600)
    request = SignedRequest(BUCKET, "PUT", "/a/b", None, [f"Host: {BUCKET}\r\n".encode()])
    lines = sign(signing, found, request, NOON + 600.9)
    assert lines[1] == b"X-Amz-Date: 20260701T121000Z\r\n"


@pytest.mark.parametrize("name", sorted(WRITTEN_NAMES))
def test_nothing_is_signed_beside_a_signature_of_the_client(name: bytes) -> None:
    """I6: whoever forgot to remove it gets an exception, and so a refusal."""
    signing = keys("s3")
    found = checked(signing, sent())
    lines = [f"Host: {BUCKET}\r\n".encode()]
    assert sign(signing, found, SignedRequest(BUCKET, "PUT", "/", None, lines), NOON)
    lines.append(name.title() + b": x\r\n")
    with pytest.raises(ValueError, match="without an earlier signature"):
        sign(signing, found, SignedRequest(BUCKET, "PUT", "/", None, lines), NOON)
    with pytest.raises(ValueError, match="with its Host"):
        sign(signing, found, SignedRequest(BUCKET, "PUT", "/", None, []), NOON)


def test_a_region_of_the_policy_wins_for_hosts_that_do_not_tell_one() -> None:
    """A store of one's own: the host says nothing, so the policy does."""
    signing = keys("s3", "auto")
    request = msgspec.structs.replace(sent(region="auto"), host="store.corp.example")
    assert checked(signing, request).region == "auto"
    assert flaw(keys("s3"), request) is Reason.SIGNATURE_SCOPE
    for minting in ("sts.eu-west-1.amazonaws.com", "sts.amazonaws.com"):
        assert (
            flaw(signing, msgspec.structs.replace(request, host=minting)) is Reason.SIGNATURE_SCOPE
        )


def test_a_blank_in_a_query_has_two_spellings_and_one_canonical_form() -> None:
    forms = {
        canonical_form(SignedRequest("h", "GET", "/", query, []), "s3", {}, "x")
        for query in ("a=b+c&d=", "d&a=b%20c", "&d=&&a=%62%20c")
    }
    assert forms == {b"GET\n/\na=b%20c&d=\n\n\nx"}


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=40), st.booleans())
def test_any_target_that_is_signed_is_recognised(text: str, s3: bool) -> None:
    """Whatever the path and query, both ends make the same of it."""
    service = "s3" if s3 else "bedrock"
    path, question, query = text.partition("?")
    request = SignedRequest(
        BUCKET, "GET", f"/{path}", query if question else None, [b"Host: " + BUCKET.encode()]
    )
    client = SigningKey(
        PLACEHOLDER_ID, Secret(PLACEHOLDER_SECRET), None, SignatureInjection(service), "", ""
    )
    made = sign(
        client,
        VerifiedSignature("eu-west-1", service, frozenset(), EMPTY_BODY, declared=True),
        request,
        NOON,
    )
    found = check(
        keys(service), msgspec.structs.replace(request, lines=[*request.lines, *made]), NOON
    )
    assert isinstance(found, VerifiedSignature) or "x-amz-signature" in query.lower()


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_any_header_is_answered_with_a_reason(value: bytes, other: bytes) -> None:
    """I3: no bytes of a client end in an exception, or in a signature."""
    for line in (b"Authorization: " + value, b"Authorization: AWS4-HMAC-SHA256 " + value, value):
        request = SignedRequest(BUCKET, "GET", "/", None, [b"Host: x", line, other])
        assert isinstance(check(keys("s3"), request, NOON, EMPTY_BODY), SignatureRefusal)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────

FOR_S3 = SignatureInjection("s3")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_secret_of_two_or_three_lines_is_a_key(end: str) -> None:
    pair = read_keys(Secret(f"{REAL_ID}\n{REAL_SECRET}{end}"), FOR_S3, "i", "s")
    assert (pair.access_key, pair.secret_key.reveal()) == (REAL_ID, REAL_SECRET)
    assert pair.session_token is None
    assert (pair.placeholder_id, pair.placeholder_secret, pair.injection) == ("i", "s", FOR_S3)
    three = read_keys(Secret(f"{REAL_ID}\r\n{REAL_SECRET}\r\n{SESSION_TOKEN}{end}"), FOR_S3, "", "")
    assert three.session_token is not None
    assert three.session_token.reveal() == SESSION_TOKEN


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two or three lines"),
        (REAL_ID, "two or three lines"),
        (f"{REAL_ID}:{REAL_SECRET}", "two or three lines"),
        (f"{REAL_ID}\n{REAL_SECRET}\n{SESSION_TOKEN}\nx", "two or three lines"),
        (f"{REAL_ID}\n\n{REAL_SECRET}", "does not look like"),
        (f"[default]\naws_access_key_id = {REAL_ID}", "does not look like"),
        (f"{REAL_ID}/x\n{REAL_SECRET}", "does not look like"),
        (f"{REAL_ID}\nshort", "does not look like"),
        (f"{REAL_ID}\nwith a blank in it", "does not look like"),
        (f"{REAL_ID}\n{REAL_SECRET}\ntoken\x00of it", "does not look like"),
        (f"{REAL_ID}\n{REAL_SECRET}é", "does not look like"),
        (f"{REAL_ID}\n{'x' * (MAX_KEY_LENGTH + 1)}", "does not look like"),
    ],
)
def test_a_secret_of_another_form_is_refused_and_not_quoted(text: str, why: str) -> None:
    """I8."""
    with pytest.raises(Unparsable, match=why) as refusal:
        read_keys(Secret(text), FOR_S3, PLACEHOLDER_ID, PLACEHOLDER_SECRET)
    said = f"{refusal.value.message} {refusal.value.hint} {refusal.value!r}"
    assert not any(part in said for part in (REAL_ID, REAL_SECRET, SESSION_TOKEN, "default"))


def test_the_longest_key_is_read() -> None:
    """I9: the control of the bound above."""
    assert read_keys(Secret(f"{REAL_ID}\n{'x' * MAX_KEY_LENGTH}"), FOR_S3, "", "")


def test_a_signing_key_shows_nothing_of_the_real_keys() -> None:
    """I8: not even the key's id, which the sandbox need not know either."""
    signing = keys("s3")
    assert not any(part in repr(signing) for part in (REAL_ID, REAL_SECRET, SESSION_TOKEN))
    assert PLACEHOLDER_ID in repr(signing)
    with pytest.raises(TypeError):
        pickle.dumps(signing)
