"""What a body asks a model's provider to do by itself is closed unless the policy opens it (I3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from keyhole.inject.model_api import parse_model_api
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.disclose import disclose
from keyhole.policy.explain import Explanation, explain
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.model_features import (
    MAX_FINDINGS,
    MAX_FLAGS,
    MAX_MODELS,
    VALUES_OF_A_LOOK,
    VALUES_OF_A_SLICE,
)
from keyhole.policy.model_rules import MAX_REMEMBERED, compile_rules, fold_name
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import RequestTarget, parse_target
from tests.rigs.models.requests import facts_of, judge_of, judged, model_service
from tests.rigs.policies import book

if TYPE_CHECKING:
    from keyhole.wire.strict_json import JsonValue

USER = {"role": "user", "content": "hi"}
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
GEMINI = "/v1beta/models/gemini-2.5-pro:generateContent"
PREDICT = "/v1beta/models/veo-3:predict"
CONVERSE = "/model/amazon.nova-pro-v1:0/converse"


def anthropic(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"model": "claude-x", "max_tokens": 100, "messages": [USER], **more}


def block(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return anthropic(messages=[{"role": "user", "content": [more]}])


def responses(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"model": "gpt-x", "input": "hi", "store": False, **more}


def item(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return responses(input=[{"type": "message", "role": "user", "content": [more]}])


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"model": "gpt-x", "messages": [USER], **more}


def part(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return chat(messages=[{"role": "user", "content": [more]}])


def gemini(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], **more}


def converse(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"messages": [{"role": "user", "content": [{"text": "hi"}]}], **more}


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://evil.example/?x"}}
TOOL = {"type": "function", "name": "x", "parameters": {"type": "object"}}

CLOSED = [
    (
        "anthropic",
        MESSAGES,
        anthropic(tools=[{"type": "web_search_20250305", "name": "w"}]),
        "web-search",
    ),
    (
        "anthropic",
        MESSAGES,
        anthropic(tools=[{"type": "web_fetch_20260209", "name": "w"}]),
        "web-fetch",
    ),
    (
        "anthropic",
        MESSAGES,
        anthropic(tools=[{"type": "code_execution_20260120"}]),
        "code-execution",
    ),
    ("anthropic", MESSAGES, anthropic(tools=[{"type": "computer_20250124"}]), "computer-use"),
    (
        "anthropic",
        MESSAGES,
        anthropic(mcp_servers=[{"type": "url", "url": "https://e"}]),
        "remote-mcp",
    ),
    ("anthropic", MESSAGES, anthropic(tools=[{"type": "mcp_toolset"}]), "remote-mcp"),
    ("anthropic", MESSAGES, anthropic(container="c"), "code-execution"),
    ("anthropic", MESSAGES, block(**IMAGE), "url-content"),
    (
        "anthropic",
        MESSAGES,
        block(type="document", source={"type": "file", "file_id": "f"}),
        "files",
    ),
    ("anthropic", MESSAGES, block(type="tool_result", content=[IMAGE]), "url-content"),
    ("anthropic", MESSAGES, block(type="tool_result", content=IMAGE), "url-content"),
    ("anthropic", MESSAGES, anthropic(messages={"role": "user", "content": IMAGE}), "url-content"),
    (
        "anthropic",
        MESSAGES,
        block(type="document", source={"type": "content", "content": [IMAGE]}),
        "url-content",
    ),
    ("anthropic", "/v1/messages/count_tokens", block(**IMAGE), "url-content"),
    ("anthropic", MESSAGES, anthropic(tools=[{"type": "browse_20270101"}]), "tool:browse_20270101"),
    ("anthropic", MESSAGES, block(type="image", source={"type": "gopher"}), "source:gopher"),
    ("anthropic", MESSAGES, block(type="hologram"), "content:hologram"),
    ("anthropic", MESSAGES, anthropic(auto_web=True), "member:auto_web"),
    ("claude", MESSAGES, block(**IMAGE), "url-content"),
    ("openai", RESPONSES, responses(tools=[{"type": "web_search"}]), "web-search"),
    (
        "openai",
        RESPONSES,
        responses(tools=[{"type": "web_search", "external_web_access": True}]),
        "web-search",
    ),
    ("openai", RESPONSES, responses(tools=[{"type": "web_search_preview"}]), "web-search"),
    (
        "openai",
        RESPONSES,
        responses(tools=[{"type": "mcp", "server_url": "https://e"}]),
        "remote-mcp",
    ),
    (
        "openai",
        RESPONSES,
        responses(tools=[{"type": "function", "connector_id": "c"}]),
        "connectors",
    ),
    ("openai", RESPONSES, responses(tools=[{"type": "code_interpreter"}]), "code-execution"),
    ("openai", RESPONSES, responses(tools=[{"type": "file_search"}]), "files"),
    ("openai", RESPONSES, responses(tools=[{"type": "computer_use_preview"}]), "computer-use"),
    (
        "openai",
        RESPONSES,
        responses(tools=[{"type": "namespace", "tools": [{"type": "mcp"}]}]),
        "remote-mcp",
    ),
    (
        "openai",
        RESPONSES,
        responses(input=[{"type": "additional_tools", "tools": [{"type": "mcp"}]}]),
        "remote-mcp",
    ),
    (
        "openai",
        RESPONSES,
        responses(
            input=[
                {
                    "type": "additional_tools",
                    "tools": [{"type": "namespace", "tools": [{"type": "web_search"}]}],
                }
            ]
        ),
        "web-search",
    ),
    ("openai", RESPONSES, responses(background=True), "background"),
    ("openai", RESPONSES, responses(store=True), "stored-responses"),
    ("openai", RESPONSES, responses(conversation="conv_1"), "stored-responses"),
    ("openai", RESPONSES, responses(prompt={"id": "p"}), "stored-responses"),
    ("openai", RESPONSES, item(type="input_image", image_url="https://e/x.png"), "url-content"),
    ("openai", RESPONSES, item(type="input_file", file_url="https://e/x.pdf"), "url-content"),
    ("openai", RESPONSES, item(type="input_file", file_id="file-1"), "files"),
    (
        "openai",
        RESPONSES,
        responses(
            input=[
                {
                    "type": "function_call_output",
                    "output": [{"type": "input_image", "image_url": "https://e"}],
                }
            ]
        ),
        "url-content",
    ),
    ("openai", CHAT, chat(web_search_options={}), "web-search"),
    ("openai", CHAT, chat(model="gpt-4o-search-preview"), "web-search"),
    ("openai", CHAT, chat(store=True), "stored-responses"),
    ("openai", CHAT, chat(tools=[{"type": "mcp"}]), "remote-mcp"),
    ("openai", CHAT, part(type="image_url", image_url={"url": "https://e"}), "url-content"),
    ("openai", CHAT, part(type="image_url", image_url="https://e"), "url-content"),
    ("openai", CHAT, part(type="file", file={"file_id": "f"}), "files"),
    (
        "openai",
        "/v1/moderations",
        {"input": [{"type": "image_url", "image_url": {"url": "https://e"}}]},
        "url-content",
    ),
    ("xai", CHAT, chat(search_parameters={"mode": "on"}), "web-search"),
    ("xai", RESPONSES, responses(tools=[{"type": "x_search"}]), "web-search"),
    ("openrouter", "/api/v1/chat/completions", chat(plugins=[{"id": "web"}]), "web-search"),
    ("openrouter", "/api/v1/chat/completions", chat(plugins=[{}]), "web-search"),
    ("openrouter", "/api/v1/chat/completions", chat(model="a/b:online"), "web-search"),
    (
        "openrouter",
        "/api/v1/chat/completions",
        part(type="file", file={"file_data": "https://e"}),
        "url-content",
    ),
    (
        "mistral",
        "/v1/ocr",
        {"model": "m", "document": {"type": "document_url", "document_url": "https://e"}},
        "url-content",
    ),
    ("mistral", CHAT, part(type="document_url", document_url="https://e"), "url-content"),
    (
        "azure-openai",
        "/openai/deployments/d/chat/completions",
        chat(data_sources=[{"type": "azure_search"}]),
        "connectors",
    ),
    ("gemini", GEMINI, gemini(tools=[{"googleSearch": {}}]), "web-search"),
    ("gemini", GEMINI, gemini(tools=[{"google_search": {}}]), "web-search"),
    ("gemini", GEMINI, gemini(tools=[{"urlContext": {}}]), "web-fetch"),
    ("gemini", GEMINI, gemini(tools={"codeExecution": {}}), "code-execution"),
    ("gemini", GEMINI, gemini(tools=[{"teleport": {}}]), "tool:teleport"),
    ("gemini", GEMINI, gemini(cachedContent="c"), "files"),
    (
        "gemini",
        GEMINI,
        {"contents": [{"parts": [{"fileData": {"fileUri": "https://e"}}]}]},
        "url-content",
    ),
    (
        "gemini",
        GEMINI,
        {"contents": [{"parts": [{"file_data": {"file_uri": "https://e"}}]}]},
        "url-content",
    ),
    (
        "gemini-code-assist",
        "/v1internal:generateContent",
        {"model": "g", "request": gemini(tools=[{"googleSearch": {}}])},
        "web-search",
    ),
    (
        "vertex",
        "/v1/projects/p/locations/l/publishers/google/models/g:generateContent",
        gemini(tools=[{"googleSearch": {}}]),
        "web-search",
    ),
    (
        "vertex",
        "/v1/projects/p/locations/l/publishers/anthropic/models/c:rawPredict",
        block(**IMAGE),
        "url-content",
    ),
    (
        "bedrock",
        CONVERSE,
        converse(toolConfig={"tools": [{"systemTool": {"name": "nova_grounding"}}]}),
        "web-search",
    ),
    (
        "bedrock",
        CONVERSE,
        {"messages": [{"content": [{"image": {"source": {"s3Location": {"uri": "s3://x"}}}}]}]},
        "url-content",
    ),
    (
        "bedrock",
        CONVERSE,
        converse(additionalModelRequestFields={"mcp_servers": []}),
        "member:mcp_servers",
    ),
    ("bedrock-key", "/model/anthropic.claude/invoke", block(**IMAGE), "url-content"),
    (
        "bedrock",
        "/model/arn:aws:bedrock:us-east-1:1:inference-profile%2Fx/invoke",
        block(**IMAGE),
        "url-content",
    ),
]

KEPT_SEARCH = {"type": "web_search", "external_web_access": False}

OPEN = [
    ("openai", CHAT, chat(messages=[{"role": "user", "content": "https://a.example/ says"}])),
    ("openai", CHAT, part(type="text", text="https://a.example/ says")),
    ("openai", CHAT, part(type="thinking", thinking="https://a.example/ says")),
    ("openai", CHAT, chat(messages=[{**USER, "reasoning_content": "https://a.example/ says"}])),
    ("openai", CHAT, chat(messages=[{"tool_calls": [{"function": {"url": "https://a"}}]}])),
    (
        "openai",
        CHAT,
        part(type="tool_result", content=[{"type": "text", "text": "https://a.example/ says"}]),
    ),
    ("openai", CHAT, part(type="tool_use", input={"url": "https://a", "a": {"b": "https://a"}})),
    ("openai", CHAT, part(type="text", text="x", cache_control={"type": "ephemeral"})),
    ("gemini", PREDICT, {"instances": [{"prompt": "https://a.example/ as a picture"}]}),
    ("anthropic", MESSAGES, anthropic(system=[{"type": "text", "text": "x"}])),
    ("anthropic", MESSAGES, anthropic(tools=[{"name": "Bash"}, {"type": "bash_20250124"}])),
    ("anthropic", MESSAGES, anthropic(tools=[], mcp_servers=[])),
    ("anthropic", MESSAGES, block(type="image", source={"type": "base64", "data": "QQ=="})),
    ("anthropic", MESSAGES, block(type="tool_use", input={"source": {"type": "url"}, "type": "x"})),
    ("openai", RESPONSES, responses(tools=[TOOL, {"type": "custom"}])),
    ("openai", RESPONSES, responses(tools=[KEPT_SEARCH])),
    ("openai", RESPONSES, item(type="input_image", image_url="data:image/png;base64,QQ==")),
    ("openai", CHAT, chat(tools=[{"type": "function", "function": {"name": "x"}}])),
    ("openai", CHAT, part(type="image_url", image_url={"url": "data:image/png;base64,QQ=="})),
    ("openai", CHAT, part(type="input_audio", input_audio={"data": "QQ=="})),
    ("gemini", GEMINI, gemini(tools=[{"functionDeclarations": []}])),
    ("gemini", GEMINI, gemini(tools=[{"function_declarations": []}])),
    ("bedrock", CONVERSE, converse(toolConfig={"tools": [{"toolSpec": {}}]})),
    ("gemini-code-assist", "/v1internal:generateContent", {"model": "g", "request": gemini()}),
]


@pytest.mark.parametrize(("name", "path", "body", "word"), CLOSED)
def test_a_feature_is_closed_and_its_word_opens_it(
    name: str, path: str, body: dict[str, Any], word: str
) -> None:
    """I3, with its control: one word in the policy, and the same request passes."""
    said = judged(model_service(name), path, body)
    assert (said.allowed, said.decision.reason) == (False, Reason.FEATURE_CLOSED)
    assert said.decision.rule.endswith(f".{word}")
    assert f'features = ["{word}"] opens it' in said.why
    service = model_service(name, f'features = ["{word}"]')
    assert judged(service, path, body).allowed


@pytest.mark.parametrize(("name", "path", "body"), OPEN)
def test_what_the_client_does_itself_stays_open(name: str, path: str, body: dict[str, Any]) -> None:
    said = judged(model_service(name), path, body)
    assert said.allowed, said.why
    assert said.body is None


ADDRESS = "https://evil.example/?x"
SEARCHED = {"type": "search_result", "source": "s", "title": "t", "content": [IMAGE]}


@pytest.mark.parametrize(
    ("name", "path", "body", "word"),
    [
        # A server that knows the type alone ignores what would excuse another one.
        ("openai", RESPONSES, responses(tools=[{**KEPT_SEARCH, "type": "mcp"}]), "remote-mcp"),
        (
            "openai",
            RESPONSES,
            responses(tools=[{**KEPT_SEARCH, "type": "code_interpreter"}]),
            "code-execution",
        ),
        (
            "openai",
            RESPONSES,
            responses(tools=[{**KEPT_SEARCH, "External_Web_Access": True}]),
            "web-search",
        ),
        (
            "openai",
            RESPONSES,
            responses(tools=[{**KEPT_SEARCH, "external_web_access": "false"}]),
            "web-search",
        ),
        # Only OpenAI is known to read the member.
        ("xai", RESPONSES, responses(tools=[KEPT_SEARCH]), "web-search"),
        ("openrouter", "/api/v1/responses", responses(tools=[KEPT_SEARCH]), "web-search"),
        ("azure-openai", "/openai/v1/responses", responses(tools=[KEPT_SEARCH]), "web-search"),
        # A text is true where only truth is asked for.
        ("openai", RESPONSES, responses(store="false"), "stored-responses"),
        ("openai", RESPONSES, responses(background="null"), "background"),
        ("dashscope", CHAT, chat(enable_search="false"), "web-search"),
        # An address in a member that no rule names.
        ("dashscope", CHAT, part(video=ADDRESS), "url-content"),
        ("dashscope", CHAT, part(type="text", more={"pdf_url": [ADDRESS.upper()]}), "url-content"),
        ("dashscope", CHAT, part(type="text", text={"url": ADDRESS}), "url-content"),
        ("dashscope", CHAT, part(video=ADDRESS.upper() + "x" * 5000), "url-content"),
        ("openai", CHAT, part(type="tool_result", content=[{"video": ADDRESS}]), "url-content"),
        ("dashscope", CHAT, chat(messages=[{**USER, "images": [ADDRESS]}]), "url-content"),
        ("gemini", PREDICT, {"instances": [{"lastFrame": {"gcsUri": "gs://x/y"}}]}, "url-content"),
        ("gemini", PREDICT, {"instances": [{"prompt": {"gcsUri": "gs://x/y"}}]}, "url-content"),
        ("gemini", PREDICT, {"instances": [], "parameters": {"a": {"out": "gs://x"}}}, "files"),
        (
            "anthropic",
            MESSAGES,
            block(type="image", source={"type": "base64", "data": "", "url": ADDRESS}),
            "url-content",
        ),
        ("anthropic", MESSAGES, block(type="tool_result", content=[SEARCHED]), "content:image"),
        (
            "bedrock",
            "/model/amazon.nova-pro-v1:0/invoke",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "toolResult": {
                                    "content": [{"image": {"source": {"s3Location": {"uri": "x"}}}}]
                                }
                            }
                        ],
                    }
                ]
            },
            "url-content",
        ),
    ],
)
def test_what_a_server_may_read_otherwise_is_closed_i3(
    name: str, path: str, body: dict[str, Any], word: str
) -> None:
    """Attack: values that a rule takes for harmless, and a provider's own reader does not."""
    said = judged(model_service(name), path, body)
    assert (said.allowed, said.decision.reason) == (False, Reason.FEATURE_CLOSED)
    assert said.decision.rule.endswith(f".{word}")
    more = {word, "url-content"} if word == "content:image" else {word}
    assert judged(model_service(name, f"features = {sorted(more)}"), path, body).allowed


