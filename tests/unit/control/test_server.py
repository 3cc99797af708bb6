"""The control socket as its user sees it: every operation, asked by the client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, cast

import pytest

from keyhole.control import connection, dispatch, server, values
from keyhole.control.client import ControlClient, ControlFailed, NoGateway, RequestDeclined
from keyhole.control.dispatch import PERFORMED, OperationCall, perform
from keyhole.control.interface import Operations
from keyhole.control.operation_table import BY_NAME, OPERATIONS
from keyhole.control.request import ControlRequest
from keyhole.model.host import HostPattern
from tests.rigs.control.rig import KNOWN, OPENING, UNKNOWN, FakeGateway, Rig, request, status_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from keyhole.control.peer import Peer


def test_every_operation_of_the_table_is_a_method_and_is_performed() -> None:
    assert set(BY_NAME) == PERFORMED
    for operation in OPERATIONS:
        assert callable(getattr(Operations, operation.name))


def test_status_sessions_and_one_session_are_answered(rig: Rig) -> None:
    assert rig.client.status().pid == os.getpid()
    assert [each.id for each in rig.client.sessions()] == [KNOWN]
    shown = rig.client.session(KNOWN)
    assert shown.state is values.SessionPhase.OPEN
    assert shown.grants == (values.GrantView("billing.example", 1_800_000_600, 3),)
    assert shown.secrets == ("github",)


def test_many_sessions_come_in_pages_and_whole(rig: Rig) -> None:
    rig.gateway.ids = [f"{number:012x}" for number in range(1, 2 * values.PAGE + 51)]
    assert [each.id for each in rig.client.sessions()] == rig.gateway.ids
    first = rig.talk(request("GET", "/v1/sessions?limit=3"))
    assert json.loads(first.partition(b"\r\n\r\n")[2])["next"] == rig.gateway.ids[2]


def test_what_changes_something_is_done_and_says_who_asked(rig: Rig) -> None:
    """I8: the gateway can write down the process that asked."""
    client, pid = rig.client, os.getpid()
    client.stop_session(KNOWN)
    client.resume_session(KNOWN)
    client.revoke_session(KNOWN)
    assert client.revoke_all() == 1
    granted = client.grant(KNOWN, "Billing.Example:8443", 600, 3)
    assert (granted.host, granted.uses) == ("billing.example:8443", 3)
    assert client.reload().policies[0].outcome is values.ReloadOutcome.KEPT
    client.secret_changed("github")
    client.stop_gateway()
    host = HostPattern.parse("billing.example:8443")
    assert rig.gateway.calls == [
        ("stop_session", KNOWN, pid),
        ("resume_session", KNOWN, pid),
        ("revoke_session", KNOWN, pid),
        ("revoke_all", pid),
        ("grant", KNOWN, values.GrantRequest(host, 600, 3), pid),
        ("reload", pid),
        ("secret_changed", "github", pid),
        ("stop_gateway", pid),
    ]


def test_metrics_are_prometheus_text(rig: Rig) -> None:
    assert rig.client.metrics() == (
        "# HELP keyhole_decisions_total Decisions.\n"
        "# TYPE keyhole_decisions_total counter\n"
        'keyhole_decisions_total{reason="no-rule \\"0\\""} 0.0\n'
    )


def test_metrics_without_end_are_cut_at_their_bound(rig: Rig) -> None:
    """I9."""
    rig.gateway.samples = 20_000
    assert len(rig.client.metrics().splitlines()) == 2 + 10_000


CURL = shutil.which("curl")


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
def test_curl_speaks_to_it(rig: Rig) -> None:
    done = subprocess.run(
        [CURL or "", "-sS", "--unix-socket", rig.directory / "control.sock",
         "http://keyhole/v1/status"],
        capture_output=True, timeout=20, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["version"] == "0.1.0"


# ── what does not exist ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/sessions/{}", None),
        ("DELETE", "/v1/sessions/{}", None),
        ("POST", "/v1/sessions/{}/resume", None),
        ("POST", "/v1/sessions/{}/revoke", None),
        ("POST", "/v1/sessions/{}/grants", b'{"host":"a.example","seconds":1,"uses":1}'),
    ],
)
def test_the_answer_does_not_tell_why_there_is_nothing(
    rig: Rig, method: str, path: str, body: bytes | None
) -> None:
    """An unknown id, one that none can have, and a path of nothing: the same bytes."""
    answers = {
        rig.talk(request(method, path.format(session), body))
        for session in (UNKNOWN, "x", "5E55104D0123", KNOWN + "0", "%35e55104d0123", "")
    } | {rig.talk(request(method, "/v2/nothing", body))}
    assert len(answers) == 1
    assert status_of(answers.pop()) == 404
    assert status_of(rig.talk(request(method, path.format(KNOWN), body))) in (200, 204)


def test_a_bad_body_is_refused_alike_for_a_session_that_exists_and_one_that_does_not(
    rig: Rig,
) -> None:
    body = b'{"host":"a.example","seconds":0,"uses":1}'
    paths = [f"/v1/sessions/{session}/grants" for session in (KNOWN, UNKNOWN)]
    known, unknown = (rig.talk(request("POST", path, body)) for path in paths)
    assert known == unknown
    assert status_of(known) == 400


def test_the_answer_about_a_secret_is_the_same_whether_or_not_there_is_one(rig: Rig) -> None:
    names = ("github", "no-such-secret")
    answers = {rig.talk(request("POST", f"/v1/secrets/{name}/changed")) for name in names}
    assert len(answers) == 1
    assert status_of(answers.pop()) == 204


def test_another_method_is_told_which_there_are(rig: Rig) -> None:
    answer = rig.talk(request("PUT", f"/v1/sessions/{KNOWN}"))
    assert status_of(answer) == 405
    assert b"GET or DELETE" in answer
    assert b"\r\nAllow: GET, DELETE\r\n" in answer


# ── when something fails ──────────────────────────────────────────────────────────────────────────


def test_what_breaks_in_the_gateway_is_not_told_to_the_peer(rig: Rig) -> None:
    """I1: the words of an exception may hold anything; the loop's watcher gets them."""
    rig.gateway.broken = RuntimeError("token ghp_secret")
    answer = rig.talk(request("GET", "/v1/status"))
    assert status_of(answer) == 500
    assert b"ghp_secret" not in answer
    (fault,) = rig.faults
    assert fault["exception"] is rig.gateway.broken
    rig.faults.clear()
    rig.gateway.broken = None
    assert rig.client.status().version == "0.1.0"


