"""Large files through the gateway as bytes: what clients of LFS would never send, and what storage
hosts would rather not answer.

A forge and its storage hosts write down what came; git-lfs itself is in tests/system/git.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.gateway.git.storage import MAX_HOPS
from keyhole.model.decision import Verdict
from keyhole.wire.lfs_response import MAX_ANSWER
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import AMPLE, SECRET, Stage, make_services, serving, set_up
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator

    import trustme

PATIENCE = 10.0
CONTENT = bytes(range(256)) * 1024
OID = hashlib.sha256(CONTENT).hexdigest()
OTHER = "b" * 64
TOKEN = "gitauth-v1-7Hq2LmZp0xWc4RtY8uKs"
SIGNATURE = "74a3af149d1ed193d9a792026527c59cd9e4773f42a18f003a3a4759bbe1da21"
ONWARD = "0d9f4e2a77b1c6358ea1f20b5c9d8e7f60123a4b5c6d7e8f9a0b1c2d3e4f5a6b"
LENT = (TOKEN, SIGNATURE, ONWARD, SECRET)
"""None of these may come inside."""

MEDIA = "application/vnd.git-lfs+json"
JSON = f"Content-Type: {MEDIA}"
LFS = "/acme/widgets.git/info/lfs"
STORE, CDN = "store.ok.example", "cdn.ok.example"
READING = """
[services.own]
hosts = ["ok.example"]
forge = "github"
repos = ["acme/widgets", "acme/docs"]
secret = "file:/nowhere"
"""
WRITING = READING + 'push = ["agent/*"]\n'

Reply = Callable[[Message], bytes | None]


def place(name: str = STORE, verb: str = "download", signature: str = SIGNATURE) -> str:
    """Where an object is stored, and what opens it there."""
    return f"https://{name}/objects/{verb}?X-Amz-Signature={signature}"


class Forge:
    """Answers batches; a test may put another action, or another answer, in its place."""

    def __init__(self) -> None:
        self.service = Service(self.answer)
        self.reply: Reply | None = None
        self.action: dict[str, Any] = {"header": {"Authorization": f"RemoteAuth {TOKEN}"}}

    def answer(self, message: Message) -> bytes | None:
        """To a batch, or about locks."""
        if self.reply is not None:
            return self.reply(message)
        if "/objects/batch" not in message.start:
            return ok(b'{"locks": []}', JSON.encode())
        return ok(self.batch(message), JSON.encode())

    def batch(self, message: Message) -> bytes:
        """What an honest forge says."""
        said = json.loads(message.body)
        verbs = ["download"] if said["operation"] == "download" else ["upload", "verify"]
        objects = [
            each | {"actions": {verb: {"href": place(verb=verb)} | self.action for verb in verbs}}
            for each in said["objects"]
        ]
        return json.dumps({"transfer": "basic", "objects": objects}).encode()


class Storage:
    """A storage host that has the object."""

    def __init__(self) -> None:
        self.service = Service(self.answer)
        self.reply: Reply | None = None
        self.early = b""
        """What is answered as soon as a head is there."""

    def __call__(self, sock: socket.socket) -> None:
        if not self.early:
            self.service(sock)
            return
        talk = Talk(sock)
        talk.until(END)
        talk.send(self.early)
        while talk.more():
            pass

    def answer(self, message: Message) -> bytes | None:
        if self.reply is not None:
            return self.reply(message)
        if message.start.startswith("GET"):
            return ok(CONTENT, b"Content-Type: application/octet-stream", b"Set-Cookie: a=1")
        return ok(b"{}")

    @property
    def seen(self) -> list[Message]:
        return self.service.seen


@pytest.fixture
def forge() -> Forge:
    return Forge()


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def cdn() -> Storage:
    """Another storage host, which only a redirect leads to."""
    return Storage()


Begin = Callable[..., Stage]


@pytest.fixture
def begin(
    authority: trustme.CA, tls: ssl.SSLContext, forge: Forge, storage: Storage, cdn: Storage
) -> Iterator[Begin]:
    """A door before the three of them.

    The storage hosts are in no rule of a policy: nothing but the forge's word leads there.
    `hidden` is one that the policy does not say where to dial, `also` another name of the first.
    """
    with contextlib.ExitStack() as stack:
        origins = {
            name: stack.enter_context(serving(handler, tls))
            for name, handler in (
                ("ok_example", forge.service),
                ("store_ok_example", storage),
                ("cdn_ok_example", cdn),
            )
        }

        def opened(
            policy: str = WRITING, limits: str = AMPLE, hidden: str = "", also: str = ""
        ) -> Stage:
            stage = stack.enter_context(set_up(authority, make_services(authority, own=SECRET)))
            known = {name: origin for name, origin in origins.items() if name != hidden}
            if also:
                known[also] = origins["store_ok_example"]
            stage.open(policy, limits, **known)
            return stage

        yield opened


@pytest.fixture
def stage(begin: Begin) -> Stage:
    return begin()


def post(target: str, body: bytes, *fields: str) -> bytes:
    """A request of LFS's with a body."""
    return head("POST", target, JSON, f"Content-Length: {len(body)}", *fields) + body