def test_two_rules_hold_at_any_depth() -> None:
    rules = "".join(
        f"""[[rule]]
at = "a.**"
harmless = ["*"]
features = {{ {word} = ["{word}:*"] }}
"""
        for word in ("one", "two")
    )
    root = compile_rules(parse_model_api("x", f'title = "x"\n{rules}', {}))
    inner = root.children["a"].within
    assert inner is not None
    assert [rule.features for rule in inner.values] == [
        (("one", ("one:*",)),),
        (("two", ("two:*",)),),
    ]


def test_an_excuse_stands_in_the_same_object_only() -> None:
    service = model_service("openai")
    assert judged(service, RESPONSES, responses(tools=[KEPT_SEARCH])).allowed
    apart = responses(tools=[{"type": "web_search"}, {"external_web_access": False}])
    assert not judged(service, RESPONSES, apart).allowed
    listed = responses(tools=[["web_search"]])
    assert judged(service, RESPONSES, listed).allowed  # a text is no tool


def test_spellings_of_a_name_do_not_get_around_a_rule() -> None:
    """I3: readers that fold case or know two spellings would take it for the name."""
    service = model_service("anthropic")
    web = {"type": "web_search_20250305"}
    for tool in ({"Type": web["type"]}, {"ty_pe": web["type"]}, {"\uff54ype": web["type"]}):
        assert not judged(service, MESSAGES, anthropic(tools=[tool])).allowed
    for name in ("Tools", "TOOLS", "to_ols"):
        assert not judged(service, MESSAGES, anthropic(**{name: [web]})).allowed
    both = judged(service, MESSAGES, anthropic(tools=[{"type": "custom", "Type": web["type"]}]))
    assert "two spellings" in both.why
    for value in ("WEB_SEARCH_20250305", "web_search_20250305 ", "web\u200b_search", ["custom", 1]):
        assert not judged(service, MESSAGES, anthropic(tools=[{"type": value}])).allowed
    assert judged(service, MESSAGES, anthropic(tools=[{"type": "custom"}])).allowed
    assert fold_name("x" * 100) == "x" * 100


