"""Fakes of forges' REST on loopback, over TLS: the shapes of github, gitlab and gitea.

Each knows one token, written as that forge wants it, and tells nothing to others. What it has no
shape for it answers with 200, as a forge would with a token that may do everything: a request that
should have been refused on its way is seen to have worked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import ok
from tests.rigs.git.github import GithubForge

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trustme

    from tests.rigs.gateway.talk import Message


_USER = {"login": "ann", "username": "ann", "id": 7}
_RUN = {
    "id": 11, "name": "ci", "display_title": "ci", "status": "completed", "conclusion": "success",
    "event": "push", "head_branch": "main", "head_sha": "0" * 40, "workflow_id": 3, "run_number": 1,
    "run_attempt": 1, "created_at": "2026-07-01T00:00:00Z", "updated_at": "2026-07-01T00:00:00Z",
    "run_started_at": "2026-07-01T00:00:00Z",
}  # fmt: skip
_WORKFLOW = {"id": 3, "name": "ci", "path": ".github/workflows/ci.yml", "state": "active"}
_RELEASE = {
    "id": 5, "tag_name": "v1", "name": "v1", "body": "first", "assets": [], "draft": False,
    "created_at": "2026-07-01T00:00:00Z", "published_at": "2026-07-01T00:00:00Z",
    "author": _USER, "html_url": "https://forge.invalid/v1",
}  # fmt: skip


def _github(path: str) -> Any:  # noqa: ANN401 - JSON
    repository = "/repos/acme/widgets"
    return {
        "": {"current_user_url": "/user"},
        "/user": _USER,
        repository: {"id": 1, "name": "widgets", "full_name": "acme/widgets", "private": True},
        f"{repository}/pulls": [{"number": 1, "title": "first"}],
        f"{repository}/pulls/1": {"number": 1, "title": "first", "state": "open"},
        f"{repository}/issues": [{"number": 1, "title": "first"}],
        f"{repository}/commits/main/status": {"state": "success", "statuses": []},
        f"{repository}/actions/runs": {"total_count": 1, "workflow_runs": [_RUN]},
        f"{repository}/actions/runs/11": _RUN,
        f"{repository}/actions/runs/11/jobs": {"total_count": 0, "jobs": []},
        f"{repository}/actions/runs/11/artifacts": {"total_count": 0, "artifacts": []},
        f"{repository}/actions/workflows": {"total_count": 1, "workflows": [_WORKFLOW]},
        f"{repository}/actions/workflows/3": _WORKFLOW,
        f"{repository}/releases/tags/v1": _RELEASE,
        f"{repository}/releases/latest": _RELEASE,
    }.get(path.rstrip("/"))


RUNNERS_TOKEN = "GR1348941-runners-of-acme"
"""GitLab shows it to maintainers, on the page of a project."""

_TIMES = {"created_at": "2026-07-01T00:00:00Z", "updated_at": "2026-07-01T00:00:00Z"}
_PROJECT = {
    "id": 1, "name": "widgets", "path": "widgets", "path_with_namespace": "acme/widgets",
    "name_with_namespace": "acme / widgets", "default_branch": "main",
    "web_url": "https://forge.invalid/acme/widgets", "runners_token": RUNNERS_TOKEN,
    "import_url": "https://ann:mirror-password@elsewhere.example/x.git",
    "http_url_to_repo": "https://forge.invalid/acme/widgets.git",
    "merge_requests_enabled": True, "issues_enabled": True,
    "namespace": {"id": 2, "path": "acme", "full_path": "acme", "kind": "group"},
}  # fmt: skip
_MERGE_REQUEST = {
    "id": 21, "iid": 1, "project_id": 1, "title": "first", "description": "d", "state": "opened",
    "source_branch": "agent/x", "target_branch": "main", "source_project_id": 1,
    "target_project_id": 1, "author": _USER, "sha": "0" * 40, "labels": [], **_TIMES,
    "references": {"full": "acme/widgets!1"}, "web_url": "https://forge.invalid/merge/1",
    "detailed_merge_status": "mergeable", "user": {"can_merge": True},
    "diff_refs": {"base_sha": "0" * 40, "head_sha": "1" * 40, "start_sha": "0" * 40},
}  # fmt: skip
_ISSUE = {
    "id": 31, "iid": 1, "project_id": 1, "title": "first issue", "state": "opened",
    "author": _USER, "labels": [], "web_url": "https://forge.invalid/issue/1", **_TIMES,
    "issue_type": "issue", "references": {"full": "acme/widgets#1"},
}  # fmt: skip
_DIFF = {"old_path": "a", "new_path": "a", "diff": "@@ -1 +1 @@\n-a\n+plain diff\n"}
_VERSION = {"id": 1, "state": "collected", "head_commit_sha": "0" * 40}


def _gitlab(path: str) -> Any:  # noqa: ANN401 - JSON
    project = "/projects/acme%2Fwidgets"
    return {
        "/user": _USER,
        project: _PROJECT,
        f"{project}/merge_requests": [_MERGE_REQUEST],
        f"{project}/merge_requests/1": _MERGE_REQUEST,
        f"{project}/merge_requests/1/approval_state": {"rules": []},
        f"{project}/merge_requests/1/versions": [_VERSION],
        f"{project}/merge_requests/1/versions/1": {**_VERSION, "diffs": [_DIFF]},
        f"{project}/pipelines": [{"id": 11, "status": "success", "ref": "main", **_TIMES}],
        f"{project}/issues": [_ISSUE],
        f"{project}/issues/1": _ISSUE,
        f"{project}/releases": [{"tag_name": "v1", "name": "v1", "author": _USER, **_TIMES}],
        f"{project}/labels": [{"id": 1, "name": "bug", "color": "#fff"}],
    }.get(path)


def _gitea(path: str) -> Any:  # noqa: ANN401 - JSON
    repository = "/repos/acme/widgets"
    return {
        "/user": _USER,
        repository: {"id": 1, "full_name": "acme/widgets"},
        f"{repository}/pulls": [{"number": 1, "title": "first"}],
        f"{repository}/commits/main/status": {"state": "success"},
    }.get(path)


_KINDS = {
    "github": ("/api/v3", "Bearer {}", _github),
    "gitlab": ("/api/v4", "Bearer {}", _gitlab),
    "gitea": ("/api/v1", "token {}", _gitea),
}


class Forges:
    """One listener for several forges, told apart by their names."""

    def __init__(self, authority: trustme.CA, token: str, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._token = token
        self.github = GithubForge(token)
        self.service = Service(self._answer)
        self._origin = Origin(self.service, tls_for(authority, *kinds))
        self.address = self._origin.address
        self.close = self._origin.close

    def _answer(self, message: Message) -> bytes:
        root, written, shape = _KINDS[self._kinds[message.headers["host"]]]
        if message.headers.get("authorization") != written.format(self._token):
            return _say(b"401 Unauthorized", {"message": "Bad credentials"})
        path = message.target.partition("?")[0].removeprefix(root)
        if path == "/api/graphql" and shape is _github:
            return _say(b"200 OK", self.github.execute(message.body))
        if message.method == "POST":
            made = json.loads(message.body) if message.body.startswith(b"{") else {}
            made = {name: value for name, value in made.items() if name != "labels"}
            return _say(
                b"201 Created",
                {"id": 9, "number": 2, "iid": 2, "html_url": path, "web_url": path, **made},
            )
        found = shape(path)
        return _say(b"200 OK", {"reached": path} if found is None else found)


def _say(status: bytes, said: object) -> bytes:
    kind = b"Content-Type: application/json; charset=utf-8"
    return ok(json.dumps(said).encode(), kind, status=status)