def batch(operation: str = "download", size: int = len(CONTENT), base: str = LFS) -> bytes:
    """As a client asks for one object."""
    said = {"operation": operation, "objects": [{"oid": OID, "size": size}]}
    return post(f"{base}/objects/batch", json.dumps(said).encode())


def links(stage: Stage, operation: str = "download", base: str = LFS) -> dict[str, str]:
    """The paths of the addresses that a batch gives, by what they are for."""
    answer = stage.ask(batch(operation, base=base)).answer()
    assert answer.status == 200, answer
    actions = json.loads(answer.body)["objects"][0]["actions"]
    assert all(set(action) == {"href", "expires_in"} for action in actions.values())
    return {v: a["href"].removeprefix("https://ok.example") for v, a in actions.items()}


def put(path: str, body: bytes = CONTENT, *fields: str) -> bytes:
    return head("PUT", path, f"Content-Length: {len(body)}", *fields) + body


def verify(path: str, oid: str = OID, size: int = len(CONTENT)) -> bytes:
    return post(path, json.dumps({"oid": oid, "size": size}).encode())


def words(answer: Message) -> str:
    """What a client of LFS shows of a refusal."""
    assert answer.one("content-type") == MEDIA, answer
    message: str = json.loads(answer.body)["message"]
    return message


def is_clean(*answers: Message) -> bool:
    """Whether nothing that opens a place, nor the place itself, is in them (I1)."""
    text = b"".join(each.head + each.body + each.trailers for each in answers).decode("latin-1")
    hidden = (*LENT, STORE, CDN, *(base64.b64encode(s.encode()).decode() for s in LENT))
    return not any(each in text for each in hidden)


# ── what clients do ───────────────────────────────────────────────────────────────────────────────


def test_a_download_is_made_by_the_gateway(stage: Stage, forge: Forge, storage: Storage) -> None:
    """I1, I2, I8: the client sees bytes of the object; who stored them is in the log alone."""
    answer = stage.ask(batch()).answer()
    path = json.loads(answer.body)["objects"][0]["actions"]["download"]["href"]
    got = stage.ask(get(path.removeprefix("https://ok.example"))).answer()
    assert (got.status, got.body) == (200, CONTENT)
    assert is_clean(answer, got)
    assert got.all("set-cookie") == []
    (asked,) = storage.seen
    assert asked.start == f"GET /objects/download?X-Amz-Signature={SIGNATURE} HTTP/1.1"
    assert dict(asked.fields) == {
        "host": STORE, "user-agent": "git-lfs", "accept-encoding": "identity",
        "authorization": f"RemoteAuth {TOKEN}",
    }  # fmt: skip
    (told,) = forge.service.seen
    assert told.one("authorization").startswith("Basic ")  # type: ignore[union-attr]
    event = stage.watch.until("rule", oid=OID)
    details = dict(event.details)
    assert details["storage"] == STORE
    assert details["size"] == len(CONTENT)
    assert details["status"] == 200
    assert event.host == "ok.example"
    assert not any(secret in str(stage.watch.events) for secret in LENT)


def test_an_upload_is_made_and_verified_by_the_gateway(stage: Stage, storage: Storage) -> None:
    """I1, I6: and nothing of the client's own goes along but the bytes and their type."""
    paths = links(stage, "upload")
    mine = ("Authorization: Basic bWluZQ==", "Cookie: a=b", "X-Other: 1", "Content-Type: text/x")
    sent = stage.ask(put(paths["upload"], CONTENT, *mine), verify(paths["verify"]))
    answers = [sent.answer(), sent.answer()]
    assert [each.status for each in answers] == [200, 200]
    assert is_clean(*answers)
    upload, verified = storage.seen
    assert (upload.start.split("?")[0], upload.body) == ("PUT /objects/upload", CONTENT)
    assert dict(upload.fields) == {
        "host": STORE, "user-agent": "git-lfs", "accept-encoding": "identity",
        "authorization": f"RemoteAuth {TOKEN}", "content-type": "text/x",
        "content-length": str(len(CONTENT)),
    }  # fmt: skip
    assert json.loads(verified.body) == {"oid": OID, "size": len(CONTENT)}
    assert verified.one("content-type") == MEDIA
    stage.watch.until("rule", oid=OID, method="PUT", storage=STORE)