def test_a_value_that_no_word_can_name_stays_closed() -> None:
    said = judged(model_service("anthropic"), MESSAGES, anthropic(tools=[{"type": "a b"}]))
    assert "no word opens it" in said.why
    long = judged(model_service("anthropic"), MESSAGES, anthropic(tools=[{"type": "a" * 5000}]))
    assert len(long.why) < 300


def test_a_refusal_names_several_features_and_not_too_many() -> None:
    """I9."""
    tools = [{"type": f"t{n}"} for n in range(50)]
    said = judged(model_service("anthropic"), MESSAGES, anthropic(tools=tools))
    assert 2 <= said.why.count("opens it") <= 9


def test_a_beta_that_is_not_known_is_closed() -> None:
    """I3."""
    service, body = model_service("anthropic"), anthropic()
    known = "claude-code-20250219, interleaved-thinking-2025-05-14"
    assert judged(service, MESSAGES, body, **{"anthropic-beta": known}).allowed
    said = judged(service, MESSAGES, body, **{"anthropic-beta": f"{known},auto-browse-2027-01-01"})
    assert "beta:auto-browse-2027-01-01" in said.why
    opened = model_service("anthropic", 'features = ["beta:auto-browse-2027-01-01"]')
    assert judged(opened, MESSAGES, body, **{"anthropic-beta": "auto-browse-2027-01-01"}).allowed
    remote = judged(service, MESSAGES, body, **{"anthropic-beta": "mcp-client-2025-11-20"})
    assert "remote-mcp" in remote.why
    assert judge_of(service).fields == {"anthropic-beta"}


