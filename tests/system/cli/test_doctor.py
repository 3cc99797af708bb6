"""`keyhole doctor`: every row was executed, here, and has its control."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from keyhole.app.proofs import client_trust, demo_service
from keyhole.app.proofs.client_programs import CLIENTS
from keyhole.app.proofs.client_trust import ClientTrust, check_clients
from keyhole.app.proofs.demo_service import ReceivedRequest
from keyhole.app.proofs.doctor import DoctorResult
from keyhole.app.proofs.untrusted_server import UntrustedServer
from keyhole.cli import doctor
from keyhole.confine.cgroup import find_cgroup_directories
from tests.rigs.sandbox.people import PEOPLE, Person, open_ground, person_of
from tests.rigs.sandbox.projects import SEARCH, Project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.cli.conftest import Keyhole

TRUSTS = "trusts: its request arrived, with the key"


@pytest.fixture(scope="module", params=PEOPLE)
def somebody(request: pytest.FixtureRequest) -> Iterator[Person]:
    """Root, then an ordinary user; when the suite is no root's, the latter alone."""
    with open_ground("doctor-test") as ground, person_of(request.param, ground / "own") as made:
        yield made


@pytest.fixture(scope="module")
def project(somebody: Person) -> Project:
    return Project.make(somebody, 0)


@pytest.fixture(scope="module")
def rows(project: Project) -> dict[str, dict[str, Any]]:
    """What the doctor said to this person."""
    ran = project("doctor", "--json")
    assert (ran.code, ran.err) == (0, "")
    return {row["id"]: row for row in json.loads(ran.out)}


@pytest.mark.outside
def test_every_wall_stands_on_this_host(rows: dict[str, dict[str, Any]]) -> None:
    """I2: what the facts say is alive inside an empty namespace is tried, and closed."""
    assert [name for name, row in rows.items() if not row["held"]] == []
    expected = {
        "only-lo", "vsock", "io-uring", "32-bit-call", "new-user-namespace", "tiocsti",
        "new-time-namespace", "literal-address", "host-loopback", "abstract-socket",
        "unknown-name", "host-process",
        "control-own-loopback", "control-allowed-name", "control-child", "limit-together",
    }  # fmt: skip
    assert expected <= set(rows)
    # The same call outside is not refused in the same way, so the filter is what refuses it.
    filtered = ("vsock", "io-uring", "new-user-namespace", "new-time-namespace", "tiocsti")
    for name in (*filtered, "ioctl-btrfs-snapshot"):
        assert rows[name]["control"] not in ("", f"outside: {rows[name]['seen']}")


@pytest.mark.outside
def test_the_doctor_says_what_bounds_all_processes_together(
    rows: dict[str, dict[str, Any]], somebody: Person
) -> None:
    """I9: what it says was tried; control: one process alone gets its memory."""
    row = rows["limit-together"]
    assert row["control"] == "alone: 1 of 1"
    if "each process by itself" in row["seen"]:
        assert "4 of 4" in row["seen"]
    else:
        assert "4 of 4" not in row["seen"]
    if somebody.uid == os.geteuid():
        bounded = {name for place in find_cgroup_directories() for name in place.controllers}
        assert ("memory by control group" in row["seen"]) == ("memory" in bounded)
        assert ("processes by control group" in row["seen"]) == ("pids" in bounded)


@pytest.mark.outside
def test_the_doctor_is_readable(keyhole: Keyhole) -> None:
    ran = keyhole("doctor")
    assert ran.code == 0
    last, then = ran.out.splitlines()[-2:]
    assert last == "every wall stands"
    assert then == "next, in a project: `keyhole init`, then `keyhole run -- CMD`"


# ── which clients trust the CA ──────────────────────────────────────────────────────────────────


@pytest.mark.outside
def test_every_client_that_is_there_trusts_the_session_and_no_stranger(
    rows: dict[str, dict[str, Any]], project: Project
) -> None:
    """I4. What it says was seen by the services; nothing of it is in the person's own log."""
    there = {
        f"client.{client.name}"
        for client in CLIENTS
        if all(shutil.which(program, path=SEARCH) for program in client.programs)
    }
    tried = {name for name in rows if name.startswith("client")}
    # Whether the system's Python has requests is not to be seen from here.
    assert tried - {"client.requests"} == (there | {"client.python"}) - {"client.requests"}
    for name in tried:
        assert TRUSTS in rows[name]["seen"]
        assert (rows[name]["control"], rows[name]["advice"]) == ("stranger: refused", "")
    assert not (project.home / "state/keyhole/audit").exists()


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClientTrust]:
    """Clients in a sandbox where some trust the wrong authority, and some anybody."""
    directory = tmp_path_factory.mktemp("spoilt").resolve()
    other = directory / "project/other.pem"
    other.parent.mkdir()
    trustme.CA().cert_pem.write_to_path(str(other))
    variables = {
        "SSL_CERT_FILE": str(other),
        "GIT_SSL_NO_VERIFY": "1",
        "NODE_TLS_REJECT_UNAUTHORIZED": "0",
    }
    return {trial.client.name: trial for trial in check_clients(directory, variables)}


