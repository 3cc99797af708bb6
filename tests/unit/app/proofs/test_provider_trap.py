"""The trap of an agent's trial: who trusts it, what is offered, and what it answers."""

from __future__ import annotations

import http.client
import queue
import socket
import ssl

import pytest

from keyhole.app.proofs.provider_answers import ANSWER, answer_request
from keyhole.app.proofs.provider_trap import ProviderTrap, TrapMeeting, serve_trap
from tests.rigs.waiting import PATIENCE

NAMES = ("api.example", "other.example")


def ask(trap: ProviderTrap, context: ssl.SSLContext, name: str, words: str, body: bytes) -> bytes:
    """One request, over a connection of its own."""
    with socket.create_connection(("127.0.0.1", trap.port), PATIENCE) as plain:
        connection = http.client.HTTPConnection(name)
        connection.sock = context.wrap_socket(plain, server_hostname=name)
        method, path = words.split()
        connection.request(method, path, body, {"Connection": "close"})
        answer = connection.getresponse().read()
        connection.close()
    return answer


def test_a_client_that_trusts_the_trap_is_told_from_one_that_does_not() -> None:
    met: queue.Queue[TrapMeeting] = queue.Queue()
    with serve_trap(NAMES, met.put) as trap:
        stranger = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(trap, stranger, "api.example", "POST /v1/messages", b"{}")
        assert met.get(timeout=PATIENCE) == TrapMeeting("api.example", (), trusted=False)
        friend = ssl.create_default_context(cadata=trap.ca_pem.decode("ascii"))
        friend.set_alpn_protocols(["h2", "http/1.1"])
        said = ask(trap, friend, "other.example", "POST /v1/messages", b"{}")
        assert ANSWER.encode() in said
        expected = TrapMeeting("other.example", ("h2", "http/1.1"), trusted=True)
        assert met.get(timeout=PATIENCE) == expected
        with socket.create_connection(("127.0.0.1", trap.port), PATIENCE) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert plain.recv(1) == b""
        assert len(trap.meetings) == 2


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages?beta=true", "text/event-stream"),
        ("/v1/responses", "text/event-stream"),
        ("/v1/chat/completions", "text/event-stream"),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "text/event-stream"),
        ("/v1beta/models/m:generateContent", "application/json"),
    ],
)
def test_each_api_is_answered_with_the_sentence(path: str, kind: str) -> None:
    said = answer_request(path, b"{}")
    assert (said.status, said.kind) == (200, kind)
    assert ANSWER.encode() in said.body


def test_other_requests_are_answered_too() -> None:
    assert b"gpt-5.4" in answer_request("/models", b"").body
    assert answer_request("/anything", b"").body == b"{}"
    assert answer_request("/v1/responses", b"", upgrade=True).status == 426
    asked = b'{"generationConfig": {"responseMimeType": "application/json"}}'
    assert b"model_choice" in answer_request("/m:generateContent", asked).body
