"""LFS: what a body asks for is what was granted, and nothing else of it goes on (I3)."""

from __future__ import annotations

import json

import pytest

from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.policy.forge import GitEndpoint, GitRequest, find_git_request
from keyhole.policy.large_files import (
    BodyDecision,
    LargeFileEndpoint,
    LargeFileRequest,
    find_large_files,
    judge_body,
)
from keyhole.policy.policy import Service
from keyhole.wire.lfs_request import LargeObject, LfsOperation
from tests.rigs.policies import loaded

OID = "a" * 64
BASE = "/acme/widgets.git/info/lfs"
OPAQUE = "A-Za-z0-9_" * 3


def service(extra: str = "") -> Service:
    text = f'[services.forge]\nsecret = "store:one"\nrepos = ["acme/widgets"]\n{extra}'
    (found,) = loaded(text).policy.services
    return found


READER = service()
WRITER = service('push = ["agent/*"]')
TAGGER = service('tags = ["v*"]')
FORCER = service('push = ["agent/*"]\nforce = true')


def find(path: str, query: str = "") -> LargeFileRequest | None:
    found = find_git_request(Forge.GITHUB, RequestPath.parse(path))
    assert found is not None
    return find_large_files(found, path, query)


def batch(operation: str, size: int = 5) -> bytes:
    return json.dumps({"operation": operation, "objects": [{"oid": OID, "size": size}]}).encode()


def judge(service: Service, body: bytes, endpoint: str = "BATCH") -> BodyDecision:
    request = LargeFileRequest(LargeFileEndpoint[endpoint], BASE)
    return judge_body(service, request, body, largest=100)


# ── paths ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rest", "query", "endpoint", "opaque"),
    [
        ("objects/batch", "", "BATCH", ""),
        ("locks", "", "LOCKS", ""),
        ("locks", "path=a%20b&refspec=refs/heads/x&limit=1&cursor=2&id=3", "LOCKS", ""),
        ("locks/verify", "", "VERIFY_LOCKS", ""),
        ("locks/17/unlock", "", "UNLOCK", ""),
        (f"keyhole/{OPAQUE}", "", "TRANSFER", OPAQUE),
    ],
)
def test_each_endpoint_is_known(rest: str, query: str, endpoint: str, opaque: str) -> None:
    for base in (BASE, "/Acme/WIDGETS/info/lfs", "/acme/%77idgets.git/info/lfs"):
        found = find(f"{base}/{rest}", query)
        assert found == LargeFileRequest(LargeFileEndpoint[endpoint], base, opaque)


@pytest.mark.parametrize(
    ("rest", "query"),
    [
        ("", ""),
        ("objects", ""),
        ("objects/batch/", ""),
        ("objects/%62atch", ""),
        ("objects/batch/info/lfs/objects/batch", ""),
        (f"objects/{OID}", ""),
        ("locks", "path=a&path=b"),
        ("locks", "p%61th=a"),
        ("locks", "force=true"),
        ("locks", "path=a&"),
        ("locks/17", ""),
        ("keyhole", ""),
        ("keyhole/", ""),
        ("keyhole/short", ""),
        (f"keyhole/{'x' * 65}", ""),
        (f"keyhole/{OPAQUE}/", ""),
        (f"keyhole/{OPAQUE}/x", ""),
        (f"keyhole/%41{OPAQUE[1:]}", ""),
        (f"keyhole/{OPAQUE}.", ""),
        (f"keyhole/{OPAQUE}%20", ""),
        (f"Keyhole/{OPAQUE}", ""),
        (f"x/keyhole/{OPAQUE}", ""),
    ],
)
def test_anything_else_is_no_endpoint(rest: str, query: str) -> None:
    """I3: also what another server would read as one. The control is above."""
    assert find(f"{BASE}/{rest}", query) is None


@pytest.mark.parametrize(
    "trick", [f"keyhole/../{OPAQUE}", f"keyhole/..%2f{OPAQUE}", "keyhole/%2e%2e"]
)
def test_a_path_that_climbs_is_no_path(trick: str) -> None:
    """I3: an opaque name is looked up, never walked; such a path does not even parse."""
    with pytest.raises(ValueError, match="path"):
        find(f"{BASE}/{trick}")


