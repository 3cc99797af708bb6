"""A request cannot make a model write more than `max_tokens`, nor spend uncounted money (I9)."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.inject.prices import PRIORITY_FACTOR, TokenCount
from keyhole.model.decision import Reason
from keyhole.policy.model_lengths import MAX_PROMPT, AnswerLength
from tests.rigs.models.requests import facts_of, judge_of, judged, model_service

USER = {"role": "user", "content": "hi"}
CHAT = "/v1/chat/completions"
GEMINI = "/v1beta/models/gemini-2.5-pro:generateContent"
INVOKE = "/model/openai.gpt-oss/invoke"
CAPPED = "max_tokens = 100"
CONTENTS = [{"role": "user", "parts": [{"text": "hi"}]}]


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"model": "m", "messages": [USER], **more}


def gemini(**config: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"contents": CONTENTS, "generationConfig": config}


@pytest.mark.parametrize(
    ("name", "path", "inside", "beyond"),
    [
        ("openai", CHAT, chat(max_tokens=50, n=2), chat(max_tokens=50, n=3)),
        ("openai", CHAT, chat(max_tokens=25, n=2, best_of=2), chat(max_tokens=26, n=2, best_of=2)),
        ("openai", CHAT, chat(max_tokens=100, n=1), chat(max_tokens=100, n="1")),
        ("openai", CHAT, chat(max_tokens=100, n=None), chat(max_tokens=1, n=10**30)),
        ("openai", CHAT, chat(max_tokens=100, n=1), chat(max_tokens=1, n=-1)),
        ("openai", CHAT, chat(max_tokens=100, n=1), chat(max_tokens=0, n=101)),
        ("openai", CHAT, chat(n=100), chat(n=101)),
        ("groq", f"/openai{CHAT}", chat(max_tokens=100), chat(max_tokens=100, num_completions=2)),
        ("gemini", GEMINI, gemini(maxOutputTokens=50, candidateCount=2),
         gemini(maxOutputTokens=50, candidateCount=3)),
        ("gemini", GEMINI, gemini(max_output_tokens=50, candidate_count=2),
         gemini(max_output_tokens=50, candidate_count=3)),
        ("bedrock", INVOKE, chat(max_tokens=50, n=2), chat(max_tokens=50, n=3)),
        ("openai", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 50},
         {"prompt": ["a", "b", "c"], "max_tokens": 50}),
        ("openai", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 50},
         {"prompt": [[1], [2], [3]], "max_tokens": 50}),
        ("openai", "/v1/completions", {"prompt": "a", "max_tokens": 50},
         {"prompt": [1] * (MAX_PROMPT + 1), "max_tokens": 50}),
    ],
)  # fmt: skip
def test_all_answers_of_a_request_together_are_bounded(
    name: str, path: str, inside: dict[str, Any], beyond: dict[str, Any]
) -> None:
    """I9. Attack: a small length, times 128 answers or 2048 texts. Control: what fits, and the same
    request without a bound in the policy."""
    more = 'features = ["member:num_completions"]' if "num_completions" in beyond else ""
    service = model_service(name, f"{CAPPED}\n{more}")
    said = judged(service, path, inside)
    assert said.allowed, said.why
    refused = judged(service, path, beyond)
    assert (refused.allowed, refused.decision.reason) == (False, Reason.OVER_LIMIT)
    assert refused.decision.rule == f"services.{name}.max_tokens"
    assert judged(model_service(name, more), path, beyond).allowed


def test_a_length_that_the_gateway_writes_is_shared_by_the_answers() -> None:
    service = model_service("openai", CAPPED)
    said = judged(service, CHAT, {"model": "m", "n": 3})
    assert said.body == b'{"max_tokens": 33, "model": "m", "n": 3}'


def test_a_refusal_says_what_multiplies_the_answers() -> None:
    refused = judged(model_service("openai", CAPPED), CHAT, chat(max_tokens=60, n=2))
    assert "several answers of 60 tokens (n)" in refused.why


@pytest.mark.parametrize(
    ("name", "path", "body", "member"),
    [
        ("openai", CHAT, chat(MAX_TOKENS=5), "max_tokens"),
        ("openai", CHAT, chat(max_tokens=5, N=1), "n"),
        ("openai", "/v1/responses", {"model": "m", "input": "x", "Store": False}, "store"),
        ("anthropic", "/v1/messages", chat(maxTokens=5), "max_tokens"),
        ("bedrock", "/model/m/converse", {"messages": [], "inferenceConfig": {"max_tokens": 5}},
         "maxTokens"),
        ("bedrock", "/model/m/converse", {"messages": [], "inference_config": {"maxTokens": 5}},
         "inferenceConfig"),
        ("gemini", GEMINI, gemini(MaxOutputTokens=5), "maxOutputTokens"),
        ("gemini", GEMINI, gemini(max_Output_tokens=5, maxOutputTokens=5), "maxOutputTokens"),
    ],
)  # fmt: skip
def test_a_length_in_another_spelling_is_none(
    name: str, path: str, body: dict[str, Any], member: str
) -> None:
    """I9, I3. Attack: the judge takes it for the length, the provider does not know it and writes
    as much as it likes; or keeps the response. The control is the right spelling."""
    refused = judged(model_service(name, CAPPED), path, body)
    assert refused.decision.reason is Reason.FEATURE_CLOSED
    assert f"is spelled {member}" in refused.why or "two spellings" in refused.why
    right = {"contents": [], "generation_config": {"maxOutputTokens": 5}}
    assert judged(model_service("gemini", CAPPED), GEMINI, right).allowed


def test_a_server_that_may_not_know_the_newer_length_gets_the_older_one() -> None:
    """I9. Attack: `max_completion_tokens` alone, at a server that ignores it."""
    body = {"model": "m", "max_completion_tokens": 5}
    mistral = judged(model_service("mistral", CAPPED), CHAT, body)
    assert mistral.body == b'{"max_tokens": 100, "model": "m", "max_completion_tokens": 5}'
    assert not judged(model_service("mistral", CAPPED), CHAT, {**body, "max_tokens": 500}).allowed
    assert judged(model_service("openai", CAPPED), CHAT, body).body is None


def test_the_inner_form_of_a_model_does_not_overrule_its_length() -> None:
    """I9: Nova reads its own `inferenceConfig` among the further fields."""
    service = model_service("bedrock", CAPPED)
    body: dict[str, Any] = {"messages": [], "inferenceConfig": {"maxTokens": 5}}
    inner = {"inferenceConfig": {"maxTokens": 9999}}
    path = "/model/m/converse"
    assert not judged(service, path, {**body, "additionalModelRequestFields": inner}).allowed
    top = {"inferenceConfig": {"topK": 9}}
    assert judged(service, path, {**body, "additionalModelRequestFields": top}).allowed


def test_a_realtime_session_is_closed_where_answers_are_bounded() -> None:
    """I9: it answers what it hears before any message could bound it."""
    for more, allowed in ((CAPPED, False), ("", True)):
        service = model_service("openai", more)
        handshake = facts_of(service, "/v1/realtime", None, word="WEBSOCKET", query="model=m")
        said = judge_of(service).judge(handshake)
        assert said.allowed is allowed
        assert ("no length that could be bounded" in said.why) is not allowed


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("budget", ["tokens = 5", 'day = "1 USD"'])
def test_what_no_budget_counts_is_closed_under_a_budget(path: str, budget: str) -> None:
    """I9. Attack: images without end under a budget of one dollar."""
    body = {"model": "m", "prompt": "x"}
    for more, allowed in (
        (f"budget = {{ {budget} }}", False),
        (f'budget = {{ {budget} }}\nfeatures = ["unmetered"]', True),
        ("budget = { requests = 5 }", True),
        ("", True),
    ):
        service = model_service("openai", more)
        facts, judge = facts_of(service, path, body), judge_of(service)
        if not judge.wants(facts.host, facts.word, facts.path, facts.decision):
            assert allowed
            continue
        said = judge.judge(facts)
        assert said.allowed is allowed
        assert ('features = ["unmetered"] opens it' in said.why) is not allowed
        assert ("unmetered" in service.closed_features) is not allowed


def test_prices_are_the_dearest_where_a_dearer_tier_is_open() -> None:
    """I9: a budget may stop early, never late."""
    tokens = TokenCount(input=10**6, output=10**6)
    for model in ("claude-opus-4-6", "claude-sonnet-4-5"):
        plain = model_service("anthropic").prices.charge((model,), tokens)
        opened = model_service("anthropic", 'features = ["priority"]').prices
        assert opened.charge((model,), tokens).cost == PRIORITY_FACTOR * plain.cost


def test_nothing_is_compared_without_a_bound() -> None:
    length = AnswerLength(None)
    assert not length.read_tokens("many", "max_tokens")
    assert not length.read_number(-5, "n")
    length.read_prompts(["a", "b"], "prompt")
    assert (length.excess, length.is_missing((("max_tokens",),))) == ("", False)
