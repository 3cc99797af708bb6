"""The doctor: makes real sandboxes of no one's project on this host and has what is promised tried.

Every wall from inside, then which clients of this host trust a session's CA.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.clienttrial import try_clients
from keyhole.app.limittrial import LimitTrial, try_limits
from keyhole.app.policyfile import Joined, open_policy
from keyhole.app.prepare import Intent, prepare, survey
from keyhole.app.runtimes import Choice, choose
from keyhole.app.selftest import Wall, probe_walls
from keyhole.app.trust import examine
from keyhole.audit.directory import AuditUnusable
from keyhole.model.value import dataclass
from keyhole.sandbox import identity, probe, programs
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import FAULT, SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.sandbox.seccomp import build_filter
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.places import Places

CLIENTS = "client"
"""The row for all clients where none could be tried, and how those of one client begin."""

_NO_CLIENT = "no client could be tried: none that is known is there"
_CONTROL_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was executed, what was seen, its positive control, and what to do."""

    id: str
    held: bool
    seen: str
    control: str = ""
    advice: str = ""
    vital: bool = True
    """Whether the host is unfit where it does not hold; else the person is warned."""


def examine_host(places: Places, env: Mapping[str, str]) -> list[Finding]:
    """Every row, each executed here and now."""
    findings = [Finding("kernel", True, platform.release())]
    try:
        found = programs.find()
    except Missing as error:
        return [*findings, Finding("programs", False, str(error), advice=str(error))]
    findings += [
        Finding("bubblewrap", True, _version(found.bwrap) if found.bwrap else ""),
        Finding("nftables", True, _version(found.nft)),
    ]
    return findings + _examine_sandbox(places, env, Choice())


def examine_engine(
    places: Places, env: Mapping[str, str], runtime: str, image: str = ""
) -> list[Finding]:
    """The same of containers of this image, or of one that is made for it of this host's own."""
    findings = [Finding("kernel", True, platform.release())]
    try:
        nft = programs.find(contained=True).nft
        findings.append(Finding("nftables", True, _version(nft)))
        with choose(runtime, image, env, places.state) as choice:
            from keyhole.app.containers import describe

            engine, found = describe(runtime, choice.image, env)
            told = found if image else f"{found}, made of this host's programs for the moment"
            findings += [Finding("engine", True, engine), Finding("image", True, told)]
            return findings + _examine_sandbox(places, env, choice)
    except (Missing, Refused) as error:
        return [*findings, Finding("engine", False, str(error))]


def _examine_sandbox(places: Places, env: Mapping[str, str], choice: Choice) -> list[Finding]:
    findings = []
    with tempfile.TemporaryDirectory(prefix="keyhole-doctor-") as directory:
        project = Path(directory).resolve()
        try:
            walls, limits = _walls(project, places, env, choice)
        except (SetupFailed, Refused, Missing, OSError) as error:
            return [Finding("sandbox", False, str(error), advice=_advice(str(error)))]
        who = identity.choose(project)
    findings.append(Finding("identity", who.uid != 0, f"runs as uid {who.uid} of this host"))
    controls = _controls()
    findings += [
        Finding(wall.id, wall.held, wall.seen, controls.get(wall.id, "")) for wall in walls
    ]
    findings.append(Finding("limit-together", limits.held, limits.seen, limits.control))
    # Where a wall does not stand, nothing runs: no client either.
    return findings + (_clients(choice, places.tried) if all(wall.held for wall in walls) else [])


def _walls(
    project: Path, places: Places, env: Mapping[str, str], choice: Choice
) -> tuple[list[Wall], LimitTrial]:
    path = project / "keyhole.toml"
    path.write_text(f"version = 1\n{choice.section}")
    file = open_policy(path, places, FileCatalogue())
    joined = Joined(file.loaded.policy, (), ())
    dossier = examine(file, places.home, "")
    intent = Intent(dossier, joined, places, env, ("true",), project)
    prepared = prepare(intent, survey(intent))
    launch = prepared.launch(interactive=False, fault=env.get(FAULT, ""))
    if prepared.berth is not None:
        from keyhole.app.boxtest import probe_box, remember, try_box_limits

        walls = asyncio.run(probe_box(prepared.berth, launch, joined.policy))
        if all(wall.held for wall in walls):
            remember(prepared.berth, launch, places.tried)
        return walls, asyncio.run(try_box_limits(prepared.berth, launch))
    program = build_filter()
    walls = asyncio.run(probe_walls(launch, joined.policy, program))
    return walls, asyncio.run(try_limits(launch, program))


def _clients(choice: Choice, tried: Path) -> list[Finding]:
    """Who inside trusts the CA that a session makes, each seen to use it."""
    with tempfile.TemporaryDirectory(prefix="keyhole-doctor-") as directory:
        try:
            known = tried if choice.contained else None  # bubblewrap's differ by directory
            trials = try_clients(Path(directory).resolve(), choice=choice, tried=known)
        except (SetupFailed, Refused, Missing, Unavailable, AuditUnusable, OSError) as error:
            return [Finding(CLIENTS, False, str(error), advice=_advice(str(error)))]
    if not trials:
        return [Finding(CLIENTS, choice.contained, _NO_CLIENT, vital=not choice.contained)]
    return [
        Finding(
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
    """The same system calls outside, where they are not walled off: a broken probe would show."""
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


def _advice(error: str) -> str:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if os.getuid() != 0 and restricted.exists() and restricted.read_text().strip() == "1":
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
