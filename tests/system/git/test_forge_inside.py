"""`gh` and plain requests inside a sandbox, against fakes of three forges (I3, I6, I10).

The catalogue's own entries, the installed command, and forges that would do whatever arrives.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.git.forges import Forges
from tests.rigs.git.github import SECRET
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import SEARCH, Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.outside

TOKEN = "tok-real-5f2c81d04e7b49a6a1c3b8d7"
HUB, LAB, TEA = "hub.example", "lab.example", "tea.example"

POLICY = f"""
[sandbox.env]
GH_HOST = "{HUB}"
GH_PROMPT_DISABLED = "1"
GH_NO_UPDATE_NOTIFIER = "1"
[services.hub]
use = "github-enterprise"
hosts = ["{HUB}"]
secret = "file:~/token"
repos = ["acme/widgets"]
push = ["agent/*"]
api = "pull-requests"
[services.lab]
use = "gitlab"
hosts = ["{LAB}"]
secret = "file:~/token"
repos = ["acme/widgets"]
push = ["agent/*"]
api = "pull-requests"
[services.tea]
use = "gitea"
hosts = ["{TEA}"]
secret = "file:~/token"
repos = ["acme/widgets"]
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"""

GH = {
    "user": "gh api user --jq .login",
    "repository": "gh api repos/acme/widgets --jq .full_name",
    "checks": "gh api repos/acme/widgets/commits/main/status --jq .state",
    "pull": "gh api repos/acme/widgets/pulls -f title=t -f head=agent/x -f base=main --jq .number",
    "comment": "gh api repos/acme/widgets/issues/1/comments -f body=hello --jq .body",
    "runs": "gh run list -R acme/widgets",
    "run": "gh run view 11 -R acme/widgets",
    "workflows": "gh workflow list -R acme/widgets",
    "diff": "gh pr diff 1 -R acme/widgets",
    "pr-list": "gh pr list -R acme/widgets",
    "pr-view": "gh pr view 2 -R acme/widgets",
    "issue-list": "gh issue list -R acme/widgets",
    "repo-view": "gh repo view acme/widgets",
    "pr-create": "gh pr create -R acme/widgets --title t --body b --head agent/x --base main",
}
"""By REST, and by GraphQL of a server of one's own, which gh asks for its fields first."""

GH_REFUSED = {
    "graphql": "gh api graphql -f query='{viewer{email}}'",
    "vault": "gh api repos/acme/vault",
    "vault-view": "gh repo view acme/vault",
    "pr-create-other": "gh pr create -R acme/widgets --title t --body b --head other --base main",
    "pr-approve": "gh pr review 2 -R acme/widgets --approve",
    "pr-merge": "gh pr merge 2 -R acme/widgets --merge",
    "by-number": "gh api repositories/1",
    "merge": "gh api -X PUT repos/acme/widgets/pulls/1/merge",
    "approve": "gh api repos/acme/widgets/pulls/1/reviews -f event=APPROVE",
    "contents": "gh api -X PUT repos/acme/widgets/contents/x -f message=m -f content=eA==",
    "ref": "gh api -X PATCH repos/acme/widgets/git/refs/heads/main -f sha=0",
    "secrets": "gh secret list -R acme/widgets",
    "release": "gh release create v2 -R acme/widgets --notes n",
}

ASK = """
asked() { curl -sS -o /dev/null -w '%{http_code} ' "$@"; }
lab=https://lab.example/api/v4 tea=https://tea.example/api/v1
asked "$lab/projects/acme%2Fwidgets/pipelines?sudo=root&private_token=mine&per_page=5"
asked -H 'Sudo: root' -H 'PRIVATE-TOKEN: mine' "$lab/projects/acme%2Fwidgets/issues"
asked "$lab/projects/acme%2Fwidgets/repository/compare?from=a&to=b&from_project_id=42"
made='{"title": "t", "source_branch": "agent/x", "target_branch": "main"}'
asked --json "$made" "$lab/projects/acme%2Fwidgets/merge_requests"
asked --json '{"body": "seen"}' "$lab/projects/acme%2Fwidgets/merge_requests/1/notes"
asked "$lab/projects/acme%2Fwidgets"
asked "$tea/repos/acme/widgets/commits/main/status?sudo=root&token=mine"
asked -H 'X-WEBAUTH-USER: root' "$tea/repos/acme/widgets/pulls"
echo
asked "$lab/projects/acme%2Fvault/issues"
asked "$lab/projects/42/issues"
asked "$lab/projects/acme%2Fwidgets/variables"
asked -X PUT "$lab/projects/acme%2Fwidgets/merge_requests/1/merge"
asked --json '{"body": "seen\\n/merge"}' "$lab/projects/acme%2Fwidgets/merge_requests/1/notes"
asked --json '{"labels": "x"}' "$lab/projects/acme%2Fwidgets/issues"
asked --json "${made%?}, \\"target_project_id\\": 42}" "$lab/projects/acme%2Fwidgets/merge_requests"
asked -H 'Content-Type:' -d "$made" "$lab/projects/acme%2Fwidgets/merge_requests"
asked -X POST -H 'X-HTTP-Method-Override: PUT' "$lab/projects/acme%2Fwidgets"
asked -X POST https://lab.example/api/graphql
asked "$tea/repos/acme/vault"
asked -X POST "$tea/repos/acme/widgets/pulls"
asked -X POST "$tea/repos/acme/widgets/pulls/1/merge"
asked "$tea/user/repos"
echo
"""


