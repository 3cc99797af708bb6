"""Large files: the sandbox holds addresses good for one thing each, and no credential (I1, I2)."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from keyhole.gateway.git.batch import (
    DEFAULT_LIFETIME,
    MAX_LIFETIME,
    MAX_SAID,
    BatchRewriter,
    ErrorRewriter,
    Instant,
    lifetime,
)
from keyhole.gateway.git.lfs import MAX_ADDRESSES, MAX_KEPT, LargeFiles, Repo, Transfer, Upload
from keyhole.gateway.git.storage import redirected, tidy
from keyhole.http.client import Http1Client
from keyhole.http.response import ResponseHead, parse_response
from keyhole.inject.scrub import Needles
from keyhole.model.errors import Malformed, RequestUnfit
from keyhole.model.host import Host, HostPattern
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge, Repository
from keyhole.policy.forge import find_git_request
from keyhole.policy.large_files import LargeFileEndpoint, find_large_files
from keyhole.wire.lfs_request import BatchRequest, LargeObject, LfsOperation
from keyhole.wire.lfs_response import MAX_ANSWER, StorageAddress, TransferAction, TransferVerb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.http.field import Field
    from keyhole.http.request import OutboundHead

OID = "0123456789abcdef" * 4
LARGE = LargeObject(OID, 5)
WIDGETS = Repository(("acme", "widgets"))
REPO = Repo(Host("git.example"), 443, "forge", Forge.GITHUB, WIDGETS)
BASE = "/Acme/widgets.git/info/lfs"
NOW, WALL = 1000.0, 1_780_000_000.0
WHEN = Instant(NOW, WALL)

TOKEN = "gitauth-v1-7Hq2LmZp0xWc4RtY8uKs"
SIGNATURE = "74a3af149d1ed193d9a792026527c59cd9e4773f42a18f003a3a4759bbe1da21"
INJECTED = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
OURS = Needles.of(INJECTED, "")
CREDENTIAL = (b"Authorization: Basic eDpnaHBf\r\n",)
S3 = (
    "https://media.storage.example/alambic/01/23?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Date=20260101T000000Z&X-Amz-Expires=900&X-Amz-Signature={SIGNATURE}&token=1"
)


def action(href: str = S3, **header: str) -> TransferAction:
    """An action; names of fields are written with `_`."""
    fields = tuple((name.replace("_", "-"), value) for name, value in header.items())
    return TransferAction(StorageAddress.parse(href), fields)


def opened(
    files: LargeFiles,
    opaque: str,
    method: str,
    *,
    repo: Repo = REPO,
    now: float = NOW,
    length: int = 0,
) -> Transfer:
    """Ask for an address as a client does."""
    return files.open(repo, opaque, method, Upload(length), now)(CREDENTIAL, OURS)


def transfer(
    kept: TransferAction, verb: TransferVerb = TransferVerb.DOWNLOAD, length: int = 0
) -> Transfer:
    files = LargeFiles()
    opaque = files.keep(REPO, LARGE, verb, kept, NOW, 60)
    return opened(files, opaque, verb.method, length=5 if verb is TransferVerb.UPLOAD else length)


class Nobody:
    """Waits for no response."""

    def response_interim(self, head: ResponseHead) -> None: ...
    def response_begun(self, head: ResponseHead, body: bytes | None) -> None: ...
    def response_data(self, data: bytes | memoryview) -> None: ...
    def response_ended(self, trailers: Sequence[Field]) -> None: ...


def written(head: OutboundHead) -> bytes:
    """A head as HTTP/1.1 sends it."""
    return Http1Client({}).send_request(head, Nobody())[1]


def fields(head: OutboundHead) -> dict[str, str]:
    """The fields of a head by lower-case names; each stands once."""
    message = written(head)
    assert message.endswith(b"\r\n\r\n")
    lines = message.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")[1:]
    pairs = [line.split(": ", 1) for line in lines]
    found = {name.lower(): value for name, value in pairs}
    assert len(found) == len(pairs)
    return found


def answered(status: int, *lines: bytes, method: str = "GET", length: int = 5) -> ResponseHead:
    rows = [b"HTTP/1.1 %d Whatever" % status, b"Content-Length: %d" % length, *lines]
    return parse_response(b"\r\n".join(rows), method, {})


def rewritten(
    said: object,
    operation: LfsOperation = LfsOperation.DOWNLOAD,
    *,
    files: LargeFiles | None = None,
    repo: Repo = REPO,
) -> Any:  # noqa: ANN401 - JSON
    """A forge's answer, as the client gets it."""
    rewriter = BatchRewriter(
        files or LargeFiles(), repo, BASE, BatchRequest(operation, (LARGE,)), OURS, WHEN
    )
    data = json.dumps(said).encode()
    step = 7 if len(data) < 1000 else 50_000
    for at in range(0, len(data), step):
        assert rewriter.feed(data[at : at + step]) == b""
    return json.loads(rewriter.end())