def test_another_endpoint_of_git_is_not_lfs() -> None:
    assert find_large_files(GitRequest(None, GitEndpoint.FETCH), "/a/b/git-upload-pack", "") is None


def test_only_what_is_posted_is_judged_by_its_body() -> None:
    request = LargeFileRequest(LargeFileEndpoint.LOCKS, BASE)
    assert [request.wants_body(method) for method in ("GET", "PUT", "POST")] == [False, False, True]


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", [READER, WRITER, TAGGER])
def test_a_download_needs_the_repository_alone(who: Service) -> None:
    found = judge(who, batch("download", size=10**9))
    assert found.decision.allowed
    assert (found.decision.rule, found.decision.service) == ("services.forge.repos", "forge")
    assert found.batch is not None
    assert found.batch.objects == (LargeObject(OID, 10**9),)
    assert json.loads(found.body)["transfers"] == ["basic"]


def test_an_upload_needs_what_a_push_needs() -> None:
    """I3: with the same body, one who may push is allowed and one who may not is refused."""
    for who in (WRITER, TAGGER):
        found = judge(who, batch("upload"))
        assert found.decision.allowed
        assert found.batch is not None
        assert found.batch.operation is LfsOperation.UPLOAD
    refused = judge(READER, batch("upload"))
    assert (refused.decision.allowed, refused.body, refused.batch) == (False, b"", None)
    assert refused.decision.reason is Reason.READ_ONLY
    assert refused.decision.rule == "services.forge.push"


def test_a_service_without_git_uploads_nothing() -> None:
    """I3: deny is the zero."""
    plain = Service("plain", "Plain", ())
    assert judge(plain, batch("upload")).decision.reason is Reason.READ_ONLY
    assert judge(plain, b'{"force":true}', "UNLOCK").decision.reason is Reason.FORCE_NOT_GRANTED


def test_an_upload_larger_than_a_body_may_be_is_refused_before_it_is_sent() -> None:
    """I9."""
    assert judge(WRITER, batch("upload", size=100)).decision.allowed
    refused = judge(WRITER, batch("upload", size=101))
    assert refused.decision.reason is Reason.LFS_REFUSED
    assert "limits.body" in refused.why


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"operation":"download","operation":"upload","objects":[]}',
        batch("download").replace(b"{", b'{"Operation":"upload",', 1),
        batch("delete"),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    """I3: also for one who may push. The controls are above."""
    for who in (READER, WRITER):
        found = judge(who, body)
        assert found.decision == RequestDecision(reason=Reason.LFS_REFUSED, service="forge")
        assert found.why
        assert not found.body


def test_of_a_lock_only_its_own_fields_go_on() -> None:
    taken = judge(WRITER, b'{"path":"a.bin","force":true,"x":1}', "LOCKS")
    assert (taken.decision.allowed, taken.body) == (True, b'{"path":"a.bin"}')
    listed = judge(READER, b'{"cursor":"1","limit":2,"path":"x"}', "VERIFY_LOCKS")
    assert (listed.decision.allowed, listed.body) == (True, b'{"cursor":"1","limit":2}')
    assert judge(WRITER, b"[]", "LOCKS").decision.reason is Reason.LFS_REFUSED


def test_breaking_another_s_lock_needs_force() -> None:
    """I3: the same request is refused without and allowed with the grant."""
    body = b'{"force":true}'
    refused = judge(WRITER, body, "UNLOCK")
    assert refused.decision.reason is Reason.FORCE_NOT_GRANTED
    assert refused.decision.rule == "services.forge.force"
    assert judge(FORCER, body, "UNLOCK").body == body
    assert judge(WRITER, b'{"force":false}', "UNLOCK").body == b"{}"


def test_a_transfer_is_not_judged_here() -> None:
    """I3: whoever asks in the wrong place is denied."""
    assert judge(FORCER, b"{}", "TRANSFER") == BodyDecision()
    assert not BodyDecision().decision.allowed
