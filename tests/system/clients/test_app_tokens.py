"""Tokens of a GitHub App, minted and renewed outside while a sandbox runs (I1, I3, I7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import keep
from tests.rigs.vault.appforge import APP, AppForge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

CLIENT = """
import json, os, time, urllib.error, urllib.request
def ask(path):
    token = os.environ["GITHUB_TOKEN"]
    request = urllib.request.Request("https://api.github.com" + path,
                                     headers={"Authorization": "Bearer " + token})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
said = {"env": dict(os.environ), "other": ask("/repos/acme/secret"),
        "install": ask("/repos/acme/widgets/installation"),
        "mint": ask("/app/installations/777/access_tokens"), "told": []}
ends = time.monotonic() + 40
while time.monotonic() < ends and len(set(json.loads(body)["generation"]
                                          for _, body in said["told"])) < 3:
    said["told"].append(ask("/repos/acme/widgets"))
    time.sleep(0.3)
print(json.dumps(said))
"""

POLICY = f"""
[services.github]
secret = "github-app:{APP}"
repos = ["acme/widgets"]
push = ["agent/*"]
[upstream]
ca_file = "~/ca.pem"
"""


@pytest.fixture
def forge() -> Iterator[AppForge]:
    made = AppForge(trustme.CA(), life=14)
    yield made
    made.close()


def test_a_token_for_the_granted_repository_is_renewed_in_a_run_and_none_comes_in(
    forge: AppForge, new_project: Callable[[], Project]
) -> None:
    """The control: the repository answers, under one token after another."""
    project = new_project()
    keep(project, "ca.pem", forge.authority.cert_pem.bytes().decode())
    kept = project("secret", "set", f"github-app-{APP}", "--plain", text=forge.pem.encode())
    assert kept.code == 0, kept
    project.policy(POLICY + forge.server.connect)
    said = project.python(CLIENT)
    # 1. Each token was minted for what the policy grants, and for nothing else.
    assert len(forge.tokens) >= 3
    for minted in forge.tokens.values():
        assert minted.repositories == ["widgets"]
        assert minted.permissions == {
            "metadata": "read",
            "contents": "write",
            "pull_requests": "read",
            "issues": "read",
            "checks": "read",
        }
    # 2. It was used, and renewed while the run went on.
    sent = [asked.headers.get("authorization", "") for asked in forge.server.asked]
    used = {each.removeprefix("Bearer ") for each in sent} & set(forge.tokens)
    assert len(used) >= 2
    assert {status for status, _ in said["told"]} == {200}
    assert all('"full_name": "acme/widgets"' in body for _, body in said["told"])
    # 3. Neither an old nor a new one is inside, nor the key (I1, I7), whatever the forge tells.
    whole = repr(said)
    assert [number for number, each in enumerate(forge.tokens) if each in whole] == []
    assert forge.pem.split("\n")[3] not in whole
    # 4. Another repository does not exist, and what mints tokens is closed (I3).
    assert said["other"][0] == 404
    assert {said[name][0] for name in ("install", "mint")} <= {403, 404}
    asked = [each.target for each in forge.server.asked if each.method == "GET"]
    assert "/repos/acme/secret" not in asked
