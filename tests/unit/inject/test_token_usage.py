"""Tokens are read from answers as they pass, whatever the pieces and whoever wrote them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.prices import TokenCount
from keyhole.inject.token_usage import (
    MAX_MODELS,
    MAX_NUMBER,
    MAX_OBJECT,
    ReportedUsage,
    UsageFormat,
    UsageReader,
)


def said(data: bytes, *forms: UsageFormat, piece: int | None = None) -> int | None:
    """The tokens of an answer that comes in pieces of this size."""
    reader = UsageReader(forms or (UsageFormat.OPENAI,))
    step = piece or max(1, len(data))
    for at in range(0, len(data), step):
        reader.feed(memoryview(data)[at : at + step])
    return total(reader)


def total(reader: UsageReader) -> int | None:
    """The tokens that were reported since the last call."""
    taken = reader.take()
    return None if taken is None else taken.total


def events(*objects: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in objects)


ANTHROPIC = events(
    {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 25,
                "cache_creation_input_tokens": 100,
                "cache_read_input_tokens": 3000,
                "cache_creation": {"ephemeral_5m_input_tokens": 100},
                "output_tokens": 1,
                "service_tier": "standard",
            }
        },
    },
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 'usage": {'}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
)
CHAT = (
    events(
        {"choices": [{"delta": {"content": "hi"}}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}},
    )
    + b"data: [DONE]\n\n"
)
RESPONSES = events(
    {"type": "response.created", "response": {"usage": None}},
    {
        "type": "response.completed",
        "response": {
            "output": [{"text": "x" * 500}],
            "usage": {
                "input_tokens": 37,
                "input_tokens_details": {"cached_tokens": 30},
                "output_tokens": 11,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 48,
            },
        },
    },
)
GEMINI = events(
    {"candidates": [], "usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 6}},
    {
        "candidates": [],
        "usageMetadata": {
            "promptTokenCount": 5,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 40,
            "totalTokenCount": 52,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 5}],
        },
    },
)
CONVERSE = (
    b"\x00\x00\x00\x9b\x00\x00\x00\x52\x0b:event-type\x07\x00\x08metadata"
    b'{"metrics":{"latencyMs":1},"usage":{"inputTokens":30,"outputTokens":6,"totalTokens":36,'
    b'"cacheReadInputTokens":10}}\x8a\x90\x11\x12'
)
COHERE = (
    b'{"usage": {"billed_units": {"input_tokens": 5}, '
    b'"tokens": {"input_tokens": 71.0, "output_tokens": 9}}}'
)
COHERE_1 = (
    b'{"meta": {"api_version": {"version": "1"}, '
    b'"billed_units": {"input_tokens": 5, "output_tokens": 3}}}'
)

SHAPES = [
    (UsageFormat.ANTHROPIC, ANTHROPIC, 25 + 100 + 3000 + 15),
    (UsageFormat.OPENAI, CHAT, 11),
    (UsageFormat.OPENAI, RESPONSES, 48),
    (UsageFormat.OPENAI, b'{"data": [], "usage" :\n {"prompt_tokens": 8, "total_tokens": 8}}', 8),
    (UsageFormat.GOOGLE, GEMINI, 52),
    (UsageFormat.BEDROCK, CONVERSE, 46),
    (UsageFormat.COHERE, COHERE, 80),
    (UsageFormat.COHERE, COHERE_1, 8),
]  # fmt: skip


@pytest.mark.parametrize(("form", "data", "tokens"), SHAPES)
def test_each_form_is_read_in_pieces_of_any_size(
    form: UsageFormat, data: bytes, tokens: int
) -> None:
    for piece in (None, 1, 2, 3, 7, 64):
        assert said(data, form, piece=piece) == tokens
    assert said(data, *UsageFormat) == tokens  # where a host answers in several ways


@given(st.sampled_from([CHAT, RESPONSES]), st.lists(st.integers(0, 900), max_size=8).map(sorted))
def test_no_way_of_cutting_an_answer_changes_what_it_says(data: bytes, cuts: list[int]) -> None:
    reader = UsageReader((UsageFormat.OPENAI,))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        reader.feed(data[start:end])
    assert total(reader) == said(data)


JSON = st.recursive(
    st.none() | st.integers(0, 10**6) | st.text('\\"{}usage: ', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["usage", "x", '"usage":{']), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON, JSON, st.integers(1, 9))
def test_what_a_model_writes_never_makes_an_answer_cheaper(
    before: object, after: object, piece: int
) -> None:
    """I9: tools' arguments are the model's own words, and it does what it is told."""
    honest = {"total_tokens": 5_000_000}
    for text in (
        json.dumps({"tool": before, "usage": honest, "more": after}),
        json.dumps({"more": after, "usage": honest, "tool": before}, indent=1),
    ):
        assert said(text.encode(), piece=piece) == 5_000_000


def test_a_forged_number_makes_an_answer_dearer_and_no_more_than_a_number_can() -> None:
    forged = {"usage": {"total_tokens": 700}}
    answer = json.dumps({"input": forged, "usage": {"total_tokens": 11}}).encode()
    assert said(answer) == 700
    for number in ("true", "-5", '"9"', f"{MAX_NUMBER + 1}", "1e999", "NaN", "[]", "9" * 5000):
        text = b'{"usage": {"total_tokens": %b}} {"usage": {"prompt_tokens": 3}}' % number.encode()
        assert said(text) == 3
    assert said(b'{"usage": {"total_tokens": ]}}{"usage": 7}') is None


def test_a_value_that_no_service_has_is_passed_over_and_the_next_is_read() -> None:
    honest = b'{"usage":{"total_tokens":9}}'
    long = b'{"usage":{"x":"%b"}}' % (b"y" * MAX_OBJECT)
    many = b'{"usage":{%b}}' % b",".join(b'"%d":{}' % n for n in range(MAX_OBJECT))
    deep = b'{"usage":' + b'{"a":' * 40 + b"1" + b"}" * 41
    for data in (long, many, deep):
        for piece in (None, 1000, 1):
            assert said(data + honest, piece=piece) == 9


def test_an_escape_that_is_cut_in_two_does_not_end_a_text() -> None:
    data = b'{"usage": {"note": "x\\"} y", "more": {"a": {}}, "total_tokens": 9}}'
    for piece in (None, 1, data.index(b"\\") + 1):
        assert said(data, UsageFormat.OPENAI, piece=piece) == 9


def test_a_member_without_a_number_yet_is_noted() -> None:
    reader = UsageReader((UsageFormat.OPENAI,))
    reader.feed(b'{"id": "r", "status": "queued", "usage": nu')
    reader.feed(b"ll}")
    assert (total(reader), reader.empty) == (None, True)
    other = UsageReader((UsageFormat.OPENAI,))
    other.feed(b'{"usages": null, "usage_x": null, "object": "list"}')
    assert (total(other), other.empty) == (None, False)


def test_each_message_has_its_own_number() -> None:
    reader = UsageReader((UsageFormat.OPENAI,))
    reader.feed(b'{"usage":{"total_tokens":9}}')
    assert total(reader) == 9
    assert total(reader) is None
    reader.feed(b'{"usage":{"total_tokens":4}}')
    assert total(reader) == 4


@pytest.mark.parametrize(
    "unit",
    [
        b'"usage":1,',
        b'"usage":{},',
        b'"usage":{"total_tokens":1}',
        b'"usage":{"a":{',
        b'"usage":{"',
    ],
)
def test_no_answer_takes_longer_than_its_bytes_explain(unit: bytes) -> None:
    """I9: what is full of them is given up, and that is known; before that it says what it says."""
    reader = UsageReader(tuple(UsageFormat))
    began = time.process_time()
    reader.feed(b'{"usage":{"total_tokens":9}}')
    for _ in range(100):
        reader.feed(unit * (50_000 // len(unit)))
    assert time.process_time() - began < 5
    assert reader.crowded
    assert (total(reader) or 0) >= 9


def test_a_stream_that_says_it_with_each_event_is_read_to_its_end() -> None:
    event = {"id": "x" * 180, "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    reader = UsageReader((UsageFormat.OPENAI,))
    reader.feed(events(*[event] * 3000))
    reader.feed(events({"usage": {"completion_tokens": 8}}))
    assert (total(reader), reader.crowded) == (13, False)


def reported(data: bytes, *forms: UsageFormat, piece: int | None = None) -> ReportedUsage:
    reader = UsageReader(forms)
    step = piece or max(1, len(data))
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    taken = reader.take()
    assert taken is not None
    return taken


@pytest.mark.parametrize(
    ("form", "usage", "expected"),
    [
        (
            UsageFormat.ANTHROPIC,
            {
                "input_tokens": 25,
                "cache_creation_input_tokens": 100,
                "cache_read_input_tokens": 3000,
                "cache_creation": {"ephemeral_1h_input_tokens": 40},
                "output_tokens": 7,
            },
            TokenCount(25, 3000, 60, 40, 7),
        ),
        (
            UsageFormat.OPENAI,
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 60},
                "completion_tokens_details": {"reasoning_tokens": 12},
            },
            TokenCount(input=40, cached=60, output=20),
        ),
        (
            UsageFormat.OPENAI,
            {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 30},
                "output_tokens": 9,
                "total_tokens": 109,
            },
            TokenCount(input=70, cached=30, output=9),
        ),
        (
            UsageFormat.OPENAI,
            {"prompt_tokens": 10, "prompt_cache_hit_tokens": 4, "total_tokens": 30},
            TokenCount(input=6, cached=4, output=20),
        ),
        (
            UsageFormat.BEDROCK,
            {
                "inputTokens": 3,
                "cacheReadInputTokens": 5,
                "cacheWriteInputTokens": 7,
                "outputTokens": 2,
                "totalTokens": 17,
            },
            TokenCount(input=3, cached=5, written=7, output=2),
        ),
        (
            UsageFormat.COHERE,
            {
                "tokens": {"input_tokens": 8, "output_tokens": 3},
                "billed_units": {"input_tokens": 5, "output_tokens": 3},
            },
            TokenCount(input=8, output=3),
        ),
    ],
)
def test_tokens_are_told_apart_by_how_they_are_billed(
    form: UsageFormat, usage: object, expected: TokenCount
) -> None:
    said_so = reported(json.dumps({"model": "m-1", "usage": usage}).encode(), form)
    assert (said_so.tokens, said_so.models) == (expected, ("m-1",))


def test_thoughts_are_output_and_tool_prompts_are_input() -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 20,
        "totalTokenCount": 135,
    }
    data = json.dumps({"usageMetadata": usage, "modelVersion": "gemini-9"}).encode()
    said_so = reported(data, UsageFormat.GOOGLE)
    assert said_so.tokens == TokenCount(input=45, cached=60, output=30)
    assert said_so.models == ("gemini-9",)


def test_openais_cached_tokens_are_no_second_input_where_two_forms_are_read() -> None:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}, "total_tokens": 9}
    both = reported(
        json.dumps({"usage": usage}).encode(), UsageFormat.OPENAI, UsageFormat.ANTHROPIC
    )
    assert both.tokens == TokenCount(input=1, cached=8)


def test_a_forged_member_makes_no_token_cheaper() -> None:
    """Attack: have the model write a report whose cached tokens are many. Control: the true one
    alone."""
    true = {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}
    forged = {**true, "prompt_tokens_details": {"cached_tokens": 1000}}
    honest = reported(json.dumps({"usage": true}).encode(), UsageFormat.OPENAI)
    data = json.dumps({"tool": {"usage": forged}, "usage": true}).encode()
    assert honest.tokens == TokenCount(input=1000, output=5)
    assert reported(data, UsageFormat.OPENAI).tokens == TokenCount(1000, 1000, output=5)


def test_every_model_that_is_named_is_told_in_any_pieces_and_not_without_end() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    data = b"".join(events({"model": f"m{n}", "text": "x" * 90}) for n in range(3))
    data += events({"model": "m" * 200, "usage": usage}, {"model": 'a"b'}, {"model": None})
    for piece in (1, 7, 4096):
        assert reported(data, UsageFormat.OPENAI, piece=piece).models == ("m0", "m1", "m2")
    many = events(*({"model": f"m{n}"} for n in range(50)), {"usage": usage})
    models = reported(many, UsageFormat.OPENAI).models
    assert models == (*(f"m{n}" for n in range(MAX_MODELS)), "")
