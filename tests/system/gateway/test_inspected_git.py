"""Git through the gateway: fetches and pushes as bytes, with an origin that writes down what came.

The judge is a fake that finds what a test wants; tests/system/git has real git and the real judge.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway.asking import AskAnswer, AskNotice
from keyhole.gateway.git import fetches
from keyhole.gateway.session import MAX_PUSH_REPORTS
from keyhole.model.decision import Verdict
from keyhole.policy.asks import Answer
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushCase, PushFinding, PushUnjudged, UpstreamQuestion
from keyhole.wire import upload_pack
from keyhole.wire.pkt_line import encode
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import AMPLE, SECRET, Stage, make_services, serving, set_up
from tests.rigs.gateway.talk import Message, get, head, ok

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

    import trustme

PATIENCE = 10.0
ZERO, OLD, NEW, MAIN = "0" * 40, "a" * 40, "b" * 40, "c" * 40
PACK = b"PACK, as far as a fake judge can tell " * 4000
POLICY = """
[services.own]
hosts = ["ok.example"]
forge = "github"
repos = ["acme/widgets"]
push = ["agent/*"]
secret = "file:/nowhere"
"""
REPOSITORY = "/acme/widgets.git"
PUSH_TYPE = "Content-Type: application/x-git-receive-pack-request"
FETCH_TYPE = "Content-Type: application/x-git-upload-pack-request"
CAPABILITIES = b"report-status side-band-64k delete-refs"


class GitOrigin:
    """A server of one repository, as far as the gateway asks it."""

    def __init__(self) -> None:
        self.service = Service(self.answer)
        self.status = b"200 OK"
        self.refs = {"refs/heads/main": MAIN, "refs/heads/agent/x": OLD}
        self.report = b"ok refs/heads/agent/x\n"
        self.told: list[bytes] = []

    def answer(self, message: Message) -> bytes:
        """By what git would."""
        target = message.start.split(" ")[1]
        name = "git-receive-pack" if "receive-pack" in target else "git-upload-pack"
        kind = "advertisement" if "info/refs" in target else "result"
        media = f"Content-Type: application/x-{name}-{kind}".encode()
        return ok(self.body(message, target), media, status=self.status)

    def body(self, message: Message, target: str) -> bytes:
        if target.endswith("info/refs?service=git-receive-pack"):
            caps = b"report-status push-options push-cert=x delete-refs atomic side-band-64k"
            first = f"{MAIN} refs/heads/main".encode() + b"\0" + caps + b"\n"
            head = encode(b"# service=git-receive-pack\n") + b"0000"
            return head + encode(first) + encode(f"{OLD} .have\n".encode()) + b"0000"
        if "info/refs" in target:
            lines = [b"version 2\n", b"ls-refs=unborn\n", b"fetch=shallow filter packfile-uris\n",
                     b"bundle-uri\n", b"object-format=sha1\n"]  # fmt: skip
            return b"".join(map(encode, lines)) + b"0000"
        if b"command=ls-refs" in message.body:
            found = [f"{MAIN} HEAD symref-target:refs/heads/main\n".encode()]
            found += [f"{oid} {name}\n".encode() for name, oid in self.refs.items()]
            return b"".join(map(encode, found)) + b"0000"
        if "receive-pack" in target:
            report = encode(b"unpack ok\n") + encode(self.report) + b"0000"
            return b"".join(map(encode, self.told)) + encode(b"\1" + report) + b"0000"
        return b"0008NAK\nPACK"

    @property
    def pushes(self) -> list[Message]:
        return [
            seen for seen in self.service.seen if "POST" in seen.start and "receive" in seen.start
        ]


@dataclass
class FakeJudge:
    """Finds what it is told to."""

    change: RefChange = RefChange.FAST_FORWARD
    denied: str | None = None
    unproven: bool = False
    fails: bool = False
    packs: list[bytes] = field(default_factory=list)
    cases: list[PushCase] = field(default_factory=list)
    announced: int = 0
    closed: bool = False

    def prepare(self) -> None:
        self.announced += 1

    def close(self) -> None:
        self.closed = True

    async def judge(
        self,
        pack: int,
        offset: int,
        case: PushCase,
        ask: Callable[[UpstreamQuestion], AsyncIterator[bytes]],
    ) -> tuple[PushFinding, ...]:
        """As the jail does, without one."""
        with open(f"/proc/self/fd/{pack}", "rb") as file:  # noqa: ASYNC230
            file.seek(offset)
            self.packs.append(file.read())
        self.cases.append(case)
        if self.fails:
            raise PushUnjudged("it has too many objects")
        return tuple(
            PushFinding(c.ref, RefChange.CREATE if c.is_create else self.change, self.denied,
                    unproven=self.unproven)
            for c in case.commands
        )  # fmt: skip


@pytest.fixture
def judge() -> FakeJudge:
    return FakeJudge()


@pytest.fixture
def origin() -> GitOrigin:
    return GitOrigin()


Begin = Callable[..., Stage]


@pytest.fixture
def begin(
    authority: trustme.CA, tls: ssl.SSLContext, origin: GitOrigin, judge: FakeJudge
) -> Iterator[Begin]:
    """A door with this policy's own words, before the one origin."""
    services = replace(make_services(authority, own=SECRET), judge=judge)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(origin.service, tls))

        def opened(more: str = "", limits: str = AMPLE) -> Stage:
            stage = stack.enter_context(set_up(authority, services))
            stage.open(POLICY + more, limits, ok_example=server)
            return stage

        yield opened