def test_a_batch_goes_on_as_it_was_understood(stage: Stage, forge: Forge) -> None:
    """I4, I6: what the reader does not know does not reach the forge."""
    said: dict[str, object] = {"operation": "download", "extra": "x"}
    said |= {"objects": [{"oid": OID, "size": 5, "x": 1}]}
    said |= {"transfers": ["tus", "basic"], "ref": {"name": "refs/heads/x"}}
    body = json.dumps(said).encode()
    fields = ("Authorization: Basic bWluZQ==", "X-Other: 1", "Accept: */*")
    assert stage.ask(post(f"{LFS}/objects/batch", body, *fields)).answer().status == 200
    (seen,) = forge.service.seen
    assert json.loads(seen.body) == {
        "operation": "download", "transfers": ["basic"], "ref": {"name": "refs/heads/x"},
        "objects": [{"oid": OID, "size": 5}], "hash_algo": "sha256",
    }  # fmt: skip
    assert seen.all("x-other") == []
    assert seen.one("accept") == seen.one("content-type") == MEDIA
    assert "bWluZQ" not in str(seen.fields)


def test_locks_pass_with_lfs_s_own_fields(stage: Stage, forge: Forge) -> None:
    """I3: an odd query is refused; so is giving back another's lock by force."""
    good = [
        get(f"{LFS}/locks?path=a%20b&limit=5"),
        post(f"{LFS}/locks", b'{"path":"a","x":1}'),
        post(f"{LFS}/locks/verify", b'{"cursor":"c"}'),
        post(f"{LFS}/locks/7/unlock", b'{"force":false}'),
    ]
    for request in good:
        assert stage.ask(request).answer().status == 200
    bodies = [seen.body for seen in forge.service.seen]
    assert bodies == [b"", b'{"path":"a"}', b'{"cursor":"c"}', b"{}"]
    bad = [
        get(f"{LFS}/locks?path=a&path=b"),
        get(f"{LFS}/locks?path=a&x=b"),
        get(f"{LFS}/locks/"),
        post(f"{LFS}/locks/7/unlock", b'{"force":true}'),
        post(f"{LFS}/locks/7/unlock", b'{"force":false,"Force":true}'),
        post(f"{LFS}/locks/7%2f8/unlock", b"{}"),
    ]
    for request in bad:
        assert stage.ask(request).answer().status in (403, 404), request
    assert len(forge.service.seen) == len(good)


def test_a_repository_for_reading_takes_no_upload_and_no_lock(begin: Begin, forge: Forge) -> None:
    """I3: the control is the download in the same session."""
    stage = begin(READING)
    refused = stage.ask(batch("upload")).answer()
    assert refused.status == 403
    assert "reading alone" in words(refused)
    assert stage.ask(post(f"{LFS}/locks", b'{"path":"a"}')).answer().status == 403
    assert forge.service.seen == []
    assert links(stage)
    stage.watch.until("read-only")


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


def test_an_address_is_for_its_method_and_repository_alone(stage: Stage, storage: Storage) -> None:
    """I3: the controls are the transfers at the end."""
    down, up = links(stage)["download"], links(stage, "upload")
    other = down.replace("widgets", "docs")
    for request in (
        put(down),
        verify(down),
        head("HEAD", down),
        head("DELETE", down),
        get(up["upload"]),
        verify(up["upload"]),
        get(up["verify"]),
        put(up["verify"]),
        get(other),
        put(up["upload"].replace("widgets", "docs")),
        get(f"{LFS}/keyhole/{'x' * 32}"),
        get(down + "?x=1"),
        get(down + "/"),
        get(down.replace("keyhole", "%6beyhole")),
        get(down.replace("/keyhole/", "//keyhole/")),
        head("GET", down, "Content-Length: 1") + b"x",
    ):
        method = "HEAD" if request.startswith(b"HEAD") else "GET"
        assert stage.ask(request).answer(method).status in (400, 403, 404), request[:200]
    assert storage.seen == []
    assert stage.ask(get(down)).answer().body == CONTENT
    assert stage.ask(put(up["upload"])).answer().status == 200
    assert stage.ask(verify(up["verify"])).answer().status == 200