def test_responses_are_not_kept_unless_the_policy_says_so() -> None:
    """OpenAI keeps what says nothing, so the gateway says it; all else is as it was."""
    service = model_service("openai")
    body: JsonValue = {"model": "gpt-x", "input": "hi"}
    said = judged(service, RESPONSES, body)
    assert said.body == b'{"store": false, "model": "gpt-x", "input": "hi"}'
    kept = judged(model_service("openai", 'features = ["stored-responses"]'), RESPONSES, body)
    assert (kept.allowed, kept.body) == (True, None)
    assert judged(service, RESPONSES, {}).body == b'{"store": false}'
    on_disk = facts_of(service, RESPONSES, body)
    long = judge_of(service).judge(type(on_disk)(
        on_disk.host, "POST", on_disk.path, on_disk.decision, json=body, flaw=""))  # fmt: skip
    assert not long.allowed
    assert '"store": false' in long.why


def test_only_models_that_the_policy_names_are_used() -> None:
    service = model_service("anthropic", 'models = ["claude-*-haiku-*", "claude-x"]')
    assert judged(service, MESSAGES, anthropic()).allowed
    assert judged(service, MESSAGES, anthropic(model="claude-3-haiku-1")).allowed
    said = judged(service, MESSAGES, anthropic(model="claude-opus-4"))
    assert said.decision.reason is Reason.MODEL_NOT_GRANTED
    assert said.decision.rule == "services.anthropic.models"
    nameless = judged(service, MESSAGES, {"messages": [USER]})
    assert "names no model" in nameless.why
    routed = model_service("openrouter", 'models = ["a/*"]')
    path = "/api/v1/chat/completions"
    assert judged(routed, path, chat(model="a/b", models=["a/c"])).allowed
    assert not judged(routed, path, chat(model="a/b", models=["c/d"])).allowed