@pytest.fixture
def stage(begin: Begin) -> Stage:
    return begin()


def quarantined(stage: Stage, *, some: bool) -> None:
    """Wait until something is in quarantine, or nothing."""
    handle, deadline = stage.handle, time.monotonic() + PATIENCE
    assert handle is not None
    while bool(stage.rig.call(lambda: handle._state.quarantined)) is not some:
        assert time.monotonic() < deadline


def commands(*wanted: tuple[str, str, str], capabilities: bytes = CAPABILITIES) -> bytes:
    lines = [f"{old} {new} {ref}".encode() for old, new, ref in wanted]
    lines[0] += b"\0 " + capabilities
    return b"".join(map(encode, lines)) + b"0000"


def push(
    *wanted: tuple[str, str, str], pack: bytes = PACK, capabilities: bytes = CAPABILITIES
) -> bytes:
    """A push with a length."""
    body = commands(*wanted, capabilities=capabilities) + pack
    return (
        head("POST", f"{REPOSITORY}/git-receive-pack", PUSH_TYPE, f"Content-Length: {len(body)}")
        + body
    )


FORWARD = (OLD, NEW, "refs/heads/agent/x")


# ── pushes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_push_is_judged_and_then_sent_whole(
    stage: Stage, origin: GitOrigin, judge: FakeJudge
) -> None:
    """I3, I6: with the credential, and nothing of the client's own."""
    answer = stage.ask(push(FORWARD)).answer()
    assert answer.status == 200
    assert b"ok refs/heads/agent/x" in answer.body
    assert judge.packs == [PACK]
    assert judge.cases[0].tips == {MAIN, OLD}
    (sent,) = origin.pushes
    assert sent.body == commands(FORWARD) + PACK
    assert sent.one("authorization").startswith("Basic ")  # type: ignore[union-attr]
    event = stage.watch.until("rule", ref="refs/heads/agent/x")
    assert "upstream-refused" not in stage.watch.reasons("ref")
    assert dict(event.details) | {"size": 0} == {
        "service": "own", "repository": "acme/widgets", "ref": "refs/heads/agent/x", "old": OLD,
        "new": NEW, "change": "fast-forward", "size": 0,
    }  # fmt: skip


