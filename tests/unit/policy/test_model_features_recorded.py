"""Requests of real agents, recorded in a sandbox against a provider on loopback and trimmed: what
they send passes with no word in the policy, and one word opens web search.

`tests/system/clients/test_attack_agents.py` runs the agents themselves. The recordings have the
names, types and numbers of each body; texts and schemas are cut.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from keyhole.model.decision import Reason
from keyhole.model.host import Host
from tests.rigs.models import requests
from tests.rigs.models.requests import facts_of, judge_of, model_service

RECORDED = Path(requests.__file__).parent / "recorded"
AGENTS = sorted(path.stem for path in RECORDED.glob("*.json"))
EACH = [
    pytest.param(recording, id=f"{name}-{number}")
    for name in AGENTS
    for number, recording in enumerate(json.loads((RECORDED / f"{name}.json").read_text()))
]
SEARCHES = {
    "messages": ("tools", {"type": "web_search_20250305", "name": "web_search"}),
    "responses": ("tools", {"type": "web_search"}),
    "completions": ("web_search_options", {}),
    "generateContent": ("tools", {"googleSearch": {}}),
    "streamGenerateContent": ("tools", {"googleSearch": {}}),
}
"""What asks for a search, by the last word of the path."""


def judged(recording: dict[str, Any], body: object, more: str = "") -> tuple[bool, str, str]:
    service = model_service(recording["service"], more)
    wanted = Host.parse(recording["host"])
    at = next(
        number
        for number, host in enumerate(service.hosts)
        if any(pattern.host == wanted for pattern in host.patterns)
    )
    facts = facts_of(service, recording["path"], body, host=at, **recording["fields"])
    judge = judge_of(service)
    assert judge.wants(facts.host, facts.word, facts.path, facts.decision)
    said = judge.judge(facts)
    return said.allowed, said.why, said.decision.reason


def test_the_agents_that_the_issue_names_are_recorded() -> None:
    named = {"aider", "claude-code", "codex", "copilot", "gemini-cli", "opencode"}
    assert named <= set(AGENTS)


@pytest.mark.parametrize("recording", EACH)
def test_a_recorded_request_passes_with_no_word_in_the_policy(recording: dict[str, Any]) -> None:
    allowed, why, _ = judged(recording, recording["body"])
    assert allowed, why


@pytest.mark.parametrize("recording", EACH)
def test_a_search_is_refused_in_one_line_and_one_word_opens_it(recording: dict[str, Any]) -> None:
    """I3, with its control."""
    body = copy.deepcopy(recording["body"])
    last = recording["path"].rpartition("/")[2].rpartition(":")[2]
    name, value = SEARCHES[last]
    body[name] = [*body.get("tools", []), value] if name == "tools" else value
    allowed, why, reason = judged(recording, body)
    assert (allowed, reason) == (False, Reason.FEATURE_CLOSED)
    assert "\n" not in why
    assert 'features = ["web-search"] opens it' in why
    assert judged(recording, body, 'features = ["web-search"]')[0]
