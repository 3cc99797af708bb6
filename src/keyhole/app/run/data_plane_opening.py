"""A run's data plane before it has a loop: it locks itself down and reads its session.

Imported by `data_plane.py` when a session is to be inspected, or when a client connects: most short
commands need none of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.processes.messages import unpacked
from keyhole.app.processes.plane_lockdown import lock_down_plane
from keyhole.app.session.prepared_session import PreparedSession, prepare_session
from keyhole.app.setup.provision import SessionOpening

if TYPE_CHECKING:
    from keyhole.policy.budget import GatewayLimits


class PlanePaths(Struct, frozen=True):
    """The directories that the data plane writes."""

    audit: Path
    """The log's directory."""
    quarantine: Path
    """The directory for pushes that are being judged."""
    ports: Path
    """The register of ports that Keyhole itself listens on, to be read."""


class OpenedPlane(Struct, frozen=True):
    """The session, and its gateway's limits."""

    session: PreparedSession
    limits: GatewayLimits
    fault: str
    watched: bool = False


def confine(audit: str, quarantine: str, ports: str) -> PlanePaths:
    """Lock this process down: before the first secret, and before there is another thread, which
    would stay unconfined. Raises OSError and Refused."""
    paths = PlanePaths(Path(audit), Path(quarantine), Path(ports))
    lock_down_plane((paths.audit, paths.quarantine), [*_libraries(), paths.ports])
    return paths


def open_session(message: bytes) -> OpenedPlane:
    """Read the session's opening, and make its CA if it inspects something."""
    opening = unpacked(message, SessionOpening)
    prepared = prepare_session(opening.session, opening.provision, opening.stand_ins, opening.quiet)
    return OpenedPlane(prepared, opening.limits, opening.fault, opening.watched)


def _libraries() -> list[Path]:
    """The directories that modules are imported from, targets of links included: some installers
    link packages that they keep elsewhere."""
    directories = [each for each in sys.path if os.path.isdir(each)]
    linked = [e.path for each in directories for e in os.scandir(each) if e.is_symlink()]
    return [Path(each) for each in (*directories, *map(os.path.realpath, linked))]
