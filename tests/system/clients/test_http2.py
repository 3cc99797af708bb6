"""Unmodified clients over HTTP/2 and HTTP/1.1, to origins of both (I1, I4, I6, I7, I8).

nginx is the origin: one that offers HTTP/2, and one that does not. What it was asked with is in its
answers; bodies are read by a program behind it.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import random_text
from tests.rigs.lacking import give_up
from tests.rigs.nginx import Nginx, write_chain
from tests.rigs.sandbox.projects import SEARCH, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.outside

SECRET = random_text("sk-real-")
BULK = 8 << 20

SERVER = """
        location = /v1/said {{
            default_type text/plain;
            return 200 "$server_protocol $request_method $http_authorization $http_x_kept\\n";
        }}
        location / {{ proxy_pass http://127.0.0.1:{port}; }}
"""

POLICY = """
[services.own]
hosts = ["two.example", "one.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:{secret}"
allow = ["GET,HEAD,POST,OPTIONS,GET+body /v1/**"]
[services.older]
hosts = ["older.example"]
http = "1.1"
allow = ["GET /v1/**"]
[services.newer]
hosts = ["newer.example"]
http = "2"
allow = ["GET /v1/**"]
[limits]
requests_per_second = 10000
concurrent_requests = 1000
audit_per_second = 100000
[upstream]
ca_file = "{authority}"
[upstream.connect]
"two.example:443" = "{two}"
"one.example:443" = "{one}"
"older.example:443" = "{two}"
"newer.example:443" = "{two}"
"""

HOSTS = {"two.example": "HTTP/2.0", "one.example": "HTTP/1.1"}
CLIENTS = {"--http2": "2", "--http1.1": "1.1"}


class Bodies(http.server.BaseHTTPRequestHandler):
    """Reads what is sent to it, and sends much."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers with the size and the digest of the body."""
        left = int(self.headers["Content-Length"] or 0)
        digest = hashlib.sha256()
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            digest.update(piece)
            left -= len(piece)
        self._answer(digest.hexdigest().encode())

    def do_GET(self) -> None:
        """Much, or what it was sent as its credential."""
        if self.path.endswith("/much"):
            self._answer(bytes(BULK))
        else:
            self._answer(f"you sent {self.headers['Authorization']}".encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is said of a request."""


@dataclass(frozen=True)
class House:
    """A project whose service has both origins."""

    project: Project

    def curl(self, *words: str) -> str:
        """What curl prints inside."""
        done = self.project.run("curl", "-sS", "--max-time", "60", *words)
        assert done.code == 0, done
        return done.out


@pytest.fixture(scope="module")
def house(ground: Path, new_project: Callable[[], Project]) -> Iterator[House]:
    if shutil.which("nginx", path=SEARCH) is None:
        give_up("nginx is not installed")
    directory = ground / "http2"
    directory.mkdir(mode=0o755)
    authority = trustme.CA()
    for name, hosts in (
        ("two", ("two.example", "older.example", "newer.example")),
        ("one", ("one.example",)),
    ):
        write_chain(directory / f"{name}.pem", authority, *hosts)
    (directory / "authority.pem").write_bytes(authority.cert_pem.bytes())
    (directory / "secret").write_text(SECRET)
    (directory / "secret").chmod(0o600)
    behind = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bodies)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    text = SERVER.format(port=behind.server_port)
    nginx = Nginx(directory, http2=("two",), two=text, one=text)
    project = new_project()
    policy = POLICY.format(
        secret=directory / "secret", authority=directory / "authority.pem", **nginx.addresses
    )
    (project.directory / "keyhole.toml").write_text(f"version = 1\n{policy}")
    yield House(project)
    nginx.close()
    behind.shutdown()
    behind.server_close()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("host", HOSTS)
def test_each_pair_of_versions_works_with_the_credential(
    house: House, client: str, host: str
) -> None:
    """I6: the origin gets the secret, and the client's own credential does not arrive."""
    said = house.curl(
        client, "-H", "Authorization: Bearer mine", "-H", "X-Kept: yes",
        "-w", "%{http_version}", f"https://{host}/v1/said",
    )  # fmt: skip
    line, version = said.rsplit("\n", 1)
    spoken, method, *rest = line.split(" ")
    assert (spoken, method, version) == (HOSTS[host], "GET", CLIENTS[client])
    # The secret came back in the answer: the client sees its placeholder (I7).
    assert rest[0] == "Bearer"
    assert rest[1].startswith("keyhole-")
    assert rest[2] == "yes"
    assert SECRET not in said


@pytest.mark.parametrize(
    ("client", "host", "version"),
    [
        ("--http2", "older.example", "1.1"),
        ("--http1.1", "older.example", "1.1"),
        ("--no-alpn", "older.example", "1.1"),
        ("--http2", "newer.example", "2"),
    ],
)
def test_a_client_speaks_the_version_that_the_policy_pins(
    house: House, client: str, host: str, version: str
) -> None:
    """The origin's side is not pinned."""
    said = house.curl(client, "-w", "%{http_version}", f"https://{host}/v1/said")
    assert said.split()[0] == "HTTP/2.0"
    assert said.rsplit("\n", 1)[1] == version


def test_a_client_of_another_version_than_the_pinned_one_is_told_why(house: House) -> None:
    """I3, I8: by an alert where it says what it speaks, else in the answer. Control: the test
    before. Nothing reaches the origin, which would have answered."""
    words = ("curl", "-sS", "--max-time", "60")
    done = house.project.run(*words, "--http1.1", "https://newer.example/v1/said")
    assert done.code == 35, done
    assert "no application protocol" in done.err
    assert "denied newer.example:443 (the client does not speak the version of HTTP" in done.err
    said = json.loads(house.curl("--no-alpn", "https://newer.example/v1/said"))
    assert (said["reason"], said["rule"]) == ("http-version", "services.newer.http")
    denied = [e for e in house.project.events() if e["reason"] == "http-version"]
    found = {(e["kind"], e["rule"], e["host"]) for e in denied}
    assert found == {
        (kind, "services.newer.http", "newer.example") for kind in ("connect", "request")
    }


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("host", HOSTS)
def test_bodies_pass_whole_both_ways(house: House, client: str, host: str) -> None:
    data = os.urandom(3 << 20)
    (house.project.directory / "body").write_bytes(data)
    house.project.person.own(house.project.directory / "body")
    url = f"https://{host}/v1/bodies"
    assert house.curl(client, "--data-binary", "@body", url) == hashlib.sha256(data).hexdigest()
    count = house.curl(client, "-o", "/dev/null", "-w", "%{size_download}", f"{url}/much")
    assert int(count) == BULK
    said = house.curl(client, "-I", "-w", "%{http_code}", f"https://{host}/v1/said")
    assert said.endswith("200")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refusal_has_its_reason_and_reaches_no_origin(house: House, client: str) -> None:
    """I3, I8. Control: the requests above."""
    said = house.curl(client, "-X", "DELETE", "https://two.example/v1/said")
    assert json.loads(said)["reason"] == "no-rule"
    denied = [e for e in house.project.events() if e["verdict"] == "deny"]
    denied = [e for e in denied if e["host"] == "two.example"]
    assert {(e["reason"], e["details"]["method"]) for e in denied} == {("no-rule", "DELETE")}


def test_many_streams_at_once_are_each_judged_and_answered(house: House) -> None:
    """I8: an event for each of them."""
    if shutil.which("h2load", path=SEARCH) is None:
        give_up("h2load is not installed")
    done = house.project.run(
        "h2load", "-n", "2000", "-c", "4", "-m", "32", "https://two.example/v1/said"
    )
    assert "2000 succeeded, 0 failed, 0 errored" in done.out, done.out
    events = [e for e in house.project.events() if e["host"] == "two.example"]
    events = [e for e in events if e["session"] == events[-1]["session"]]
    closed = [e["details"]["requests"] for e in events if e["reason"] == "closed"]
    assert closed == [500] * 4
    assert sum(e["kind"] == "request" and e["reason"] == "rule" for e in events) == 2000


NODE = """
const http2 = require("http2")
const client = http2.connect("https://two.example")
client.on("error", error => { console.log(String(error)); process.exit(1) })
const asked = path => new Promise(resolve => {
  const stream = client.request({ ":path": path })
  let status, text = ""
  stream.on("response", fields => { status = fields[":status"] })
  stream.on("data", data => { text += data })
  stream.on("error", error => resolve([String(error)]))
  stream.on("end", () => resolve([status, text]))
})
// One is left unread meanwhile: it slows itself alone.
const slow = client.request({ ":path": "/v1/bodies/much" })
slow.pause()
Promise.all([1, 2, 3, 4].map(() => asked("/v1/said"))).then(async found => {
  const denied = await asked("/v2/other")
  const cancelled = client.request({ ":path": "/v1/bodies/much" })
  cancelled.on("error", () => {})
  cancelled.once("data", () => cancelled.close(http2.constants.NGHTTP2_CANCEL))
  await new Promise(resolve => cancelled.on("close", resolve))
  const last = await asked("/v1/said")
  let size = 0
  slow.on("data", data => { size += data.length })
  slow.on("end", () => {
    client.close()
    console.log(JSON.stringify({ found, denied, last, size }))
  })
  slow.resume()
})
"""


def test_nodes_streams_are_slow_denied_and_cancelled_one_by_one(house: House) -> None:
    """I9: a stream that is not read, one that is refused and one that is reset hinder no other."""
    if shutil.which("node", path=SEARCH) is None:
        give_up("node is not installed")
    (house.project.directory / "streams.js").write_text(NODE)
    done = house.project.run("node", "streams.js")
    assert done.code == 0, done
    said = json.loads(done.out)
    assert [status for status, _ in said["found"]] == [200] * 4
    assert said["denied"][0] == 403
    assert said["last"][0] == 200
    assert said["size"] == BULK
    assert SECRET not in done.out


@pytest.mark.attack
@pytest.mark.parametrize("strict", [(), ("--strict",)], ids=["usual", "strict"])
def test_the_protocols_own_suite_finds_nothing(
    house: House, tmp_path_factory: pytest.TempPathFactory, strict: tuple[str, ...]
) -> None:
    """h2spec, every case. It opens GETs with bodies, which the policy has to allow."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if shutil.which(go) is None:
        give_up("Go is not installed, which h2spec is built with")
    built = tmp_path_factory.mktemp("h2spec")
    subprocess.run(
        [go, "install", "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"],
        env={**os.environ, "GOBIN": str(built), "GOFLAGS": "-mod=mod"}, check=True, timeout=600,
    )  # fmt: skip
    shutil.copy(built / "h2spec", house.project.directory / "h2spec")
    house.project.person.own(house.project.directory / "h2spec")
    done = house.project.run(
        "./h2spec", "-h", "two.example", "-p", "443", "-P", "/v1/said", "-t", "-k",
        "--timeout", "5", *strict,
    )  # fmt: skip
    assert done.code == 0, done.out[-4000:]
    assert ", 0 skipped, 0 failed" in done.out