def test_an_upload_is_made_once(stage: Stage, storage: Storage) -> None:
    """I3, I9: with the size that was announced, and no chunks, which have none; what was verified
    is not to be replaced, and downloads may be repeated."""
    up, down = links(stage, "upload")["upload"], links(stage)["download"]
    chunks = head("PUT", up, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n"
    for odd in (put(up, CONTENT[:-1]), chunks):
        answer = stage.ask(odd).answer()
        assert (answer.status, "size" in words(answer)) == (403, True)
    assert stage.ask(put(up)).answer().status == 200
    again = stage.ask(put(up)).answer()
    assert again.status == 403
    assert "ask for it again" in words(again)
    assert [stage.ask(get(down)).answer().status for _ in range(2)] == [200, 200]
    assert [seen.start.split()[0] for seen in storage.seen] == ["PUT", "GET", "GET"]


def stage_status(stage: Stage, path: str) -> int:
    return stage.ask(get(path)).answer().status


def test_only_the_object_itself_is_verified(stage: Stage, storage: Storage) -> None:
    """I3: the address of one object does not verify another."""
    path = links(stage, "upload")["verify"]
    odd = [
        verify(path, OTHER),
        verify(path, OID, 1),
        post(path, b""),
        post(path, b'{"oid":"%b","size":1,"size":%d}' % (OID.encode(), len(CONTENT))),
        verify(path).replace(JSON.encode(), b"Content-Type: text/plain"),
    ]
    for request in odd:
        assert stage.ask(request).answer().status == 403
    assert storage.seen == []
    assert stage.ask(verify(path)).answer().status == 200


# ── batches ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        b'{"operation":"download","operation":"upload","objects":[{"oid":"%b","size":5}]}',
        b'{"operation":"upload","operation":"download","objects":[{"oid":"%b","size":5}]}',
        b'{"operation":"download","Operation":"upload","objects":[{"oid":"%b","size":5}]}',
    ],
)
def test_a_batch_that_can_be_read_in_two_ways_is_refused(
    begin: Begin, forge: Forge, body: bytes
) -> None:
    """I3: Go's reader takes the last name and folds its case. The control is a plain one; more are
    in unit/wire/test_lfs_request.py."""
    stage = begin(READING)
    answer = stage.ask(post(f"{LFS}/objects/batch", body % OID.encode())).answer()
    assert answer.status == 403
    assert words(answer).startswith("keyhole: ")
    assert forge.service.seen == []
    stage.watch.until("lfs-refused")
    assert links(stage)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (JSON, "Content-Type: application/json"),
        (JSON, JSON + "\r\nContent-Encoding: gzip"),
        (JSON, JSON + "\r\n" + JSON),
        (JSON + "\r\n", ""),
        ("/objects/batch", "/objects/batch/"),
        ("/objects/batch", "/objects/batch?x=1"),
        ("/objects/batch", "/objects%2fbatch"),
        ("/info/lfs", "/INFO/lfs"),
        ("POST", "PUT"),
    ],
)
def test_a_batch_is_written_as_clients_write_it(
    stage: Stage, forge: Forge, old: str, new: str
) -> None:
    """I3, I4: what a server might read otherwise."""
    request = batch().replace(old.encode(), new.encode(), 1)
    assert stage.ask(request).answer().status in (400, 403, 404)
    assert forge.service.seen == []


def test_a_batch_is_bounded(stage: Stage, forge: Forge) -> None:
    """I9: in bytes, whether it says so or not."""
    body = json.dumps({"operation": "download", "x": "x" * (300 << 10), "objects": []}).encode()
    assert stage.ask(post(f"{LFS}/objects/batch", body)).answer().status == 413
    talk = stage.ask(head("POST", f"{LFS}/objects/batch", JSON, "Transfer-Encoding: chunked"))
    talk.send(b"%x\r\n%b\r\n" % (len(body), body))
    assert talk.answer().status == 413
    assert forge.service.seen == []


def test_an_object_over_the_limit_is_refused_before_it_is_sent(
    begin: Begin, storage: Storage
) -> None:
    """I9: in the batch, so that nobody uploads for nothing; and a download is not a body."""
    stage = begin(limits="body = '64KiB'")
    answer = stage.ask(batch("upload")).answer()
    assert answer.status == 403
    assert "limits.body" in words(answer)
    assert stage.ask(batch("upload", 100)).answer().status == 200
    assert stage.ask(get(links(stage)["download"])).answer().body == CONTENT
    assert len(storage.seen) == 1


def test_what_is_downloaded_counts(begin: Begin) -> None:
    """I9: an object is cut where the session has had its share."""
    stage = begin(limits="download = '300KiB'")
    path = links(stage)["download"]
    assert stage.ask(get(path)).answer().body == CONTENT
    assert len(stage.ask(get(path)).cut()) < len(CONTENT)
    stage.watch.until("over-limit")


def in_chunks(data: bytes, size: int) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def chunked(data: bytes, *lines: bytes, size: int = 7) -> bytes:
    """An answer without a length."""
    fields = b"".join(line + b"\r\n" for line in (*lines, b"Transfer-Encoding: chunked"))
    return b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (fields, in_chunks(data, size))


def test_a_batch_s_answer_may_come_in_chunks(stage: Stage, forge: Forge) -> None:
    forge.reply = lambda message: chunked(forge.batch(message), JSON.encode())
    answer = stage.ask(batch()).answer()
    assert is_clean(answer)
    path = json.loads(answer.body)["objects"][0]["actions"]["download"]["href"]
    assert stage.ask(get(path.removeprefix("https://ok.example"))).answer().body == CONTENT