def test_an_answer_that_is_not_of_its_shape_does_not_leave(rig: Rig) -> None:
    """I1: a field that the table does not name is not sent, a value that does not fit neither."""
    rig.gateway.ids = ["not an id"]
    assert status_of(rig.talk(request("GET", "/v1/sessions"))) == 500
    assert len(rig.faults) == 1
    rig.faults.clear()


def test_a_refusal_has_the_gateways_words(rig: Rig) -> None:
    opening = values.SessionRequest(OPENING.policy, OPENING.trusted, "refuse", OPENING.granted)
    with pytest.raises(RequestDeclined, match="was not accepted") as declined:
        rig.client.open_session(opening)
    assert (declined.value.status, declined.value.error) == (409, "refused")


def test_an_operation_that_takes_too_long_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(connection, "WORK_SECONDS", 0.05)
    rig.gateway.hold = asyncio.Event()
    with pytest.raises(RequestDeclined) as declined:
        rig.client.reload()
    assert declined.value.error == "too-slow"
    rig.call(rig.gateway.hold.set)
    monkeypatch.setattr(connection, "WORK_SECONDS", 20.0)
    assert rig.client.reload().policies


def test_a_peer_that_leaves_before_its_answer_leaves_nothing_behind(rig: Rig) -> None:
    rig.gateway.hold = asyncio.Event()
    with rig.connect() as sock:
        sock.sendall(request("POST", "/v1/reload"))
        until(lambda: bool(rig.gateway.calls))
    rig.call(rig.gateway.hold.set)
    rig.settled()


# ── the client's errors ───────────────────────────────────────────────────────────────────────────


