"""Clients that are built here: Go's net/http, grpc-go, grpcurl and grpc-js (I3, I6, I10).

grpc-go refuses a connection on which HTTP/2 was not agreed; grpcurl asks by reflection first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import PROGRAMS, random_text
from tests.rigs.lacking import give_up
from tests.rigs.nginx import write_chain
from tests.rigs.sandbox.projects import SEARCH, Project, line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.outside, pytest.mark.attack]

SECRET = random_text("sk-real-")
GRPC = "google.golang.org/grpc@v1.72.2"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"
GRPC_JS = "@grpc/grpc-js@1.13.4"
DENIED = 7
BUILDING = 900
"""Seconds for the modules to come and be compiled."""

POLICY = """
[services.own]
hosts = ["calls.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:{secret}"
allow = [
    "GRPC grpc.health.v1.Health/Check",
    "GRPC grpc.reflection.v1.ServerReflection/*",
    "GRPC grpc.reflection.v1alpha.ServerReflection/*",
    "GET /v1/**",
]
[upstream]
ca_file = "{authority}"
[upstream.connect]
"calls.example:443" = "127.0.0.1:{port}"
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with `calls` and `grpcurl`."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if shutil.which(go) is None:
        give_up("Go is not installed")
    directory = tmp_path_factory.mktemp("calls")
    shutil.copy(PROGRAMS / "calls.go", directory / "main.go")
    env = {**os.environ, "GOBIN": str(directory), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
    for words in (
        ("mod", "init", "calls"), ("get", GRPC), ("mod", "tidy"), ("build", "-o", "calls", "."),
        ("install", GRPCURL),
    ):  # fmt: skip
        subprocess.run([go, *words], cwd=directory, env=env, check=True, timeout=BUILDING)
    return directory


@pytest.fixture(scope="module")
def project(ground: Path, new_project: Callable[[], Project], tools: Path) -> Iterator[Project]:
    directory = ground / "http2-built"
    directory.mkdir(mode=0o755)
    authority = trustme.CA()
    write_chain(directory / "chain.pem", authority, "calls.example")
    (directory / "authority.pem").write_bytes(authority.cert_pem.bytes())
    (directory / "secret").write_text(SECRET)
    (directory / "secret").chmod(0o600)
    server = subprocess.Popen(
        [tools / "calls", "serve", directory / "chain.pem"], stdout=subprocess.PIPE
    )
    made = new_project()
    made.policy(
        POLICY.format(
            secret=directory / "secret",
            authority=directory / "authority.pem",
            port=line_of(server.stdout),
        )
    )
    for name in ("calls", "grpcurl"):
        shutil.copy(tools / name, made.directory / name)
        made.person.own(made.directory / name)
    yield made
    server.kill()
    server.communicate(timeout=PATIENCE)


def test_gos_client_speaks_http2(project: Project) -> None:
    """A gRPC server answers no GET properly; the refusal of another path is Keyhole's."""
    done = project.run("./calls", "get", "https://calls.example/v2/other")
    assert done.code == 0, done
    start, _, body = done.out.partition("{")
    assert start == "HTTP/2.0 403 "
    assert json.loads("{" + body)["reason"] == "no-rule"
    done = project.run("./calls", "get", "https://calls.example/v1/said")
    assert done.out.startswith("HTTP/2.0 415 "), done


def test_grpc_go_calls_what_is_allowed(project: Project) -> None:
    done = project.run("./calls", "check", "calls.example:443")
    assert done.code == 0, done
    assert done.lines[0] == "SERVING"
    assert "code = PermissionDenied" in done.lines[1]


def test_grpcurl_asks_by_reflection_and_calls(project: Project) -> None:
    done = project.run("./grpcurl", "calls.example:443", "grpc.health.v1.Health/Check")
    assert (done.code, json.loads(done.out)) == (0, {"status": "SERVING"}), done
    denied = project.run("./grpcurl", "calls.example:443", "grpc.health.v1.Health/Watch")
    assert denied.code != 0
    assert "PermissionDenied" in denied.err


def test_grpc_js_calls_what_is_allowed(project: Project) -> None:
    npm = shutil.which("npm", path=SEARCH)
    if npm is None:
        give_up("npm is not installed")
    words = ("install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", GRPC_JS)
    subprocess.run([npm, *words], cwd=project.directory, check=True, timeout=BUILDING)
    project.write("grpc_check.cjs", (PROGRAMS / "grpc_check.cjs").read_text())
    done = project.run("node", "grpc_check.cjs")
    assert done.code == 0, done
    allowed, denied = json.loads(done.out)
    assert allowed == [0, "0801"]
    assert denied[0] == DENIED
    assert "no rule" in denied[1]
