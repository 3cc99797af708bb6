"""LFS's JSON has one meaning, and only what was read of it goes on (I1, I3, I9)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.lfs_json import MAX_TEXT, is_lfs_json, read_json, write_error
from keyhole.wire.lfs_request import (
    MAX_OBJECTS,
    MAX_REQUEST,
    MAX_SIZE,
    BatchRequest,
    LargeObject,
    LfsOperation,
    LockRequest,
    read_batch_request,
    read_lock_request,
    read_object,
    write_object,
)
from keyhole.wire.lfs_response import (
    MAX_ANSWER,
    MAX_HEADERS,
    MAX_HREF,
    MAX_VALUE,
    AnsweredObject,
    StorageAddress,
    TransferAction,
    TransferLink,
    TransferVerb,
    read_batch_answer,
    rewrite_error,
    write_batch_answer,
)

OID, OTHER = "a" * 64, "b" * 64
ONE = LargeObject(OID, 5)
DOWN = BatchRequest(LfsOperation.DOWNLOAD, (ONE, LargeObject(OTHER, 7)))
UP = BatchRequest(LfsOperation.UPLOAD, (ONE,))
HREF = "https://s3.example/bucket/key?X-Amz-Signature=abc"


def batch(**changes: object) -> bytes:
    """A batch as git-lfs 3.3 sends it, but for what is changed."""
    said: dict[str, object] = {
        "operation": "download",
        "objects": [{"oid": OID, "size": 5}],
        "transfers": ["lfs-standalone-file", "basic", "ssh"],
        "ref": {"name": "refs/heads/main"},
        "hash_algo": "sha256",
    }
    return json.dumps({k: v for k, v in (said | changes).items() if v != "absent"}).encode()


def answer(*objects: object, **changes: object) -> bytes:
    return json.dumps({"objects": list(objects)} | changes).encode()


def entry(action: object = None, verb: str = "download", **changes: object) -> dict[str, Any]:
    """One object of an answer with one action."""
    given = {"href": HREF} if action is None else action
    return {"oid": OID, "size": 5, "actions": {verb: given}} | changes


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_the_real_client_is_read() -> None:
    found = read_batch_request(batch())
    assert found == BatchRequest(LfsOperation.DOWNLOAD, (ONE,), "refs/heads/main")
    assert read_batch_request(batch(operation="upload")).operation is LfsOperation.UPLOAD


def test_only_what_was_read_goes_on() -> None:
    """I3: a name that this reader does not know may have a meaning to the forge."""
    found = read_batch_request(
        batch(extra={"force": True}, objects=[{"oid": OID, "size": 5, "x": 1}])
    )
    assert json.loads(found.encoded()) == {
        "operation": "download",
        "transfers": ["basic"],
        "ref": {"name": "refs/heads/main"},
        "objects": [{"oid": OID, "size": 5}],
        "hash_algo": "sha256",
    }
    assert read_batch_request(found.encoded()) == found


@pytest.mark.parametrize("absent", ["transfers", "ref", "hash_algo"])
def test_what_may_be_left_out_may_also_be_null(absent: str) -> None:
    for body in (batch(**{absent: "absent"}), batch(**{absent: None})):
        assert read_batch_request(body).objects == (ONE,)
    assert b'"ref"' not in read_batch_request(batch(ref=None)).encoded()


def test_an_object_that_stands_twice_counts_once() -> None:
    same = {"oid": OID, "size": 5}
    assert read_batch_request(batch(objects=[same, same])).objects == (ONE,)


@pytest.mark.parametrize(
    "text",
    [
        # Python keeps the last, others the first.
        '{"operation":"download","operation":"upload","objects":[{"oid":"%s","size":5}]}',
        # Go takes a name in any case, and characters that fold to its letters.
        '{"operation":"download","Operation":"upload","objects":[{"oid":"%s","size":5}]}',
        '{"operation":"download","operation\\u0000":"x","objects":[{"oid":"%s","size":5,"\\u017fize":6}]}',
        '{"operation":"download","operatio\\u006e":"upload","objects":[{"oid":"%s","size":5}]}',
        '{"operation":"download","objects":[{"oid":"%s","size":5,"size":6}]}',
        '{"operation":"download","x":{"a":{"b":1,"B":2}},"objects":[{"oid":"%s","size":5}]}',
    ],
)
def test_a_name_that_stands_twice_is_refused(text: str) -> None:
    """I3: what was judged as a download must not be an upload to the forge."""
    with pytest.raises(Malformed, match="twice"):
        read_batch_request((text % OID).encode())
    # The control: each of them once.
    assert read_batch_request(batch(x={"a": {"b": 1, "c": 2}})).operation is LfsOperation.DOWNLOAD


@pytest.mark.parametrize(
    "operation",
    [
        "Download",
        "UPLOAD",
        "download ",
        "delete",
        "",
        None,
        1,
        True,
        ["upload"],
        {"a": 1},
        "absent",
    ],
)
def test_any_other_operation_is_refused(operation: object) -> None:
    """I3: there are two, each in one spelling."""
    with pytest.raises(Malformed, match="operation"):
        read_batch_request(batch(operation=operation))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objects": "absent"}, "objects"),
        ({"objects": []}, "empty"),
        ({"objects": {"oid": OID, "size": 5}}, "list"),
        ({"objects": [OID]}, "not an object"),
        ({"objects": [{"oid": OID, "size": 5}, {"oid": OID, "size": 6}]}, "two sizes"),
        ({"objects": [{"oid": OID}]}, "size"),
        ({"objects": [{"oid": OID, "size": "5"}]}, "size"),
        ({"objects": [{"oid": OID, "size": True}]}, "size"),
        ({"objects": [{"oid": OID, "size": -1}]}, "size"),
        ({"objects": [{"oid": OID, "size": MAX_SIZE + 1}]}, "size"),
        ({"objects": [{"oid": OID, "size": 5.0}]}, "number"),
        ({"objects": [{"oid": OID.upper(), "size": 5}]}, "SHA-256"),
        ({"objects": [{"oid": OID[:-1], "size": 5}]}, "SHA-256"),
        ({"objects": [{"oid": f"../{OID}"[:64], "size": 5}]}, "SHA-256"),
        ({"objects": [{"oid": f"{OID}\n", "size": 5}]}, "one line"),
        ({"objects": [{"oid": 7, "size": 5}]}, "oid"),
        ({"transfers": ["tus"]}, "basic"),
        ({"transfers": "basic"}, "transfers"),
        ({"transfers": ["basic"] * 17}, "transfers"),
        ({"hash_algo": "sha1"}, "hash_algo"),
        ({"ref": "refs/heads/main"}, "ref"),
        ({"ref": {"name": 5}}, "ref"),
        ({"ref": {"name": "a\nb"}}, "ref"),
        ({"ref": {"name": "a" * (MAX_TEXT + 1)}}, "ref"),
        ({"ref": {"name": "\ud800"}}, "ref"),
    ],
)
def test_an_odd_batch_is_refused(changes: dict[str, object], why: str) -> None:
    """I3, and I9 for sizes; the control is the batch of the real client above."""
    with pytest.raises(Malformed, match=why):
        read_batch_request(batch(**changes))


def test_a_batch_is_bounded() -> None:
    """I9."""
    objects = [{"oid": f"{i:064x}", "size": i} for i in range(MAX_OBJECTS + 1)]
    assert len(read_batch_request(batch(objects=objects[1:])).objects) == MAX_OBJECTS
    with pytest.raises(Malformed, match=str(MAX_OBJECTS)):
        read_batch_request(batch(objects=objects))
    room = MAX_REQUEST - len(batch())
    assert read_batch_request(batch() + b" " * room)
    with pytest.raises(Malformed, match=str(MAX_REQUEST)):
        read_batch_request(batch() + b" " * (room + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e3}',
        b'{"a":%s}' % (b"9" * 17),
        b'{"a":%s}' % (b"9" * 5000),
        b'{"a":' + b"[" * 100_000,
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xff"}',
        b'{"a":"\n"}',
    ],
)
def test_what_is_no_plain_json_object_is_refused(data: bytes) -> None:
    """I9 and I3; the control follows."""
    with pytest.raises(Malformed):
        read_json(data, MAX_REQUEST)
    assert read_json('{"a":"ä"}'.encode(), MAX_REQUEST) == {"a": "ä"}


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise_anything_else(data: bytes) -> None:
    for read in (read_batch_request, read_object, read_lock_request):
        with contextlib.suppress(Malformed):
            read(data)
    with contextlib.suppress(Malformed):
        read_batch_answer(data, DOWN)
    assert json.loads(rewrite_error(data))["message"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([HREF, OID]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("objects oid size actions download header href error code".split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(VALUES)
def test_no_shape_of_an_answer_makes_it_raise_anything_else(value: object) -> None:
    with contextlib.suppress(Malformed):
        read_batch_answer(json.dumps({"objects": value}).encode(), DOWN)
    with contextlib.suppress(Malformed):
        read_batch_answer(answer({"oid": OID, "actions": {"download": value}}), DOWN)
    with contextlib.suppress(Malformed):
        read_batch_answer(answer({"oid": OID, "error": value}), DOWN)


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        (b"application/vnd.git-lfs+json", True),
        (b"application/vnd.git-lfs+json; charset=utf-8", True),
        (b'Application/vnd.git-lfs+JSON;charset="UTF-8"', True),
        (b"application/vnd.git-lfs+json; charset=utf-7", False),
        (b"application/vnd.git-lfs+json, text/plain", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_the_media_type_is_lfs_s_own(line: bytes, fits: bool) -> None:
    lines = [b"Accept: */*\r\n", b"Content-Type: %b\r\n" % line]
    assert is_lfs_json(lines) is fits
    assert not is_lfs_json([*lines, b"content-type: application/vnd.git-lfs+json\r\n"])
    assert not is_lfs_json([*lines, b"Content-Encoding: gzip\r\n"])
    assert not is_lfs_json([b"no field"])


# ── locks ─────────────────────────────────────────────────────────────────────────────────────────


def test_locks_are_read_by_their_own_fields_and_written_anew() -> None:
    body = b'{"path":"a b/\xc3\xa4.bin","ref":{"name":"refs/heads/x"},"force":true,'
    body += b'"cursor":"7","limit":9}'
    taken = read_lock_request(body, "path", "ref")
    assert taken == LockRequest(path="a b/ä.bin", ref="refs/heads/x")
    assert json.loads(taken.encoded()) == {"path": "a b/ä.bin", "ref": {"name": "refs/heads/x"}}
    listed = read_lock_request(body, "cursor", "limit", "ref")
    assert (listed.cursor, listed.limit, listed.force) == ("7", 9, False)
    assert read_lock_request(body, "force").encoded() == b'{"force":true}'
    assert read_lock_request(b"{}").encoded() == b"{}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"force":1}',
        b'{"force":"true"}',
        b'{"path":["x"]}',
        b'{"limit":"9"}',
        b'{"limit":true}',
        b"",
    ],
)
def test_an_odd_request_on_locks_is_refused(body: bytes) -> None:
    """I3; the control is above."""
    with pytest.raises(Malformed):
        read_lock_request(body, "path", "cursor", "limit", "force")


def test_an_object_is_written_as_it_is_read() -> None:
    assert read_object(write_object(ONE)) == ONE


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_read_with_its_actions() -> None:
    header = {"Authorization": "Basic abc", "x-amz-date": " 20260101T000000Z "}
    action = {
        "href": HREF,
        "header": header,
        "expires_in": 60,
        "expires_at": "2026-01-01T00:00:00Z",
    }
    (found,) = read_batch_answer(answer(entry(action), transfer="basic"), DOWN)
    ((verb, read),) = found.actions
    assert (found.large, verb, verb.method) == (ONE, TransferVerb.DOWNLOAD, "GET")
    assert read.address.target == "/bucket/key?X-Amz-Signature=abc"
    assert read.header == (("Authorization", "Basic abc"), ("x-amz-date", "20260101T000000Z"))
    assert (read.expires_in, read.expires_at) == (60, "2026-01-01T00:00:00Z")


def test_an_upload_has_its_verification() -> None:
    said = {"oid": OID, "actions": {"verify": {"href": HREF}, "upload": {"href": HREF}}}
    (found,) = read_batch_answer(answer(said), UP)
    assert [verb for verb, _ in found.actions] == [TransferVerb.UPLOAD, TransferVerb.VERIFY]
    assert [verb.method for verb, _ in found.actions] == ["PUT", "POST"]


@pytest.mark.parametrize(
    "said",
    [
        {"oid": OID, "size": 5},
        {"oid": OID, "size": 5, "actions": None},
        {"oid": OID, "size": 5, "actions": {}},
        {"oid": OID, "size": 5, "actions": {"upload": None}, "error": None},
    ],
)
def test_an_object_that_is_there_needs_no_action(said: object) -> None:
    assert read_batch_answer(answer(said), UP) == (AnsweredObject(ONE),)


def test_an_error_of_one_object_is_kept() -> None:
    error = {"code": 404, "message": "Object does not exist"}
    said = {"oid": OID, "size": 5, "error": error, "actions": {"download": {"href": HREF}}}
    (found,) = read_batch_answer(answer(said), DOWN)
    assert found == AnsweredObject(ONE, code=404, message="Object does not exist")
    written = json.loads(write_batch_answer((found,), {}))
    assert written["objects"] == [{"oid": OID, "size": 5, "error": error}]


@pytest.mark.parametrize(
    ("objects", "changes", "why"),
    [
        ([entry()], {"transfer": "tus"}, "basic"),
        ([entry()], {"transfer": ["basic"]}, "basic"),
        ([entry()], {"hash_algo": "md5"}, "hash_algo"),
        ([entry(), entry()], {}, "twice"),
        ([entry(oid="c" * 64)], {}, "not asked"),
        ([entry(oid=None)], {}, "oid"),
        ([entry(size=6)], {}, "another size"),
        ([entry(size="5")], {}, "another size"),
        ([[OID]], {}, "not an object"),
        ([entry(verb="upload")], {}, "action"),
        ([entry(verb="verify")], {}, "action"),
        ([entry(verb="Download")], {}, "action"),
        ([entry(actions=[1])], {}, "actions"),
        ([entry(["x"])], {}, "an action"),
        ([entry({"href": None})], {}, "href"),
        ([entry({"href": HREF, "header": []})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": 1}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": "x\r\nHost: evil"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": "x\ny"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": "x\0y"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a: b\r\nc": "x"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a b": "x"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"": "x"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"ä": "x"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": "ä"}})], {}, "header"),
        ([entry({"href": HREF, "header": {"a": "x" * (MAX_VALUE + 1)}})], {}, "header"),
        (
            [entry({"href": HREF, "header": {f"a{i}": "x" for i in range(MAX_HEADERS + 1)}})],
            {},
            "header",
        ),
        ([entry({"href": HREF, "header": {"a": "x", "A": "y"}})], {}, "twice"),
        ([entry({"href": HREF, "expires_in": "60"})], {}, "expires_in"),
        ([entry({"href": HREF, "expires_at": 60})], {}, "expires_at"),
        ([entry(error="gone")], {}, "error"),
        ([entry(error={"code": "404"})], {}, "code"),
        ([entry(error={"code": 200})], {}, "code"),
    ],
)
def test_an_odd_answer_is_refused(
    objects: list[object], changes: dict[str, object], why: str
) -> None:
    """I1: what is not understood may hold a credential. The control is an answer that is read."""
    assert read_batch_answer(answer(entry()), DOWN)
    with pytest.raises(Malformed, match=why):
        read_batch_answer(answer(*objects, **changes), DOWN)


def test_an_answer_is_bounded() -> None:
    """I9: thousands of actions are not even looked at."""
    with pytest.raises(Malformed, match="at most 100"):
        read_batch_answer(answer(*[entry() for _ in range(2000)]), DOWN)
    with pytest.raises(Malformed, match=str(MAX_ANSWER)):
        read_batch_answer(answer(entry()) + b" " * MAX_ANSWER, DOWN)


@pytest.mark.parametrize(
    "href",
    [
        "http://s3.example/x",
        "HTTPS://s3.example/x",
        "ftp://s3.example/x",
        "//s3.example/x",
        "/x",
        "",
        "https://user:password@s3.example/x",
        "https://s3.example@evil.example/x",
        "https://s3.example\\@evil.example/x",
        "https://127.0.0.1/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://[::1]/x",
        "https://169.254.169.254/latest",
        "https://s3.example./x",
        "https://s3..example/x",
        "https://s3.example:0/x",
        "https://s3.example:65536/x",
        "https://s3.example:/x",
        "https://s3.example:443x/x",
        "https://s3.example/x#y",
        "https://s3.example/x y",
        "https://s3.example/x\r\nHost: evil",
        "https://s3.example/x\n",
        "https://s3.example/%zz",
        "https://s3.exämple/x",
        "https:///x",
        "https://s3.example/" + "x" * MAX_HREF,
    ],
)
def test_an_address_is_of_a_name_by_https_and_no_other(href: str) -> None:
    """I4: the control is below."""
    with pytest.raises(Malformed):
        StorageAddress.parse(href)


@pytest.mark.parametrize(
    ("href", "host", "port", "target"),
    [
        (HREF, "s3.example", 443, "/bucket/key?X-Amz-Signature=abc"),
        ("https://S3.Example:8443", "s3.example", 8443, "/"),
        ("https://s3.example?sig=a%2Fb", "s3.example", 443, "/?sig=a%2Fb"),
        ("https://s3.example/a//b/../c;d=1", "s3.example", 443, "/a//b/../c;d=1"),
    ],
)
def test_an_address_keeps_what_was_signed(href: str, host: str, port: int, target: str) -> None:
    found = StorageAddress.parse(href)
    assert (found.host.name, found.port, found.target) == (host, port, target)


def test_what_carries_credentials_is_not_shown() -> None:
    """I8: neither an address nor an action tells more than its host."""
    action = TransferAction(StorageAddress.parse(HREF), (("Authorization", "Basic abc"),))
    assert repr(action) == "Action(StorageAddress(s3.example:443))"


# ── what the client gets ──────────────────────────────────────────────────────────────────────────


def test_the_client_gets_links_and_no_field_of_an_action() -> None:
    """I1: neither address, header nor anything that this reader does not know comes inside."""
    secret = "s3cret-s3cret-s3cret"
    action = {"href": f"https://s3.example/x?sig={secret}", "header": {"Authorization": secret}}
    said = entry(action | {"extra": secret}, message=secret, _links={"x": secret})
    answered = read_batch_answer(answer(said, {"oid": OTHER, "size": 7}, secret=secret), DOWN)
    link = TransferLink("https://git.example/acme/widgets.git/info/lfs/keyhole/x", 60)
    written = write_batch_answer(answered, {(OID, TransferVerb.DOWNLOAD): link})
    assert secret.encode() not in written
    assert json.loads(written) == {
        "transfer": "basic",
        "objects": [
            {
                "oid": OID,
                "size": 5,
                "authenticated": True,
                "actions": {"download": {"href": link.href, "expires_in": 60}},
            },
            {"oid": OTHER, "size": 7},
        ],
        "hash_algo": "sha256",
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"message":"Not found","documentation_url":"https://x.example/?t=s3cret"}', "Not found"),
        (b'{"message":"use eyJhbGciOiJIUzI1NiJ9.payload now"}', "use … now"),
        (b'{"message":"one\\u001bmore\\nline"}', "… line"),
        (b'{"message":5}', "the server says no more"),
        (b"<html>s3cret</html>", "the server says no more"),
        (b'{"message":"%s"}' % (b"word " * 100), ("word " * 100)[:200]),
    ],
)
def test_of_an_error_only_words_pass(body: bytes, message: str) -> None:
    """I1, I7: a word that is long enough to be a secret is not passed."""
    assert json.loads(rewrite_error(body)) == {"message": message}
    assert json.loads(write_error(message)) == {"message": message}
