"""Streams of HTTP/2 between real clients and origins: Node's and nghttpx (I1, I6, I7, I9).

nghttpx stands before a second Node, so that its reading of the protocol is between.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.clients.errands import DRIVER
from tests.rigs.clients.services import PROGRAMS, random_text
from tests.rigs.lacking import give_up
from tests.rigs.nginx import start, write_chain
from tests.rigs.sandbox.projects import SEARCH, Project, line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

SECRET = random_text("sk-real-")
HOSTS = ("node.example", "proxy.example")
TRIALS = ("said", "head", "echo", "hints", "expect", "cancel")
MUCH = 64 << 20
HELD = 16 << 20
"""Bytes that a gateway may grow by while a stream of MUCH is not read: far above what is measured,
far below what comes if nothing holds the origin back."""
PLACED = ("http2_streams.mjs", "http2_fetch.mjs", "http2_httpx.py", "Http2.java")

CANCEL = 8
INTERNAL = 2

POLICY = """
[services.own]
hosts = ["node.example", "proxy.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:{secret}"
allow = ["GET,HEAD,POST /v1/**"]
[limits]
requests_per_second = 10000
concurrent_requests = 1000
[upstream]
ca_file = "{authority}"
[upstream.connect]
"node.example:443" = "127.0.0.1:{node}"
"proxy.example:443" = "127.0.0.1:{proxy}"
"""


class NodeOrigin:
    """A Node that serves HTTP/2, and the streams that were reset there."""

    def __init__(self, *chain: Path) -> None:
        program = str(PROGRAMS / "http2_origin.mjs")
        self._process = start("KILL", "node", program, *map(str, chain), stdout=subprocess.PIPE)
        self.port = int(line_of(self._process.stdout))
        self.reset: list[tuple[str, int]] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            path, code = json.loads(line)
            self.reset.append((path, code))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._listening.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Nghttpx:
    """nghttpx with TLS before an origin of HTTP/2 without."""

    def __init__(self, directory: Path, chain: Path, port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        empty = directory / "nghttpx.conf"
        empty.touch()
        self._process = start(
            "KILL", "nghttpx", f"--conf={empty}", "--single-thread", "--single-process",
            f"--frontend=127.0.0.1,{self.port}", f"--backend=127.0.0.1,{port};;proto=h2",
            "--no-ocsp", str(chain), str(chain),
        )  # fmt: skip
        until(self._is_up)

    def _is_up(self) -> bool:
        assert self._process.poll() is None, "nghttpx ended"
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


@dataclass
class House:
    """A project whose service has both origins."""

    project: Project
    origins: dict[str, NodeOrigin]
    said: dict[str, Any] = field(default_factory=dict)

    def result(self, name: str) -> Any:  # noqa: ANN401 - JSON
        ended = self.said[name]
        assert ended["code"] == 0, ended
        assert SECRET not in ended["out"] + ended["err"]
        return json.loads(ended["out"])


@pytest.fixture(scope="module")
def house(ground: Path, new_project: Callable[[], Project], inside: Inside) -> Iterator[House]:
    for name in ("node", "nghttpx"):
        if shutil.which(name, path=SEARCH) is None:
            give_up(f"{name} is not installed")
    directory = ground / "http2-streams"
    directory.mkdir(mode=0o755)
    authority = trustme.CA()
    chain = directory / "chain.pem"
    write_chain(chain, authority, *HOSTS)
    (directory / "authority.pem").write_bytes(authority.cert_pem.bytes())
    (directory / "secret").write_text(SECRET)
    (directory / "secret").chmod(0o600)
    node, behind = NodeOrigin(chain), NodeOrigin()
    proxy = Nghttpx(directory, chain, behind.port)
    project = new_project()
    policy = POLICY.format(
        secret=directory / "secret", authority=directory / "authority.pem",
        node=node.port, proxy=proxy.port,
    )  # fmt: skip
    project.policy(policy + inside.policy)
    for name in PLACED:
        project.write(name, (PROGRAMS / name).read_text())
    house = House(project, dict(zip(HOSTS, (node, behind), strict=True)))
    errands = {host: f"exec node http2_streams.mjs {host} {' '.join(TRIALS)}" for host in HOSTS}
    errands["node.example"] += " reset"
    errands["httpx"] = f"exec {inside.python} -s http2_httpx.py"
    errands["fetch"] = "exec node http2_fetch.mjs"
    errands["java"] = "exec java -XX:TieredStopAtLevel=1 Http2.java"
    project.write("errands.json", json.dumps(errands))
    with project.running("python3", "-I", "-S", "-c", DRIVER) as process:
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    house.said = json.loads(out)
    yield house
    for each in (proxy, node, behind):
        each.close()


def is_with_placeholder(said: str) -> bool:
    """Whether the origin got the credential, and the client its placeholder (I6, I7)."""
    version, method, scheme, key, kept = said.split()
    return (version, method, scheme, kept) == ("HTTP/2.0", "GET", "Bearer", "yes") and (
        key.startswith("keyhole-")
    )


# ── clients ───────────────────────────────────────────────────────────────────────────────────────


def test_httpx_speaks_http2(house: House) -> None:
    found = house.result("httpx")
    assert found["version"] == "HTTP/2"
    assert is_with_placeholder(found["said"])
    assert found["denied"] == [403, "no-rule"]
    assert found["echoed"]


def test_javas_client_speaks_http2(house: House) -> None:
    if shutil.which("java", path=SEARCH) is None:
        give_up("java is not installed")
    found = house.result("java")
    assert found["version"] == "HTTP_2"
    assert is_with_placeholder(found["said"])
    assert found["echoed"] == 400_000


def test_nodes_fetch_reaches_an_origin_that_speaks_http2_alone(house: House) -> None:
    found = house.result("fetch")
    assert is_with_placeholder(found["said"])
    assert found["echoed"] == 400_000


# ── streams ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS)
def test_pieces_pass_both_ways_while_both_are_open(house: House, host: str) -> None:
    """Each is sent when the one before has come back; trailers follow, scrubbed (I7)."""
    found = house.result(host)["echo"]
    assert found["status"] == 200
    assert found["pieces"] == [f"piece {number}" for number in range(20)]
    assert found["trailers"]["x-got"] == "after it all"
    assert found["trailers"]["x-key"].startswith("Bearer keyhole-")


@pytest.mark.parametrize("host", HOSTS)
def test_interim_responses_and_heads_without_bodies_pass(house: House, host: str) -> None:
    found = house.result(host)
    assert is_with_placeholder(found["said"]["text"])
    head = found["head"]
    assert (head["status"], head["method"], head["text"]) == (200, "HEAD", "")
    assert found["hints"]["interim"] == [[103, "</style.css>; rel=preload"]]
    assert found["hints"]["text"] == "hinted"
    assert found["expect"]["continued"]
    assert found["expect"]["text"] == "what was waited for"


@pytest.mark.parametrize("host", HOSTS)
def test_a_clients_reset_reaches_the_origin(house: House, host: str) -> None:
    """nghttpx says why in words of its own."""
    assert house.result(host)["cancel"]["text"] == "begun\n"
    code = CANCEL if host == "node.example" else INTERNAL
    until(lambda: ("/v1/endless", code) in house.origins[host].reset)


def test_an_origins_reset_reaches_the_client(house: House) -> None:
    """What came before it has arrived."""
    found = house.result("node.example")["reset"]
    assert ("/v1/reset", INTERNAL) in house.origins["node.example"].reset
    assert (found["status"], found["text"], found["code"]) == (200, "begun\n", INTERNAL)


def test_an_origin_that_leaves_amid_many_requests_loses_none(house: House) -> None:
    """After every tenth it takes no more by the same connection; 60 are asked at once.

    By itself: a request whose body is on its way cannot be sent again.
    """
    done = house.project.run("node", "http2_streams.mjs", "node.example", "farewell")
    assert done.code == 0, done
    assert json.loads(done.out)["farewell"] == ["answered"] * 60


def plane_of(project: Project, pid: int) -> int:
    """The data plane of a run, as its lock file names it."""
    for path in (project.home / "state/keyhole/run/runs").glob("*.lock"):
        said = json.loads(path.read_text())
        if said["main"][0] == pid:
            return int(said["plane"][0])
    raise AssertionError("the run has no endpoint")


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_a_slow_reader_slows_its_stream_alone_and_takes_little_memory(house: House) -> None:
    """I9. Control: the whole arrives as soon as it is read."""
    words = ("node", "http2_streams.mjs", "node.example", "said", "slow")
    with house.project.running(*words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert line_of(process.stdout) == "ready"
        plane = plane_of(house.project, process.pid)
        before = resident(plane)
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        assert line_of(process.stdout) == "held"
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        said = json.loads(line_of(process.stdout))
        grown = peak(plane) - before
        assert process.wait(PATIENCE) == 0
    assert said["slow"] == {"size": MUCH, "others": [200] * 4}
    assert grown < HELD


def test_revocation_ends_a_stream_at_once(house: House) -> None:
    """Control: the stream has begun, and by itself it never ends."""
    words = ("node", "http2_streams.mjs", "node.example", "endless")
    origin = house.origins["node.example"]
    with house.project.running(*words) as process:
        assert line_of(process.stdout) == "begun"
        count = len(origin.reset)
        said = house.project("revoke", "--all")
        assert said.code == 0, said
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, b"Error: read ECONNRESET\n")
    until(lambda: origin.reset[count:] == [("/v1/endless", CANCEL)], told=lambda: origin.reset)


def test_a_change_of_the_policy_ends_the_streams_that_it_denies(house: House) -> None:
    """I3: at once, while its connection goes on with what is allowed. Control: by itself the stream
    never ends, and a change that allows it leaves it alone."""
    words = ("node", "http2_streams.mjs", "node.example", "endless", "said")
    origin, project = house.origins["node.example"], house.project
    before = (project.directory / "keyhole.toml").read_text()

    def change(text: str) -> None:
        project.write("keyhole.toml", text)
        assert project("policy", "trust", "--trust").code == 0

    def changes() -> int:
        return sum(
            e["kind"] == "session" and e["reason"] == "policy-changed" for e in project.events()
        )

    with project.running(*words) as process:
        assert line_of(process.stdout) == "begun"
        count, known = len(origin.reset), changes()
        change(before.replace("[limits]", 'deny = ["GET /v1/never"]\n[limits]'))
        until(lambda: changes() > known)
        assert origin.reset[count:] == []
        change(before.replace("[limits]", 'deny = ["GET /v1/endless"]\n[limits]'))
        out, _ = process.communicate(timeout=PATIENCE)
    change(before)
    assert process.returncode == 0
    found = json.loads(out)
    assert (found["endless"]["text"], found["endless"]["code"]) == ("begun\n", INTERNAL)
    assert is_with_placeholder(found["said"]["text"])
    until(lambda: origin.reset[count:] == [("/v1/endless", CANCEL)], told=lambda: origin.reset)
    ended = [
        e for e in project.events() if (e["kind"], e["reason"]) == ("request", "policy-changed")
    ]
    assert [e["details"]["path"] for e in ended] == ["/v1/endless"]
