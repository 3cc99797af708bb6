"""The demo proves what it says: a real run holds every claim, and each can fail."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import ssl
from typing import TYPE_CHECKING

import pytest

from keyhole.app.demo import DECODED, DENIED_PATH, VARIABLE, Shown, new_key, run_client
from keyhole.app.demoproof import judge
from keyhole.app.demoservice import ASK, ECHO, NAME, RIGHT, WRONG, Received, serve

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "hello-5b1d2c7e9f3a4860b1d2c7e9f3a48605"

NOTHING = Shown("", KEY, "hello-keyhole" + "x" * 25, 0, "", (), (), (), log_whole=False)
"""A run of which nothing was seen."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return run_client(tmp_path_factory.mktemp("demo").resolve(), KEY)


def failing(shown: Shown) -> list[str]:
    return [claim.text for claim in judge(shown) if not claim.held]


# ── a real run ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.outside
def test_every_claim_of_a_real_run_holds(shown: Shown) -> None:
    """I1, I7: looked at here without the demo's own eyes, too."""
    assert failing(shown) == []
    assert [(one.path, one.real_key) for one in shown.received] == [(ASK, True), (ECHO, True)]
    for written in (KEY, base64.b64encode(KEY.encode()).decode(), KEY.encode().hex()):
        assert written not in shown.transcript
        assert not any(written.encode() in entry.data for entry in shown.entries)
    assert shown.transcript.count(shown.placeholder) == 3


def without(*words: str) -> Callable[[Shown], Shown]:
    """The same run, whose client did not print lines with these words."""

    def change(shown: Shown) -> Shown:
        lines = shown.transcript.splitlines()
        kept = [line for line in lines if not any(word in line for word in words)]
        return dataclasses.replace(shown, transcript="\n".join(kept))

    return change


def printing(line: str) -> Callable[[Shown], Shown]:
    """The same run, whose client printed one more line."""
    return lambda shown: dataclasses.replace(shown, transcript=f"{shown.transcript}{line}\n")


def receiving(*more: Received) -> Callable[[Shown], Shown]:
    """The same run, whose service received more."""
    return lambda shown: dataclasses.replace(shown, received=(*shown.received, *more))


def logging(reason: str) -> Callable[[Shown], Shown]:
    """The same run, whose log lacks the events of that reason."""

    def change(shown: Shown) -> Shown:
        kept = tuple(e for e in shown.entries if e.record and e.record.reason != reason)
        return dataclasses.replace(shown, entries=kept)

    return change


SPOILT: dict[str, tuple[Callable[[Shown], Shown], str]] = {
    "the client failed": (lambda s: dataclasses.replace(s, code=1), "ran to its end"),
    "it has an interface": (printing("network interfaces\tlo eth0"), "no interface but lo"),
    "the key is in its environment": (printing(f"env {VARIABLE}\t{KEY}"), "environment held"),
    "the key is printed anywhere": (printing(f"found {KEY}"), "nothing that the client printed"),
    **{
        f"the key is printed in base64 after {before or 'nothing'}": (
            printing(base64.b64encode(f"{before}{KEY}.".encode()).decode()),
            "nothing that the client printed",
        )
        for before in ("", "a", "ab", "Bearer ")
    },
    "the key is printed in hex": (printing(KEY.encode().hex()), "nothing that the client printed"),
    "the service got a placeholder": (receiving(Received(ASK, False, False)), "the real key"),
    "the service got nothing": (lambda s: dataclasses.replace(s, received=()), "the real key"),
    "the service denies that it knows the key": (
        printing(f"GET https://{NAME}{ASK}\t401 {WRONG}"),
        "the real key",
    ),
    "the echo reaches the client": (
        printing(f"GET https://{NAME}{ECHO}\t200 Bearer {KEY}"),
        "the client saw the placeholder",
    ),
    "the encoded echo reaches the client": (
        printing(f"{DECODED}\tBearer {KEY}"),
        "the client saw the placeholder",
    ),
    "the service never tried to give the key away": (
        lambda s: dataclasses.replace(
            s, received=tuple(dataclasses.replace(r, key_sent_back=False) for r in s.received)
        ),
        "sent the key back",
    ),
    "the denied path reaches the service": (
        receiving(Received(DENIED_PATH, True, False)),
        "never reached the service",
    ),
    "the denied path is answered": (
        printing(f"GET https://{NAME}{DENIED_PATH}\t200 keys"),
        "never reached the service",
    ),
    "the denied host answers": (printing("GET https://evil.example/\t200"), "out of reach"),
    "the denied address was not tried": (without("192.0.2.1"), "out of reach"),
    "the log lacks a refusal": (logging("literal-address"), "the audit log"),
    "the log does not say that the key was replaced": (logging("secret-scrubbed"), "the audit log"),
    "the log was cut": (lambda s: dataclasses.replace(s, log_whole=False), "the audit log"),
    "the log has the key": (
        lambda s: dataclasses.replace(
            s, entries=(*s.entries, dataclasses.replace(s.entries[0], data=KEY.encode()))
        ),
        "the audit log",
    ),
}


@pytest.mark.outside
@pytest.mark.parametrize("how", SPOILT)
def test_a_claim_that_is_not_so_fails(shown: Shown, how: str) -> None:
    """I10. Its control is the test above: the same run, not spoilt, fails nowhere."""
    spoil, claim = SPOILT[how]
    assert any(claim in text for text in failing(spoil(shown)))


def test_a_run_of_which_nothing_was_seen_proves_nothing() -> None:
    """I3: no claim holds by silence."""
    assert len(failing(NOTHING)) == len(judge(NOTHING)) == 8


# ── the service, without a gateway ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("given", "status", "said"), [(KEY, 200, RIGHT), ("no", 401, WRONG)])
def test_the_service_knows_the_right_key_from_another(given: str, status: int, said: str) -> None:
    with serve(KEY) as service:
        assert _get(service.port, service.ca_pem, ASK, given) == (status, {"said": said})
    assert service.received == [Received(ASK, status == 200, False)]


def test_the_service_gives_the_key_away_to_whoever_asks_it_directly() -> None:
    """The control of what the sandboxed client sees (I7)."""
    with serve(KEY) as service:
        status, answer = _get(service.port, service.ca_pem, ECHO, KEY)
    assert (status, answer["authorization"]) == (200, f"Bearer {KEY}")
    assert base64.b64decode(answer["base64"]).decode() == f"Bearer {KEY}"
    assert service.received == [Received(ECHO, True, True)]


def test_two_runs_have_two_keys_in_the_shape_of_the_placeholder() -> None:
    assert new_key() != new_key()
    assert len(new_key()) == len(KEY) == len(NOTHING.placeholder)


def _get(port: int, ca_pem: bytes, path: str, key: str) -> tuple[int, dict[str, str]]:
    class Connection(http.client.HTTPSConnection):
        def connect(self) -> None:
            # By the service's name, whose address only [upstream.connect] knows.
            super(http.client.HTTPSConnection, self).connect()
            self.sock = context.wrap_socket(self.sock, server_hostname=NAME)

    context = ssl.create_default_context(cadata=ca_pem.decode())
    connection = Connection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
