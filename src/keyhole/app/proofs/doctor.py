"""The doctor: makes real sandboxes on this host, without a project, and tries each promise.

It tries every wall from inside, then which clients of this host trust a session's CA.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.proofs.client_trust import check_clients
from keyhole.app.proofs.runtime_choice import RuntimeChoice, choose_runtime
from keyhole.app.selftest.container_selftest import (
    check_container_limits,
    probe_container,
    remember_container,
)
from keyhole.app.selftest.limit_check import LimitCheck, check_limits
from keyhole.app.selftest.selftest import WallResult, probe_walls
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.launch_preparation import RunRequest, prepare_launch, survey_sandbox
from keyhole.app.setup.policy_acceptance import examine_policy
from keyhole.app.setup.policy_file import PolicyWithPresets, open_policy
from keyhole.confine.seccomp import build_filter
from keyhole.model.errors import KeyholeError
from keyhole.sandbox import identity, probe, programs
from keyhole.sandbox.bwrap.helper import FAULT
from keyhole.sandbox.containers.container_target import describe
from keyhole.system.event_loop import run_on_loop
from keyhole.system.packages import find_missing, how_to_install, install_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.setup.host_paths import HostPaths

CLIENTS = "client"
"""The id of the row for all clients if none could be tried, and the prefix of a client's row."""

_NO_CLIENT = "no client could be tried: none that is known is there"
_CONTROL_SECONDS = 20


class DoctorResult(Struct, frozen=True):
    """One row: the attempt, the observation, its positive control, and what to do."""

    id: str
    held: bool
    seen: str
    control: str = ""
    advice: str = ""
    vital: bool = True
    """Whether the host is unfit if it does not hold; otherwise the person is warned."""
    fix: str = ""
    """A command that mends it."""


def examine_host(places: HostPaths, env: Mapping[str, str]) -> list[DoctorResult]:
    """Every row, each tried here and now."""
    findings = [DoctorResult("kernel", True, platform.release())]
    if missing := find_missing():
        return [*findings, _lacking(missing)]
    found = programs.find_programs()
    findings += [
        DoctorResult("bubblewrap", True, _version(found.bwrap) if found.bwrap else ""),
        DoctorResult("nftables", True, _version(found.nft)),
    ]
    return findings + _examine_sandbox(places, env, RuntimeChoice())


def _lacking(missing: list[str]) -> DoctorResult:
    seen = f"missing: {', '.join(missing)}"
    return DoctorResult(
        "packages", False, seen, advice=how_to_install(missing), fix=install_line(missing)
    )


def examine_engine(
    places: HostPaths, env: Mapping[str, str], runtime: str, image: str = ""
) -> list[DoctorResult]:
    """The same for containers of this image, or of one that is made of this host's programs."""
    findings = [DoctorResult("kernel", True, platform.release())]
    if missing := find_missing(contained=True):
        return [*findings, _lacking(missing)]
    try:
        nft = programs.find_programs(contained=True).nft
        findings.append(DoctorResult("nftables", True, _version(nft)))
        with choose_runtime(runtime, image, env, places.state) as choice:
            engine, found = describe(runtime, choice.image, env)
            told = found if image else f"{found}, made of this host's programs for the moment"
            findings += [DoctorResult("engine", True, engine), DoctorResult("image", True, told)]
            return findings + _examine_sandbox(places, env, choice)
    except KeyholeError as error:
        return [*findings, DoctorResult("engine", False, str(error))]


def _examine_sandbox(
    places: HostPaths, env: Mapping[str, str], choice: RuntimeChoice
) -> list[DoctorResult]:
    findings = []
    with tempfile.TemporaryDirectory(prefix="keyhole-doctor-") as directory:
        project = Path(directory).resolve()
        try:
            walls, limits = _walls(project, places, env, choice)
        except (KeyholeError, OSError) as error:
            said = str(error)
            return [DoctorResult("sandbox", False, said, advice=_advice(said), fix=_fix())]
        who = identity.choose_identity(project)
    findings.append(DoctorResult("identity", who.uid != 0, f"runs as uid {who.uid} of this host"))
    controls = _controls()
    findings += [
        DoctorResult(wall.id, wall.held, wall.seen, controls.get(wall.id, "")) for wall in walls
    ]
    findings.append(DoctorResult("limit-together", limits.held, limits.seen, limits.control))
    # If a wall does not stand, nothing runs, so no client is tried.
    return findings + (_clients(choice, places.tried) if all(wall.held for wall in walls) else [])


