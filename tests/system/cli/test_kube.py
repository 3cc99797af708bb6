"""`keyhole kube`: what it prints without a cluster, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


def _kube(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "keyhole", "kube", *words], env=env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_rbac_prints_the_roles_of_all_parts() -> None:
    done = _kube("rbac")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: ClusterRole\n") == 2


@pytest.mark.parametrize("words", [["--secret", "a"], ["--namespace", "a"]])
def test_a_secret_is_granted_with_its_namespace(words: list[str]) -> None:
    done = _kube("rbac", *words)
    assert done.returncode != 0
    assert "go together" in done.stderr


def test_a_name_that_would_end_its_line_is_refused() -> None:
    done = _kube("rbac", "--namespace", "a", "--secret", "a\nrules: []")
    assert (done.returncode, done.stdout) == (2, "")
    assert "small letters" in done.stderr


def test_status_without_a_cluster_says_so(tmp_path: Path) -> None:
    done = _kube("status", HOME=str(tmp_path))
    assert done.returncode != 0
    assert "no cluster is configured" in done.stderr
    assert "Traceback" not in done.stderr


class NoSuchGroup(BaseHTTPRequestHandler):
    """Answers as an API server does about a group of resources that nobody installed: in words,
    not with a Status."""

    def do_GET(self) -> None:
        self.send_error(404, explain="404 page not found")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_status_of_a_cluster_without_keyhole_says_that_it_is_not_installed(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), NoSuchGroup)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = tmp_path / "config"
    context = {"cluster": "c", "user": "u"}
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "x",
                "contexts": [{"name": "x", "context": context}],
                "users": [{"name": "u", "user": {}}],
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
                ],
            }
        )
    )  # fmt: skip
    try:
        done = _kube("status", HOME=str(tmp_path), KUBECONFIG=str(config))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode != 0
    assert "is not installed there" in done.stderr
    assert "Traceback" not in done.stderr