def test_what_the_origin_refuses_is_written_down_too(stage: Stage, origin: GitOrigin) -> None:
    """I8: it was allowed, and did not happen. The control is the push above."""
    origin.report = b"ng refs/heads/agent/x protected branch hook declined\n"
    answer = stage.ask(push(FORWARD)).answer()
    assert b"protected branch hook declined" in answer.body
    event = stage.watch.until("upstream-refused", ref="refs/heads/agent/x")
    assert event.verdict is Verdict.ALLOW
    assert dict(event.details)["why"] == "protected branch hook declined"


def test_a_push_in_chunks_is_the_same_push(stage: Stage, origin: GitOrigin) -> None:
    body = commands(FORWARD) + PACK
    talk = stage.ask(
        head("POST", f"{REPOSITORY}/git-receive-pack", PUSH_TYPE, "Transfer-Encoding: chunked")
    )
    for at in range(0, len(body), 3333):
        piece = body[at : at + 3333]
        talk.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    talk.send(b"0\r\n\r\n" + get(f"{REPOSITORY}/info/refs?service=git-upload-pack"))
    assert talk.answer().status == 200
    assert talk.answer().status == 200  # what was pipelined behind it
    assert origin.pushes[0].body == body
    assert origin.pushes[0].one("content-length") == str(len(body))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((MAIN, NEW, "refs/heads/main"), b"push to main is not allowed; allowed: agent/*"),
        ((ZERO, NEW, "refs/tags/v1"), b"no tag pattern covers v1"),
        ((OLD, ZERO, "refs/heads/agent/x"), b"deleting agent/x is not allowed"),
        ((ZERO, NEW, "refs/for/main"), b"only branches and tags can be pushed"),
        ((NEW, OLD, "refs/heads/agent/x"), b"has moved; fetch first"),
    ],
)
def test_a_push_that_is_refused_by_name_says_so_in_gits_words_and_never_leaves(
    stage: Stage, origin: GitOrigin, judge: FakeJudge, command: tuple[str, str, str], words: bytes
) -> None:
    """I3: the positive control is the first push of this file."""
    pack = b"" if command[1] == ZERO else PACK
    answer = stage.ask(push(command, pack=pack), push(FORWARD))
    refused = answer.answer()
    assert refused.status == 200
    assert b"ng %b keyhole: " % command[2].encode() in refused.body
    assert words in refused.body
    assert answer.answer().status == 200  # the connection goes on, with the push that is allowed
    assert [sent.body for sent in origin.pushes] == [commands(FORWARD) + PACK]
    assert judge.packs == [PACK]


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ({"change": RefChange.FORCE}, b"rewriting agent/x is not allowed"),
        ({"change": RefChange.UNKNOWN}, b"it cannot be shown that agent/x only moves forward"),
        ({"denied": ".github/workflows/x.yml"}, b"would change .github/workflows/x.yml"),
        ({"unproven": True}, b"it cannot be shown"),
        ({"fails": True}, b"the push could not be judged (it has too many objects)"),
    ],
)
def test_what_the_judge_finds_refuses_the_push(
    stage: Stage, origin: GitOrigin, judge: FakeJudge, finding: dict[str, object], words: bytes
) -> None:
    """I3: nothing but a proof lets it pass."""
    for name, value in finding.items():
        setattr(judge, name, value)
    answer = stage.ask(push(FORWARD)).answer()
    assert (answer.status, words in answer.body) == (200, True)
    assert origin.pushes == []


def test_one_refused_ref_holds_the_others_back(stage: Stage, origin: GitOrigin) -> None:
    """I3: and each is written down for itself (I8)."""
    answer = stage.ask(push(FORWARD, (MAIN, NEW, "refs/heads/main"))).answer()
    assert b"ng refs/heads/agent/x keyhole: held back" in answer.body
    assert b"ng refs/heads/main keyhole: push to main" in answer.body
    assert origin.pushes == []
    stage.watch.until("ref-not-granted", method="POST")
    refs = [event for event in stage.watch.events if event.kind == "ref"]
    assert [(e.reason, e.verdict) for e in refs] == [
        ("held-back", Verdict.DENY),
        ("ref-not-granted", Verdict.DENY),
    ]


