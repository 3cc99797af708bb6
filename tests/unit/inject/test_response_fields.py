"""What hands out a session or tells a digest stays outside, by its kind (I1, I7)."""

from __future__ import annotations

import pytest

from keyhole.http.field import Memo, parse_field
from keyhole.http.request import Treatment
from keyhole.http.response import parse_response
from keyhole.inject.entity_tags import KEY_BYTES, EntityTags
from keyhole.inject.response_fields import ResponseFields
from keyhole.inject.slots import Slot, parse_returned
from keyhole.model.errors import Unparsable

TAGS = EntityTags(bytes(range(KEY_BYTES)))
FIELDS = ResponseFields((), TAGS)

SESSIONS = """
Set-Cookie Set-Cookie2 Authorization Authentication-Info
Proxy-Authentication-Info X-Amz-Security-Token X-Auth-Token X-Subject-Token X-CSRF-Token
X-XSRF-Token X-Access-Token X-Refresh-Token Access-Token Token X-Vault-Token X-JWT X-Session-Token
X-Auth-Key X-Api-Key X_Auth_Token x.subject.token X-Identity-Token X-Xet-Access-Token
""".split()

DIGESTS = """
Content-MD5 Digest Repr-Digest Content-Digest Unencoded-Digest X-Goog-Hash X-Amz-Checksum-Crc32
X-Amz-Checksum-Crc64nvme X-Amz-Checksum-Sha256 X-Ms-Content-Crc64 X-Ms-Blob-Content-MD5
Docker-Content-Digest X-Checksum-Sha1 X-Content-SHA256 X-Gitlab-Content-Sha256 Opc-Content-MD5
X-Cos-Hash-Crc64ecma X-Oss-Hash-Crc64ecma X-Bz-Content-Sha1 X-Linked-ETag ETag Content_MD5
""".split()

PASSING = """
Content-Type Date Server Cache-Control Last-Modified Location Link Retry-After Vary WWW-Authenticate
Clear-Site-Data Refresh Want-Digest Want-Repr-Digest Want-Content-Digest Mcp-Session-Id
X-Request-Id X-RateLimit-Remaining-Tokens Anthropic-RateLimit-Tokens-Remaining X-Next-Page-Token
X-Ms-Continuation-Token Sync-Token X-Pagination-Token GitHub-Authentication-Token-Expiration
X-OAuth-Scopes OpenAI-Processing-Ms
""".split()


def passed(fields: ResponseFields, *rows: str, method: str = "GET", status: int = 200) -> list[str]:
    """The lines of an answer that go on, without framing."""
    head = b"\r\n".join([b"HTTP/1.1 %d X" % status, *map(str.encode, rows)])
    known: Memo = {}
    seen = []
    for _ in range(2):  # with a memo as well
        found = parse_response(head, method, known, fields.treat)
        fields.put_back(found, method)
        seen.append([line.decode().strip() for line in found.lines])
    assert seen[0] == seen[1]
    return seen[0]


@pytest.mark.parametrize("name", SESSIONS)
def test_what_hands_out_a_session_stays_outside(name: str) -> None:
    """I1, in heads and trailers, in every case; and the control: without a credential it passes."""
    for spelled in (name, name.lower(), name.upper()):
        assert passed(FIELDS, f"{spelled}: sid=1", "X-Other: 1") == ["X-Other: 1"]
        assert FIELDS.trailers([parse_field(f"{spelled}: 1".encode())]) == []
    head = parse_response(f"HTTP/1.1 200 OK\r\n{name}: sid=1".encode(), "GET", {})
    assert head.lines == [f"{name}: sid=1\r\n".encode()]


@pytest.mark.parametrize("status", [100, 101, 103, 200, 204, 206, 304, 401])
def test_of_every_kind_of_answer(status: int) -> None:
    """I1, I7: an interim answer, a switch of protocols, an error."""
    rows = ["Set-Cookie: a=1", "X-Auth-Token: 1", "Content-MD5: 1", "Digest: sha-256=1", "X: 1"]
    assert passed(FIELDS, *rows, "Content-Length: 0", status=status) == ["X: 1"]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_digest_stays_outside_or_is_sealed(name: str) -> None:
    """I7; and the controls: one of an upload passes, and any where no secret is sent."""
    row = f"{name}: 33a64df551425fcc55e4d42a148795d9"
    if name == "ETag":
        sealed = TAGS.seal(b"33a64df551425fcc55e4d42a148795d9").decode()
        assert passed(FIELDS, row, "Content-Length: 5") == [f"ETag: {sealed}"]
    else:
        assert passed(FIELDS, row, "Content-Length: 5") == []
    assert FIELDS.trailers([parse_field(row.encode())]) == []
    assert passed(FIELDS, row, "Content-Length: 0", method="PUT") == [row]
    assert passed(ResponseFields((), None), row, "Content-Length: 5") == [row]
    assert ResponseFields((), None).trailers([parse_field(row.encode())])