def said(verb: str = "download", href: str = S3, **more: object) -> dict[str, object]:
    actions = {verb: {"href": href} | more}
    return {"objects": [{"oid": OID, "size": 5, "actions": actions}]}


def link(answer: Any, verb: str = "download") -> str:  # noqa: ANN401 - JSON
    """The opaque name in a rewritten answer."""
    href: str = answer["objects"][0]["actions"][verb]["href"]
    path = href.removeprefix("https://git.example")
    git = find_git_request(Forge.GITHUB, RequestPath.parse(path))
    assert git is not None
    found = find_large_files(git, path, "")
    assert found is not None
    assert (found.endpoint, found.base) == (LargeFileEndpoint.TRANSFER, BASE)
    return found.opaque


# ── the batch's answer ────────────────────────────────────────────────────────────────────────────


def test_the_client_gets_an_address_on_the_forge_s_own_host_and_no_credential() -> None:
    """I1, I2: what comes inside is a random name; the same name works once it is asked for."""
    files = LargeFiles()
    header = {"Authorization": f"RemoteAuth {TOKEN}", "X-Other": "x"}
    got = rewritten(said(header=header, expires_in=60), files=files)
    text = json.dumps(got)
    for secret in (TOKEN, SIGNATURE, "storage.example", "RemoteAuth", "header"):
        assert secret not in text
    assert got["objects"][0]["actions"]["download"]["expires_in"] == 60
    found = opened(files, link(got), "GET")
    assert (found.host.name, found.port, found.method) == ("media.storage.example", 443, "GET")
    assert fields(found.head)["authorization"] == f"RemoteAuth {TOKEN}"
    assert SIGNATURE in found.head.target


def test_a_forge_at_another_port_is_named_with_it() -> None:
    got = rewritten(said(), repo=replace(REPO, port=8443))
    href = got["objects"][0]["actions"]["download"]["href"]
    assert href.startswith(f"https://git.example:8443{BASE}/keyhole/")


def test_names_are_random() -> None:
    files = LargeFiles()
    names = {link(rewritten(said(), files=files)) for _ in range(100)}
    assert len(names) == files.count == 100
    assert {len(name) for name in names} == {32}


@pytest.mark.parametrize(
    "answer",
    [
        said(href="http://media.storage.example/x"),
        said(href="https://user:x@media.storage.example/x"),
        said(href="https://10.0.0.1/x"),
        said(verb="upload"),
        said() | {"transfer": "ssh"},
        said(expires_at="tomorrow"),
        {"objects": [{"oid": OID, "size": 6, "actions": {"download": {"href": S3}}}]},
        {
            "objects": [
                {"oid": f"{i:064x}", "actions": {"download": {"href": S3}}} for i in range(5000)
            ]
        },
        {"message": "no"},
        [],
    ],
)
def test_an_odd_answer_is_refused_and_nothing_is_kept(answer: object) -> None:
    """I1, I9: fail closed. The control is the same answer as it should be."""
    files = LargeFiles()
    with pytest.raises(Malformed):
        rewritten(answer, files=files)
    assert files.count == 0
    rewritten(said(), files=files)
    assert files.count == 1


