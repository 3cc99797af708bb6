"""Pods behind a door, in a real cluster; an unselected pod is the control of each wall."""

from __future__ import annotations

import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest
from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from keyhole.app.kube.resources import KeyholeNode, KeyholePolicy, status_of
from tests.rigs.kube.estate import POLICY, SECRET, secret
from tests.rigs.kube.node import API, NODE, PORT
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.kube.estate import Estate

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
except OSError as error:
    print(type(error).__name__, error)
    sys.exit(1)
print("connected")
"""

TALK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) as sock:
        sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        got = sock.recv(1)
except OSError as error:
    print(type(error).__name__, error)
    sys.exit(1)
sys.exit(0 if got else 1)
"""

ASK = ("curl", "-sS", "--max-time", "20", "--cacert", "/etc/keyhole/bundle.pem")


@pytest.fixture(scope="module")
def pods(estate: Estate) -> Iterator[tuple[str, str]]:
    """A pod behind a door, and one that no policy selects."""
    estate.run("boxed", selected=True)
    estate.run("plain", selected=False)
    yield "boxed", "plain"
    estate.remove("boxed")
    estate.remove("plain")


def test_a_pod_gets_an_answer_with_the_credential_and_has_none_i1_i6(
    estate: Estate, pods: tuple[str, str]
) -> None:
    code, said = estate.inside("boxed", *ASK, "https://one.example/v1/hello")
    assert code == 0, f"{said}{estate.said}"
    assert SECRET not in said, "the origin repeats it, and the gateway takes it out (I7)"
    assert estate.origin.credentials("/v1/hello") == [f"Bearer {SECRET}"]
    code, said = estate.inside("boxed", "/bin/sh", "-c", "env; cat /etc/keyhole/*")
    assert SECRET not in said


def test_a_pod_has_loopback_and_nothing_else_i2(estate: Estate, pods: tuple[str, str]) -> None:
    _, plain = estate.inside("plain", "ip", "-o", "link")
    assert "eth0" in plain, "the control: an unselected pod has its interface"
    _, boxed = estate.inside("boxed", "ip", "-o", "link")
    assert [line.split(":")[1].strip() for line in boxed.strip().splitlines()] == ["lo"]


@pytest.mark.parametrize(
    ("address", "port"),
    [(NODE, PORT), (API, 443), (NODE, 10250)],
    ids=["the API server", "its service address", "the kubelet"],
)
def test_the_nodes_own_ports_are_out_of_reach_i2(
    estate: Estate, pods: tuple[str, str], address: str, port: int
) -> None:
    code, said = estate.inside("plain", "python3", "-c", CONNECT, address, str(port))
    assert code == 0, f"the control: an unselected pod reaches it: {said}"
    code, said = estate.inside("boxed", "python3", "-c", TALK, address, str(port))
    assert code == 1, said


METADATA = "169.254.169.254"


