"""The APIs of models are data: each file loads, and a mistake is named with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.catalogue import FileCatalogue, FileModelApis
from keyhole.inject.model_api import ModelApi, parse_judged, parse_model_api
from keyhole.model.errors import Unparsable
from keyhole.model.rule import BODILESS

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

APIS = FileModelApis()

ONE = """
title = "An API"
model = ["model"]
tokens = ["a.max"]
members = ["model", "a"]
[fields.x-beta]
harmless = ["good-*"]
[[rule]]
at = "tools[*].type"
kind = "tool"
harmless = ["function"]
features = { web-search = ["web*"] }
excused = { web-search = { external = "false" } }
plain = true
[[rule]]
at = "store"
missing = "stored"
written = "false"
"""


def parse(text: str, **others: ModelApi) -> ModelApi:
    return parse_model_api("one", text, others)


def test_every_file_loads_and_has_features() -> None:
    assert len(APIS) == len(list(APIS)) > 10
    for name in APIS:
        api = APIS[name]
        assert api.title
        assert api.features
        assert api.kinds
    with pytest.raises(KeyError):
        APIS["no-such"]


def test_an_api_is_read_whole() -> None:
    api = parse(ONE)
    body, tools, store = api.rules
    assert (body.at, body.members, body.harmless) == ((), True, ("model", "a", "tools", "store"))
    assert (tools.at, tools.kind, tools.plain) == (("tools", "type"), "tool", True)
    assert tools.excused == (("web-search", "external", "false"),)
    assert (store.missing, store.written) == ("stored", "false")
    assert (api.model, api.tokens) == ((("model",),), (("a", "max"),))
    assert api.features == {"web-search", "stored"}
    assert api.kinds == {"tool", "member", "beta"}


def test_an_api_may_be_like_another_and_lie_deeper() -> None:
    base = parse(ONE)
    other = parse(
        'title = "x"\nlike = "base"\nmembers = ["b"]\ntokens = []\n'
        '[[rule]]\nat = "store"\notherwise = "kept"\n',
        base=base,
    )
    assert other.rules[0].harmless == ("model", "a", "tools", "store", "b")
    assert [rule.otherwise for rule in other.rules if rule.at == ("store",)] == ["kept"]
    assert (other.tokens, other.model, other.fields) == ((), base.model, base.fields)
    deep = parse('title = "x"\nlike = "base"\nunder = "in.it"\nmembers = ["in"]\n', base=base)
    assert [rule.at for rule in deep.rules] == [
        (), ("in", "it"), ("in", "it", "tools", "type"), ("in", "it", "store")]  # fmt: skip
    assert (deep.model, deep.tokens) == ((("in", "it", "model"),), (("in", "it", "a", "max"),))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "one.title"),
        ('title = "x"\ncolour = 1', "unknown key 'colour'"),
        ('title = "x"\n[[rule]]\nat = "a..b"', "one.rule[0].at"),
        ('title = "x"\n[[rule]]\nat = "a"\nfeatures = { Web = ["x"] }', "one.rule[0].features"),
        ('title = "x"\n[[rule]]\nat = "a"\nshape = 1', "unknown key 'shape'"),
        ('title = "x"\ntokens_written = "yes"', "one.tokens_written"),
        ("title = ", "one"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, why: str) -> None:
    with pytest.raises(Unparsable) as error:
        parse(text)
    assert why in str(error.value)


def test_a_host_names_an_api_that_exists() -> None:
    found = parse_judged(
        "s.judged", {"one": ["POST /a"], "plain": ["POST /b"]}, {"one": parse(ONE)}
    )
    assert [judged.api is None for judged in found] == [False, True]
    with pytest.raises(Unparsable, match="there is no API 'two'"):
        parse_judged("s.judged", {"two": []}, {})


UNJUDGED: dict[str, AbstractSet[str]] = {
    "azure-openai": {"POST /openai/deployments/*/audio/*"},
    "bedrock": {"POST /model/**/invoke-with-bidirectional-stream"},
    "groq": {"POST /openai/v1/audio/transcriptions", "POST /openai/v1/audio/translations"},
    "huggingface": {"POST /hf-inference/models/**"},
    "mistral": {"POST /v1/audio/transcriptions"},
    "openai": {"POST /v1/images/edits"},
    "xai": {
        "GRPC xai_api.Chat/GetCompletion", "GRPC xai_api.Chat/GetCompletionChunk",
        "GRPC xai_api.Image/GenerateImage", "GRPC xai_api.Sample/SampleText*",
    },
} | dict.fromkeys(("vertex", "vertex-service-account"), frozenset({
    "GRPC google.cloud.aiplatform.v1*.PredictionService/GenerateContent",
    "GRPC google.cloud.aiplatform.v1*.PredictionService/StreamGenerateContent",
    "POST /v1*/projects/*/locations/*/publishers/*/models/*:countTokens",
}))  # fmt: skip
"""Endpoints that the catalogue allows, whose bodies cannot be judged: parts, streams, protobuf. A
policy opens them by name."""


def test_every_allowed_body_of_a_judged_host_is_judged_or_known_not_to_be() -> None:
    catalogue = FileCatalogue()
    for name, template in ((name, catalogue[name]) for name in catalogue):
        for host in template.hosts:
            listed = [rule for judged in host.judged for rule in judged.rules]
            missing = {
                rule.text
                for rule in host.allow
                if not rule.methods <= BODILESS
                and not any(each.path == rule.path or each.covers(rule) for each in listed)
            }
            assert not host.judged or missing == UNJUDGED.get(name, set())