def test_an_answer_without_end_is_cut() -> None:
    """I9."""
    rewriter = BatchRewriter(
        LargeFiles(), REPO, BASE, BatchRequest(LfsOperation.DOWNLOAD, ()), OURS, WHEN
    )
    rewriter.feed(b" " * MAX_ANSWER)
    with pytest.raises(Malformed, match="at most"):
        rewriter.feed(b" ")


@pytest.mark.parametrize(
    ("href", "header"),
    [
        (S3, {"Authorization": f"token {INJECTED}"}),
        (S3, {"X-Other": base64.b64encode(f"x:{INJECTED}".encode()).decode()}),
        (f"https://media.storage.example/x?t={INJECTED}", {}),
        ("https://git.example:8443/acme/widgets.git/x", {"Authorization": f"token {INJECTED}"}),
    ],
)
def test_the_service_s_own_credential_goes_to_the_repository_alone(
    href: str, header: dict[str, str]
) -> None:
    """I4: Gitea copies it into its answer. The control is an address of the repository itself."""
    with pytest.raises(Malformed, match="own credential"):
        rewritten(said(href=href, header=header))
    home = "https://git.example/acme/widgets.git/info/lfs/objects/x"
    rewritten(said(href=home, header={"Authorization": f"token {INJECTED}"}))


ASTRAY = [
    "https://git.example/other/repo.git/info/lfs/objects/x",
    "https://git.example/acme/docs.git/gitlab-lfs/objects/x/5",
    "https://git.example/acme/widgets/nested.git/info/lfs/objects/x",
    "https://git.example/acme/widgets%2F..%2Fdocs.git/info/lfs/objects/x",
    "https://git.example/acme/widgets.git",
    "https://git.example/api/v3/repos/acme/docs/contents/x",
    "https://git.example/",
    "https://api.example/repos/acme/widgets/contents/x",
]
"""On a host that the forge's credential goes to, and not in the repository."""

AT_HOME = [
    S3,
    "https://git.example/acme/widgets.git/info/lfs/objects/x",
    "https://git.example/acme/widgets/gitlab-lfs/objects/x/5",
    "https://git.example:9000/bucket/x",
    "https://api.example:9000/bucket/x",
]
FORGE = replace(REPO, credentialed=(HostPattern.parse("api.example"),))


@pytest.mark.parametrize("verb", ["download", "upload", "verify"])
@pytest.mark.parametrize("href", ASTRAY)
def test_an_address_of_another_repository_of_the_forge_is_refused(href: str, verb: str) -> None:
    """I3, I4: whatever the answer lends for it. The control is below."""
    operation = LfsOperation.DOWNLOAD if verb == "download" else LfsOperation.UPLOAD
    for header in ({}, {"Authorization": f"Basic {TOKEN}"}):
        with pytest.raises(Malformed, match="another repository"):
            rewritten(said(verb, href, header=header), operation, repo=FORGE)


@pytest.mark.parametrize("href", AT_HOME)
def test_an_address_of_the_repository_or_of_a_storage_host_is_kept(href: str) -> None:
    assert link(rewritten(said(href=href), repo=FORGE))


STORED = "https://git.example/rest/git-lfs/storage"


