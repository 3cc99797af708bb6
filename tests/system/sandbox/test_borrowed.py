"""Order A: the system refuses Keyhole a user namespace of its own, and lets bubblewrap make one.

The walls, the door, exit codes and sudden ends are those of the other order, so their very tests
are run again here, by an ordinary user whom a fault refuses what such a system would. Root needs no
user namespace, so no root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.sandbox.bwrap import namespaces
from keyhole.sandbox.bwrap.helper import FAULT
from tests.rigs.sandbox.projects import Project
from tests.rigs.waiting import PATIENCE
from tests.system.sandbox.test_door import (
    test_a_denied_host_is_told_once_with_what_to_type,
    test_a_name_that_no_rule_names_does_not_exist,
    test_an_address_that_stands_for_no_name_is_refused,
    test_an_allowed_name_is_reached_by_a_synthetic_address,
    test_any_resolver_and_any_transport_answers_for_allowed_names_alone,
    test_the_hosts_loopback_is_not_the_sandboxes,
    test_the_log_tells_the_session_from_its_start_to_its_end,
    test_tls_must_ask_for_the_name_that_dns_did,
    test_udp_is_refused_at_once,
    visit,
)
from tests.system.sandbox.test_exec import (
    sandbox,
    test_a_further_command_runs_behind_the_same_walls,
)
from tests.system.sandbox.test_exits import (
    test_a_command_ended_by_a_signal_is_128_and_its_number,
    test_a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126,
    test_the_exit_code_is_the_commands,
)
from tests.system.sandbox.test_signals import (
    assert_nothing_is_run,
    test_a_command_that_ends_leaves_nobody_behind,
    test_a_terminated_command_takes_everybody_with_it,
    test_signals_to_keyhole_reach_the_command,
    test_when_keyhole_is_killed_everything_inside_ends,
)
from tests.system.sandbox.test_walls import (
    services,
    test_every_wall_that_the_probe_tries_holds,
    test_no_other_way_is_open,
    walled,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rigs.sandbox.people import Person

__all__ = [
    "sandbox",
    "services",
    "test_a_command_ended_by_a_signal_is_128_and_its_number",
    "test_a_command_that_ends_leaves_nobody_behind",
    "test_a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126",
    "test_a_denied_host_is_told_once_with_what_to_type",
    "test_a_further_command_runs_behind_the_same_walls",
    "test_a_name_that_no_rule_names_does_not_exist",
    "test_a_terminated_command_takes_everybody_with_it",
    "test_an_address_that_stands_for_no_name_is_refused",
    "test_an_allowed_name_is_reached_by_a_synthetic_address",
    "test_any_resolver_and_any_transport_answers_for_allowed_names_alone",
    "test_every_wall_that_the_probe_tries_holds",
    "test_no_other_way_is_open",
    "test_signals_to_keyhole_reach_the_command",
    "test_the_exit_code_is_the_commands",
    "test_the_hosts_loopback_is_not_the_sandboxes",
    "test_the_log_tells_the_session_from_its_start_to_its_end",
    "test_tls_must_ask_for_the_name_that_dns_did",
    "test_udp_is_refused_at_once",
    "test_when_keyhole_is_killed_everything_inside_ends",
    "visit",
    "walled",
]

pytestmark = [
    pytest.mark.outside,
    pytest.mark.parametrize("person", ["user"], indirect=True, scope="session"),
]

REFUSALS = (namespaces.NO_NAMESPACE, namespaces.NO_CAPABILITY)


class Restricted(Project):
    """A project on a system that refuses ordinary programs a user namespace."""

    @property
    def env(self) -> dict[str, str]:
        return super().env | {FAULT: namespaces.NO_NAMESPACE}


def restricted(project: Project) -> Restricted:
    return Restricted(project.person, project.directory, project.home)


@pytest.fixture(scope="module")
def new_restricted(new_project: Callable[..., Project]) -> Callable[..., Project]:
    """Under a name of its own: fixtures of the whole session are made from the other."""
    return lambda policy="": restricted(new_project(policy))


@pytest.fixture(scope="module")
def open_project(open_project: Callable[..., Project]) -> Callable[..., Project]:
    """As elsewhere, but restricted."""
    return lambda more="": restricted(open_project(more))


@pytest.fixture(scope="module")
def plain(new_restricted: Callable[..., Project]) -> Project:
    """As elsewhere, but restricted, and its walls tried."""
    made = new_restricted()
    assert made.run("true", flags=("--self-test",)).code == 0
    return made


@pytest.fixture
def project(new_restricted: Callable[..., Project]) -> Project:
    """As elsewhere, but restricted."""
    return new_restricted()


def row(project: Project, **env: str) -> dict[str, Any]:
    """What `keyhole doctor` says of the namespaces, having tried every wall in them."""
    rows = json.loads(project("doctor", "--json", env=env).out)
    found: dict[str, Any] = next(row for row in rows if row["id"] == "namespaces")
    assert [r["id"] for r in rows if not r["held"] and not r["id"].startswith("client")] == []
    return found


def test_the_doctor_says_whose_namespaces_they_are_and_why(plain: Project) -> None:
    """I2: each order with every wall tried in it. Control: nothing is refused without a fault."""
    for refusal, why in zip(REFUSALS, ("unshare: Operation not permitted", "denied"), strict=True):
        seen = row(plain, **{FAULT: refusal})["seen"]
        assert seen.startswith("order A: bubblewrap")
        assert why in seen
    assert row(plain, **{FAULT: ""})["seen"].startswith("order B: Keyhole")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_the_self_test_holds_and_then_the_command_runs(plain: Project, refusal: str) -> None:
    """I2: however the system refuses; the network is neither the host's nor the lender's."""
    flags = ("--self-test",)
    done = plain.run("readlink", "/proc/self/ns/net", flags=flags, env={FAULT: refusal})
    assert done.code == 0, done
    assert done.lines[0].startswith("net:[")
    assert done.lines[0] != os.readlink("/proc/self/ns/net")


def test_walls_that_held_in_one_order_are_tried_again_in_the_other(project: Project) -> None:
    """I2: what was tried is remembered for the order that it was tried in."""
    remembered = project.home / "state" / "keyhole" / "selftest.json"
    counts = []
    for fault in ("", "", namespaces.NO_NAMESPACE, namespaces.NO_CAPABILITY):
        assert project.run("true", env={FAULT: fault}).code == 0
        counts.append(len(json.loads(remembered.read_text())))
    assert counts == [1, 1, 2, 2]


def test_curl_reaches_the_allowed_host_and_no_other(walled: Project) -> None:
    """I3, by a client that knows nothing of Keyhole."""
    curl = ("curl", "-sS", "--max-time", "10", "--cacert", "ca.pem", "-o", "/dev/null", "-w")
    done = walled.run(*curl, "%{http_code}", "https://origin.example/")
    assert (done.code, done.out) == (0, "200"), done
    done = walled.run(*curl, "%{http_code}", "https://evil.example/")
    assert (done.code, done.out) == (6, "000"), done  # the name does not exist


BORROW = """
import sys
from keyhole.sandbox import empty_network
from keyhole.sandbox.bwrap import namespaces
try:
    namespaces.borrow_namespaces(sys.argv[1], "unshare: Operation not permitted")
    empty_network.bring_up_loopback()
    empty_network.make_everything_local()
    print("borrowed")
