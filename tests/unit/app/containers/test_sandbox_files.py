"""Policies that a sandbox by compose cannot keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.containers.door_receiver_client import ExpectedSandbox
from keyhole.app.containers.sandbox_files import SandboxFilesWriter
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path


class Asked(Exception):
    """The gateway was asked for a session."""


class FakeClient:
    """A gateway that opens no session."""

    def __getattr__(self, name: str) -> object:
        raise Asked(name)


@pytest.mark.parametrize(("changes", "error"), [("review", Refused), ("direct", Asked)])
def test_a_review_that_nobody_could_hold_is_refused(
    tmp_path: Path, changes: str, error: type[Exception]
) -> None:
    """I11. Control: without it, the gateway is asked for a session."""
    policy = tmp_path / "keyhole.toml"
    policy.write_text(f'version = 1\n[sandbox]\nchanges = "{changes}"\n')
    places = HostPaths(tmp_path, tmp_path / "config", tmp_path / "state", tmp_path / "run")
    examined = examine_policy(open_policy(policy, places, FileCatalogue()), tmp_path, "")
    AcceptanceStore(places.trust).accept(examined)
    writer = SandboxFilesWriter(ExpectedSandbox(tmp_path, tmp_path, policy), places, {})
    with pytest.raises(error):
        writer.open(cast("Any", FakeClient()))