@pytest.mark.parametrize(
    ("forge", "href", "kept"),
    [
        (Forge.BITBUCKET, f"{STORED}/ACME/widgets/{OID}?response-content-disposition=x", True),
        (Forge.BITBUCKET, f"{STORED}/ACME/gadgets/{OID}", False),
        (Forge.BITBUCKET, f"{STORED}/ACME/widgets/more/{OID}", False),
        (Forge.BITBUCKET, f"{STORED}/ACME/widgets/..%2fgadgets/{OID}", False),
        (Forge.BITBUCKET, STORED, False),
        (Forge.BITBUCKET, f"https://git.example/rest/git-lfs/admin/ACME/widgets/{OID}", False),
        (Forge.GITHUB, f"{STORED}/ACME/widgets/{OID}", False),
    ],
)
def test_bitbucket_s_own_place_of_large_files_is_the_repository_s(
    forge: Forge, href: str, kept: bool
) -> None:
    """Data Center keeps them there, and lends a token of its own for it (I3)."""
    repo, header = replace(REPO, forge=forge), {"Authorization": f"JWT {TOKEN}"}
    if kept:
        assert link(rewritten(said(href=href, header=header), repo=repo))
        # The service's own credential does not go there: an API is beside it.
        with pytest.raises(Malformed):
            rewritten(said(href=href, header={"Authorization": f"Bearer {INJECTED}"}), repo=repo)
        return
    with pytest.raises(Malformed, match="another repository"):
        rewritten(said(href=href, header=header), repo=repo)


@pytest.mark.parametrize("href", [*ASTRAY, *AT_HOME])
def test_a_redirect_leads_to_no_other_repository_of_the_forge(href: str) -> None:
    """I3: nor does what a storage host says."""
    files = LargeFiles()
    opaque = files.keep(FORGE, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    first = opened(files, opaque, "GET", repo=FORGE)
    moved = answered(302, b"Location: " + href.encode())
    if href in AT_HOME:
        onward = redirected(first, moved)
        assert onward is not None
        assert fields(onward.head).keys().isdisjoint({"authorization"})
        return
    with pytest.raises(Malformed, match="another place of the forge"):
        redirected(first, moved)


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [
        ({}, DEFAULT_LIFETIME),
        ({"expires_in": 0}, DEFAULT_LIFETIME),
        ({"expires_in": 60}, 60),
        ({"expires_in": -5}, 1),
        ({"expires_in": 10**9}, MAX_LIFETIME),
        ({"expires_in": 60, "expires_at": "nonsense"}, 60),
        ({"expires_at": "2026-05-28T20:28:20Z"}, 100),
        ({"expires_at": "2026-05-28T20:28:20.123456789Z"}, 100),
        ({"expires_at": "2026-05-28T20:28:20"}, 100),
        ({"expires_at": "2026-05-28T22:28:20+02:00"}, 100),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 1),
        ({"expires_at": "9999-12-31T23:59:59Z"}, MAX_LIFETIME),
        ({"expires_at": "0001-01-01T00:00:00Z"}, DEFAULT_LIFETIME),
    ],
)
def test_an_address_lasts_as_long_as_the_forge_says_and_no_longer_than_a_session_keeps_it(
    expires: dict[str, Any], seconds: int
) -> None:
    assert lifetime(replace(action(), **expires), WALL) == seconds


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def files() -> LargeFiles:
    return LargeFiles()


def test_an_address_is_good_for_its_own_method_alone(files: LargeFiles) -> None:
    """I3: the controls are the methods that work."""
    for verb, other in itertools.product(TransferVerb, TransferVerb):
        length = LARGE.size if verb is TransferVerb.UPLOAD else 0
        opaque = files.keep(REPO, LARGE, verb, action(), NOW, 60)
        if other is verb:
            assert opened(files, opaque, other.method, length=length).method == verb.method
        else:
            with pytest.raises(RequestUnfit, match="alone"):
                opened(files, opaque, other.method, length=length)
        with pytest.raises(RequestUnfit):
            opened(files, opaque, "DELETE", length=length)


@pytest.mark.parametrize(
    "other",
    [
        replace(REPO, repository=Repository(("acme", "docs"))),
        replace(REPO, host=Host("git2.example")),
        replace(REPO, port=8443),
        replace(REPO, service="second"),
    ],
)
def test_an_address_is_good_for_its_own_repository_alone(files: LargeFiles, other: Repo) -> None:
    """I3: also where two accounts share a host. The control is the repository itself."""
    opaque = files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    with pytest.raises(RequestUnfit, match="not known"):
        opened(files, opaque, "GET", repo=other)
    assert opened(files, opaque, "GET")


