"""A login of the host, used by code that never holds it: `keyhole run` as it is installed (I1, I7).

The providers are on loopback, with their real names. What they are told is what they would be.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from keyhole.inject.stub_files import NOBODY
from tests.rigs.clients.services import keep, random_text
from tests.rigs.vault.tokenserver import TokenServer, answer, posted, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.gateway.talk import Message
    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

HOSTS = ("api.anthropic.com", "platform.claude.com", "chatgpt.com", "auth.openai.com")
ACCOUNT = "0b5c1a52-1111-4222-8333-944445555666"

CLIENT = """
import json, os, urllib.error, urllib.request
def ask(url, headers, body=None):
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except OSError as error:
        return [0, str(error)]
said = {"env": dict(os.environ), "files": {}}
for folder, _, names in os.walk(os.environ["HOME"]):
    for name in names:
        path = os.path.join(folder, name)
        said["files"][path] = open(path, errors="replace").read()
claude = {"Authorization": "Bearer " + os.environ["CLAUDE_CODE_OAUTH_TOKEN"],
          "anthropic-beta": "fine-grained-tool-streaming-2025-05-14",
          "Content-Type": "application/json"}
said["messages"] = ask("https://api.anthropic.com/v1/messages", claude, b"{}")
said["key"] = ask("https://api.anthropic.com/api/oauth/claude_cli/create_api_key", claude, b"{}")
login = json.load(open(os.environ["HOME"] + "/.codex/auth.json"))["tokens"]
codex = {"Authorization": "Bearer " + login["access_token"],
         "chatgpt-account-id": login["account_id"]}
said["models"] = ask("https://chatgpt.com/backend-api/codex/models", codex)
refresh = json.dumps({"grant_type": "refresh_token", "refresh_token": login["refresh_token"]})
said["renew"] = [ask("https://" + where, {}, refresh.encode()) for where in
                 ("platform.claude.com/v1/oauth/token", "auth.openai.com/oauth/token")]