def test_a_model_is_also_named_by_path_and_query() -> None:
    service = model_service("gemini", 'models = ["gemini-2.5-flash*"]')
    flash = "/v1beta/models/gemini-2.5-flash-lite:generateContent"
    assert judged(service, flash, gemini()).allowed
    assert not judged(service, GEMINI, gemini()).allowed
    openai = model_service("openai", 'models = ["gpt-realtime*"]')
    facts = facts_of(openai, "/v1/realtime", None, word="WEBSOCKET", query="model=gpt-realtime-2")
    assert judge_of(openai).judge(facts).allowed
    other = facts_of(openai, "/v1/realtime", None, word="WEBSOCKET", query="a=b&model=gpt-9")
    assert not judge_of(openai).judge(other).allowed
    twice = facts_of(openai, "/v1/realtime", None, word="WEBSOCKET",
                     query="model=gpt-realtime-2&model=gpt-9")  # fmt: skip
    assert not judge_of(openai).judge(twice).allowed


def test_the_length_of_an_answer_is_capped() -> None:
    service = model_service("anthropic", "max_tokens = 100")
    assert judged(service, MESSAGES, anthropic()).allowed
    for value in (101, "100", True, 1e2):
        said = judged(service, MESSAGES, anthropic(max_tokens=value))
        assert said.decision.rule == "services.anthropic.max_tokens"
    assert not judged(service, MESSAGES, {"model": "x", "messages": [USER]}).allowed
    openai = model_service("openai", "max_tokens = 100")
    assert judged(openai, CHAT, {"model": "x"}).body == b'{"max_tokens": 100, "model": "x"}'
    assert judged(openai, CHAT, chat(max_completion_tokens=100)).body is None
    google = model_service("gemini", "max_tokens = 100")
    assert judged(google, GEMINI, gemini(generationConfig={"maxOutputTokens": 100})).allowed
    assert not judged(google, GEMINI, gemini(generationConfig={"maxOutputTokens": 101})).allowed
    assert not judged(google, GEMINI, gemini()).allowed


def test_messages_of_a_websocket_are_judged_as_bodies() -> None:
    service = model_service("openai")
    judge = judge_of(service)
    handshake = facts_of(service, RESPONSES, None, word="WEBSOCKET")
    assert judge.judge(handshake).allowed
    first = responses(type="response.create", tools=[TOOL])
    assert judge.judge_message(facts_of(service, RESPONSES, first, word="WEBSOCKET")).allowed
    bad = responses(type="response.create", tools=[{"type": "web_search"}])
    assert not judge.judge_message(facts_of(service, RESPONSES, bad, word="WEBSOCKET")).allowed
    unknown = responses(type="tool.run")
    assert not judge.judge_message(facts_of(service, RESPONSES, unknown, word="WEBSOCKET")).allowed
    raw = facts_of(service, RESPONSES, None, word="WEBSOCKET")
    assert judge.judge_message(raw).decision.reason is Reason.BODY_UNJUDGED


def test_realtime_sessions_get_no_remote_tools() -> None:
    service = model_service("openai")
    judge = judge_of(service)
    for update, allowed in (
        ({"type": "session.update", "session": {"tools": [{"type": "function"}]}}, True),
        ({"type": "session.update", "session": {"tools": [{"type": "mcp"}]}}, False),
        ({"type": "response.create", "response": {"tools": [{"type": "mcp"}]}}, False),
        ({"type": "input_audio_buffer.append", "audio": "QQ=="}, True),
    ):
        facts = facts_of(service, "/v1/realtime", update, word="WEBSOCKET")
        assert judge.judge_message(facts).allowed is allowed


def test_bodies_that_are_no_object_cannot_be_judged() -> None:
    service = model_service("anthropic")
    for body in ([], [anthropic()], "x", 1):
        said = judged(service, MESSAGES, body)
        assert said.decision.reason is Reason.BODY_UNJUDGED


@pytest.mark.parametrize(
    ("word", "path", "more", "wanted"),
    [
        ("POST", MESSAGES, "", True),
        ("POST", "/v1/%6Dessages", "", True),
        ("POST", "/V1/Messages/", "", True),
        ("GET", "/v1/models", "", False),
        ("GET+body", "/v1/models", "", True),
        ("POST", "/v1/files", "", True),
        ("POST", "/v1/files", 'allow_also = ["POST /v1/files"]', False),
        ("POST", "/v1/files", 'allow_also = ["POST /v1/**"]', True),
        ("POST", MESSAGES, 'allow = ["POST /v1/messages"]', True),
        ("GRPC", "/anthropic.Api/Send", "", True),
    ],
)
def test_other_bodies_are_closed_unless_the_policy_names_their_endpoint(
    word: str, path: str, more: str, wanted: bool
) -> None:
    """I3."""
    service = model_service("anthropic", more)
    rule = next((r.id for r in service.hosts[0].rules if "allow_also" in r.id), "catalogue.x")
    decision = RequestDecision(Verdict.ALLOW, Reason.RULE, rule, "anthropic")
    judge, host = judge_of(service), service.hosts[0]
    assert judge.wants(host, word, RequestPath.parse(path), decision) is wanted


def test_what_a_person_approved_is_not_judged_where_no_rule_of_a_body_is_known() -> None:
    service = model_service("anthropic")
    decision = RequestDecision(Verdict.ALLOW, Reason.APPROVED, "approvals", "anthropic")
    judge, host = judge_of(service), service.hosts[0]
    assert not judge.wants(host, "POST", RequestPath.parse("/v1/files"), decision)
    assert judge.wants(host, "POST", RequestPath.parse(MESSAGES), decision)


def test_hosts_without_rules_and_plain_endpoints_are_not_judged() -> None:
    service = model_service("openai")
    decision = RequestDecision(Verdict.ALLOW, Reason.RULE, "x", "openai")
    judge = judge_of(service)
    path = RequestPath.parse("/v1/audio/transcriptions")
    assert not judge.wants(service.hosts[0], "POST", path, decision)
    assert not judge.wants(service.hosts[1], "POST", path, decision)


