"""A session changes while a request waits to be sent: a push to be judged, a token to come."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Origin, Service, echo_head
from tests.rigs.gateway.stage import SECRET, Stage, make_services, service, serving, set_up
from tests.rigs.gateway.talk import get
from tests.system.gateway.test_inspected_git import (
    FORWARD,
    POLICY,
    FakeJudge,
    GitOrigin,
    push,
    quarantined,
)
from tests.system.gateway.test_inspected_services import LOGIN, Issuer, bearers, token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import trustme

    from keyhole.policy.push_trial import PushCase, PushFinding, UpstreamQuestion

NEW = "sk-next-9876543210zyxwvutsrq"


class Thoughtful(FakeJudge):
    """Says nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.heard, self.go = threading.Event(), asyncio.Event()

    async def judge(
        self,
        pack: int,
        offset: int,
        case: PushCase,
        ask: Callable[[UpstreamQuestion], AsyncIterator[bytes]],
    ) -> tuple[PushFinding, ...]:
        """As any other, later."""
        self.heard.set()
        await self.go.wait()
        return await super().judge(pack, offset, case, ask)


@pytest.fixture
def forge(
    authority: trustme.CA, tls: ssl.SSLContext
) -> Iterator[tuple[Stage, Origin, GitOrigin, Thoughtful]]:
    origin, judge = GitOrigin(), Thoughtful()
    services = dataclasses.replace(make_services(authority, own=SECRET), judge=judge)
    with serving(origin.service, tls) as server, set_up(authority, services) as stage:
        stage.open(POLICY, ok_example=server)
        yield stage, server, origin, judge


LESS = POLICY.replace("agent/*", "docs/*")


@pytest.mark.parametrize("when", ["as it comes", "as it is judged"])
def test_a_push_that_another_policy_has_no_word_on_is_not_sent(
    forge: tuple[Stage, Origin, GitOrigin, Thoughtful], when: str
) -> None:
    """I3: what was found out under the old grant opens nothing."""
    stage, server, origin, judge = forge
    request = push(FORWARD)
    talk = stage.ask(request[:-1000])
    quarantined(stage, some=True)
    if when == "as it is judged":
        talk.send(request[-1000:])
        assert judge.heard.wait(20)
    stage.change(LESS, ok_example=server)
    answer = talk.answer()
    assert answer.status == 403
    assert b"policy has changed" in answer.body
    stage.watch.until("policy-changed", ref="refs/heads/agent/x")
    quarantined(stage, some=False)
    stage.rig.call(judge.go.set)
    assert origin.pushes == []


def test_a_push_that_both_policies_have_goes_on_with_the_new_secret(
    forge: tuple[Stage, Origin, GitOrigin, Thoughtful],
) -> None:
    """The control."""
    stage, server, origin, judge = forge
    request = push(FORWARD)
    talk = stage.ask(request[:-1000])
    quarantined(stage, some=True)
    stage.change(POLICY, secrets={"own": NEW}, ok_example=server)
    talk.send(request[-1000:])
    stage.rig.call(judge.go.set)
    assert talk.answer().status == 200
    (sent,) = origin.pushes
    written = base64.b64decode((sent.one("authorization") or "").removeprefix("Basic "))
    assert written.endswith(f":{NEW}".encode())


@pytest.mark.parametrize("old", ["good", "revoked"])
def test_a_request_that_waits_for_a_token_goes_by_the_new_account(
    authority: trustme.CA, tls: ssl.SSLContext, old: str
) -> None:
    """I6, I7: and the token of the old one is written nowhere."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("oauth2.googleapis.com").configure_cert(context)
    origin, issuer = Service(echo_head), Issuer()
    inject = '{ google = "cloud-platform" }'
    own = service("own", "ok.example", inject=inject)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(origin, tls))
        issues = stack.enter_context(serving(issuer, context))
        stage = stack.enter_context(set_up(authority, make_services(authority, own=LOGIN)))
        stage.open(own, ok_example=server, oauth2_googleapis_com=issues)
        issuer.hold, issuer.failing = threading.Event(), old == "revoked"
        talk = stage.ask(get("/a"))
        while not issuer.seen:
            stage.rig.call(lambda: None)
        other = LOGIN.replace("refresh-token", "another-token")
        stage.change(own, secrets={"own": other}, ok_example=server, oauth2_googleapis_com=issues)
        hold, issuer.hold = issuer.hold, threading.Event()
        hold.set()
        while len(issuer.seen) < 2:
            stage.rig.call(lambda: None)
        issuer.failing = False
        issuer.hold.set()
        answer = talk.answer()
        assert answer.status == 200
        assert token(2).encode() not in answer.body
    assert bearers(origin) == [f"Bearer {token(2)}"]
    assert b"another-token" in issuer.seen[1].body