def test_a_client_that_reads_no_report_is_told_by_status(stage: Stage, origin: GitOrigin) -> None:
    main = (MAIN, NEW, "refs/heads/main")
    answer = stage.ask(push(main, capabilities=b"ofs-delta")).answer()
    assert answer.status == 403
    assert answer.body.startswith(b"keyhole: ")
    assert origin.pushes == []


@pytest.mark.parametrize(
    "body",
    [
        commands(FORWARD, FORWARD) + PACK,
        commands((ZERO, ZERO, "refs/heads/agent/x")),
        commands(FORWARD)[:-4] + b"0001" + PACK,
        commands(FORWARD).upper() + PACK,
        commands(FORWARD)[:-4],
        b"",
        b"0000" + commands(FORWARD) + PACK,
        encode(b"push-cert\0 report-status") + b"0000",
    ],
)
def test_a_list_that_a_server_might_read_otherwise_is_malformed(
    stage: Stage, origin: GitOrigin, body: bytes
) -> None:
    """I3, I4: facts, git protocol §3. The control is the same list, plainly written."""
    length = f"Content-Length: {len(body)}"
    request = head("POST", f"{REPOSITORY}/git-receive-pack", PUSH_TYPE, length)
    assert stage.ask(request, body).answer().status == 400
    assert origin.service.seen == [] or not origin.pushes
    assert stage.ask(push(FORWARD)).answer().status == 200


def test_the_probe_before_a_large_push_is_answered_here(stage: Stage, origin: GitOrigin) -> None:
    length = "Content-Length: 4"
    probe = head("POST", f"{REPOSITORY}/git-receive-pack", PUSH_TYPE, length) + b"0000"
    answer = stage.ask(probe).answer()
    assert (answer.status, answer.body) == (200, b"")
    stage.watch.until("rule", method="POST")
    assert answer.one("content-type") == "application/x-git-receive-pack-result"
    assert origin.service.seen == []


def test_push_options_pass_only_as_the_policy_spells_them(
    begin: Begin, stage: Stage, origin: GitOrigin
) -> None:
    """I3: they are commands to the server."""
    caps = CAPABILITIES + b" push-options"

    def with_option(text: bytes) -> bytes:
        body = commands(FORWARD, capabilities=caps) + encode(text) + b"0000" + PACK
        target = f"{REPOSITORY}/git-receive-pack"
        return head("POST", target, PUSH_TYPE, f"Content-Length: {len(body)}") + body

    assert b"push option is not allowed" in stage.ask(with_option(b"ci.skip")).answer().body
    stage = begin('push_options = ["ci.skip"]\n')
    assert b"ok refs" in stage.ask(with_option(b"ci.skip")).answer().body
    assert b"not allowed" in stage.ask(with_option(b"ci.variable=X=1")).answer().body
    assert len(origin.pushes) == 1


def test_a_push_that_needs_no_judging_passes_as_it_comes(
    begin: Begin, origin: GitOrigin, judge: FakeJudge
) -> None:
    """I3: names are judged all the same."""
    stage = begin("force = true\ndeny_paths = []\n")
    assert stage.ask(push(FORWARD)).answer().status == 200
    body = commands(FORWARD) + PACK
    talk = stage.ask(
        head("POST", f"{REPOSITORY}/git-receive-pack", PUSH_TYPE, "Transfer-Encoding: chunked")
    )
    talk.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), push((MAIN, NEW, "refs/heads/main")))
    assert talk.answer().status == 200
    refused = talk.answer()
    assert b"push to main is not allowed" in refused.body
    talk.send(push(FORWARD))
    assert talk.answer().status == 200
    assert [sent.body for sent in origin.pushes] == [body] * 3
    assert judge.packs == []