def test_without_a_gateway_the_client_says_what_to_type(rig: Rig) -> None:
    absent = ControlClient(rig.directory.parent / "elsewhere")
    with pytest.raises(NoGateway, match="`keyhole up`"):
        absent.status()
    rig.wait(rig.server.close())
    with pytest.raises(NoGateway, match="`keyhole up`"):
        rig.client.status()


def test_the_client_does_not_wait_for_ever(rig: Rig) -> None:
    rig.gateway.hold = asyncio.Event()
    begun = time.monotonic()
    with pytest.raises(ControlFailed, match="did not answer within"):
        ControlClient(rig.directory, 0.1).reload()
    assert time.monotonic() - begun < 5
    rig.call(rig.gateway.hold.set)


def test_an_id_that_none_can_have_is_not_even_asked(rig: Rig) -> None:
    for bad in ("../status", "x", "5e55104d0123?x=1", "a\r\nHost: b"):
        with pytest.raises(RequestDeclined) as declined:
            rig.client.session(bad)
        assert declined.value.status == 404


# ── the end ───────────────────────────────────────────────────────────────────────────────────────


def test_at_the_end_what_was_asked_is_answered_and_what_was_not_is_told(rig: Rig) -> None:
    rig.gateway.hold = asyncio.Event()
    with rig.connect() as asked, rig.connect() as idle:
        asked.sendall(request("POST", "/v1/reload"))
        idle.sendall(b"GET /v1/st")
        until(lambda: bool(rig.gateway.calls))
        until(lambda: rig.call(lambda: len(rig.server._conversations)) == 2)
        rig.loop.call_soon_threadsafe(rig.gateway.hold.set)
        rig.wait(rig.server.close())
        assert status_of(asked.recv(65536)) == 200
        assert status_of(idle.recv(65536)) == 503
    assert not (rig.directory / "control.sock").exists()


def test_at_the_end_what_does_not_finish_is_cut(rig: Rig) -> None:
    rig.gateway.hold = asyncio.Event()
    with rig.connect() as sock:
        sock.sendall(request("POST", "/v1/reload"))
        until(lambda: bool(rig.gateway.calls))
        rig.wait(rig.server.close(0.05))
        assert sock.recv(1) == b""


@pytest.mark.parametrize(("seconds", "most"), [(3600.0, 3), (-1.0, values.PAGE + 3)])
def test_a_long_list_gives_way_to_the_loop_by_the_time_it_takes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    """A busy loop has turns of ten milliseconds: one for each session would be half a second."""
    monkeypatch.setattr(dispatch, "TURN_SECONDS", seconds)
    gateway = FakeGateway([f"{number:012x}" for number in range(values.PAGE)])

    async def turns() -> int:
        call = OperationCall(
            ControlRequest(BY_NAME["list_sessions"], {}, values.SessionQuery()),
            None,
            cast("Peer", None),
        )
        task = asyncio.ensure_future(perform(gateway, call))
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        assert task.result().count(b'"policy"') == values.PAGE
        return count

    taken = asyncio.run(turns())
    assert most - 3 <= taken <= most


def test_the_kill_switch_does_not_wait_behind_others(rig: Rig) -> None:
    """I12: however many operations wait for something, what cuts off, ends or shows is done. The
    control: what waits is done in its turn."""
    rig.gateway.hold = rig.call(asyncio.Event)
    waiting = []
    for number in range(server.MAX_AT_WORK + 3):
        waiting.append(rig.connect())
        waiting[-1].sendall(request("POST", "/v1/reload"))
        # Accepted one after the other, as the kernel's queue has no room for all of them.
        until(lambda last=number: rig.call(lambda: len(rig.server._conversations)) > last)  # type: ignore[misc]

    def asked() -> int:
        return sum(call[0] == "reload" for call in rig.gateway.calls)

    until(lambda: asked() == server.MAX_AT_WORK)
    assert rig.client.revoke_all() == len(rig.gateway.ids)
    rig.client.revoke_session(KNOWN)
    rig.client.stop_session(KNOWN)
    assert rig.client.status().version
    assert rig.client.sessions()
    rig.client.stop_gateway()
    assert asked() == server.MAX_AT_WORK
    rig.call(rig.gateway.hold.set)
    for sock in waiting:
        assert status_of(sock.recv(65536)) == 200
        sock.close()
    assert asked() == len(waiting)
