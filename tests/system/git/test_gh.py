"""`gh` in a sandbox opens a pull request from a branch that it pushed, and reads nothing else.

The command as installed, git's own server as github.com, and a forge that executes GraphQL as
api.github.com (I3, I8, I10).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.git.clients import find_built
from tests.rigs.git.github import SECRET, GithubForge
from tests.rigs.git.sandboxed import DRIVER, LIMITS, URL
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import SEARCH, Project

if TYPE_CHECKING:
    from tests.rigs.git.server import GitServer

pytestmark = pytest.mark.outside

WORK = """
cd template
git switch -qc agent/x
echo more >more
git add more
git commit -qm "more of it"
git push -q origin agent/x
"""
W = "-R acme/widgets"
ERRANDS = {
    "push": WORK,
    "create": "cd template && gh pr create --title 'more of it' --body 'by gh' --head agent/x",
    "list": f"gh pr list {W} --json title,headRefName,headRepository",
    "edit": f"gh pr edit 2 {W} --add-assignee ann --body other",
    "review": f"gh pr review 2 {W} --request-changes --body no",
    "approve": f"gh pr review 2 {W} --approve",
    "label": f"gh pr edit 2 {W} --add-label plain",
    "other-branch": f"gh pr create {W} --title t --body b --head main --base main",
    "merge": f"gh pr merge 2 {W} --merge",
    "vault": "gh repo view acme/vault",
    "vault-issues": "gh issue list -R acme/vault",
    "vault-comment": "gh issue comment 1 -R acme/vault --body b",
    "search": f"gh pr list {W} --search 'repo:acme/vault'",
    "search-here": "gh search issues crash --repo acme/widgets --json title",
    "search-there": "gh search issues crash --repo acme/vault --json title",
    "search-all": "gh search prs crash --json title",
    "mine": "gh api graphql -f query='{viewer{repositories(first:9){nodes{nameWithOwner}}}}'",
    "get": "curl -sS 'https://api.github.com/graphql?query=%7Bviewer%7Bemail%7D%7D'",
    "gzip": 'echo \'{"query":"{viewer{email}}"}\' | gzip | curl -sS --data-binary @- '
    "-H 'Content-Type: application/json' -H 'Content-Encoding: gzip' "
    "https://api.github.com/graphql",
    "plain": "curl -sS --data-binary '{viewer{email}}' -H 'Content-Type: application/graphql' "
    "https://api.github.com/graphql",
    "form": "curl -sS --data-urlencode 'query={viewer{email}}' https://api.github.com/graphql",
    "batch": 'curl -sS --json \'[{"query":"{viewer{email}}"}]\' https://api.github.com/graphql',
}
"""One after the other, in the order of their names here."""

INSIDE = DRIVER.replace("ThreadPoolExecutor(4)", "ThreadPoolExecutor(1)")


@dataclass(frozen=True)
class Said:
    """How each errand ended, and what the forge was asked."""

    ended: dict[str, Any]
    forge: GithubForge
    arrived: list[str]
    events: list[dict[str, Any]]

    def printed(self, name: str) -> str:
        ended = self.ended[name]
        return str(ended["out"] + ended["err"])


def run_gh(ground: Path, server: GitServer, gh: Path, api: str, errands: dict[str, str]) -> Said:
    """Run the errands in one sandbox, with this gh."""
    widgets = server.create("acme/widgets")
    widgets.commit("refs/heads/main", {"README": b"first\n"})
    project = Project.make(this_person(ground), 0)
    for name, text in (("token", server.secret), ("ca.pem", server.ca)):
        path = project.home / name
        path.touch(0o600)
        path.write_text(text)
        project.person.own(path)
    programs = ground / "programs"
    programs.mkdir()
    shutil.copy(gh, programs / "gh")
    forge = GithubForge(server.secret)
    service = Service(forge.answer)
    origin = Origin(service, tls_for(server.authority, "api.github.com"))
    scripts = {name: f"export PATH={programs}:$PATH\n{text}" for name, text in errands.items()}
    scripts["template"] = f"git clone -q {URL} template"
    project.write("errands.json", json.dumps(scripts))
    project.policy(f"""