def test_an_unlisted_endpoint_says_what_would_open_it() -> None:
    said = judged(model_service("openai"), "/v1/images/edits", {})
    assert said.decision.reason is Reason.BODY_UNJUDGED
    assert 'allow_also = ["POST /v1/images/edits"]' in said.why


def test_a_long_body_is_judged_in_slices() -> None:
    """I12."""
    service = model_service("anthropic")
    many = anthropic(messages=[{"role": "user", "content": [{"type": "text"}]}] * 5000)
    slices = judge_of(service).judge_in_slices(facts_of(service, MESSAGES, many))
    turns = sum(1 for _ in slices)
    assert turns > 5


def test_texts_that_must_be_compared_have_few_to_a_slice_i12() -> None:
    """Attack: 90,000 different texts at a place with patterns. Control: the same text each time."""
    service = model_service("openai")

    def turns(texts: list[str]) -> int:
        facts = facts_of(service, CHAT, chat(messages=[{"x": texts}]))
        return sum(1 for _ in judge_of(service).judge_in_slices(facts))

    different = turns([f"{n}-{'x' * MAX_REMEMBERED}" for n in range(2000)])
    assert different >= 2000 * VALUES_OF_A_LOOK // VALUES_OF_A_SLICE
    assert turns(["one"] * 2000) < different // 10


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("anthropic", 'features = ["web-serch"]', "there is no 'web-serch'"),
        ("anthropic", 'features = ["gadget:x"]', "there is no 'gadget:x'"),
        ("anthropic", 'features = ["Web Search"]', "a feature is a word"),
        ("anthropic", 'models = ["a b"]', "a model is a name"),
        ("linear", 'features = ["web-search"]', "services of models"),
        ("linear", "max_tokens = 5", "services of models"),
        ("anthropic", 'features = ["zzzzzz"]', "there is no"),
    ],
)
def test_a_policy_that_names_what_does_not_exist_is_refused(name: str, more: str, why: str) -> None:
    with pytest.raises(PolicyFaults) as faults:
        model_service(name, more)
    assert why in str([fault.message for fault in faults.value.faults])


# ── what a person and the agent are told ──────────────────────────────────────────────────────────


def test_why_explains_a_body() -> None:
    rules = book('[services.thinker]\nsecret = "store:x"\nmodels = ["small"]')
    url = "https://api.thinker.example/v1/think"

    def ask(body: bytes, method: str = "POST", target: str = url) -> Explanation:
        found = parse_target((target,), method)
        assert isinstance(found, RequestTarget)
        return explain(rules, found, body=body)

    good = ask(b'{"model": "small"}')
    assert (good.decision.allowed, good.said) == (True, "inspected and allowed, with this body")
    closed = ask(b'{"model": "small", "tools": [{"type": "web_search"}]}')
    assert closed.decision.reason is Reason.FEATURE_CLOSED
    assert str(closed.fix) == '[services.thinker]\nfeatures = ["web-search"]'
    assert ask(b'{"model": "large"}').fix is None
    assert ask(b"{").decision.reason is Reason.BODY_UNJUDGED
    assert ask(b"{}", "GET").decision.reason is Reason.NO_RULE
    named = book('[services.thinker]\nsecret = "store:x"\nallow = ["POST /v1/draw"]')
    draw = parse_target(("https://api.thinker.example/v1/draw",), "POST")
    assert isinstance(draw, RequestTarget)
    assert explain(named, draw, body=b"x").caveats == ("its body is not judged",)


def test_why_explains_a_message_of_mcp_by_the_grant_that_opens_it_or_would() -> None:
    rules = book('[services.server]\ntools = ["list_*", { name = "get", where = { team = "A" } }]')
    target = parse_target(("https://mcp.example/mcp",), "POST")
    assert isinstance(target, RequestTarget)

    def ask(method: str, params: dict[str, Any], *, batch: bool = False) -> Explanation:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = json.dumps([message] if batch else message).encode()
        return explain(rules, target, body=body)

    called = ask("tools/call", {"name": "list_issues"})
    assert (called.decision.allowed, called.decision.rule) == (True, "services.server.tools")
    assert called.said == "inspected and allowed: calls the tool 'list_issues'"
    assert ask("ping", {}).said == "inspected and allowed, with this body"
    for method, params, line in (
        ("tools/call", {"name": "delete"}, 'tools = ["delete"]'),
        ("prompts/get", {"name": "review"}, 'prompts = ["review"]'),
        ("resources/read", {"uri": "docs://a"}, 'resources = ["docs://a"]'),
    ):
        refused = ask(method, params)
        assert not refused.decision.allowed
        assert str(refused.fix) == f"[services.server]\n{line}"
        assert ask(method, params, batch=True).fix is None
    assert ask("tools/call", {"name": "get", "arguments": {"team": "B"}}).fix is None


def test_why_says_that_a_body_is_judged_too() -> None:
    rules = book('[services.thinker]\nsecret = "store:x"')
    found = explain(rules, parse_target(("https://api.thinker.example/v1/think",), "POST"))
    assert any("--data" in caveat for caveat in found.caveats)


def test_why_explains_a_message_of_a_websocket() -> None:
    service = model_service("openai")
    rules = Rulebook(replace(book("").policy, services=(service,)))
    target = parse_target(("wss://api.openai.com/v1/responses",), "GET")
    assert isinstance(target, RequestTarget)
    said = explain(rules, target, body=b'{"type": "response.create", "tools": [{"type": "mcp"}]}')
    assert "remote-mcp" in said.said