def test_where_a_history_is_said_to_end_is_judged_also_where_packs_pass(
    begin: Begin, origin: GitOrigin, judge: FakeJudge
) -> None:
    """I3: some servers cut their own history there. The control is the push that says nothing."""
    stage = begin("force = true\ndeny_paths = []\n")
    body = encode(f"shallow {NEW}".encode()) + commands(FORWARD) + PACK
    target, length = f"{REPOSITORY}/git-receive-pack", f"Content-Length: {len(body)}"
    judge.unproven = True
    refused = stage.ask(head("POST", target, PUSH_TYPE, length) + body).answer()
    assert b"it cannot be shown" in refused.body
    assert [case.shallow for case in judge.cases] == [(NEW,)]
    assert origin.pushes == []
    assert stage.ask(push(FORWARD)).answer().status == 200
    assert len(judge.cases) == len(origin.pushes) == 1


def test_a_list_without_a_pack_is_read_to_its_end_also_where_packs_pass(
    begin: Begin, origin: GitOrigin
) -> None:
    """I3: what follows a list that deletes could be another list, to another server."""
    stage = begin("force = true\ndeny_paths = []\ndelete = true\n")
    delete = (OLD, ZERO, "refs/heads/agent/x")
    more = push(delete, pack=commands((MAIN, ZERO, "refs/heads/main")))
    assert stage.ask(more).answer().status == 400
    assert origin.pushes == []
    stage.watch.until("push-malformed", method="POST")
    assert stage.ask(push(delete, pack=b"")).answer().status == 200
    (sent,) = origin.pushes
    assert sent.body == commands(delete)
    refused = stage.ask(push((MAIN, ZERO, "refs/heads/main"), pack=b"")).answer()
    assert b"push to main is not allowed" in refused.body
    stage.watch.until("ref-not-granted", ref="refs/heads/main")


def test_what_names_alone_refuse_is_not_asked_about(stage: Stage, origin: GitOrigin) -> None:
    """I9: the list of a large repository's refs takes a while to read."""
    assert b"not allowed" in stage.ask(push((MAIN, NEW, "refs/heads/main"))).answer().body
    assert origin.service.seen == []


def test_a_secret_that_packets_cut_in_two_does_not_come_whole(
    stage: Stage, origin: GitOrigin
) -> None:
    """I7, I8: git joins what it is told; the control is the same text without the secret."""
    for text, passes in (("hook says hello " * 4, True), (f"token {SECRET} seen", False)):
        half = len(text) // 2
        origin.told = [b"\2" + text[:half].encode(), b"\2" + text[half:].encode() + b"\n"]
        talk = stage.ask(push(FORWARD))
        got = talk.answer().body if passes else talk.cut()
        assert (text[half:].encode() in got) is passes
    origin.told = []
    origin.report = f"ng refs/heads/agent/x because of {SECRET}\n".encode()
    stage.ask(push(FORWARD)).answer()
    event = stage.watch.until("upstream-refused", ref="refs/heads/agent/x")
    assert "because of" in str(event.details)
    assert SECRET not in str(stage.watch.events)


def test_a_forge_is_asked_without_a_body(stage: Stage, origin: GitOrigin) -> None:
    """I3: frameworks take a form in a GET for fields of its query. The control is without one."""
    target = f"{REPOSITORY}/info/refs?service=git-upload-pack"
    assert stage.ask(get(target, "Content-Length: 3") + b"a=b").answer().status == 403
    assert stage.watch.until("git-endpoint-refused", method="GET+body")
    assert stage.ask(get(target)).answer().status == 200


def test_a_refused_push_in_pieces_is_read_to_its_end(begin: Begin, origin: GitOrigin) -> None:
    """Git must not be answered while it sends (facts: git protocol §4); both ways of passing."""
    for more in ("", "force = true\ndeny_paths = []\n"):
        stage = begin(more)
        main = push((MAIN, NEW, "refs/heads/main"))
        talk = stage.ask(main[:500])
        stage.watch.until("rule", port=443)
        for at in range(500, len(main), 50_000):
            talk.send(main[at : at + 50_000])
        assert b"push to main is not allowed" in talk.answer().body
    assert origin.pushes == []