def _walls(
    project: Path, places: HostPaths, env: Mapping[str, str], choice: RuntimeChoice
) -> tuple[list[WallResult], LimitCheck]:
    path = project / "keyhole.toml"
    path.write_text(f"version = 1\n{choice.section}")
    file = open_policy(path, places, FileCatalogue())
    joined = PolicyWithPresets(file.loaded.policy, (), ())
    examined = examine_policy(file, places.home, "")
    intent = RunRequest(examined, joined, places, env, ("true",), project)
    prepared = prepare_launch(intent, survey_sandbox(intent))
    launch = prepared.launch(interactive=False, fault=env.get(FAULT, ""))
    if prepared.container_target is not None:
        target = prepared.container_target
        walls = run_on_loop(lambda: probe_container(target, launch, joined.policy))
        if all(wall.held for wall in walls):
            remember_container(target, launch, places.tried)
        return walls, run_on_loop(lambda: check_container_limits(target, launch))
    program = build_filter()
    walls = run_on_loop(lambda: probe_walls(launch, joined.policy, program))
    return walls, run_on_loop(lambda: check_limits(launch, program))


def _clients(choice: RuntimeChoice, tried: Path) -> list[DoctorResult]:
    """The clients inside that trust a session's CA, each by an observed request."""
    with tempfile.TemporaryDirectory(prefix="keyhole-doctor-") as directory:
        try:
            known = tried if choice.contained else None  # bubblewrap's differ by directory
            trials = check_clients(Path(directory).resolve(), choice=choice, tried=known)
        except (KeyholeError, OSError) as error:
            return [DoctorResult(CLIENTS, False, str(error), advice=_advice(str(error)))]
    if not trials:
        return [DoctorResult(CLIENTS, choice.contained, _NO_CLIENT, vital=not choice.contained)]
    return [
        DoctorResult(
            f"{CLIENTS}.{trial.client.name}",
            trial.trusts,
            trial.seen,
            trial.control,
            trial.advice,
            vital=trial.client.vital,
        )
        for trial in trials
    ]


def _controls() -> dict[str, str]:
    """The same system calls outside, where nothing forbids them: a broken probe would show."""
    done = subprocess.run(  # noqa: S603 - our own interpreter and file
        [sys.executable, "-I", "-S", probe.__file__, json.dumps({"outside": True})],
        capture_output=True, timeout=_CONTROL_SECONDS, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return {row["id"]: f"outside: {row['seen']}" for row in json.loads(done.stdout)}
    except (ValueError, KeyError, TypeError):
        return {}


def _version(program: Path) -> str:
    done = subprocess.run(  # noqa: S603 - found where the system keeps programs
        [str(program), "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    return f"{done.stdout.strip() or 'no version'} ({program})"


_RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def _is_restricted() -> bool:
    return os.getuid() != 0 and _RESTRICTED.exists() and _RESTRICTED.read_text().strip() == "1"


def _fix() -> str:
    """The command for a system that keeps user namespaces from unprivileged programs."""
    if _is_restricted():
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return ""


def _advice(error: str) -> str:
    if _is_restricted():
        return (
            "this system lets unprivileged programs do nothing in user namespaces: "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, "
            "or an AppArmor profile that lets bwrap make them"
        )
    if "unshare" in error or "_map" in error or "setgroups" in error:
        return "user namespaces must be enabled: sysctl user.max_user_namespaces, or run as root"
    if os.getuid() == 0 and "idmap" in error:
        return "the project's file system cannot be idmapped: give it an owner other than root"
    return ""
