"""The way into a pod: its kubelet's probes, and peers that the policy names (I2, I5, I9)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from lightkube.resources.core_v1 import Event, Pod

from tests.rigs.kube.estate import POLICY
from tests.rigs.kube.node import NODE
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.kube.estate import Estate

SERVER = """
import http.server, os, socketserver
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == "/page" or os.path.exists("/tmp" + self.path)
        self.send_response(200 if ok else 503)
        self.end_headers()
        self.wfile.write(b"served")
    def log_message(self, *words):
        pass
class Server(socketserver.ThreadingTCPServer):  # asks for no name, as `HTTPServer` does
    allow_reuse_address = True
Server(("0.0.0.0", 8080), Page).serve_forever()
"""

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(f"http://{sys.argv[1]}:{sys.argv[2]}/page", timeout=3).read())
except OSError as error:
    print(type(error).__name__, error)
    sys.exit(1)
"""

ROLE = "served"


def _probe(kind: dict[str, Any]) -> dict[str, Any]:
    return kind | {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 2}


def _is_ready(estate: Estate, name: str) -> bool:
    status = estate.client.get(Pod, name, namespace="default").status
    found = (status.conditions if status else None) or []
    return any(each.type == "Ready" and each.status == "True" for each in found)


def _address(estate: Estate, name: str) -> str:
    status = estate.client.get(Pod, name, namespace="default").status
    return (status.podIP if status else None) or ""


def _reaches(estate: Estate, peer: str, address: str, port: int = 8080) -> bool:
    return estate.inside(peer, "python3", "-c", FETCH, address, str(port))[0] == 0


def _write(estate: Estate, name: str, *files: str) -> None:
    """Write files by which a server knows what to do."""
    code, said = estate.inside(name, "/bin/sh", "-c", "; ".join(f": > /tmp/{f}" for f in files))
    assert code == 0, said


def _served(estate: Estate, name: str, role: str, probes: dict[str, Any]) -> dict[str, Any]:
    """A pod with a server and probes."""
    pod = estate.pod(name, selected=False)
    pod["metadata"]["labels"] = {"role": role}
    main = pod["spec"]["containers"][0]
    # The server starts when it is told to: a probe before that must fail.
    main["command"] = [
        "/bin/sh", "-c", f"until [ -e /tmp/start ]; do sleep 0.2; done; exec python3 -c '{SERVER}'",
    ]  # fmt: skip
    main |= probes
    return pod


@pytest.fixture(scope="module")
def server(estate: Estate) -> Iterator[str]:
    """A pod behind a door with probes and a server, and three others: one with the label that the
    policy names, one that it does not name, and a server without a door."""
    inbound = '[sandbox]\ninbound = ["8080 from role=friend"]\n'
    text = POLICY.replace("[services.one]", f"{inbound}[services.one]")
    estate.apply(estate.policy(ROLE, text, role=ROLE))
    probes = {
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": _probe({"httpGet": {"path": "/ready", "port": "web"}}),
    }
    for name, role in (("server", ROLE), ("open-server", "none")):
        estate.create(_served(estate, name, role, probes))
    for name, role in (("friend", "friend"), ("stranger", "none")):
        pod = estate.pod(name, selected=False)
        pod["metadata"]["labels"] = {"role": role}
        estate.create(pod)
    everyone = ("server", "open-server", "friend", "stranger")
    until(
        lambda: all(estate.phase(each) == "Running" for each in everyone),
        told=lambda: estate.said[-3000:],
    )
    yield "server"
    for name in everyone:
        estate.remove(name)


def test_a_readiness_probe_fails_and_succeeds_as_the_server_does(
    estate: Estate, server: str
) -> None:
    assert not _is_ready(estate, server), "the server does not run yet"
    for name in (server, "open-server"):
        _write(estate, name, "start", "ready")
    until(lambda: _is_ready(estate, "open-server"))
    until(lambda: _is_ready(estate, server), told=lambda: estate.said[-3000:])
    estate.inside(server, "python3", "-c", "import os; os.unlink('/tmp/ready')")
    until(lambda: not _is_ready(estate, server))
    _write(estate, server, "ready")
    until(lambda: _is_ready(estate, server))


def test_a_named_peer_connects_and_no_other_pod_does_i2(estate: Estate, server: str) -> None:
    for name in (server, "open-server"):
        _write(estate, name, "start", "ready")
    boxed, plain = _address(estate, server), _address(estate, "open-server")
    until(lambda: _reaches(estate, "stranger", plain))
    until(lambda: _reaches(estate, "friend", boxed), told=lambda: estate.said[-3000:])
    assert not _reaches(estate, "stranger", boxed)


