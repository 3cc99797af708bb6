"""Large repositories pass, and the gateway does not grow with them (I9)."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.memory import Peak
from tests.rigs.git.rawpush import bench, until_nothing_is_held
from tests.rigs.git.repositories import BARE_OF_SETTINGS, GIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.git.server import GitServer

MIB = 1 << 20
FLAT = 16 * MIB
PATIENCE = 300.0
FILE = 8 * MIB

# What is measured is the way of the bytes, not the compressor.
QUICK = {"core.compression": "0", "core.fsync": "none", "pack.window": "0", "gc.auto": "0"}


@pytest.mark.parametrize(
    "size", [96 * MIB, pytest.param(1024 * MIB, marks=pytest.mark.attack, id="1GiB")]
)
def test_a_large_clone_and_a_large_push_pass_in_little_memory(
    git_server: GitServer, tmp_path: Path, size: int
) -> None:
    bulk = git_server.create("acme/bulk")
    bulk.configure(QUICK)
    tip = bulk.fill("refs/heads/main", size // FILE, FILE)
    sink = git_server.create("acme/sink")
    sink.configure(QUICK)
    sink.commit("main", {"readme": b"empty\n"})
    with bench(git_server) as table:
        ca = tmp_path / "ca.pem"
        ca.write_bytes(table.stage.services.authority.pem)
        env = BARE_OF_SETTINGS | {"GIT_SSL_CAINFO": str(ca)}

        def git(*words: str) -> None:
            options = [
                option for key, value in QUICK.items() for option in ("-c", f"{key}={value}")
            ]
            done = subprocess.run(
                table.stage.namespace.command(GIT, *options, *words),
                cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

        peak = Peak()
        git("clone", "--quiet", "--bare", "https://ok.example/acme/bulk.git", "copy")
        assert peak.grown < FLAT
        url = "https://ok.example/acme/sink.git"
        git("-C", "copy", "push", "--quiet", url, "main:refs/heads/agent/bulk")
        assert peak.grown < FLAT
    shutil.rmtree(tmp_path / "copy")
    assert sink.branch("agent/bulk") == tip
    until_nothing_is_held()
    pushed = [each for each in git_server.asked() if each.pushes]
    assert max(each.size for each in pushed) > size
    for bare in (bulk, sink):
        shutil.rmtree(bare.path)
