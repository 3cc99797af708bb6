"""`keyhole kube`: what it prints without a cluster, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
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