print(json.dumps(said))
"""

POLICY = """
[services.claude]
secret = "login:claude"
[services.codex]
secret = "login:codex"
[upstream]
ca_file = "~/origin-ca.pem"
"""


class Providers:
    """Anthropic and OpenAI: refresh tokens that can be used once, and APIs that tell all."""

    def __init__(self) -> None:
        self.old = [random_text("sk-ant-ort01-old"), random_text("rt_old")]
        self.refresh = [random_text("sk-ant-ort01-new"), random_text("rt_new")]
        later = int(time.time()) + 10 * 86400
        self.access = [random_text("sk-ant-oat01-new"), unsigned(exp=later, jti=random_text(""))]
        authority = trustme.CA()
        self.ca = authority.cert_pem.bytes().decode()
        self.server = TokenServer(authority, HOSTS, self._reply)

    def _reply(self, asked: Message) -> list[bytes]:
        host = asked.headers["host"]
        if host in ("platform.claude.com", "auth.openai.com"):
            which = int(host == "auth.openai.com")
            used = [one for one in self.renewals(host) if one is not asked]
            if used or posted(asked)["refresh_token"] != self.old[which]:
                return answer(400, {"error": "invalid_grant"}, "Connection: close")
            grant = {"access_token": self.access[which], "refresh_token": self.refresh[which]}
            return answer(200, grant | {"expires_in": 28800}, "Connection: close")
        # Whatever it knows: of the request, and of the login.
        which = int(host == "chatgpt.com")
        told = {"headers": asked.headers, "knows": [self.refresh[which], self.access[which]]}
        return answer(200, told, "Connection: close")

    def renewals(self, host: str) -> list[Message]:
        return [asked for asked in self.server.asked if asked.headers["host"] == host]

    @property
    def secrets(self) -> tuple[str, ...]:
        return (*self.old, *self.refresh, *self.access)


@pytest.fixture
def providers() -> Iterator[Providers]:
    made = Providers()
    yield made
    made.server.close()


@pytest.fixture
def project(new_project: Callable[[], Project], providers: Providers) -> Project:
    """Somebody who is logged in, for another minute."""
    made = new_project()
    keep(made, "origin-ca.pem", providers.ca)
    ends = int(time.time()) + 60
    login = {
        "accessToken": random_text("sk-ant-oat01-old"),
        "refreshToken": providers.old[0],
        "expiresAt": ends * 1000,
        "scopes": ["user:inference"],
    }
    keep(made, ".claude/.credentials.json", json.dumps({"claudeAiOauth": login}))
    tokens = {
        "id_token": unsigned(sub="1"),
        "access_token": unsigned(exp=ends),
        "refresh_token": providers.old[1],
        "account_id": ACCOUNT,
    }
    keep(made, ".codex/auth.json", json.dumps({"tokens": tokens}))
    made.policy(POLICY + providers.server.connect)
    return made


def login_file(project: Project, name: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads((project.home / name).read_text())


def test_a_subscription_is_used_and_renewed_and_none_of_its_tokens_is_inside(
    project: Project, providers: Providers
) -> None:
    """I1, I6, I7: the placeholder goes in, the renewed token goes out, and what the provider says
    of either token does not come back. Token endpoints do not exist inside (I3)."""
    said = project.python(CLIENT)
    # 1. Renewed once each, outside, and written back where the clients of the host find it.
    assert len(providers.renewals("platform.claude.com")) == 1
    assert len(providers.renewals("auth.openai.com")) == 1
    claude = login_file(project, ".claude/.credentials.json")["claudeAiOauth"]
    codex = login_file(project, ".codex/auth.json")["tokens"]
    assert (claude["accessToken"], claude["refreshToken"]) == (
        providers.access[0],
        providers.refresh[0],
    )
    assert (codex["access_token"], codex["refresh_token"]) == (
        providers.access[1],
        providers.refresh[1],
    )
    # 2. What the services were told.
    (message,) = providers.renewals("api.anthropic.com")
    assert message.headers["authorization"] == f"Bearer {providers.access[0]}"
    flags = {flag.strip() for flag in message.headers["anthropic-beta"].split(",")}
    assert flags == {"fine-grained-tool-streaming-2025-05-14", "oauth-2025-04-20"}
    (models,) = providers.renewals("chatgpt.com")
    assert models.headers["authorization"] == f"Bearer {providers.access[1]}"
    assert models.headers["chatgpt-account-id"] == ACCOUNT
    # 3. What the code inside has seen: answers, but no token in them.
    assert said["messages"][0] == said["models"][0] == 200
    assert "knows" in said["messages"][1]
    assert not any(secret in json.dumps(said) for secret in providers.secrets)
    # The account's id has the same stand-in in answers as in the login that Codex reads.
    assert json.loads(said["models"][1])["headers"]["chatgpt-account-id"] == NOBODY
    # 4. What it may not ask.
    assert said["key"][0] == 403
    assert [status for status, _ in said["renew"]] == [0, 0]
    for request in providers.server.asked:
        assert said["env"]["CLAUDE_CODE_OAUTH_TOKEN"] not in repr(request)


def test_runs_at_the_same_time_renew_once(project: Project, providers: Providers) -> None:
    """The second use of a refresh token would end the login."""
    with project.running("true") as one, project.running("true") as other:
        ended = [process.wait(60) for process in (one, other)]
        words = [process.stderr.read().decode() for process in (one, other) if process.stderr]
    assert ended == [0, 0], words
    assert len(providers.renewals("platform.claude.com")) == 1


def test_a_login_whose_directory_is_shown_inside_is_refused(
    project: Project, providers: Providers
) -> None:
    """I1: the mask over a file is lost when the file is replaced. Control: without it the run
    starts, in the test above."""
    project.policy('sandbox.readable = ["~/.claude"]\n' + POLICY + providers.server.connect)
    done = project.run("true")
    assert done.code == 125
    assert "the login in it is replaced while a run lasts" in done.err
    assert not providers.server.asked


def test_logins_are_listed_and_tried(project: Project, providers: Providers) -> None:
    listed = json.loads(project("secret", "list", "--json").out)
    rows = {row["id"]: (row["kept"], row["since"] is not None) for row in listed}
    assert rows == {"login:claude": ("login", True), "login:codex": ("login", True)}
    tried = project("secret", "test", "claude", "--trust")
    assert tried.code == 0, tried
    assert "GET https://api.anthropic.com/api/oauth/profile" in tried.out
    (project.home / ".codex/auth.json").unlink()
    listed = json.loads(project("secret", "list", "--json").out)
    assert [row["kept"] for row in listed if row["id"] == "login:codex"] == ["missing"]
    assert "`codex login`" in project("secret", "test", "codex", "--trust").err