def test_another_session_does_not_know_it(files: LargeFiles) -> None:
    """I5: the control is the session that was given it."""
    opaque = files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    with pytest.raises(RequestUnfit, match="not known"):
        opened(LargeFiles(), opaque, "GET")
    assert opened(files, opaque, "GET")


@pytest.mark.parametrize("opaque", ["", "..", "../../x", "x" * 32, "\0", "A" * 10_000])
def test_a_name_that_was_not_given_stands_for_nothing(files: LargeFiles, opaque: str) -> None:
    """I3."""
    files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    with pytest.raises(RequestUnfit, match="not known"):
        opened(files, opaque, "GET")


def test_an_address_ends(files: LargeFiles) -> None:
    """I9: a moment before, it is good."""
    opaque = files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    assert opened(files, opaque, "GET", now=NOW + 59.9)
    with pytest.raises(RequestUnfit, match="over"):
        opened(files, opaque, "GET", now=NOW + 60)
    assert files.count == 0


def test_an_upload_is_made_once_and_has_the_size_of_its_object(files: LargeFiles) -> None:
    """I3: what does not fit is refused and does not use it up; what was uploaded stays."""
    opaque = files.keep(REPO, LARGE, TransferVerb.UPLOAD, action(), NOW, 60)
    for length in (0, 4, 6, -1):
        with pytest.raises(RequestUnfit, match="size"):
            opened(files, opaque, "PUT", length=length)
    assert fields(opened(files, opaque, "PUT", length=5).head)["content-length"] == "5"
    with pytest.raises(RequestUnfit, match="not known"):
        opened(files, opaque, "PUT", length=5)


def test_a_download_may_be_repeated_and_has_no_body(files: LargeFiles) -> None:
    opaque = files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, action(), NOW, 60)
    for length in (5, -1):
        with pytest.raises(RequestUnfit, match="no body"):
            opened(files, opaque, "GET", length=length)
    for _ in range(3):
        assert "content-length" not in fields(opened(files, opaque, "GET").head)


def test_a_session_keeps_so_many_addresses_and_forgets_the_oldest(files: LargeFiles) -> None:
    """I9."""
    one = action()
    kept = [
        files.keep(REPO, LARGE, TransferVerb.DOWNLOAD, one, NOW, 60)
        for _ in range(MAX_ADDRESSES + 1)
    ]
    assert files.count == MAX_ADDRESSES
    with pytest.raises(RequestUnfit):
        opened(files, kept[0], "GET")
    assert opened(files, kept[1], "GET")
    assert opened(files, kept[-1], "GET")


def test_a_session_keeps_so_many_bytes(files: LargeFiles) -> None:
    """I9: and has the room back when an address is gone."""
    heavy = TransferAction(
        StorageAddress.parse(S3), tuple((f"x-{i}", "v" * 8000) for i in range(30))
    )
    most = MAX_KEPT // (8000 * 30)
    for _ in range(2 * most):
        last = files.keep(REPO, LARGE, TransferVerb.UPLOAD, heavy, NOW, 60)
    assert most * 0.9 < files.count <= most
    count = files.count
    opened(files, last, "PUT", length=5)
    files.keep(REPO, LARGE, TransferVerb.UPLOAD, heavy, NOW, 60)
    assert files.count == count


# ── transfers ─────────────────────────────────────────────────────────────────────────────────────


def test_a_download_is_asked_for_as_the_forge_said() -> None:
    given = action(Authorization=f"RemoteAuth {TOKEN}", X_Amz_Content_Sha256=OID, Accept="a/b")
    found = transfer(given)
    start = f"GET {given.address.target} HTTP/1.1\r\n"
    assert written(found.head).startswith(start.encode())
    assert fields(found.head) == {
        "host": "media.storage.example",
        "user-agent": "git-lfs",
        "accept-encoding": "identity",
        "authorization": f"RemoteAuth {TOKEN}",
        "x-amz-content-sha256": OID,
        "accept": "a/b",
    }
    assert found.body == b""


