"""Answers of a provider of models, in the form that agents expect of it.

Used by `provider_trap.py`. Every answer is the same sentence: an agent that prints it has
understood the answer. Nothing is read but the path and the body of one request.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

ANSWER = "keyhole-trial-answer"
"""The sentence."""

EVENTS, JSON = "text/event-stream", "application/json"
_UPGRADE_REQUIRED = 426


class ProviderAnswer(Struct, frozen=True):
    """One answer."""

    status: int
    kind: str
    """Its Content-Type."""
    body: bytes


def answer_request(path: str, body: bytes, *, upgrade: bool = False) -> ProviderAnswer:
    """The answer to a request; `upgrade`: it wants a WebSocket, which is refused."""
    path = path.partition("?")[0]
    if upgrade:
        return ProviderAnswer(_UPGRADE_REQUIRED, "text/plain", b"")
    if path.endswith("/v1/messages"):
        return ProviderAnswer(200, EVENTS, _anthropic())
    if path.endswith("/responses"):
        return ProviderAnswer(200, EVENTS, _openai_responses())
    if path.endswith("/chat/completions"):
        return ProviderAnswer(200, EVENTS, _openai_chat())
    if path.endswith(":streamGenerateContent"):
        return ProviderAnswer(200, EVENTS, b"data: " + _gemini(body) + b"\r\n\r\n")
    if path.endswith(":generateContent"):
        return ProviderAnswer(200, JSON, _gemini(body))
    if path == "/models":
        return ProviderAnswer(200, JSON, _copilot_models())
    return ProviderAnswer(200, JSON, b"{}")


def _events(*found: dict[str, Any]) -> bytes:
    lines = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in found)
    return "".join(lines).encode()


def _anthropic() -> bytes:
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": None,
        "model": "trial", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    text = {"type": "text_delta", "text": ANSWER}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return _events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )


def _openai_responses() -> bytes:
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
    return _events(
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response | {"usage": usage}},
    )


def _openai_chat() -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "trial"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ANSWER}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = (chunk | {"choices": [first]}, chunk | {"choices": [last], "usage": usage})
    lines = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _gemini(body: bytes) -> bytes:
    """Content. Gemini CLI first asks, in JSON, which model is to answer."""
    choice = {"complexity_reasoning": "x", "complexity_score": 1, "reasoning": "x"}
    text = json.dumps(choice | {"model_choice": "flash"}) if JSON.encode() in body else ANSWER
    content = {"role": "model", "parts": [{"text": text}]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
    return json.dumps(answer | {"usageMetadata": usage}).encode()


def _copilot_models() -> bytes:
    """The models of an account; the Copilot CLI takes only names that it knows."""
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