@pytest.mark.parametrize("name", PASSING)
def test_all_else_passes(name: str) -> None:
    """Clients need it: paging, limits, what is wanted of them."""
    assert passed(FIELDS, f"{name}: x", "Content-Length: 5") == [f"{name}: x"]
    assert FIELDS.treat(name.lower().encode()) is Treatment.KEEP


@pytest.mark.parametrize(
    ("method", "status", "length", "of_upload"),
    [
        ("PUT", 200, 0, True),
        ("PUT", 204, None, True),
        ("POST", 201, 0, True),
        ("DELETE", 204, None, True),
        ("PUT", 200, 3, False),
        ("POST", 200, None, False),
        ("GET", 200, 0, False),
        ("HEAD", 200, 3, False),
        ("HEAD", 200, None, False),
        ("PUT", 304, None, False),
        ("PUT", 412, 0, False),
        ("POST", 303, 0, False),
        ("PUT", 100, None, False),
    ],
)
def test_digests_of_an_upload_pass(
    method: str, status: int, length: int | None, of_upload: bool
) -> None:
    """S3 wants the tags of all parts back. HEAD and 304 speak of a body that may hold a secret."""
    rows = ['ETag: "1"', "x-amz-checksum-crc32: 2"]
    framing = [] if length is None else [f"Content-Length: {length}"]
    found = passed(FIELDS, *rows, *framing, method=method, status=status)
    if of_upload:
        assert found == rows
    elif status < 200:
        assert found == []
    else:
        sealed = TAGS.seal(b'"1"').decode()
        assert found == [f"ETag: {sealed}"]


def test_a_tag_that_is_too_long_is_left_out() -> None:
    assert passed(FIELDS, f"ETag: {'x' * 2000}", "Content-Length: 5") == []


def test_what_is_named_passes_and_nothing_beside_it() -> None:
    """A cookie by its name, a field by its name or the beginning of it."""
    fields = ResponseFields(
        map(Slot.parse, ["cookie:__cf_bm", "cookie:cf_chl_*", "header:x-xet-*", "header:etag"]),
        TAGS,
    )
    rows = [
        "Set-Cookie: __cf_bm=1; Path=/; HttpOnly; Expires=Tue, 17 Nov 2026 06:59:36 GMT",
        "Set-Cookie: CF_CHL_2=1",
        "X-Xet-Access-Token: 1",
        "X-Xet-Hash: 1",
        'ETag: "1"',
    ]
    others = [
        "Set-Cookie: session=1; __cf_bm=1",
        "Set-Cookie: __cf_bm2=1",
        "Set-Cookie: __cf_bm=1, session=1",
        "Set-Cookie: __cf_bm=1; Path=/,session =1",
        "Set-Cookie: __cf_bm",
        'Set-Cookie: "__cf_bm=1',
        "Set-Cookie2: __cf_bm=1",
        "X-Auth-Token: 1",
        "Digest: 1",
    ]
    found = passed(fields, *others, *rows, *others)
    assert sorted(found) == sorted(rows)
    # A trailer is no place for a cookie.
    assert fields.trailers([parse_field(b"Set-Cookie: __cf_bm=1")]) == []


def test_what_connection_names_is_not_put_back() -> None:
    """RFC 9110 §7.6.1: it is of one connection."""
    fields = ResponseFields([Slot.parse("cookie:a")], TAGS)
    assert passed(fields, "Set-Cookie: a=1", "Connection: set-cookie") == []


@pytest.mark.parametrize(
    "text", ["query:token", "header:set-cookie", "header:set-*", "session", "cookie:*", "body:x"]
)
def test_what_is_no_place_of_an_answer_is_refused(text: str) -> None:
    with pytest.raises(Unparsable):
        parse_returned(text)
    assert parse_returned("cookie:a") == Slot.parse("cookie:a")
    assert parse_returned("header:ETag") == Slot.parse("header:etag")
