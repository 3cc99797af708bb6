"""A provider of models on loopback that answers every agent: `provider.py CHAIN LOG ANSWER`.

CHAIN is a certificate with its key, LOG where each request and each message of a WebSocket is
written down with its credential. It says its port on standard output. To Claude Code it first
answers that a command is to be run.
"""

from __future__ import annotations

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import AcceptConnection, CloseConnection, TextMessage

CHAIN, LOG, ANSWER = sys.argv[1:4]
COMMAND = "echo made inside > made.txt"
CREDENTIALS = ("authorization", "x-api-key", "x-goog-api-key")


def parsed(data: bytes | str) -> dict[str, Any]:
    """A JSON object; an empty one where it is not one."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def events(*found: dict[str, Any]) -> bytes:
    """Server-sent events, each of the type that it says."""
    lines = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in found)
    return "".join(lines).encode()


def anthropic(asked: dict[str, Any]) -> bytes:
    """A message, in events; the first to a client with a shell is a call of that."""
    tools = {tool.get("name") for tool in asked.get("tools", [])}
    ran = "tool_result" in json.dumps(asked.get("messages", []))
    if "Bash" in tools and not ran:
        block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": json.dumps({"command": COMMAND})}
        reason = "tool_use"
    else:
        block, piece = {"type": "text", "text": ""}, {"type": "text_delta", "text": ANSWER}
        reason = "end_turn"
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": None,
        "model": asked.get("model", "m"), "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    end = {"stop_reason": reason, "stop_sequence": None}
    return events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": piece},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )


def openai_responses() -> tuple[dict[str, Any], ...]:
    """The events of a response."""
    text = {"type": "output_text", "text": ANSWER, "annotations": []}
    item = {
        "type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]
    }  # fmt: skip
    usage = {
        "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    response = {"id": "r1", "object": "response", "status": "completed", "output": [item]}
    return (
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response | {"usage": usage}},
    )


def openai_chat() -> bytes:
    """A chat completion, in events."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ANSWER}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = (chunk | {"choices": [first]}, chunk | {"choices": [last], "usage": usage})
    lines = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def gemini(asked: dict[str, Any], *, streamed: bool) -> bytes:
    """Content; a client that wants JSON chooses a model by it."""
    wants = asked.get("generationConfig", {}).get("responseMimeType")
    choice = {"complexity_reasoning": "x", "complexity_score": 1, "reasoning": "x"}
    text = json.dumps(choice | {"model_choice": "flash"}) if wants == "application/json" else ANSWER
    content = {"role": "model", "parts": [{"text": text}]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
    data = json.dumps(answer | {"usageMetadata": usage})
    return f"data: {data}\r\n\r\n".encode() if streamed else data.encode()


def copilot_models() -> bytes:
    """The models of an account, in the form that the Copilot CLI wants."""
    limits = {
        "max_context_window_tokens": 128000, "max_output_tokens": 16384, "max_prompt_tokens": 64000
    }  # fmt: skip
    capabilities = {
        "type": "chat", "object": "model_capabilities", "family": "gpt-5.4", "limits": limits,
        "tokenizer": "o200k_base", "supports": {"streaming": True, "tool_calls": True},
    }  # fmt: skip
    model = {
        "id": "gpt-5.4", "name": "GPT-5.4", "object": "model", "vendor": "OpenAI",
        "version": "gpt-5.4", "preview": False, "model_picker_enabled": True,
        "capabilities": capabilities,
        "policy": {"state": "enabled", "terms": ""}, "supported_endpoints": ["/chat/completions"],
        "billing": {"is_premium": False, "multiplier": 0},
    }  # fmt: skip
    return json.dumps({"object": "list", "data": [model]}).encode()


class Provider(BaseHTTPRequestHandler):
    """All hosts in one."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base's own
        return

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        asked = self._asked()
        if self.headers["upgrade"]:
            self._converse(path)
            return
        self._note(path, asked)
        if path.endswith("/v1/messages"):
            self._answer(200, "text/event-stream", anthropic(asked))
        elif path.endswith("/responses"):
            self._answer(200, "text/event-stream", events(*openai_responses()))
        elif path.endswith("/chat/completions"):
            self._answer(200, "text/event-stream", openai_chat())
        elif path.endswith(("GenerateContent", ":generateContent")):
            streamed = path.endswith(":streamGenerateContent")
            kind = "text/event-stream" if streamed else "application/json"
            self._answer(200, kind, gemini(asked, streamed=streamed))
        elif path == "/models":
            self._answer(200, "application/json", copilot_models())
        else:
            self._answer(200, "application/json", b"{}")

    do_POST = do_GET
    do_HEAD = do_GET

    def _note(self, path: str, asked: dict[str, Any], *, message: bool = False) -> None:
        given = next((self.headers[name] for name in CREDENTIALS if self.headers[name]), "")
        said = {"path": path, "credential": given, "tools": asked.get("tools"), "message": message}
        with Path(LOG).open("a") as file:
            file.write(json.dumps(said) + "\n")

    def _converse(self, path: str) -> None:
        """Answer each message of a WebSocket with a response, as OpenAI does."""
        self.close_connection = True
        peer = Connection(ConnectionType.SERVER)
        fields = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        switch = WSConnection(ConnectionType.SERVER)
        switch.initiate_upgrade_connection(fields, self.path)
        self.wfile.write(switch.send(AcceptConnection()))
        said = ""
        while data := self.connection.recv(65536):
            peer.receive_data(data)
            for event in peer.events():
                if isinstance(event, CloseConnection):
                    self.wfile.write(peer.send(event.response()))
                    return
                if not isinstance(event, TextMessage):
                    continue
                said += event.data
                if event.message_finished:
                    self._note(path, parsed(said), message=True)
                    said = ""
                    for each in openai_responses():
                        self.wfile.write(peer.send(TextMessage(json.dumps(each))))

    def _asked(self) -> dict[str, Any]:
        return parsed(self.rfile.read(int(self.headers["content-length"] or 0)))

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    """Serve until standard input ends."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CHAIN)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)  # noqa: T201 - the rig reads it
    server.serve_forever()


if __name__ == "__main__":
    main()