def test_the_agent_and_the_person_read_what_is_open_and_closed() -> None:
    policy = book(
        '[services.thinker]\nsecret = "store:x"\nfeatures = ["tool:y"]\n'
        'models = ["small"]\nmax_tokens = 9'
    ).policy
    told = json.loads(disclose(policy))["services"][0]["model"]
    assert told == {
        "features": ["tool:y"], "closed": ["web-search"], "models": ["small"], "max_tokens": 9
    }  # fmt: skip
    lines = [line.text for line in summarise(policy) if line.subject == "thinker"]
    for words in ("opens tool:y", "keeps closed web-search", "models small", "answers of 9 tokens"):
        assert any(line.startswith(words) for line in lines)
    whole = book('[services.thinker]\nsecret = "store:x"\nfeatures = ["web-search"]').policy
    assert not any("keeps closed" in line.text for line in summarise(whole))
    assert json.loads(disclose(book("").policy))["services"] == []


def test_only_a_few_short_values_are_remembered() -> None:
    """I9: what the sandbox sends would fill the gateway's memory otherwise."""
    service, picture = model_service("openai"), "data:image/png;base64,"
    for n in range(MAX_REMEMBERED + 10):
        parts = [{"type": "image_url", "image_url": {"url": f"{picture}{n}"}}]
        body = chat(messages=[{"role": "user", "content": parts}])
        assert judged(service, CHAT, body).allowed
    assert judged(service, CHAT, part(type="image_url", image_url=picture + "x" * 99)).allowed


def test_lists_in_lists_are_gone_through() -> None:
    """I3: a reader that flattens them would find the tool."""
    tools = [[[{"type": "web_search_20250305"}]], []]
    assert not judged(model_service("anthropic"), MESSAGES, anthropic(tools=tools)).allowed
    plain = anthropic(tools=[[{"type": "custom"}]])
    assert judged(model_service("anthropic"), MESSAGES, plain).allowed


def test_objects_of_many_members_are_looked_at_in_slices() -> None:
    """I12: the turn of another session comes before the last of them."""
    service = model_service("anthropic")
    tool = {f"x{n}": 1 for n in range(5 * VALUES_OF_A_SLICE)} | {"type": "web_search_20250305"}
    slices = judge_of(service).judge_in_slices(facts_of(service, MESSAGES, anthropic(tools=[tool])))
    assert sum(1 for _ in slices) >= 4
    assert not judged(service, MESSAGES, anthropic(tools=[tool])).allowed
    many = anthropic(**{f"x{n}": 1 for n in range(5 * VALUES_OF_A_SLICE)})
    said = judged(service, MESSAGES, many)
    assert said.why.count(" opens it") == MAX_FINDINGS


def test_many_flags_and_many_models_are_refused_in_one_short_line() -> None:
    """I9, I12: a head of 64 KiB has thousands of flags, and a list any number of models."""
    for count, findings in ((MAX_FLAGS, MAX_FINDINGS), (MAX_FLAGS + 1, 0), (5000, 0)):
        flags = {"anthropic-beta": ",".join(f"x{n}" for n in range(count))}
        said = judged(model_service("anthropic"), MESSAGES, anthropic(), **flags)
        assert not said.allowed
        assert said.why.count(" opens it") == findings
    many = {"anthropic-beta": ",".join(["oauth-1", ""] * 5000)}
    assert judged(model_service("anthropic"), MESSAGES, anthropic(), **many).allowed
    service = model_service("openrouter", 'models = ["a*"]')
    for count, allowed in ((MAX_MODELS, True), (MAX_MODELS + 1, False)):
        body = chat(model="a0", models=[f"a{n}" for n in range(count)])
        assert judged(service, "/api/v1/chat/completions", body).allowed is allowed


# ── models and tokens, provider by provider ───────────────────────────────────────────────────────

ASK = {"messages": [USER]}
RAW = "/v1/projects/p/locations/l/publishers/anthropic/models"
LISTED = [
    ("anthropic", MESSAGES, anthropic(model="{}")),
    ("openai", CHAT, chat(model="{}")),
    ("openai", RESPONSES, responses(model="{}")),
    ("mistral", CHAT, chat(model="{}")),
    ("xai", RESPONSES, responses(model="{}")),
    ("xai", MESSAGES, anthropic(model="{}")),
    ("openrouter", "/api/v1/chat/completions", chat(model="{}")),
    ("openrouter", "/api/v1/chat/completions", chat(model="fine", models=["fine", "{}"])),
    ("openrouter", "/api/v1/chat/completions", chat(model="fine", models=[["{}"]])),
    ("azure-openai", "/openai/v1/chat/completions", chat(model="{}")),
    ("azure-openai", "/models/chat/completions", chat(model="{}")),
    ("azure-openai", "/openai/deployments/{}/chat/completions", ASK),
    ("azure-openai", "/openai/deployments/fine/chat/completions", chat(model="{}")),
    ("gemini", "/v1beta/models/{}:generateContent", gemini()),
    ("gemini", "/v1beta/models/fine:generateContent", gemini(model="{}")),
    ("vertex", f"{RAW}/{{}}:rawPredict", anthropic(model="fine")),
    ("vertex", f"{RAW}/fine:streamRawPredict", anthropic(model="{}")),
    ("bedrock", "/model/{}/converse", converse()),
    ("anthropic", MESSAGES, anthropic(model="fine", tools=[{"type": "advisor_1", "model": "{}"}])),
    ("openai", RESPONSES, responses(model="fine", tools=[{**TOOL, "model": "{}"}])),
    (
        "gemini-code-assist",
        "/v1internal:generateContent",
        {"model": "{}", "request": {**gemini(), "model": "fine"}},
    ),
    ("bedrock", "/model/{}/invoke", anthropic(model="fine")),
    ("bedrock", "/model/fine/invoke", anthropic(model="{}")),
]
"""Every place where a request names its model."""