@pytest.fixture(scope="module")
def served_addresses(estate: Estate) -> Iterator[dict[str, tuple[str, int]]]:
    """Addresses that answer every unselected pod: the one at which clouds hand out credentials, on
    the node, and that of the origin which a name of the policy leads to."""
    estate.on_node("/sbin/ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    server = HTTPServer((METADATA, 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host, _, port = estate.origin.address.rpartition(":")
    yield {"metadata": (METADATA, server.server_port), "origin": (host, int(port))}
    server.shutdown()
    thread.join()
    server.server_close()
    estate.on_node("/sbin/ip", "address", "delete", f"{METADATA}/32", "dev", "lo")


@pytest.mark.parametrize("which", ["metadata", "origin"])
def test_literal_addresses_are_out_of_reach_i2_i4(
    estate: Estate,
    pods: tuple[str, str],
    served_addresses: dict[str, tuple[str, int]],
    which: str,
) -> None:
    """Also the address of a host that the policy names: only the name leads there."""
    address, port = served_addresses[which]
    code, said = estate.inside("plain", "python3", "-c", CONNECT, address, str(port))
    assert code == 0, f"the control: an unselected pod reaches it: {said}"
    assert estate.inside("boxed", "python3", "-c", TALK, address, str(port))[0] == 1


def test_a_pod_behind_a_door_has_no_token_of_its_account_i1(estate: Estate) -> None:
    """Kubernetes mounts one in each pod. The controls: a pod that no policy selects, and one that
    says that it wants it."""
    path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    wanted = {"without": None, "asked": True, "unselected": None}
    for name, says in wanted.items():
        pod = estate.pod(name, selected=name != "unselected")
        del pod["spec"]["automountServiceAccountToken"]
        if says is not None:
            pod["spec"]["automountServiceAccountToken"] = says
        estate.create(pod)
    try:
        for name in wanted:
            until(lambda name=name: estate.phase(name) == "Running")  # type: ignore[misc]
        found = {name: estate.inside(name, "/bin/cat", path)[0] == 0 for name in wanted}
        assert found == {"without": False, "asked": True, "unselected": True}
    finally:
        for name in wanted:
            estate.remove(name)


def test_a_pod_with_a_door_keeps_to_the_restricted_standard_which_its_namespace_enforces(
    estate: Estate,
) -> None:
    """The volume, the mounts and the variables that admission adds are within it. The control is a
    pod that the API server refuses there."""
    strict = "strict"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": strict, "labels": labels}
    estate.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata},
        secret("one", SECRET, strict),
        estate.policy("agents", POLICY, namespace=strict),
    )
    loose = estate.pod("loose", selected=True, namespace=strict)
    del loose["spec"]["containers"][0]["securityContext"]
    with pytest.raises(ApiError, match="violates PodSecurity"):
        estate.create(loose)
    estate.run("tight", selected=True, namespace=strict)
    try:
        asked = (*ASK, "https://one.example/v1/strict")
        assert estate.inside("tight", *asked, namespace=strict)[0] == 0
        assert estate.origin.credentials("/v1/strict") == [f"Bearer {SECRET}"]
    finally:
        estate.remove("tight", strict)
        estate.client.delete(KeyholePolicy, "agents", namespace=strict)


def test_two_pods_have_their_own_policies_and_credentials_i3_i4(
    estate: Estate, pods: tuple[str, str]
) -> None:
    other = POLICY.replace("one.example", "two.example").replace("kube:one/", "kube:two/")
    estate.apply(secret("two", "made-up-for-the-second-pod-0123"))
    estate.apply(estate.policy("seconds", other, role="second"))
    pod = estate.pod("second", selected=False)
    pod["metadata"]["labels"] = {"role": "second"}
    estate.create(pod)
    try:
        until(lambda: estate.phase("second") == "Running", told=lambda: estate.said[-3000:])
        for name, host in (("boxed", "one"), ("second", "two")):
            assert estate.inside(name, *ASK, f"https://{host}.example/v1/both")[0] == 0
        for name, host in (("boxed", "two"), ("second", "one")):
            assert estate.inside(name, "getent", "hosts", f"{host}.example")[0] == 2
        assert estate.origin.credentials("/v1/both") == [
            f"Bearer {SECRET}", "Bearer made-up-for-the-second-pod-0123",
        ]  # fmt: skip
    finally:
        estate.remove("second")
        estate.client.delete(KeyholePolicy, "seconds", namespace="default")


def test_another_pod_is_out_of_reach_i2(estate: Estate, pods: tuple[str, str]) -> None:
    estate.run("server", selected=False)
    try:
        status = estate.client.get(Pod, "server", namespace="default").status
        address = (status.podIP if status else None) or ""
        estate.inside("server", "/bin/sh", "-c", "python3 -m http.server 8080 >/dev/null 2>&1 &")
        until(lambda: estate.inside("plain", "python3", "-c", TALK, address, "8080")[0] == 0)
        assert estate.inside("boxed", "python3", "-c", TALK, address, "8080")[0] == 1
    finally:
        estate.remove("server")


def test_a_name_that_no_rule_names_does_not_exist_i3(estate: Estate, pods: tuple[str, str]) -> None:
    assert estate.inside("boxed", "getent", "hosts", "one.example")[0] == 0
    assert estate.inside("boxed", "getent", "hosts", "two.example")[0] == 2