def test_a_push_over_the_limit_is_refused_and_nothing_is_kept(begin: Begin) -> None:
    """I9."""
    stage = begin(limits="body = '64KiB'")
    assert stage.ask(push(FORWARD, pack=b"PACK")).answer().status == 200
    assert stage.ask(push(FORWARD)).answer().status == 413
    quarantined(stage, some=False)


def test_a_client_that_leaves_takes_its_push_with_it(stage: Stage, origin: GitOrigin) -> None:
    """I9: nothing stays in quarantine."""
    talk = stage.ask(push(FORWARD)[:-10])
    quarantined(stage, some=True)
    talk.close()
    quarantined(stage, some=False)
    assert origin.pushes == []
    stage.watch.until("client-left", method="POST")
    stage.watch.until("client-left", ref="refs/heads/agent/x")


def test_an_origin_that_cannot_be_asked_means_no_push(stage: Stage, origin: GitOrigin) -> None:
    origin.status = b"500 Oops"
    answer = stage.ask(push(FORWARD)).answer()
    assert b"the push could not be judged (the origin answers with 500)" in answer.body
    assert origin.pushes == []


# ── advertisements and fetches ────────────────────────────────────────────────────────────────────


def test_an_advertisement_offers_only_what_is_allowed(stage: Stage, judge: FakeJudge) -> None:
    answer = stage.ask(get(f"{REPOSITORY}/info/refs?service=git-receive-pack")).answer()
    assert answer.status == 200
    assert b"report-status" in answer.body
    assert b"no-thin" in answer.body
    for gone in (b"push-options", b"push-cert", b".have"):
        assert gone not in answer.body
    assert judge.announced == 1
    ask = get(f"{REPOSITORY}/info/refs?service=git-upload-pack", "Git-Protocol: version=2")
    answer = stage.ask(ask).answer()
    assert b"fetch=shallow filter\n" in answer.body
    assert b"bundle-uri" not in answer.body


def test_a_refused_credential_is_no_question_to_the_client(stage: Stage, origin: GitOrigin) -> None:
    """I1: git would ask its user for a password."""
    origin.status = b"401 Unauthorized"
    answer = stage.ask(get(f"{REPOSITORY}/info/refs?service=git-upload-pack")).answer()
    assert answer.status == 403
    assert answer.body == b"keyhole: the origin does not accept the credential\n"


def test_git_and_rest_of_one_host_get_the_credential_each_in_its_way(
    authority: trustme.CA, tls: ssl.SSLContext, origin: GitOrigin
) -> None:
    """I6: GitLab's git refuses what its REST takes."""
    policy = """
[services.own]
use = "lab"
hosts = ["ok.example"]
repos = ["acme/widgets"]
secret = "file:/nowhere"
allow = ["GET /api/**"]
"""
    services = make_services(authority, own=SECRET)
    with serving(origin.service, tls) as server, set_up(authority, services) as stage:
        stage.open(policy, ok_example=server)
        for target in (f"{REPOSITORY}/info/refs?service=git-upload-pack", "/api/v4/version"):
            assert stage.ask(get(target, "Authorization: Bearer own")).answer().status == 200
    git, rest = origin.service.seen
    basic = base64.b64encode(f"oauth2:{SECRET}".encode()).decode()
    assert (git.all("authorization"), git.all("private-token")) == ([f"Basic {basic}"], [])
    assert (rest.all("authorization"), rest.all("private-token")) == ([], [SECRET])


LS_REFS = encode(b"command=ls-refs\n") + b"0001" + encode(b"peel\n") + b"0000"


def fetch(body: bytes, *fields: str) -> bytes:
    lines = [FETCH_TYPE, "Git-Protocol: version=2", f"Content-Length: {len(body)}", *fields]
    return head("POST", f"{REPOSITORY}/git-upload-pack", *lines) + body


