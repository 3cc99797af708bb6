"""Pods behind a door, in a real cluster; an unselected pod is the control of each wall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from tests.rigs.kube.estate import POLICY, SECRET
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
