"""Fakes of forges' REST on loopback, over TLS: the shapes of github, gitlab and gitea.

Each knows one token, written as that forge wants it, and tells nothing to others. What it has no
shape for it answers with 200, as a forge would with a token that may do everything: a request that
should have been refused on its way is seen to have worked.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trustme

PATIENCE = 30.0

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


def _gitlab(path: str) -> Any:  # noqa: ANN401 - JSON
    project = "/projects/acme%2Fwidgets"
    return {
        "/user": _USER,
        f"{project}/merge_requests": [{"iid": 1, "title": "first", "state": "opened"}],
        f"{project}/pipelines": [{"id": 11, "status": "success", "ref": "main"}],
        f"{project}/issues": [{"iid": 1, "title": "first"}],
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


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    host: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: str

    @property
    def line(self) -> str:
        """Its first line, without the version."""
        return f"{self.method} {self.target}"


class Forges(ThreadingHTTPServer):
    """One listener for several forges, told apart by their names."""

    daemon_threads = True

    def __init__(self, authority: trustme.CA, token: str, kinds: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*kinds).configure_cert(context)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.kinds = kinds
        self.token = token
        self.asked: list[Asked] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def address(self) -> str:
        """For `[upstream.connect]`."""
        return "{}:{}".format(*self.server_address)

    def of(self, host: str) -> list[Asked]:
        """What one of them was asked."""
        return [each for each in self.asked if each.host == host]

    def close(self) -> None:
        """End it."""
        self.shutdown()
        self._thread.join(PATIENCE)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE
    server: Forges

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the base's own
        return

    def answer(self) -> None:
        """Write the request down, and answer it if the token is right."""
        host = self.headers.get("Host", "")
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        self.server.asked.append(
            Asked(host, self.command, self.path, dict(self.headers.items()), body)
        )
        root, written, shape = _KINDS[self.server.kinds[host]]
        if self.headers.get("Authorization") != written.format(self.server.token):
            self._say(401, {"message": "Bad credentials"})
            return
        path = self.path.partition("?")[0].removeprefix(root)
        if self.command == "POST":
            made = json.loads(body) if body.startswith("{") else {}
            self._say(201, {"id": 9, "number": 2, "iid": 2, "html_url": path, **made})
            return
        found = shape(path)
        self._say(200, {"reached": path} if found is None else found)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def _say(self, status: int, said: object) -> None:
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
