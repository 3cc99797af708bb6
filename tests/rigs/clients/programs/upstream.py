"""The services that clients call, on loopback and without TLS: `upstream.py SPEC`.

SPEC is a JSON file with the real keys (`keys`) and where requests are written down (`requests`). It
says its two ports on standard output. nginx stands in front of it. Run by the clients' own Python,
for botocore and websockets are there: what checks a signature and what answers a handshake must not
be Keyhole's code.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import struct
import sys
import threading
import time
import traceback
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore.auth  # type: ignore[import-not-found]
import botocore.awsrequest  # type: ignore[import-not-found]
import botocore.credentials  # type: ignore[import-not-found]
from websockets.exceptions import ConnectionClosed  # type: ignore[import-not-found]
from websockets.sync.server import ServerConnection, serve  # type: ignore[import-not-found]

PATIENCE = 20.0
"""Seconds that a stream waits for its reader to say that the first piece has come."""

SPEC = json.loads(Path(sys.argv[1]).read_text())
KEYS: dict[str, str] = SPEC["keys"]

_said = threading.Lock()
_gone_on = {name: threading.Event() for name in ("api.anthropic.com", "api.openai.com")}
_objects: dict[str, bytes] = {}


def write_down(entry: dict[str, Any]) -> None:
    """One line for each request, before it is answered."""
    with _said, Path(SPEC["requests"]).open("a") as file:
        file.write(json.dumps(entry) + "\n")


class Service(BaseHTTPRequestHandler):
    """Every host's service; nginx hands the name on."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base's own
        return

    def do_GET(self) -> None:
        self.host = self.headers["Host"]
        self.body = self._read()
        self.bare, _, self.query = self.path.partition("?")
        write_down(
            {
                "host": self.host,
                "method": self.command,
                "path": self.path,
                "headers": [[name.lower(), value] for name, value in self.headers.items()],
                "size": len(self.body),
            }
        )
        _BY_HOST.get(self.host, echo)(self)

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def answer(self, status: int, body: bytes, kind: str, **more: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def say(self, value: object, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json")

    def begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def echo(service: Service) -> None:
    """Repeats what came, credential and all; or leads elsewhere, or sends much."""
    if service.bare == "/v1/away":
        service.answer(302, b"", "text/plain", Location="https://plain.example/landed")
    elif service.bare == "/v1/endless":
        service.begin("text/plain")
        try:
            while True:
                service.piece(b"tick\n")
                time.sleep(0.02)
        except OSError:  # the other side is gone
            service.close_connection = True
            write_down({"host": "left", "path": service.bare})
    else:
        service.say(
            {
                "host": service.host,
                "method": service.command,
                "path": service.path,
                "headers": {name.lower(): value for name, value in service.headers.items()},
                "body": service.body.decode("utf-8", "replace"),
            }
        )


# ── model providers ───────────────────────────────────────────────────────────────────────────────


def anthropic(service: Service) -> None:
    """The Messages API, as far as the SDK goes."""
    if service.headers.get("x-api-key") != KEYS["anthropic"]:
        problem = {"type": "authentication_error", "message": "invalid x-api-key"}
        service.say({"type": "error", "error": problem}, 401)
    elif service.bare.startswith("/v1/models"):
        _gone_on[service.host].set()
        model = {"id": "fake", "type": "model", "display_name": "F", "created_at": _WHEN}
        service.say(model)
    else:
        asked = json.loads(service.body)
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"],
            "content": [{"type": "text", "text": asked["messages"][0]["content"].upper()}],
            "stop_reason": "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        if asked.get("stream"):
            _stream_message(service, message)
        else:
            service.say(message)


def _stream_message(service: Service, message: dict[str, Any]) -> None:
    text = {"type": "text", "text": ""}
    usage = {"output_tokens": 2}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    before: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": text},
        _delta("one "),
    ]
    after: list[dict[str, Any]] = [
        _delta("two"),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    _stream(service, [(e["type"], e) for e in before], [(e["type"], e) for e in after])


def _delta(text: str) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }


def openai(service: Service) -> None:
    """Chat completions, as far as the SDK goes."""
    if service.headers.get("Authorization") != f"Bearer {KEYS['openai']}":
        problem = {"message": "Incorrect API key provided", "type": "invalid_request_error"}
        service.say({"error": problem}, 401)
    elif service.bare.startswith("/v1/models"):
        _gone_on[service.host].set()
        service.say({"id": "fake", "object": "model", "created": 1, "owned_by": "tests"})
    else:
        asked = json.loads(service.body)
        completion = {"id": "c1", "created": 1, "model": asked["model"]}
        if asked.get("stream"):
            pieces = [
                completion | {"object": "chat.completion.chunk", "choices": [choice]}
                for choice in (
                    {"index": 0, "delta": {"role": "assistant", "content": "one "}},
                    {"index": 0, "delta": {"content": "two"}, "finish_reason": "stop"},
                )
            ]
            _stream(service, [("", pieces[0])], [("", pieces[1]), ("", None)])
        else:
            said = {"role": "assistant", "content": asked["messages"][0]["content"].upper()}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            service.say(completion | {"object": "chat.completion", "choices": [choice]})


def _stream(service: Service, before: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> None:
    """Server-sent events; the later ones only when the reader has asked for a model, which it does
    when the first have come: one that is given them late, or all at once, waits in vain."""
    _gone_on[service.host].clear()
    service.begin("text/event-stream")
    for name, value in before:
        service.piece(_event(name, value))
    arrived = _gone_on[service.host].wait(PATIENCE)
    for name, value in after if arrived else ():
        service.piece(_event(name, value))
    service.wfile.write(b"0\r\n\r\n")


def _event(name: str, value: object) -> bytes:
    data = "[DONE]" if value is None else json.dumps(value)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


# ── Amazon's ──────────────────────────────────────────────────────────────────────────────────────


def signed(service: Service, name: str) -> str:
    """What is wrong with a request's signature under the real keys, by botocore's own signer."""
    method, _, rest = service.headers.get("Authorization", "").partition(" ")
    if method != "AWS4-HMAC-SHA256":
        return "not signed"
    fields = dict(part.strip().split("=", 1) for part in rest.split(","))
    key, date, region, named, _ = fields["Credential"].split("/")
    if (key, region, named) != (KEYS["aws-id"], "eu-west-1", name):
        return "another key, region or service"
    digest = service.headers.get("x-amz-content-sha256")
    unsigned = digest in ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    if digest and not unsigned and digest != hashlib.sha256(service.body).hexdigest():
        return "another body"
    names = fields["SignedHeaders"].split(";")
    if "host" not in names or "x-amz-date" not in names:
        return "too little is signed"
    headers = {each: service.headers[each] for each in names}
    request = botocore.awsrequest.AWSRequest(
        service.command, f"https://{service.host}{service.path}", headers, service.body
    )
    if service.query:
        request.params = None
    request.context["timestamp"] = service.headers["x-amz-date"]
    keys = botocore.credentials.Credentials(KEYS["aws-id"], KEYS["aws-secret"])
    kind = botocore.auth.S3SigV4Auth if name == "s3" else botocore.auth.SigV4Auth
    signer = kind(keys, name, region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    right = signer.signature(text, request)
    if not service.headers["x-amz-date"].startswith(date) or right != fields["Signature"]:
        return "another signature"
    return ""


def bucket(service: Service) -> None:
    """Objects that are put and got."""
    wrong = signed(service, "s3")
    if wrong:
        body = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{wrong}</Message></Error>"
        service.answer(403, body.encode(), "application/xml")
    elif service.command == "PUT":
        data = service.body
        if "aws-chunked" in service.headers.get("Content-Encoding", ""):
            data = _unchunked(data, service.headers.get("x-amz-trailer", ""))
        _objects[service.bare] = data
        service.answer(200, b"", "application/xml", ETag=f'"{hashlib.sha256(data).hexdigest()}"')
    else:
        data = _objects[service.bare]
        checksum = base64.b64encode(struct.pack(">I", zlib.crc32(data))).decode()
        service.answer(200, data, "binary/octet-stream", x_amz_checksum_crc32=checksum)


def _unchunked(data: bytes, trailer: str) -> bytes:
    """Amazon's own chunks within the body, and the checksum behind them, which must be right."""
    body = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        body, data = body + data[:size], data[size + 2 :]
    name, _, value = data.strip().decode().partition(":")
    expected = base64.b64encode(struct.pack(">I", zlib.crc32(body))).decode()
    if (name, value) != (trailer, expected):
        return f"the trailer is {name}: {value}, not {trailer}: {expected}".encode()
    return body


def bedrock(service: Service) -> None:
    """Converse and invoke."""
    wrong = signed(service, "bedrock")
    if wrong:
        service.say({"message": wrong}, 403)
        return
    asked = json.loads(service.body)
    if service.bare.endswith("/invoke"):
        service.say({"completion": asked["prompt"].upper()})
    elif service.bare.endswith("/converse"):
        text = asked["messages"][0]["content"][0]["text"].upper()
        service.say(
            {
                "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
                "stopReason": "end_turn",
                "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
                "metrics": {"latencyMs": 1},
            }
        )
    else:
        service.begin("application/vnd.amazon.eventstream")
        for text in ("one ", "two"):
            value = {"contentBlockIndex": 0, "delta": {"text": text}}
            service.piece(_frame("contentBlockDelta", json.dumps(value).encode()))
        service.piece(_frame("messageStop", b'{"stopReason": "end_turn"}'))
        service.wfile.write(b"0\r\n\r\n")


def queues(service: Service) -> None:
    """SQS, whose operation is in a field of the head."""
    wrong = signed(service, "sqs")
    asked = service.headers.get("X-Amz-Target", "").rpartition(".")[2]
    answers = {"ListQueues": {"QueueUrls": ["https://q"]}, "SendMessage": {"MessageId": "1"}}
    service.say({"message": wrong} if wrong else answers.get(asked, {}), 403 if wrong else 200)


def topics(service: Service) -> None:
    """SNS, whose operation is in a form."""
    wrong = signed(service, "sns")
    asked = urllib.parse.parse_qs(service.body.decode())["Action"][0]
    inner = {"ListTopics": "<Topics/>", "Publish": "<MessageId>1</MessageId>"}.get(asked, "")
    body = (
        f'<{asked}Response xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><{asked}Result>{inner}'
        f"</{asked}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
        f"</{asked}Response>"
    )
    service.answer(403 if wrong else 200, wrong.encode() or body.encode(), "text/xml")


# ── Slack and Kubernetes ──────────────────────────────────────────────────────────────────────────


def slack(service: Service) -> None:
    """Any method, with the right token."""
    right = service.headers.get("Authorization") == f"Bearer {KEYS['slack']}"
    service.say({"ok": right, "channels": [], "method": service.bare.rpartition("/")[2]})


def _pod(namespace: str) -> dict[str, Any]:
    return {
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "x"}]}, "status": {"phase": "Running"},
    }  # fmt: skip