def test_a_long_fetch_is_read_where_it_holds_nobody_up(
    stage: Stage, origin: GitOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9; the control is a short one. What follows it waits, and who leaves gives memory back."""
    threads: list[str] = []

    def reading(body: bytes, version: int) -> bytes:
        threads.append(threading.current_thread().name.partition("_")[0])
        return upload_pack.read_fetch(body, version)

    monkeypatch.setattr(fetches, "read_fetch", reading)
    ids = [hashlib.sha1(b"%d" % n, usedforsecurity=False).hexdigest() for n in range(4000)]
    wants = b"".join(encode(f"want {oid}\n".encode()) for oid in ids)
    long = encode(b"command=fetch\n") + b"0001" + wants + encode(b"done\n") + b"0000"
    squeezed = gzip.compress(long)
    assert len(long) > fetches.LARGE > len(squeezed)
    talk = stage.ask(fetch(long), fetch(LS_REFS), fetch(squeezed, "Content-Encoding: gzip"))
    assert [talk.answer().status for _ in range(3)] == [200] * 3
    assert [sent.body for sent in origin.service.seen] == [long, LS_REFS, long]
    assert [name == "fetch" for name in threads] == [True, False, True]
    wrong = long.replace(b"done", b"oops")
    refused = stage.ask(fetch(wrong), fetch(LS_REFS))
    assert refused.answer().status == 403
    refused.close()
    stage.watch.until("fetch-refused")
    stage.ask(fetch(long)).close()
    handle = stage.handle
    assert handle is not None
    while stage.rig.call(lambda: handle._state.open) > 1:
        pass
    assert stage.rig.call(lambda: handle._state.gathered) == 0


def test_a_fetch_goes_on_as_it_was_understood(stage: Stage, origin: GitOrigin) -> None:
    """I4: inflated here, so that nobody else has to."""
    squeezed = gzip.compress(LS_REFS)
    for request in (fetch(LS_REFS), fetch(squeezed, "Content-Encoding: gzip")):
        assert stage.ask(request).answer().status == 200
        seen = origin.service.seen[-1]
        assert seen.body == LS_REFS
        assert seen.all("content-encoding") == []
        assert seen.one("git-protocol") == "version=2"


@pytest.mark.parametrize(
    "request_bytes",
    [
        fetch(encode(b"command=bundle-uri\n") + b"0000"),
        fetch(b"x" * 50),
        fetch(LS_REFS + LS_REFS),
        fetch(gzip.compress(LS_REFS) * 2, "Content-Encoding: gzip"),
        fetch(gzip.compress(b"0" * (17 << 20)), "Content-Encoding: gzip"),
        fetch(gzip.compress(LS_REFS)[:-4], "Content-Encoding: gzip"),
        fetch(gzip.compress(LS_REFS), "Content-Encoding: x-gzip"),
        fetch(LS_REFS, "Content-Encoding: deflate"),
        fetch(LS_REFS).replace(FETCH_TYPE.encode(), b"Content-Type: text/plain"),
        fetch(LS_REFS).replace(b"git-upload-pack HTTP", b"git%2dupload-pack HTTP"),
        fetch(LS_REFS).replace(b"git-upload-pack HTTP", b"git-upload-pack/ HTTP"),
        fetch(LS_REFS).replace(b"git-upload-pack HTTP", b"git-upload-pack? HTTP"),
        fetch(LS_REFS).replace(b"widgets.git", b"widgets%2egit"),
        push(FORWARD).replace(PUSH_TYPE.encode(), PUSH_TYPE.encode() + b"; charset=utf-8"),
        push(FORWARD).replace(
            PUSH_TYPE.encode(), PUSH_TYPE.encode() + b"\r\nContent-Encoding: gzip"
        ),
    ],
)
def test_what_is_not_in_gits_form_is_refused(
    stage: Stage, origin: GitOrigin, request_bytes: bytes
) -> None:
    """I3, I4: the control is the fetch and the push above."""
    answer = stage.ask(request_bytes).answer()
    assert answer.status == 403
    assert origin.service.seen == []


def test_a_repository_that_is_not_granted_does_not_exist(stage: Stage, origin: GitOrigin) -> None:
    """I3: nor can it be pushed to; the log has the reason (I8)."""
    for target in ("info/refs?service=git-upload-pack", "info/refs?service=git-receive-pack"):
        answer = stage.ask(get(f"/acme/other.git/{target}")).answer()
        assert (answer.status, answer.body) == (404, b"keyhole: not found\n")
    assert stage.watch.reasons("request") == ["repository-not-granted"] * 2
    assert origin.service.seen == []


# ── what a person is told of refused pushes ───────────────────────────────────────────────────────


def test_a_push_of_many_refused_refs_leaves_the_terminal_to_other_refusals(stage: Stage) -> None:
    """I9: bounds of their own, see test_session.py."""
    many = [(ZERO, NEW, f"refs/heads/j{number}") for number in range(256)]
    talk = stage.ask(push(*many), get("/acme/other.git/info/refs?service=git-upload-pack"))
    assert talk.answer().status == 200
    assert talk.answer().status == 404
    lines = stage.watch.lines
    assert lines[0].startswith("denied push of refs/heads/j0 to ok.example/acme/widgets")
    assert len(lines) <= MAX_PUSH_REPORTS + 2
    assert "the repository is not granted" in lines[-1]


# ── a person is asked ─────────────────────────────────────────────────────────────────────────────

ASK = '[approvals]\nask = ["pushes"]\nwait = "60s"\n'
FIX = (ZERO, NEW, "refs/heads/fix")


def answered(stage: Stage, said: Answer) -> AskNotice:
    """The first question, after it was answered."""
    (notice,) = stage.watch.asked()
    asking = stage.handle.asking if stage.handle else None
    assert asking is not None
    stage.rig.call(lambda: asking.answer(AskAnswer(notice.ask.id, said)))
    return notice


def test_a_push_to_a_branch_that_is_not_granted_waits_for_a_yes(
    begin: Begin, origin: GitOrigin, judge: FakeJudge
) -> None:
    """I3: nothing of it has left, and the judge still reads its pack."""
    stage = begin(ASK)
    talk = stage.ask(push(FIX))
    stage.watch.asked()
    assert (origin.pushes, judge.packs) == ([], [])
    subject = answered(stage, Answer.ONCE).ask.subject
    assert (subject.rule, subject.word, subject.path) == ("fix", "create", "acme/widgets")
    talk.answer()
    assert [sent.body for sent in origin.pushes] == [commands(FIX) + PACK]
    assert judge.packs == [PACK]
    assert stage.watch.until("approved", ref="refs/heads/fix").rule == "approvals.ask"


def test_a_push_that_a_person_refuses_says_so_in_gits_words(
    begin: Begin, origin: GitOrigin
) -> None:
    stage = begin(ASK)
    talk = stage.ask(push(FIX), push(FORWARD))
    answered(stage, Answer.NO)
    assert b"ng refs/heads/fix keyhole: a person was asked, and said no" in talk.answer().body
    assert talk.answer().status == 200
    assert [sent.body for sent in origin.pushes] == [commands(FORWARD) + PACK]


@pytest.mark.parametrize(
    "command",
    [
        (MAIN, NEW, "refs/heads/main"),  # the default branch is protected
        (ZERO, NEW, "refs/for/main"),
        (OLD, NEW, "refs/heads/fix"),  # moved meanwhile
    ],
)
def test_a_push_that_would_be_refused_anyway_is_not_asked_about(
    begin: Begin, origin: GitOrigin, command: tuple[str, str, str]
) -> None:
    stage = begin(ASK)
    assert b"ng refs/" in stage.ask(push(command)).answer().body
    assert (stage.watch.notices, origin.pushes) == ([], [])