def altered(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    "alter",
    [
        lambda data: data + b" " * MAX_ANSWER,
        altered(OID, OTHER),
        altered("https://", "http://"),
        altered(STORE, "10.0.0.1"),
        altered(TOKEN, SECRET),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_an_answer_that_is_not_understood_is_not_passed(
    stage: Stage, forge: Forge, storage: Storage, alter: Callable[[bytes], bytes], split: bool
) -> None:
    """I1: not one byte of it. The control is the same, unaltered; more are in unit/wire."""
    write = chunked if split else ok

    def reply(message: Message) -> bytes:
        return write(alter(forge.batch(message)), JSON.encode())

    forge.reply = reply
    answer = stage.ask(batch()).answer()
    assert answer.status == 502
    assert words(answer).startswith("keyhole: ")
    assert is_clean(answer)
    stage.watch.until("upstream-malformed")
    forge.reply = None
    assert links(stage)
    assert storage.seen == []


@pytest.mark.parametrize("kind", [b"text/html", b"application/json", b"", MEDIA.encode() + b"+x"])
def test_an_answer_of_another_type_is_not_passed(stage: Stage, forge: Forge, kind: bytes) -> None:
    """I1."""
    forge.reply = lambda message: ok(forge.batch(message), b"Content-Type: " + kind)
    answer = stage.ask(batch()).answer()
    assert (answer.status, is_clean(answer)) == (502, True)


def test_an_encoded_answer_is_not_passed(stage: Stage, forge: Forge) -> None:
    """I7: nobody asked for it."""
    forge.reply = lambda message: ok(forge.batch(message), JSON.encode(), b"Content-Encoding: gzip")
    assert stage.ask(batch()).answer().status == 502


@pytest.mark.parametrize(
    ("status", "told"), [(b"404 Not Found", 404), (b"422 No", 422), (b"429 Slow", 429)]
)
def test_of_a_forge_s_error_the_message_passes(
    stage: Stage, forge: Forge, status: bytes, told: int
) -> None:
    """I1: in the type by which clients know it, whatever came."""
    said = json.dumps({"message": f"no, {TOKEN}", "token": TOKEN}).encode()
    forge.reply = lambda _: ok(said, b"Content-Type: text/html", b"Retry-After: 7", status=status)
    answer = stage.ask(batch()).answer()
    assert (answer.status, words(answer)) == (told, "no, …")
    assert answer.one("retry-after") == "7"


@pytest.mark.parametrize("request_bytes", [batch(), get(f"{LFS}/locks")])
def test_a_credential_that_the_forge_refuses_is_no_question_to_the_client(
    stage: Stage, forge: Forge, request_bytes: bytes
) -> None:
    """I1: git-lfs would ask a person for a password."""
    challenge = (b"WWW-Authenticate: Basic", b"LFS-Authenticate: Basic realm=x")
    forge.reply = lambda _: ok(b"{}", *challenge, status=b"401 Unauthorized")
    answer = stage.ask(request_bytes).answer()
    assert answer.status == 403
    assert words(answer) == "keyhole: the origin does not accept the credential"
    assert answer.all("www-authenticate") == answer.all("lfs-authenticate") == []


def test_an_address_of_the_repository_itself_gets_the_credential(
    stage: Stage, forge: Forge
) -> None:
    """I3, I4: where the forge lends nothing; another repository of the same host is not asked."""
    forge.action = {"href": "https://ok.example/acme/widgets.git/objects/x"}
    path = links(stage)["download"]
    forge.action = {"href": "https://ok.example/acme/docs.git/objects/x"}
    refused = stage.ask(batch()).answer()
    assert refused.status == 502
    assert "another repository" in words(refused)
    asked = len(forge.service.seen)
    forge.reply = lambda _: ok(CONTENT)
    assert stage.ask(get(path)).answer().body == CONTENT
    (mine,) = forge.service.seen[asked:]
    assert mine.one("authorization").startswith("Basic ")  # type: ignore[union-attr]


# ── connections ───────────────────────────────────────────────────────────────────────────────────


def test_an_upload_that_expects_to_be_asked_is(stage: Stage, storage: Storage) -> None:
    """The gateway says so itself; the storage host is never asked."""
    path = links(stage, "upload")["upload"]
    fields = (f"Content-Length: {len(CONTENT)}", "Expect: 100-continue")
    talk = stage.ask(head("PUT", path, *fields))
    assert talk.answer().status == 100
    talk.send(CONTENT)
    assert talk.answer().status == 200
    (seen,) = storage.seen
    assert seen.body == CONTENT
    assert seen.all("expect") == []
    request = post(f"{LFS}/objects/batch", b"", "Expect: 100-continue")
    body = batch().partition(b"\r\n\r\n")[2]
    request = request.replace(b"Content-Length: 0", b"Content-Length: %d" % len(body))
    talk = stage.ask(request)
    assert talk.answer().status == 100
    talk.send(body)
    assert talk.answer().status == 200


def test_an_upload_in_small_pieces_arrives(stage: Stage, storage: Storage) -> None:
    request = put(links(stage, "upload")["upload"])
    talk = stage.visit()
    for at in range(0, len(request), 3331):
        talk.send(request[at : at + 3331])
    assert talk.answer().status == 200
    assert storage.seen[0].body == CONTENT


def test_what_is_pipelined_behind_a_transfer_waits_its_turn(
    stage: Stage, forge: Forge, storage: Storage, cdn: Storage
) -> None:
    """I4: nothing of it goes to a storage host."""
    down, up = links(stage)["download"], links(stage, "upload")
    storage.reply = lambda m: to(CDN)(m) if m.start.startswith("GET") else ok()
    talk = stage.ask(
        get(down), batch(), put(up["upload"]), verify(up["verify"]), get(down), get(f"{LFS}/locks")
    )
    answers = [talk.answer() for _ in range(6)]
    assert [each.status for each in answers] == [200] * 6
    assert answers[0].body == answers[4].body == CONTENT
    assert is_clean(*answers)
    assert [seen.start.split()[0] for seen in storage.seen] == ["GET", "PUT", "POST", "GET"]
    assert [seen.start.split()[0] for seen in cdn.seen] == ["GET", "GET"]
    assert storage.seen[1].body == CONTENT


def test_a_connection_to_a_storage_host_is_used_again(
    stage: Stage, forge: Forge, storage: Storage
) -> None:
    """And for nothing else: what is the forge's goes to the forge."""
    path = links(stage)["download"]
    for _ in range(3):
        assert stage.ask(get(path)).answer().body == CONTENT
    assert {seen.connection for seen in storage.seen} == {1}
    assert links(stage)
    assert storage.service.connections == 1
    assert all("/info/lfs/" in seen.start for seen in forge.service.seen)


def test_a_kept_connection_that_the_storage_host_closed_is_no_failure(
    stage: Stage, storage: Storage
) -> None:
    path = links(stage)["download"]
    assert stage.ask(get(path)).answer().status == 200
    answers = iter([None, ok(CONTENT)])
    storage.reply = lambda _: next(answers)
    assert stage.ask(get(path)).answer().body == CONTENT
    assert [seen.connection for seen in storage.seen] == [1, 1, 2]


def test_a_client_that_leaves_takes_its_transfer_with_it(stage: Stage, storage: Storage) -> None:
    """I9: in both directions; the next client is served."""
    down, up = links(stage)["download"], links(stage, "upload")["upload"]
    storage.reply = lambda _: ok(CONTENT)[:-1000]
    talk = stage.ask(get(down))
    talk.until(b"\r\n\r\n")
    talk.close()
    stage.watch.until("rule", method="GET", oid=OID)
    talk = stage.ask(put(up)[:-1000])
    talk.close()
    stage.watch.until("client-left", method="PUT", oid=OID)
    storage.reply = None
    assert stage.ask(get(down)).answer().body == CONTENT


def test_an_answer_to_half_an_upload_ends_the_connection(stage: Stage, storage: Storage) -> None:
    """I4: the rest of the body must not be taken for a request."""
    path = links(stage, "upload")["upload"]
    storage.early = ok(b"too much", status=b"413 Content Too Large")
    answer = stage.ask(put(path)[:5000]).answer()
    assert (answer.status, words(answer)) == (413, "the storage host answered 413")
    assert answer.one("connection") == "close"


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────


def to(name: str, status: bytes = b"302 Found", signature: str = ONWARD) -> Reply:
    """A redirect to another storage host, with a signature of its own."""
    where = f"Location: {place(name, signature=signature)}".encode()
    return lambda _: ok(b"moved", where, b"Set-Cookie: s=1", status=status)


@pytest.mark.parametrize("status", [b"301 M", b"302 F", b"303 S", b"307 T", b"308 P"])
def test_a_download_is_fetched_where_a_redirect_leads(
    stage: Stage, storage: Storage, cdn: Storage, status: bytes
) -> None:
    """I1, I4: the client sees none of it, and the other host gets nothing that was lent before."""
    path = links(stage)["download"]
    storage.reply = to(CDN, status)
    answer = stage.ask(get(path)).answer()
    assert (answer.status, answer.body, is_clean(answer)) == (200, CONTENT, True)
    (seen,) = cdn.seen
    assert dict(seen.fields) == {
        "host": CDN, "user-agent": "git-lfs", "accept-encoding": "identity",
    }  # fmt: skip
    assert ONWARD in seen.start
    stage.watch.until("rule", storage=CDN, oid=OID, status=200)


def test_a_loop_of_redirects_ends(stage: Stage, storage: Storage, cdn: Storage) -> None:
    """I9: as many as the client itself would follow."""
    path = links(stage)["download"]
    storage.reply, cdn.reply = to(CDN), to(STORE)
    answer = stage.ask(get(path)).answer()
    assert (answer.status, is_clean(answer)) == (502, True)
    assert len(storage.seen) + len(cdn.seen) == MAX_HOPS + 1
    storage.reply = cdn.reply = None
    assert stage.ask(get(path)).answer().status == 200


@pytest.mark.parametrize("where", [f"http://{CDN}/x", "https://169.254.169.254/latest/meta-data"])
def test_a_redirect_to_an_odd_place_is_not_followed(
    stage: Stage, storage: Storage, cdn: Storage, where: str
) -> None:
    """I4."""
    path = links(stage)["download"]
    storage.reply = lambda _: ok(b"", f"Location: {where}".encode(), status=b"302 Found")
    answer = stage.ask(get(path)).answer()
    assert (answer.status, is_clean(answer)) == (502, True)
    assert cdn.seen == []


# ── which hosts ───────────────────────────────────────────────────────────────────────────────────

ADDRESSES = [
    ("127.0.0.1", "address-loopback"),
    ("10.0.0.7", "address-private"),
    ("169.254.169.254", "address-metadata"),
    ("::1", "address-loopback"),
]


@pytest.mark.parametrize(("address", "reason"), ADDRESSES)
def test_a_storage_host_at_an_address_that_policy_does_not_name_is_not_dialled(
    begin: Begin, storage: Storage, address: str, reason: str
) -> None:
    """I4: the control is the same host, where `upstream.connect` names it."""
    stage = begin(hidden="store_ok_example")
    stage.rig.resolver.table[STORE] = [[address]]
    path = links(stage)["download"]
    answer = stage.ask(get(path)).answer()
    assert (answer.status, is_clean(answer)) == (403, True)
    assert storage.seen == []
    event = stage.watch.until(reason, storage=STORE)
    assert event.verdict is Verdict.DENY
    # The person is told which host, and what to write for it; the sandbox is not.
    assert any(STORE in line for line in stage.watch.lines)
    other = begin()
    assert stage_status(other, links(other)["download"]) == 200


@pytest.mark.parametrize(("address", "reason"), ADDRESSES)
def test_nor_is_one_that_a_redirect_names(
    begin: Begin, storage: Storage, cdn: Storage, address: str, reason: str
) -> None:
    """I4: the control is above."""
    stage = begin(hidden="cdn_ok_example")
    stage.rig.resolver.table[CDN] = [[address]]
    storage.reply = to(CDN)
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert (answer.status, is_clean(answer)) == (403, True)
    assert cdn.seen == []
    stage.watch.until(reason, storage=CDN)


def test_a_storage_host_whose_name_does_not_resolve_is_a_failure(begin: Begin) -> None:
    stage = begin(hidden="store_ok_example")
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert (answer.status, is_clean(answer)) == (502, True)
    stage.watch.until("name-unresolved", storage=STORE)


def test_a_storage_host_shows_the_certificate_of_its_name(
    begin: Begin, forge: Forge, storage: Storage
) -> None:
    """I4: what was lent goes to nobody else; the control is the name that it has."""
    stage = begin(also="evil_example")
    forge.action["href"] = place("evil.example")
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert answer.status == 502
    assert "certificate" in words(answer)
    assert storage.seen == []
    forge.action["href"] = place(STORE)
    assert stage_status(stage, links(stage)["download"]) == 200


def test_no_other_host_becomes_reachable(stage: Stage) -> None:
    """I2: what the gateway reaches for a transfer has no name inside."""
    assert stage.ask(get(links(stage)["download"])).answer().body == CONTENT
    for name in (STORE, CDN):
        with pytest.raises(AssertionError, match="gaierror"):
            stage.visit(name)
    assert stage.visit("ok.example")


# ── what storage hosts answer ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secret", [TOKEN, SIGNATURE, SECRET])
@pytest.mark.parametrize("split", [False, True])
def test_a_secret_that_a_storage_host_gives_back_stays_outside(
    stage: Stage, storage: Storage, secret: str, split: bool
) -> None:
    """I7: in an object, a field and an error; as it is, and encoded."""
    path = links(stage)["download"]
    shown = secret.encode() + b"|" + base64.b64encode(secret.encode())
    text = shown + CONTENT[len(shown) :]
    etag = b"ETag: " + secret.encode()
    storage.reply = lambda _: chunked(text, etag) if split else ok(text, etag)
    answer = stage.ask(get(path)).answer()
    assert answer.status == 200
    assert is_clean(answer)
    assert answer.body.endswith(text[-1000:])
    stage.watch.until("secret-scrubbed")
    storage.reply = lambda _: ok(shown, etag, status=b"403 Forbidden")
    answer = stage.ask(get(path)).answer()
    assert (answer.status, words(answer)) == (403, "the storage host answered 403")
    assert is_clean(answer)


@pytest.mark.parametrize("split", [False, True])
def test_the_secret_of_a_second_storage_host_stays_outside_too(
    stage: Stage, storage: Storage, cdn: Storage, split: bool
) -> None:
    """I7: and that of the first, in the second's answer."""
    storage.reply = to(CDN)
    text = f"{ONWARD} {TOKEN} {SIGNATURE}".encode().ljust(len(CONTENT), b"x")
    cdn.reply = lambda _: chunked(text, size=11) if split else ok(text)
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert (answer.status, is_clean(answer)) == (200, True)


@pytest.mark.parametrize(
    "reply",
    [
        ok(CONTENT, b"Content-Encoding: gzip"),
        ok(CONTENT[:-1]),
        ok(CONTENT, status=b"206 Partial Content"),
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"nonsense\r\n\r\n",
        None,
    ],
)
def test_something_else_than_the_object_is_not_passed(
    stage: Stage, storage: Storage, reply: bytes | None
) -> None:
    """The control is the object."""
    path = links(stage)["download"]
    storage.reply = lambda _: reply
    answer = stage.ask(get(path)).answer()
    assert answer.status == 502
    assert words(answer).startswith("keyhole: ")
    storage.reply = None
    assert stage.ask(get(path)).answer().body == CONTENT


@pytest.mark.parametrize(("status", "told"), [(b"401 Who", 403), (b"503 Later", 503)])
@pytest.mark.parametrize("verb", ["download", "upload", "verify"])
def test_an_error_of_a_storage_host_is_told_in_words_of_ours(
    stage: Stage, storage: Storage, status: bytes, told: int, verb: str
) -> None:
    """I7: S3 tells what it was asked with; a 401 would have the client ask a person."""
    path = links(stage, "download" if verb == "download" else "upload")[verb]
    challenge = (b"WWW-Authenticate: Basic", b"Content-Type: application/xml")
    storage.reply = lambda m: ok(m.head, *challenge, status=status)
    make = {"download": get, "upload": put, "verify": verify}[verb]
    answer = stage.ask(make(path)).answer()  # type: ignore[operator]
    assert (answer.status, is_clean(answer)) == (told, True)
    assert words(answer) == f"the storage host answered {status[:3].decode()}"
    assert answer.all("www-authenticate") == []


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nLocation: https://x.example/?sig=1\r\n\r\n",
        chunked(b"<x>stored</x>"),
    ],
)
def test_an_upload_that_worked_leaves_the_connection_whole(
    stage: Stage, storage: Storage, reply: bytes
) -> None:
    """RFC 9112 §6.1: an answer that can have no body announces none."""
    path = links(stage, "upload")["upload"]
    storage.reply = lambda _: reply
    talk = stage.ask(put(path), get(f"{LFS}/locks"))
    answer = talk.answer()
    assert answer.status == int(reply[9:12])
    assert answer.body == b""
    assert answer.all("location") == []
    if answer.status == 204:
        assert answer.all("transfer-encoding") == answer.all("content-length") == []
    assert talk.answer().body == b'{"locks": []}'