def test_a_policy_that_changes_holds_for_pods_that_run_i3(
    estate: Estate, pods: tuple[str, str]
) -> None:
    url = "https://one.example/v2/hello"
    assert "no-rule" in estate.inside("boxed", *ASK, url)[1]
    estate.apply(estate.policy("agents", POLICY.replace("/v1/**", "/**")))
    until(lambda: "got" in estate.inside("boxed", *ASK, url)[1], pause=0.2)
    estate.apply(estate.policy("agents", POLICY))
    until(lambda: "no-rule" in estate.inside("boxed", *ASK, url)[1], pause=0.2)


def test_a_new_value_of_a_secret_is_used_without_a_restart(
    estate: Estate, pods: tuple[str, str]
) -> None:
    estate.set_secret("another-made-up-value-987654321")

    def asked() -> str:
        estate.inside("boxed", *ASK, "https://one.example/v1/rotated")
        return estate.origin.credentials("/v1/rotated")[-1]

    until(lambda: asked() == "Bearer another-made-up-value-987654321", pause=0.2)
    estate.set_secret(SECRET)
    until(lambda: asked() == f"Bearer {SECRET}", pause=0.2)


def test_a_killed_agent_closes_the_doors_and_the_next_one_opens_them_i2(
    estate: Estate, pods: tuple[str, str]
) -> None:
    assert estate.inside("boxed", *ASK, "https://one.example/v1/before")[0] == 0
    estate.kill_agent()
    try:
        assert estate.inside("boxed", *ASK, "https://one.example/v1/meanwhile")[0] != 0
        assert not estate.origin.credentials("/v1/meanwhile")
        _, links = estate.inside("boxed", "ip", "-o", "link")
        assert len(links.strip().splitlines()) == 1
    finally:
        estate.start_agent()
    until(lambda: estate.inside("boxed", *ASK, "https://one.example/v1/after")[0] == 0, pause=0.2)
    assert estate.origin.credentials("/v1/after")[-1] == f"Bearer {SECRET}"


def test_without_an_agent_a_selected_pod_waits_and_another_starts_i2(estate: Estate) -> None:
    estate.kill_agent()
    try:
        estate.run("unselected", selected=False)
        estate.client.create(codecs.from_dict(estate.pod("waiting", selected=True)))
        until(lambda: estate.phase("unselected") == "Running")
        assert estate.phase("waiting") == "Pending"
    finally:
        estate.start_agent()
    until(lambda: estate.phase("waiting") == "Running")
    estate.remove("waiting")
    estate.remove("unselected")


def test_a_second_network_of_a_pod_gets_a_door_too_i2(estate: Estate) -> None:
    """The agent missed the end of the first one, so it must not take that door for this one's."""
    estate.run("renewed", selected=True)
    try:
        with estate.spare_network() as network:
            assert "eth0" in estate.links(network), "the control: it has an interface"
            assert estate.add("renewed", network)["done"] is True
            assert estate.links(network) == {"lo"}
    finally:
        estate.remove("renewed")


def test_a_pod_that_ends_does_not_count_as_one_that_waits_for_its_door(estate: Estate) -> None:
    """A kubelet takes the network away first, and the volume later."""

    def doors() -> list[str]:
        shown = (
            each for node in estate.client.list(KeyholeNode) for each in status_of(node)["pods"]
        )
        return [each["door"] for each in shown if each["name"] == "ending"]

    estate.run("ending", selected=True)
    try:
        with estate.spare_network() as network:
            assert estate.add("ending", network) == {"done": True}
            until(lambda: doors() == ["open"])
            assert estate.delete("ending", network)["done"] is True
            until(lambda: doors() == [])
    finally:
        estate.remove("ending")


def test_a_pod_whose_network_ended_comes_back_behind_a_door_i2(estate: Estate) -> None:
    estate.run("ended", selected=True)
    try:
        assert estate.inside("ended", *ASK, "https://one.example/v1/first")[0] == 0
        estate.end_sandbox("ended")

        def answers() -> bool:
            try:
                _, links = estate.inside("ended", "ip", "-o", "link")
                code, _ = estate.inside("ended", *ASK, "https://one.example/v1/second")
            except (ApiError, OSError):
                return False
            assert len(links.strip().splitlines()) == 1
            return code == 0

        until(answers, pause=0.3)
    finally:
        estate.remove("ended")