def test_a_pod_opens_no_port_by_itself_i2(estate: Estate, server: str) -> None:
    """It listens on a port that neither a probe nor the policy names."""
    listen = "python3 -m http.server 8081 --directory /tmp >/dev/null 2>&1 & : > /tmp/page"
    for name in (server, "open-server"):
        estate.inside(name, "/bin/sh", "-c", listen)
    plain = _address(estate, "open-server")
    until(lambda: _reaches(estate, "friend", plain, 8081))
    assert estate.inside(server, "python3", "-c", FETCH, "127.0.0.1", "8081")[0] == 0
    assert not _reaches(estate, "friend", _address(estate, server), 8081)


RULES = """
table ip trial {
  chain pre { type nat hook prerouting priority -101;
    ip daddr %(node)s tcp dport 30080 dnat to %(boxed)s:8080
    ip daddr %(node)s tcp dport 30081 dnat to %(plain)s:8080
  }
  chain post { type nat hook postrouting priority 99;
    ip daddr { %(boxed)s, %(plain)s } tcp dport 8080 masquerade
  }
}
"""


def test_a_pod_behind_the_nodes_own_address_is_not_taken_for_the_kubelet_i5(
    estate: Estate, server: str
) -> None:
    """As a Service with a port of the node translates addresses: the pod behind the door sees its
    node at the other end. The control is the server without a door, reached in the same way."""
    for name in (server, "open-server"):
        _write(estate, name, "start", "ready")
    boxed, plain = _address(estate, server), _address(estate, "open-server")
    rules = RULES % {"node": NODE, "boxed": boxed, "plain": plain}
    estate.on_node("/bin/sh", "-c", f"echo '{rules}' | /usr/sbin/nft -f -")
    try:
        until(lambda: _is_ready(estate, server), told=lambda: estate.said[-3000:])
        until(lambda: _reaches(estate, "stranger", NODE, 30081))
        assert not _reaches(estate, "stranger", NODE, 30080)
        assert _is_ready(estate, server), "the kubelet itself is let in"
    finally:
        estate.on_node("/usr/sbin/nft", "delete", "table", "ip", "trial")


def test_probes_go_on_with_the_next_agent_and_the_pod_keeps_its_address(
    estate: Estate, server: str
) -> None:
    _write(estate, server, "start", "ready")
    until(lambda: _is_ready(estate, server))
    before = _address(estate, server)
    estate.kill_agent()
    try:
        until(lambda: not _is_ready(estate, server))
        assert not _reaches(estate, "friend", before)
    finally:
        estate.start_agent()
    until(lambda: _is_ready(estate, server), told=lambda: estate.said[-3000:])
    until(lambda: _reaches(estate, "friend", before))
    assert _address(estate, server) == before


@pytest.mark.parametrize("kind", ["tcpSocket", "grpc"])
def test_a_probe_of_another_kind_fails_while_nobody_listens_and_then_succeeds(
    estate: Estate, server: str, kind: str
) -> None:
    """A server of gRPC health is not at hand: what it is asked arrives, and its absence fails."""
    name = f"probed-{kind.lower()}"
    probe = {"readinessProbe": _probe({kind: {"port": 8080}})}
    estate.create(_served(estate, name, ROLE, probe))
    try:
        until(lambda: estate.phase(name) == "Running", told=lambda: estate.said[-3000:])
        assert not _is_ready(estate, name), "nobody listens yet"
        _write(estate, name, "start")
        if kind == "tcpSocket":
            until(lambda: _is_ready(estate, name), told=lambda: estate.said[-3000:])
            return
        until(lambda: "Readiness probe" in _events(estate, name))
        assert not _is_ready(estate, name)
    finally:
        estate.remove(name)


def _events(estate: Estate, name: str) -> str:
    listed = estate.client.list(Event, namespace="default")
    return "\n".join(each.message or "" for each in listed if each.involvedObject.name == name)


def test_connections_from_outside_are_written_down_i8(estate: Estate, server: str) -> None:
    written = estate.on_node("/bin/sh", "-c", "cat /var/lib/keyhole/audit/*.jsonl")
    events = [json.loads(line) for line in written.splitlines()]
    found = {each.get("reason") for each in events}
    assert {"inbound", "inbound-ended", "inbound-refused"} <= found
    verdicts = {each["verdict"] for each in events if each["reason"] == "inbound-refused"}
    assert verdicts == {"deny"}, "so that `keyhole log --denied` shows them"
    assert any("role=friend" in json.dumps(each) for each in events if each["reason"] == "inbound")