except (OSError, RuntimeError) as error:
    print(error)
"""

LENDERS = {
    'exec {bwrap} "$@"': "borrowed",
    "echo setting up uid map: denied >&2; exit 1": "made none either: setting up uid map: denied",
    "exit 0": "made none either: it said nothing",
    # The host's own network, without and with a user namespace, and another user in it.
    'while [ "$1" != -- ]; do shift; done; shift; exec "$@"': "setns: Invalid argument",
    'shift 3; exec {bwrap} --unshare-user "$@"': "not of its user namespace",
    'exec {bwrap} --uid 7 "$@"': "uid_map of bubblewrap's user namespace is not ours alone",
}


@pytest.mark.parametrize("lender", LENDERS)
def test_only_an_empty_network_of_our_own_user_is_borrowed(
    lender: str, person: Person, ground: Path
) -> None:
    """I2: a bubblewrap that fails, or lends something else, ends the set-up. Control: the first."""
    program = ground / "lender"
    program.write_text(f"#!/bin/sh\n{lender.replace('{bwrap}', shutil.which('bwrap') or '')}\n")
    program.chmod(0o755)
    python = person.program.with_name("python")
    done = subprocess.run(
        [python, "-c", BORROW, program], cwd="/", env={}, capture_output=True, text=True,
        timeout=PATIENCE, check=True, **person.become(),
    )  # fmt: skip
    assert LENDERS[lender] in done.stdout


@pytest.mark.parametrize("killed", ["helper", "gateway"])
def test_an_interrupted_set_up_in_borrowed_namespaces_runs_nothing(
    plain: Project, killed: str
) -> None:
    """I2: killed after each step. Control: with the refusal alone the same command runs."""
    assert_nothing_is_run(plain, killed, f"{namespaces.NO_NAMESPACE},")