def test_nothing_passes_before_or_behind_an_object(stage: Stage, storage: Storage) -> None:
    """I1: neither interim answers nor trailers, where an address may stand."""
    hint = f"Link: <{place(CDN, signature=ONWARD)}>".encode()
    body = in_chunks(CONTENT, 9000).removesuffix(b"\r\n") + hint + b"\r\n\r\n"
    storage.reply = lambda _: (
        b"HTTP/1.1 103 Early Hints\r\n%b\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Link\r\n\r\n%b" % (hint, body)
    )
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert (answer.status, answer.body) == (200, CONTENT)
    assert answer.trailers == b""
    assert is_clean(answer)


def test_an_object_passes_whatever_its_characters_are(stage: Stage, storage: Storage) -> None:
    """git-lfs stores a text of two bytes a character as such, and must get it back."""
    kind = b"Content-Type: text/plain; charset=utf-16le"
    storage.reply = lambda _: ok(CONTENT, kind)
    answer = stage.ask(get(links(stage)["download"])).answer()
    assert (answer.status, answer.body) == (200, CONTENT)
    assert answer.one("content-type") == "application/octet-stream"


def test_a_piece_of_an_object_is_not_to_be_had(stage: Stage, storage: Storage) -> None:
    """I7: a secret in two pieces would not be seen. Clients begin anew."""
    path = links(stage)["download"]
    for name in ("Range", "X-MS-Range", "Request-Range"):
        answer = stage.ask(get(path, f"{name}: bytes=10-", "If-Range: x")).answer()
        assert (answer.status, answer.body) == (200, CONTENT)
    for seen in storage.seen:
        assert not [name for name, _ in seen.fields if "range" in name]


def test_an_old_client_is_served(stage: Stage, storage: Storage) -> None:
    """HTTP/1.0 knows no chunks: the end of the connection is the end of the object."""
    path = links(stage)["download"]
    storage.reply = lambda _: chunked(CONTENT, size=9000)
    answer = stage.ask(get(path).replace(b"HTTP/1.1", b"HTTP/1.0", 1)).answer()
    assert (answer.status, answer.body) == (200, CONTENT)