[sandbox]
readable = ["{programs}"]
[sandbox.env]
GH_PROMPT_DISABLED = "1"
GH_NO_UPDATE_NOTIFIER = "1"
GH_TELEMETRY = "false"
GIT_AUTHOR_NAME = "Agent"
GIT_AUTHOR_EMAIL = "agent@tests.example"
GIT_COMMITTER_NAME = "Agent"
GIT_COMMITTER_EMAIL = "agent@tests.example"
[services.github]
secret = "file:~/token"
repos = ["acme/widgets"]
push = ["agent/*"]
api = "{api}"
{LIMITS}
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"github.com:443" = "{server.address}"
"api.github.com:443" = "{origin.address}"
""")
    try:
        with project.running("python3", "-I", "-S", "-c", INSIDE) as process:
            out, err = process.communicate(timeout=200)
    finally:
        origin.close()
    assert process.returncode == 0, err
    events = [each | each.get("details", {}) for each in project.events()]
    arrived = [f"{each.method} {each.target}" for each in service.seen]
    return Said(json.loads(out), forge, arrived, events)


@pytest.fixture(scope="module")
def said(git_ground: Path, git_server: GitServer) -> Said:
    found = shutil.which("gh", path=SEARCH)
    if found is None:
        give_up("gh is not installed")
    ground = git_ground / "gh"
    ground.mkdir()
    ground.chmod(0o755)
    return run_gh(ground, git_server, Path(found), "pull-requests", ERRANDS)


def test_gh_opens_a_pull_request_from_a_branch_that_was_pushed(said: Said) -> None:
    """I10: what the guide promises."""
    for name in ("push", "create", "list", "edit", "review"):
        assert said.ended[name]["code"] == 0, said.ended[name]
    assert said.printed("create").strip().endswith("/acme/widgets/pull/4")
    made = dict(said.forge.done)["createPullRequest"]
    assert (made["headRefName"], made["baseRefName"], made["body"]) == ("agent/x", "main", "by gh")
    assert {"title": "more of it", "headRefName": "agent/x"}.items() <= json.loads(
        said.ended["list"]["out"]
    )[-1].items()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("approve", "a value that is closed, or not of its type: "),
        ("label", "keyhole: the mutation addLabelsToLabelable is closed at every level of 'api'"),
        ("other-branch", "keyhole: 'main' is not a branch that 'push' grants"),
        ("merge", 'keyhole: mergePullRequest needs api = "merge"'),
        ("vault", "Could not resolve to a Repository with the name 'acme/vault'"),
        ("vault-issues", "Could not resolve to a Repository with the name 'acme/vault'"),
        ("vault-comment", "Could not resolve to a Repository with the name 'acme/vault'"),
        ("search", "keyhole: the search names a repository that is not granted"),
        ("search-there", "HTTP 404: not found"),
        ("search-all", "keyhole: a search needs repo:OWNER/NAME of a granted repository"),
        ("mine", "keyhole: the field User.repositories is closed"),
    ],
)
def test_the_rest_is_refused_in_one_clear_line(said: Said, name: str, words: str) -> None:
    """I3. The control is above."""
    assert said.ended[name]["code"] != 0
    assert words in said.printed(name)
    assert SECRET not in said.printed(name)


def test_gh_searches_within_the_repository(said: Said) -> None:
    """I3: what the forge answers beside it is left out."""
    assert json.loads(said.ended["search-here"]["out"]) == [{"title": "it crashes"}]


@pytest.mark.parametrize("name", ["get", "gzip", "plain", "form", "batch"])
def test_a_document_that_cannot_be_judged_is_refused(said: Said, name: str) -> None:
    """I3, I9: in an address, compressed, or in another form. The control: gh's own."""
    assert "keyhole" in said.printed(name)
    assert SECRET not in said.printed(name)


