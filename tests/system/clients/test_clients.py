"""Unmodified clients work inside, with credentials that they never hold (I1, I4, I6, I7)."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.errands import Household

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

CURL = """
curl -sS -H 'Authorization: Bearer of-the-client' -H 'X-Kept: yes' \
  'https://billing.example/v1/echo?page=2'
"""

# The name that it is sent to has a certificate of its own, which the session's CA is no issuer of.
REDIRECT = """
cat /etc/keyhole/bundle.pem origin-ca.pem >both.pem
curl -sSL --cacert both.pem https://billing.example/v1/away
"""

GIT = """
export GIT_TERMINAL_PROMPT=0
git clone --quiet https://git.example/acme/widgets.git copy && cat copy/readme
cd copy && echo more >>readme && git -c user.name=a -c user.email=a@b commit --quiet -am more
git push --quiet origin main || echo "not pushed"
cd .. && git clone --quiet https://git.example/acme/vault.git other || echo "no vault"
"""

ECHOES = {
    "curl": ("curl", ""),
    "requests": ("web", "requests"),
    "httpx": ("web", "httpx"),
    "node-fetch": ("node", "fetch"),
    "node-https": ("node", "https"),
    "java-httpclient": ("java", "modern"),
    "java-httpsurlconnection": ("java", "old"),
}
"""Clients of the service that repeats what it is told: the errand, and where in what it said."""


@pytest.fixture(scope="module")
def household(new_project: Callable[[], Project], services: Services, inside: Inside) -> Household:
    """A project with every service."""
    made = Household(new_project(), services, inside)
    made.place("sdks.py", "aws.py", "web.py", "talk.py", "fetch.mjs", "Fetch.java")
    return made


@pytest.fixture(scope="module")
def said(household: Household, inside: Inside) -> dict[str, Any]:
    """What every client said, all in one run."""
    python = f"exec {inside.python} -s"
    errands = {
        "sdks": f"{python} sdks.py",
        "aws": f"{python} aws.py",
        "web": f"{python} web.py",
        "talk": f"{python} talk.py",
        "curl": CURL,
        "redirect": REDIRECT,
        "git": GIT,
        "node": "exec node fetch.mjs",
        "java": "exec java -XX:TieredStopAtLevel=1 Fetch.java",
        "env": "exec env -0",
    }
    return household.errands(errands)[0]


def result(said: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    ended = said[name]
    assert ended["code"] == 0, ended["err"]
    return json.loads(ended["out"])


def environment(said: dict[str, Any]) -> dict[str, str]:
    entries = said["env"]["out"].rstrip("\0").split("\0")
    return dict(entry.split("=", 1) for entry in entries)


def test_the_anthropic_sdk_works_whole_and_streaming(
    said: dict[str, Any], services: Services
) -> None:
    """I6: what it sent was the placeholder of its environment, what arrived is the key alone.

    The stream's second half is sent when its first has come: events leave as they arrive.
    """
    found = result(said, "sdks")["anthropic"]
    assert (found["whole"], found["pieces"]) == ("HELLO", ["one ", "two"])
    held = environment(said)["ANTHROPIC_API_KEY"]
    assert held.startswith("sk-ant-api03-")
    for request in services.requests("api.anthropic.com"):
        keys = [value for name, value in request["headers"] if name == "x-api-key"]
        assert keys == [services.keys.anthropic]
        assert held not in json.dumps(request)


def test_the_anthropic_sdk_meets_a_refusal_as_an_error_of_its_own(
    said: dict[str, Any], services: Services
) -> None:
    """I3: a path that the catalogue guards. Control: the requests above."""
    denied = result(said, "sdks")["anthropic"]["denied"]
    assert denied["reason"] == "guarded-endpoint"
    assert denied["retry"] is False
    assert "keyhole why https://api.anthropic.com/v1/files" in denied["why"]
    paths = [request["path"] for request in services.requests("api.anthropic.com")]
    assert paths
    assert not [path for path in paths if path.startswith("/v1/files")]


def test_the_openai_sdk_works_whole_and_streaming(said: dict[str, Any], services: Services) -> None:
    """I6, as above."""
    found = result(said, "sdks")["openai"]
    assert (found["whole"], found["pieces"]) == ("HELLO", ["one ", "two"])
    held = environment(said)["OPENAI_API_KEY"]
    assert held.startswith("sk-proj-")
    for request in services.requests("api.openai.com"):
        keys = [value for name, value in request["headers"] if name == "authorization"]
        assert keys == [f"Bearer {services.keys.openai}"]
        assert held not in json.dumps(request)


@pytest.mark.parametrize("client", ECHOES)
def test_a_client_is_given_the_credential_and_sees_the_placeholder_come_back(
    said: dict[str, Any], client: str
) -> None:
    """I6, I7: its own header does not travel, the service's is written, and its echo replaced.

    Control: its other header is repeated as it is.
    """
    errand, part = ECHOES[client]
    if errand in ("node", "java") and shutil.which(errand) is None:
        pytest.skip(f"{errand} is not installed")
    found = result(said, errand)
    headers = (found[part] if part else found)["headers"]
    assert headers["x-kept"] == "yes"
    assert headers["host"] == "billing.example"
    assert headers["authorization"].startswith("Bearer keyhole-")
    assert "of-the-client" not in json.dumps(found)


def test_the_service_that_repeats_got_the_key_from_each_client(
    said: dict[str, Any], services: Services
) -> None:
    """The other half of the test above, as the origin saw it."""
    assert said
    requests = services.requests("billing.example")
    agents = [dict(request["headers"]).get("user-agent", "").split("/")[0] for request in requests]
    assert {"curl", "python-requests", "python-httpx"} <= set(agents)
    for agent, request in zip(agents, requests, strict=True):
        if agent == "load":
            continue  # of test_custody.py, whose policy writes another secret
        keys = [value for name, value in request["headers"] if name == "authorization"]
        assert keys == [f"Bearer {services.keys.billing}"]


def test_a_body_of_unknown_length_arrives(said: dict[str, Any]) -> None:
    assert result(said, "web")["posted"] == "piece " * 3


def test_a_method_that_is_not_allowed_is_refused_in_words(said: dict[str, Any]) -> None:
    """I3. Control: the other methods of the same address, above."""
    status, answer = result(said, "web")["denied"]
    assert status == 403
    assert (answer["error"], answer["reason"], answer["retry"]) == ("denied", "no-rule", False)
    assert "keyhole why --method DELETE https://billing.example/v1/echo" in answer["why"]


def test_a_redirect_is_followed_without_the_credential(
    said: dict[str, Any], services: Services
) -> None:
    """I4: the credential goes to its host and to no other that this one names."""
    found = result(said, "redirect")
    assert (found["host"], found["path"]) == ("plain.example", "/landed")
    landed = services.requests("plain.example")
    assert landed
    assert services.keys.billing not in json.dumps(landed)


def test_boto3_puts_and_gets_objects(said: dict[str, Any], services: Services) -> None:
    """I6: signed with placeholders inside, and at the origin right under the real keys."""
    found = result(said, "aws")["s3"]
    assert found == {
        "plain": 10,
        "stream": 270_000,
        "a b+c/ü~*'()!.txt": 7,
        "empty": 0,
        "delete": 403,  # which the policy does not allow
    }
    held = environment(said)
    requests = services.requests("widgets.s3.eu-west-1.amazonaws.com")
    assert held["AWS_ACCESS_KEY_ID"] not in json.dumps(requests)
    assert {request["method"] for request in requests} == {"PUT", "GET"}
    payloads = {dict(request["headers"])["x-amz-content-sha256"] for request in requests}
    assert "STREAMING-UNSIGNED-PAYLOAD-TRAILER" in payloads


def test_boto3_talks_to_bedrock(said: dict[str, Any]) -> None:
    """The answer's stream is Amazon's own framing, which the SDK checks by its sums."""
    assert result(said, "aws")["bedrock"] == {
        "whole": "HELLO",
        "pieces": ["one ", "two"],
        "invoked": {"completion": "HELLO"},
    }


def test_what_is_signed_with_another_key_does_not_pass(said: dict[str, Any]) -> None:
    """I6: an attacker's own account cannot be reached. Control: the placeholder's, above."""
    assert result(said, "aws")["foreign"] == 403


def test_the_verifier_of_signatures_knows_right_from_wrong(services: Services) -> None:
    """The control of the tests above: asked directly, with the real keys and with others."""
    right = (services.keys.aws_id, services.keys.aws_secret)
    assert services.sign_directly(*right) == 200
    assert services.sign_directly(right[0], "x" * 40) == 403
    assert services.sign_directly("AKIAAAAAAAAAAAAAAAAA", right[1]) == 403


def test_a_websocket_is_given_the_credential_and_cut_when_it_would_bring_it_back(
    said: dict[str, Any], services: Services
) -> None:
    """I7: no compression is agreed on, so that frames can be read. Control: other messages."""
    assert result(said, "talk") == {"small": "hello", "large": True, "extensions": [], "key": "cut"}
    talks = [r for r in services.requests("billing.example") if r["path"].startswith("/v1/talk")]
    assert talks
    for talk in talks:
        headers = dict(talk["headers"])
        assert headers["authorization"] == f"Bearer {services.keys.billing}"
        assert "sec-websocket-extensions" not in headers


def test_git_clones_what_is_granted_and_nothing_else(
    said: dict[str, Any], services: Services
) -> None:
    """I3: git offers no credential before it is asked, and is never asked. Reading alone for now:
    what a push holds is judged by a later version."""
    assert said["git"]["out"].splitlines() == ["of acme/widgets.git", "not pushed", "no vault"]
    assert "403" in said["git"]["err"]
    assert {request.target.split("?")[0] for request in services.git_requests} == {
        "/acme/widgets.git/info/refs",
        "/acme/widgets.git/git-upload-pack",
    }


def test_what_every_client_said_holds_no_secret(said: dict[str, Any], services: Services) -> None:
    """I1. Control: the placeholders are there."""
    everything = json.dumps(said)
    assert environment(said)["OPENAI_API_KEY"] in everything
    assert not [key for key in services.keys.all() if key in everything]