@dataclass(frozen=True)
class Said:
    """How each errand ended, and what arrived at the forges."""

    ended: dict[str, Any]
    forges: Forges
    told: str

    def lines(self, host: str) -> list[str]:
        arrived = self.forges.service.seen
        return [f"{each.method} {each.target}" for each in arrived if each.headers["host"] == host]


@pytest.fixture(scope="module")
def said(git_ground: Path) -> Said:
    """One sandbox in which all of it is tried."""
    for name in ("gh", "curl"):
        if shutil.which(name, path=SEARCH) is None:
            give_up(f"{name} is not installed")
    authority = trustme.CA()
    directory = git_ground / "forges"
    directory.mkdir()
    project = Project.make(this_person(directory), 0)
    (project.home / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (project.home / "token").touch(0o600)
    (project.home / "token").write_text(TOKEN)
    project.write("errands.json", json.dumps({**GH, **GH_REFUSED, "ask": ASK, "env": "env"}))
    forges = Forges(authority, TOKEN, {HUB: "github", LAB: "gitlab", TEA: "gitea"})
    try:
        connect = "".join(f'"{host}:443" = "{forges.address}"\n' for host in (HUB, LAB, TEA))
        project.policy(POLICY + connect)
        done = project.run("python3", "-I", "-S", "-c", DRIVER)
    finally:
        forges.close()
    assert done.code == 0, done
    return Said(json.loads(done.out), forges, done.out + done.err)


DRIVER = """
import json, subprocess
def run(words):
    done = subprocess.run(["sh", "-c", words], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=20)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
with open("errands.json") as file:
    print(json.dumps({name: run(words) for name, words in json.load(file).items()}))
"""


@pytest.mark.parametrize(
    ("errand", "printed"),
    [
        ("user", "ann"),
        ("repository", "acme/widgets"),
        ("checks", "success"),
        ("pull", "2"),
        ("comment", "hello"),
        ("runs", "completed"),
        ("run", "main ci"),
        ("workflows", "active"),
        ("diff", "first"),
        ("pr-list", "plain pull"),
        ("pr-view", "plain pull"),
        ("issue-list", "plain issue"),
        ("repo-view", "plain acme/widgets"),
        ("pr-create", "https://github.com/acme/widgets/pull/"),
    ],
)
def test_gh_works_for_a_granted_repository(said: Said, errand: str, printed: str) -> None:
    ended = said.ended[errand]
    assert ended["code"] == 0, ended
    assert "keyhole" not in ended["err"]
    assert printed in ended["out"]


@pytest.mark.parametrize("errand", GH_REFUSED)
def test_the_rest_of_gh_is_refused_on_its_way(said: Said, errand: str) -> None:
    """I3: and in words that it prints. The controls are above."""
    ended = said.ended[errand]
    assert ended["code"] != 0
    assert any(
        code in ended["out"] + ended["err"] for code in ("403", "404", "GraphQL: ", "keyhole: ")
    )
    assert SECRET not in ended["out"] + ended["err"]


def test_only_what_is_granted_arrived(said: Said) -> None:
    """I3: as the forge saw it, which would have done anything."""
    methods = {line.split("?")[0] for line in said.lines(HUB) if not line.startswith("GET ")}
    widgets = "/api/v3/repos/acme/widgets"
    graphql = "POST /api/graphql"
    assert methods == {f"POST {widgets}/pulls", f"POST {widgets}/issues/1/comments", graphql}
    ((done, given),) = said.forges.github.done
    assert (done, given["headRefName"]) == ("createPullRequest", "agent/x")
    reads = {line.split("?")[0] for line in said.lines(HUB) if line.startswith("GET ")}
    others = {"GET /api/v3/user", "GET /api/v3/"}
    assert {line for line in reads - others if not line.startswith(f"GET {widgets}")} == set()
    assert reads & others


def test_requests_to_gitlab_and_gitea_are_confined(said: Said) -> None:
    """I3, I6: what would act as another, or reach elsewhere, is gone; the rest is as it was."""
    allowed, refused = said.ended["ask"]["out"].strip().split("\n")
    assert allowed.split() == ["200", "200", "200", "201", "201", "200", "200", "200"]
    assert set(refused.split()) <= {"403", "404"}
    assert len(refused.split()) == 14
    project, repository = "/api/v4/projects/acme%2Fwidgets", "/api/v1/repos/acme/widgets"
    assert said.lines(LAB) == [
        f"GET {project}/pipelines?per_page=5",
        f"GET {project}/issues",
        f"GET {project}/repository/compare?from=a&to=b",
        f"POST {project}/merge_requests",
        f"POST {project}/merge_requests/1/notes",
        f"GET {project}",
    ]
    assert said.lines(TEA) == [f"GET {repository}/commits/main/status", f"GET {repository}/pulls"]


def test_each_forge_got_its_token_and_nobody_elses_name(said: Said) -> None:
    """I6."""
    written = {HUB: f"Bearer {TOKEN}", LAB: f"Bearer {TOKEN}", TEA: f"token {TOKEN}"}
    impersonating = {"sudo", "private-token", "x-webauth-user", "x-http-method-override"}
    arrived = said.forges.service.seen
    for each in arrived:
        assert each.headers["authorization"] == written[each.headers["host"]]
        assert not impersonating & each.headers.keys()
    assert {each.headers["host"] for each in arrived} == set(written)


def test_nothing_inside_held_the_token(said: Said) -> None:
    """I1. The control: the placeholder is there."""
    assert "GH_ENTERPRISE_TOKEN=github_pat_" in said.ended["env"]["out"]
    assert TOKEN not in said.told