def test_the_port_is_part_of_the_host() -> None:
    found = transfer(action("https://s.example:8443/x"))
    assert (found.port, fields(found.head)["host"]) == (8443, "s.example:8443")


def test_what_frames_or_routes_is_ours_to_write() -> None:
    """I4: GitLab tells clients to send chunks; a Host or a length of the forge's is not written."""
    given = action(
        Transfer_Encoding="chunked", Content_Length="99", Host="evil.example", Connection="x",
        Expect="100-continue", Upgrade="h2c", TE="trailers", X_Forwarded_Host="evil.example",
        X_HTTP_Method_Override="DELETE", Accept_Encoding="gzip", Range="bytes=0-1", X_Kept="yes",
    )  # fmt: skip
    found = fields(transfer(given, TransferVerb.UPLOAD).head)
    assert found == {
        "host": "media.storage.example",
        "user-agent": "git-lfs",
        "accept-encoding": "identity",
        "x-kept": "yes",
        "content-type": "application/octet-stream",
        "content-length": "5",
    }


@pytest.mark.parametrize(
    ("sent", "given", "written"),
    [
        (b"text/plain; charset=utf-8", {}, "text/plain; charset=utf-8"),
        (b"text/plain", {"Content_Type": "a/b"}, "a/b"),
        (b"text/plain\x80", {}, "application/octet-stream"),
        (b"a" * 200, {}, "application/octet-stream"),
        (b"", {}, "application/octet-stream"),
    ],
)
def test_of_the_client_s_fields_only_the_type_of_an_upload_goes_on(
    sent: bytes, given: dict[str, str], written: str
) -> None:
    """I6: not even the Authorization that a client sends to its opaque address."""
    lines = [
        b"Authorization: Basic bWluZQ==\r\n",
        b"X-Other: 1\r\n",
        b"content-type: %b\r\n" % sent,
    ]
    files = LargeFiles()
    opaque = files.keep(REPO, LARGE, TransferVerb.UPLOAD, action(**given), NOW, 60)
    found = files.open(REPO, opaque, "PUT", Upload.of(5, lines), NOW)(CREDENTIAL, OURS)
    assert fields(found.head)["content-type"] == written
    assert "authorization" not in fields(found.head)
    assert "x-other" not in fields(found.head)


def test_an_upload_without_a_type_has_none() -> None:
    assert Upload.of(5, [b"Accept: */*\r\n"]) == Upload(5)


def test_a_verification_is_written_by_the_gateway() -> None:
    """I3: the client's body is compared, and never sent."""
    given = action(Authorization=f"RemoteAuth {TOKEN}", Content_Type="a/b", Accept="c/d")
    found = transfer(given, TransferVerb.VERIFY, length=77)
    assert json.loads(found.body) == {"oid": OID, "size": 5}
    head = fields(found.head)
    assert head["content-length"] == str(len(found.body))
    assert head["content-type"] == head["accept"] == "application/vnd.git-lfs+json"
    found.check_body(b'{"oid":"%b","size":5}' % OID.encode())
    for body in (
        b"",
        b"{}",
        b'{"oid":"%b","size":6}' % OID.encode(),
        b'{"oid":"%064d","size":5}' % 0,
    ):
        with pytest.raises(Malformed):
            found.check_body(body)
    transfer(action()).check_body(b"")