def trial_of(spoilt: dict[str, ClientTrust], name: str) -> ClientTrust:
    if name not in spoilt:
        pytest.skip(f"{name} is not installed")
    return spoilt[name]


@pytest.mark.outside
@pytest.mark.parametrize("name", ["python", "openssl"])
def test_a_client_that_trusts_another_authority_is_found(
    spoilt: dict[str, ClientTrust], name: str
) -> None:
    """I10. Control: curl, which reads another variable, trusts the session in the same sandbox."""
    trial = trial_of(spoilt, name)
    assert not trial.trusts
    assert "does not trust: no request of it arrived (" in trial.seen
    assert "unable to get local issuer certificate" in trial.seen
    assert trial.control == "stranger: refused"
    assert "SSL_CERT_FILE=/etc/keyhole/bundle.pem" in trial.advice
    control = trial_of(spoilt, "curl")
    assert (control.trusts, control.advice) == (True, "")


@pytest.mark.outside
@pytest.mark.parametrize("name", ["git", "node"])
def test_a_client_that_verifies_nothing_does_not_count_as_trusting(
    spoilt: dict[str, ClientTrust], name: str
) -> None:
    """I4, I10: its request arrived, as one of anybody's would. Control: curl, as above."""
    trial = trial_of(spoilt, name)
    assert not trial.trusts
    assert "trusts anybody" in trial.seen
    assert trial.control == "stranger: believed"
    assert trial.advice
    assert trial_of(spoilt, "curl").trusts


CURL = next(client for client in CLIENTS if client.name == "curl")


def judged(service: list[ReceivedRequest], met: set[str], code: int = 0) -> ClientTrust:
    ended = client_trust._ClientResult("/usr/bin/curl", [code], "first\nlast\n\n")
    stranger = UntrustedServer(1, {f"{name}.stranger.keyhole.example" for name in met})
    return client_trust._judge(CURL, ended, demo_service.DemoService(1, b"", service), stranger)


ARRIVED = [ReceivedRequest("/curl/", True, False)]


@pytest.mark.parametrize(
    ("arrived", "met", "code", "seen"),
    [
        ([], {"curl"}, 60, "no request of it arrived (last)"),
        ([ReceivedRequest("/git/", True, False)], {"curl"}, 0, "no request of it arrived"),
        ([ReceivedRequest("/curl/", False, False)], {"curl"}, 0, "arrived without the key"),
        (ARRIVED, set(), 0, "its control did not (last)"),
        (ARRIVED, {"git"}, 0, "its control did not"),
        (ARRIVED, {"curl"}, -9, "did not end within 20 seconds"),
    ],
)
def test_what_was_not_seen_does_not_hold(
    arrived: list[ReceivedRequest], met: set[str], code: int, seen: str
) -> None:
    """I3. Control: the same client, seen at both hosts, trusts."""
    trial = judged(arrived, met, code)
    assert not trial.trusts
    assert seen in trial.seen
    assert judged(ARRIVED, {"curl"}).trusts


OPTIONS = {"runtime": "bwrap", "image": None, "agents": None}


@pytest.mark.parametrize(
    ("finding", "code", "mark", "verdict"),
    [
        (DoctorResult("client.curl", True, "trusts"), 0, "holds", "every wall stands"),
        (
            DoctorResult("client.wget", False, "does not trust", vital=False),
            0,
            "warns",
            "every wall stands",
        ),
        (
            DoctorResult("client.curl", False, "does not trust", advice="it reads a variable"),
            1,
            "FAILS",
            "every wall stands, but clients inside cannot use a service: see the rows above",
        ),
        (
            DoctorResult("vsock", False, "done"),
            1,
            "FAILS",
            "a sandbox on this host does not hold: nothing runs",
        ),
    ],
    ids=["a client holds", "a client warns", "a client fails", "a wall fails"],
)
def test_a_client_that_may_be_told_is_a_warning_and_one_that_must_work_a_failure(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    finding: DoctorResult,
    code: int,
    mark: str,
    verdict: str,
) -> None:
    monkeypatch.setattr(
        doctor, "examine_host", lambda places, env: [DoctorResult("kernel", True, "6"), finding]
    )
    assert doctor.run(argparse.Namespace(**OPTIONS, json=False)) == code
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith(f"{mark}  {finding.id}")
    assert printed[-2] == verdict
    assert ("keyhole init" in printed[-1]) is (code == 0)
    assert doctor.run(argparse.Namespace(**OPTIONS, json=True)) == code
    assert json.loads(capsys.readouterr().out)[1]["held"] is finding.held