def test_the_forge_did_only_what_is_granted(said: Said) -> None:
    """I3: it would have done anything."""
    names = [name for name, _ in said.forge.done]
    assert set(names) == {"createPullRequest", "updatePullRequest", "addPullRequestReview"}
    assert not any("vault" in each or "email" in each for each in said.forge.asked)
    assert {each for each in said.arrived if not each.startswith("GET ")} == {"POST /graphql"}


def test_each_refusal_is_written_down(said: Said) -> None:
    """I8: with the field that is closed."""
    denied = [each for each in said.events if each["verdict"] == "deny"]
    assert {"graphql-refused", "repository-not-granted", "ref-not-granted"} <= {
        each["reason"] for each in denied
    }


READS = {
    "pr-list": "gh pr list {w}",
    "pr-list-search": "gh pr list {w} --search 'foo label:bug'",
    "pr-view": "gh pr view 2 {w} --comments",
    "pr-status": "gh pr status {w}",
    "pr-checks": "gh pr checks 2 {w}",
    "pr-diff": "gh pr diff 2 {w}",
    "issue-list": "gh issue list {w}",
    "issue-list-search": "gh issue list {w} --search foo --label bug --assignee @me",
    "issue-view": "gh issue view 1 {w} --comments",
    "issue-status": "gh issue status {w}",
    "repo-view": "gh repo view acme/widgets",
    "repo-json": "gh repo view acme/widgets --json name,parent,owner,issues,projects",
    "release-list": "gh release list {w}",
    "release-view": "gh release view v1 {w}",
    "run-list": "gh run list {w}",
    "run-view": "gh run view 11 {w}",
    "label-list": "gh label list {w}",
    "graphql": "gh api graphql -f query='{{viewer{{login}}}}'",
}
WRITES = {
    "pr-create": "gh pr create {w} --title t --body b --head agent/x --base main",
    "pr-comment": "gh pr comment 2 {w} --body b",
    "pr-review": "gh pr review 2 {w} --comment --body b",
    "pr-edit": "gh pr edit 2 {w} --title t --add-assignee ann --add-reviewer eve",
    "pr-close": "gh pr close 2 {w}",
    "pr-reopen": "gh pr reopen 2 {w}",
    "pr-draft": "gh pr ready 2 {w} --undo",
    "pr-ready": "gh pr ready 2 {w}",
    "issue-create": "gh issue create {w} --title t --body b --assignee ann --milestone plain",
    "issue-comment": "gh issue comment 1 {w} --body b",
    "issue-edit": "gh issue edit 1 {w} --title t",
    "issue-close": "gh issue close 1 {w} --reason 'not planned'",
}
MERGES = {"pr-merge": "gh pr merge 2 {w} --squash"}


@pytest.mark.attack
@pytest.mark.parametrize("which", ["installed", "current"])
@pytest.mark.parametrize("api", ["read", "pull-requests", "merge"])
def test_each_verb_works_at_its_level_and_not_below(
    git_server: GitServer, git_ground: Path, which: str, api: str
) -> None:
    found = find_built("gh") if which == "current" else shutil.which("gh", path=SEARCH)
    if found is None:
        give_up("gh is not installed")
    ground = git_ground / f"gh-{which}-{api}"
    ground.mkdir()
    ground.chmod(0o755)
    errands = {name: text.format(w=W) for name, text in (READS | WRITES | MERGES).items()}
    said = run_gh(ground, git_server, Path(found), api, errands)
    granted = READS | (WRITES if api != "read" else {}) | (MERGES if api == "merge" else {})
    worked = {name for name, ended in said.ended.items() if ended["code"] == 0}
    # What is closed already needs no closing, so it ends well where it is not granted.
    idle = {"pr-reopen", "pr-ready"}
    assert worked - idle == set(granted) - idle, {n: said.printed(n) for n in worked ^ set(granted)}
    assert bool(said.forge.done) is (api != "read")
    assert not said.forge.refused
    assert SECRET not in json.dumps(said.ended)