_KUBE: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList", "groupVersion": "v1",
        "resources": [{"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod",
                       "verbs": ["get", "list"]}],
    },
    "/api/v1/namespaces/dev/pods/p": _pod("dev"),
    "/api/v1/namespaces/prod/pods/p": _pod("prod"),
    "/api/v1/namespaces/dev/pods": {
        "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [_pod("dev")],
    },
}  # fmt: skip


def kube(service: Service) -> None:
    """An API server with a pod."""
    if service.headers.get("Authorization") != f"Bearer {KEYS['kube']}":
        service.say({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401}, 401)
    else:
        found = _KUBE.get(service.bare)
        service.say(found or {"kind": "Status", "code": 404}, 200 if found else 404)


def run_command(connection: ServerConnection) -> None:
    """A command in a pod, in kubectl's own protocol: it says something and ends well."""
    connection.send(b"\x01ran with " + str(connection.subprotocol).encode() + b"\n")
    connection.send(b'\x03{"metadata":{},"status":"Success"}')


def _frame(event: str, payload: bytes) -> bytes:
    """A message of Amazon's event streams."""
    headers = b""
    for name, value in (
        (":message-type", "event"),
        (":event-type", event),
        (":content-type", "application/json"),
    ):
        headers += struct.pack(">B", len(name)) + name.encode()
        headers += struct.pack(">BH", 7, len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────


def talk(connection: ServerConnection) -> None:
    """Says each message again; asked for the key, it says that."""
    request = connection.request
    headers = [[name.lower(), value] for name, value in request.headers.raw_items()]
    host = request.headers["Host"]
    write_down({"host": host, "method": "GET", "path": request.path, "headers": headers, "size": 0})
    with contextlib.suppress(ConnectionClosed):
        if request.path.partition("?")[0].endswith("/exec"):
            run_command(connection)
            return
        for message in connection:
            secret = request.headers.get("Authorization", "none")
            connection.send(secret if message == "the key, please" else message)


_WHEN = "2026-01-01T00:00:00Z"
_BY_HOST = {
    "api.anthropic.com": anthropic,
    "api.openai.com": openai,
    "widgets.s3.eu-west-1.amazonaws.com": bucket,
    "bedrock-runtime.eu-west-1.amazonaws.com": bedrock,
    "sqs.eu-west-1.amazonaws.com": queues,
    "sns.eu-west-1.amazonaws.com": topics,
    "slack.com": slack,
    "kube.example": kube,
}


class Quiet(ThreadingHTTPServer):
    """nginx may leave without a word."""

    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:  # noqa: ANN401 - the base's own
        error = sys.exception()
        if not isinstance(error, OSError):
            traceback.print_exception(error)


def main() -> None:
    """Serve until standard input ends."""
    http = Quiet(("127.0.0.1", 0), Service)
    sockets = serve(
        talk,
        "127.0.0.1",
        0,
        compression="deflate",
        select_subprotocol=lambda _, offered: offered[0] if offered else None,
    )
    for server in (http, sockets):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{http.server_address[1]} {sockets.socket.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