@pytest.mark.parametrize(("name", "path", "body"), LISTED)
def test_only_a_listed_model_is_asked_wherever_it_is_named(
    name: str, path: str, body: dict[str, Any]
) -> None:
    """I3, with its control: the same request for the listed model."""
    service = model_service(name, 'models = ["fine"]')
    text = json.dumps(body)
    said = judged(service, path.replace("{}", "fine"), json.loads(text.replace("{}", "fine")))
    assert said.allowed, said.why
    for other in ("other", "Fine", "fine:x", "fine@x", "fine2"):
        asked = path.replace("{}", other.replace(":", "%3A")), text.replace("{}", other)
        refused = judged(service, asked[0], json.loads(asked[1]))
        assert refused.decision.reason == Reason.MODEL_NOT_GRANTED, other


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/model/anthropic.claude-v1%3A0/converse", "anthropic.claude-v1:0"),
        ("/model/us%2Fone/converse", "us/one"),
        ("/model/arn%3Aaws%3Abedrock%3A1%3Aprofile%2Fone/invoke", "arn:aws:bedrock:1:profile/one"),
    ],
)
def test_a_model_with_colons_and_slashes_is_listed_by_its_whole_name(path: str, model: str) -> None:
    body = converse() if path.endswith("converse") else anthropic()
    listed = model_service("bedrock", f'models = ["{model}", "claude-x"]')
    assert judged(listed, path, body).allowed
    part = model_service("bedrock", 'models = ["us", "arn", "anthropic.claude-v1", "claude-x"]')
    assert judged(part, path, body).decision.reason == Reason.MODEL_NOT_GRANTED


@pytest.mark.parametrize("value", [None, -1, [], [5], {}, "5", 5.0, True, 101, [None]])
@pytest.mark.parametrize(
    ("name", "path", "body", "member"),
    [
        ("anthropic", MESSAGES, anthropic(), "max_tokens"),
        ("openai", CHAT, chat(), "max_tokens"),
        ("openai", CHAT, chat(max_tokens=5), "max_completion_tokens"),
        ("openai", RESPONSES, responses(), "max_output_tokens"),
        ("mistral", CHAT, chat(), "max_tokens"),
    ],
)
def test_tokens_are_a_number_within_the_limit(
    name: str, path: str, body: dict[str, Any], member: str, value: object
) -> None:
    """Attack: with null there, the gateway's own number stood before it, and the last one counts;
    -1 is no limit for some servers."""
    service = model_service(name, "max_tokens = 100")
    refused = judged(service, path, {**body, member: value})
    assert refused.decision.rule == f"services.{name}.max_tokens"
    assert judged(service, path, {**body, member: 100}).allowed
    assert judged(model_service(name), path, {**body, member: value}).allowed


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/chat/completions", chat(model="a:online")),
        ("/api/v1/chat/completions", chat(model="a", models=["b", "c:online"])),
        ("/api/v1/messages", anthropic(model="a:online")),
        ("/api/v1/responses", responses(model="a:online")),
    ],
)
def test_a_model_that_searches_by_itself_is_closed(path: str, body: dict[str, Any]) -> None:
    said = judged(model_service("openrouter"), path, body)
    assert 'features = ["web-search"] opens it' in said.why
    assert judged(model_service("openrouter", 'features = ["web-search"]'), path, body).allowed


SEARCHING = "m" * 60 + "-search-preview"


@pytest.mark.parametrize(
    ("name", "path", "body", "word"),
    [
        ("bedrock", "/model/arn%3Aaws%3Abedrock%3A1%3Aprompt%2FP/converse", converse(),
         "stored-responses"),
        ("openai", CHAT, chat(model=SEARCHING), "web-search"),
        ("azure-openai", "/openai/deployments/gpt-4o-search-preview/chat/completions",
         {"messages": [USER]}, "web-search"),
        ("openai", CHAT, chat(service_tier="priority"), "priority"),
        ("openai", RESPONSES, responses(service_tier="priority"), "priority"),
        ("anthropic", MESSAGES, anthropic(speed="fast"), "priority"),
        ("anthropic", MESSAGES, anthropic(inference_geo="us"), "priority"),
        ("bedrock", CONVERSE, converse(serviceTier={"type": "priority"}), "priority"),
        ("bedrock", CONVERSE, converse(performanceConfig={"latency": "optimized"}), "priority"),
        ("gemini", GEMINI, gemini(serviceTier="priority"), "priority"),
        ("gemini", GEMINI, gemini(service_tier="PRIORITY"), "priority"),
    ],
)  # fmt: skip
def test_stored_prompts_long_names_and_dearer_tiers_are_closed(
    name: str, path: str, body: dict[str, Any], word: str
) -> None:
    """I3, with its control: the word of the refusal opens it."""
    assert f'features = ["{word}"] opens it' in judged(model_service(name), path, body).why
    assert judged(model_service(name, f'features = ["{word}"]'), path, body).allowed


def test_dashscope_is_asked_for_no_plug_in_in_the_head() -> None:
    """I3."""
    for field, word in (("x-dashscope-plugin", "connectors"), ("x-dashscope-async", "background")):
        more = {field: "enable"}
        assert not judged(model_service("dashscope"), CHAT, chat(), **more).allowed
        assert judged(
            model_service("dashscope", f'features = ["{word}"]'), CHAT, chat(), **more
        ).allowed
    harmless = {"x-dashscope-async": "disable"}
    assert judged(model_service("dashscope"), CHAT, chat(), **harmless).allowed


def test_a_dearer_tier_is_also_named_in_the_head() -> None:
    """I3."""
    tier = "x-amzn-bedrock-service-tier"
    invoke = "/model/anthropic.claude-v1/invoke"
    assert not judged(model_service("bedrock"), invoke, anthropic(), **{tier: "priority"}).allowed
    assert judged(model_service("bedrock"), invoke, anthropic(), **{tier: "default"}).allowed


def test_settings_that_an_account_keeps_are_closed() -> None:
    """They may turn on a search."""
    for model in ("@preset/mine", "a@preset/mine"):
        said = judged(model_service("openrouter"), "/api/v1/chat/completions", chat(model=model))
        assert 'features = ["stored-responses"] opens it' in said.why