@pytest.mark.parametrize(
    ("href", "header", "written"),
    [
        # Azure DevOps gives no Authorization for its own addresses.
        ("https://git.example/acme/widgets.git/info/lfs/objects/x", {}, "Basic eDpnaHBf"),
        ("https://git.example/ACME/Widgets/x?y=1", {"Accept": "a/b"}, "Basic eDpnaHBf"),
        # GitLab gives one: it is written in the place of the credential.
        ("https://git.example/acme/widgets.git/x", {"Authorization": "Basic b21h"}, "Basic b21h"),
        ("https://git.example/acme/widgets.git/x", {"PRIVATE_TOKEN": "abc"}, None),
        ("https://git.example/acme/widgets", {}, None),
        ("https://git.example/acme/docs.git/x", {}, None),
        ("https://git.example/acme/widgets.git/../docs.git/x", {}, None),
        ("https://git.example/acme/docs.git/..%2fwidgets.git/x", {}, None),
        ("https://git.example:8443/acme/widgets.git/x", {}, None),
        ("https://git.example.evil.example/acme/widgets.git/x", {}, None),
        (S3, {}, None),
    ],
)  # fmt: skip
def test_the_credential_is_written_for_the_repository_s_own_addresses_alone(
    href: str, header: dict[str, str], written: str | None
) -> None:
    """I4: where the forge gave none of its own; the first are the controls."""
    assert fields(transfer(action(href, **header)).head).get("authorization") == written


def test_what_carries_credentials_is_not_shown() -> None:
    """I8."""
    found = transfer(action(Authorization=f"RemoteAuth {TOKEN}"))
    assert repr(found) == "Transfer(GET media.storage.example:443)"
    with pytest.raises(TypeError):
        pickle.dumps(found)


def test_what_was_lent_must_not_come_back() -> None:
    """I7: nor the service's own; but of a field that is not sent nothing can."""
    kept = action(Authorization=f"RemoteAuth {TOKEN}", X_Any=TOKEN[::-1], Host=SIGNATURE[::-1])
    for secret in (TOKEN, TOKEN[::-1], SIGNATURE, INJECTED):
        assert transfer(kept).needles.found_in(secret.encode())
    assert not transfer(kept).needles.found_in(SIGNATURE[::-1].encode())


# ── a storage host's answer ───────────────────────────────────────────────────────────────────────


def test_an_object_passes_with_what_the_client_has_a_use_for() -> None:
    """I1, I7: what would hand out a credential or a place stays outside, and so do digests."""
    head = answered(
        200,
        b"Content-Type: text/plain; charset=utf-16le",
        b"ETag: x",
        b"Last-Modified: Tue, 17 Nov 2026 06:59:36 GMT",
        b"Set-Cookie: session=1",
        b"Location: https://elsewhere.example",
        b"WWW-Authenticate: Basic",
        b"x-amz-meta-token: 1",
        b"Link: <https://elsewhere.example>",
    )
    assert tidy(transfer(action()), head) is None
    assert head.lines == [
        b"Last-Modified: Tue, 17 Nov 2026 06:59:36 GMT\r\n",
        b"Content-Type: application/octet-stream\r\n",
    ]


@pytest.mark.parametrize(
    "head",
    [
        answered(200, length=6),
        answered(206),
        answered(204, length=0),
        answered(200, b"Content-Encoding: gzip"),
    ],
)
def test_something_else_than_the_object_does_not_pass(head: ResponseHead) -> None:
    """The control is above."""
    with pytest.raises(Malformed):
        tidy(transfer(action()), head)


def test_an_object_of_unknown_length_passes() -> None:
    chunked = parse_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "GET", {})
    assert tidy(transfer(action()), chunked) is None


@pytest.mark.parametrize(
    ("verb", "status"),
    [(TransferVerb.UPLOAD, 200), (TransferVerb.UPLOAD, 201), (TransferVerb.VERIFY, 200)],
)
def test_of_an_upload_only_that_it_worked_passes(verb: TransferVerb, status: int) -> None:
    head = answered(status, b"x-amz-request-id: 1", method=verb.method)
    rewriter = tidy(transfer(action(), verb), head)
    assert rewriter is not None
    assert (rewriter.feed(TOKEN.encode()), rewriter.end()) == (b"", b"")
    assert (head.status, head.lines) == (status, [])


