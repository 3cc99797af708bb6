"""Holes that were found by attacking the interception, each held shut (I1, I7, I9, I11)."""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING

import pytest

from keyhole.gateway import refusal_messages
from keyhole.gateway.door import handle as handling
from tests.rigs.gateway.origins import Service
from tests.rigs.gateway.stage import (
    AMPLE,
    BEARER,
    SECRET,
    STAND_IN,
    Play,
    Stage,
    make_services,
    service,
    serving,
    set_up,
)
from tests.rigs.gateway.talk import Message, get, ok

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.gateway.origins import Origin

OTHER = "tk-other-9876543210zyxwvutsrq"


@pytest.fixture(scope="module")
def play(authority: trustme.CA, tls: ssl.SSLContext) -> Iterator[Play]:
    """One door for all tests."""
    with set_up(authority) as stage:
        made = Play(stage)
        with serving(made, tls) as server:
            stage.open(service("own", "ok.example"), ok_example=server)
            yield made
            stage.close_talks()


def test_an_answer_in_characters_that_cannot_be_searched_is_cut(play: Play) -> None:
    """I7: a client that asks for UTF-16 would read the secret between zero bytes."""
    asked: list[Message] = []

    def origin(message: Message) -> bytes:
        asked.append(message)
        kind = b"utf-16" if message.start.split()[1] == "/wide" else b"utf-8"
        text = SECRET.encode("utf-16-le" if kind == b"utf-16" else "utf-8")
        return ok(text, b"Content-Type: application/json; charset=" + kind)

    play.serve(Service(origin))
    plain = play.stage.ask(get("/plain", "Accept-Charset: utf-16")).answer()
    assert plain.body == STAND_IN.encode()
    assert b"accept-charset" not in asked[0].head.lower()
    wide = play.stage.ask(get("/wide")).answer()
    assert (wide.status, b"encoding-refused" in wide.body) == (502, True)


@pytest.mark.parametrize("name", ["Range", "Request-Range", "X-Ms-Range"])
def test_no_spelling_of_a_range_fetches_an_answer_in_pieces(play: Play, name: str) -> None:
    """I7: a secret in two pieces is in neither."""
    asked: list[Message] = []

    def origin(message: Message) -> bytes:
        asked.append(message)
        return ok(b"whole")

    play.serve(Service(origin))
    assert play.stage.ask(get("/a", f"{name}: bytes=0-9")).answer().body == b"whole"
    assert b"range" not in asked[0].head.lower()


def test_a_piece_that_nobody_asked_for_is_cut(play: Play) -> None:
    """I7: whatever made the origin send one."""
    play.serve(Service(lambda _: ok(b"half", status=b"206 Partial Content")))
    assert play.stage.ask(get("/a")).answer().status == 502


def test_one_accounts_secret_does_not_come_back_in_anothers_answer(
    authority: trustme.CA, origin: Callable[..., Origin], tls: ssl.SSLContext
) -> None:
    """I7: accounts that share a host share what is searched for, at whatever port."""
    services = make_services(authority, own=SECRET, other=OTHER)
    with set_up(authority, services) as stage:
        said = Service(lambda message: ok(f"{SECRET} {OTHER}".encode()))
        server = origin(said, tls)
        policy = service("own", "ok.example") + service("other", "ok.example:8443", inject="")
        policy = policy.replace(
            "[services.other]\n", f'[services.other]\ninject = {BEARER}\nsecret = "file:/no"\n'
        )
        stage.open(policy, ok_example=server, ok_example__8443=server)
        for port in (443, 8443):
            talk = stage.visit(port=port)
            talk.send(get("/a", host="ok.example" if port == 443 else f"ok.example:{port}"))
            body = talk.answer().body.decode()
            assert SECRET not in body
            assert OTHER not in body


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/z$(touch${IFS}/x)"), ("GET", "/z;id"), ("`id`|sh", "/z"), ("GET", "/z&&id'")],
)
def test_what_a_person_is_told_to_type_is_one_command(method: str, path: str) -> None:
    """I11: the sandbox chose method and path, and the line ends in a shell of the host."""
    line = refusal_messages.request_line(method, "ok.example", path, "no-rule")
    typed = line.split("`keyhole why", 1)[1].rsplit("` says", 1)[0]
    words = shlex.split(typed)
    assert words[-1] == f"https://ok.example{path}"
    flagged = [] if method == "GET" else ["--method", method]
    assert words[:-1] == flagged


def test_a_plain_address_is_shown_as_it_is() -> None:
    assert "`keyhole why https://ok.example/v1/x` says" in refusal_messages.request_line(
        "GET", "ok.example", "/v1/x", "no-rule"
    )


def test_heads_count_towards_the_upload(
    stage: Stage, origin: Callable[..., Origin], tls: ssl.SSLContext
) -> None:
    """I9: what goes up in headers goes up."""
    server = origin(Service(lambda _: ok(b"x")), tls)
    stage.open(service("own", "ok.example"), 'upload = "16KiB"', ok_example=server)
    talk = stage.visit()
    talk.send(get("/a", "X-Note: " + "a" * 4000))
    assert talk.answer().status == 200
    with contextlib.suppress(OSError):  # it is cut on the way
        for _ in range(8):
            talk.sock.sendall(get("/a", "X-Note: " + "a" * 4000))
    assert stage.watch.until("over-limit").rule == "limits.upload"


def test_the_memory_of_hosts_is_bounded(
    stage: Stage,
    origin: Callable[..., Origin],
    tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I9: under a wildcard the sandbox chooses the names."""
    monkeypatch.setattr(handling, "MAX_HOSTS", 2)
    server = origin(Service(lambda _: ok(b"x")), tls)
    names = ["a.ok.example", "b.ok.example", "c.ok.example", "a.ok.example"]
    connect = {name.replace(".", "_"): server for name in names}
    stage.open(service("own", "*.ok.example"), AMPLE, **connect)
    for name in names:
        assert stage.ask(get("/a", host=name), name=name).answer().status == 200
    assert stage.handle is not None
    assert len(stage.handle._hosts) == 2
