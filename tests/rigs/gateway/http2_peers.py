"""A client inside and an origin that speak HTTP/2, by the `h2` package.

Both take and give the messages of `talk.py`, so that a test asks the same by either version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events

from tests.rigs.gateway.origins import tls_for
from tests.rigs.gateway.talk import END, READ, Message

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Sequence

    import trustme

    from tests.rigs.gateway.stage import Stage

_CONNECTION = ("host", "connection", "transfer-encoding")
"""Fields of HTTP/1.1 that an HTTP/2 request does not have."""


def tls_http2(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server's context that offers HTTP/2 alone."""
    context = tls_for(authority, *names)
    context.set_alpn_protocols(["h2"])
    return context


class Http2Service:
    """An HTTP/2 origin that writes down each request when its head arrives."""

    def __init__(self, answer: bytes = b"fine") -> None:
        self._answer = answer
        self.seen: list[Message] = []
        """In the form of HTTP/1.1, with the authority as `host`."""
        self.whole: list[Message] = []
        """Those that have ended."""
        self.connections = 0

    def __call__(self, sock: socket.socket) -> None:
        self.connections += 1
        machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        machine.initiate_connection()
        sock.sendall(machine.data_to_send())
        streams: dict[int, Message] = {}
        while data := sock.recv(READ):
            for event in machine.receive_data(data):
                if isinstance(event, h2.events.RequestReceived) and event.stream_id:
                    streams[event.stream_id] = _as_message(event.headers)
                    self.seen.append(streams[event.stream_id])
                elif isinstance(event, h2.events.DataReceived) and event.stream_id:
                    streams[event.stream_id].body += event.data or b""
                    size = event.flow_controlled_length or 0
                    machine.acknowledge_received_data(size, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded) and event.stream_id:
                    self.whole.append(streams[event.stream_id])
                    machine.send_headers(event.stream_id, [(":status", "200")])
                    machine.send_data(event.stream_id, self._answer, end_stream=True)
            sock.sendall(machine.data_to_send())


def _as_message(fields: Sequence[tuple[bytes, bytes]]) -> Message:
    found = dict(fields)
    lines = [b"%b %b HTTP/2" % (found[b":method"], found[b":path"])]
    lines.append(b"host: " + found[b":authority"])
    lines += [b"%b: %b" % each for each in fields if not each[0].startswith(b":")]
    return Message(b"\r\n".join(lines))


@dataclass
class _Asked:
    """One request of the client, while it is sent and answered."""

    left: bytes
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    over: bool = False


def ask_http2(stage: Stage, name: str, *requests: bytes) -> list[Message]:
    """Send requests, written as in HTTP/1.1, as streams of one connection; their answers. A stream
    that was reset has the status 0."""
    context = stage.client_context()
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(stage.namespace.connect(name), server_hostname=name) as sock:
        assert sock.selected_alpn_protocol() == "h2"
        machine = h2.connection.H2Connection()
        machine.initiate_connection()
        asked: dict[int, _Asked] = {}
        for number, request in enumerate(requests):
            start, _, body = request.partition(END)
            machine.send_headers(2 * number + 1, _as_fields(Message(start), name))
            asked[2 * number + 1] = _Asked(body)
        while True:
            for number, each in asked.items():
                _send_some(machine, number, each)
            sock.sendall(machine.data_to_send())
            if all(each.over for each in asked.values()):
                break
            for event in machine.receive_data(sock.recv(READ)):
                _take(machine, asked, event)
    return [Message(b"HTTP/2 %d " % each.status, bytes(each.body)) for each in asked.values()]


def _as_fields(message: Message, name: str) -> list[tuple[str, str]]:
    fields = [(":method", message.method), (":scheme", "https"), (":authority", name)]
    fields.append((":path", message.target))
    return fields + [each for each in message.fields if each[0] not in _CONNECTION]


def _send_some(machine: h2.connection.H2Connection, number: int, each: _Asked) -> None:
    """Send as much of a body as the windows allow."""
    while each.left is not _SENT and not each.over:
        most = min(machine.local_flow_control_window(number), machine.max_outbound_frame_size)
        piece, rest = each.left[:most], each.left[most:]
        if each.left and not piece:
            return
        machine.send_data(number, piece, end_stream=not rest)
        each.left = rest or _SENT


_SENT = bytes(1)
"""Stands for a body of which all was sent."""


def _take(
    machine: h2.connection.H2Connection, asked: dict[int, _Asked], event: h2.events.Event
) -> None:
    if isinstance(event, h2.events.ResponseReceived) and event.stream_id:
        asked[event.stream_id].status = int(dict(event.headers)[b":status"])
    elif isinstance(event, h2.events.DataReceived) and event.stream_id:
        asked[event.stream_id].body += event.data or b""
        machine.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
    elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)) and event.stream_id:
        asked[event.stream_id].over = True