@pytest.mark.parametrize(
    ("status", "told"), [(401, 403), (403, 403), (404, 404), (429, 429), (503, 503)]
)
@pytest.mark.parametrize("verb", list(TransferVerb))
def test_an_error_passes_without_its_words(verb: TransferVerb, status: int, told: int) -> None:
    """I7: S3 answers with the string that was signed. A 401 would have the client ask a person."""
    lines = (b"Retry-After: 7", b"Content-Type: application/xml", b"WWW-Authenticate: Basic")
    head = answered(status, *lines, method=verb.method)
    rewriter = tidy(transfer(action(), verb), head)
    assert rewriter is not None
    assert rewriter.feed(b"<StringToSign>%b</StringToSign>" % TOKEN.encode()) == b""
    assert json.loads(rewriter.end()) == {"message": f"the storage host answered {status}"}
    assert head.status == told
    assert head.start.startswith(b"HTTP/1.1 %d " % told)
    assert head.lines == [b"Retry-After: 7\r\n", b"Content-Type: application/vnd.git-lfs+json\r\n"]


def test_an_error_of_the_forge_passes_as_its_message_alone() -> None:
    """I1, I9."""
    rewriter = ErrorRewriter()
    assert rewriter.feed(b'{"message":"over quota","actions":{"x":"%b"}}' % TOKEN.encode()) == b""
    assert json.loads(rewriter.end()) == {"message": "over quota"}
    endless = ErrorRewriter()
    for _ in range(5):
        endless.feed(b"x" * MAX_SAID)
    assert json.loads(endless.end()) == {"message": "the server says no more"}


ELSEWHERE = f"https://cdn.example:8443/x?X-Goog-Signature={SIGNATURE[::-1]}"


def test_a_redirected_download_is_followed_without_what_was_lent_before() -> None:
    """I4: GitLab sends downloads on. Neither the token nor the credential goes along."""
    first = transfer(action(Authorization=f"RemoteAuth {TOKEN}"))
    second = redirected(
        first, answered(302, b"Location: %b" % ELSEWHERE.encode(), b"Set-Cookie: a=1")
    )
    assert second is not None
    assert (second.host.name, second.port, second.large) == ("cdn.example", 8443, LARGE)
    assert fields(second.head) == {
        "host": "cdn.example:8443",
        "user-agent": "git-lfs",
        "accept-encoding": "identity",
    }
    for secret in (TOKEN, SIGNATURE, SIGNATURE[::-1], INJECTED):
        assert second.needles.found_in(secret.encode())
    assert redirected(first, answered(200)) is None


@pytest.mark.parametrize(
    "places",
    [
        [],
        [b"https://a.example/", b"https://b.example/"],
        [b"/relative"],
        [b"http://cdn.example/x"],
        [b"https://user@cdn.example/x"],
        [b"https://169.254.169.254/latest"],
        [b"https://\xff.example/"],
        [b"https://cdn.example/?t=" + INJECTED.encode()],
    ],
)
def test_a_redirect_to_an_odd_place_is_refused(places: list[bytes]) -> None:
    """I4; the control is above."""
    lines = [b"Location: %b" % place for place in places]
    there = transfer(action(Authorization=f"RemoteAuth {TOKEN}"))
    with pytest.raises(Malformed):
        redirected(there, answered(307, *lines))


@pytest.mark.parametrize("verb", [TransferVerb.UPLOAD, TransferVerb.VERIFY])
def test_an_upload_is_not_sent_somewhere_else(verb: TransferVerb) -> None:
    """I4: its size, host and credentials were judged together."""
    head = answered(307, b"Location: %b" % ELSEWHERE.encode(), method=verb.method)
    with pytest.raises(Malformed, match="somewhere else"):
        redirected(transfer(action(), verb), head)


def test_redirects_end() -> None:
    """I9: as many as the client itself would follow."""
    found: Transfer | None = transfer(action())
    for hop in range(2):
        assert found is not None
        found = redirected(found, answered(302, b"Location: https://cdn%d.example/" % hop))
    assert found is not None
    with pytest.raises(Malformed, match="somewhere else"):
        redirected(found, answered(302, b"Location: https://cdn.example/"))
