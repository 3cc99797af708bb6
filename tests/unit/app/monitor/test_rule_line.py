"""The line of a decision's rule, as a person finds it in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.app.monitor.rule_line import find_rule_line
from keyhole.app.monitor.session_list import WatchedSession
from keyhole.app.setup.host_paths import HostPaths
from tests.rigs.control.rig import KNOWN, UNKNOWN, view

if TYPE_CHECKING:
    from pathlib import Path

TEXT = 'version = 1\n\n[egress]\nallow = [\n  "a.example",\n  "b.example",\n]\n'


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    (tmp_path / "keyhole.toml").write_text(TEXT)
    return HostPaths(tmp_path, *(tmp_path / each for each in ("config", "state", "run")))


def find(paths: HostPaths, rule: str, session: str = KNOWN) -> str:
    policy = str(paths.home / "keyhole.toml")
    sessions = [WatchedSession(replace(view(KNOWN), policy=policy), own=True)]
    return find_rule_line(sessions, session, rule, paths)


def test_a_rule_is_found_in_the_file_as_it_is_now(paths: HostPaths) -> None:
    assert find(paths, "egress.allow[1]") == "~/keyhole.toml:6"
    (paths.home / "keyhole.toml").write_text("# mine\n" + TEXT)
    assert find(paths, "egress.allow[1]") == "~/keyhole.toml:7"


@pytest.mark.parametrize(
    "rule", ["", "asks.abc123", "egress.allow[9]", "egress.allow[x]", "a[", "]"]
)
def test_a_rule_that_stands_in_no_file_has_no_line(paths: HostPaths, rule: str) -> None:
    """The last ones are texts of a log that somebody wrote into."""
    assert find(paths, rule) == ""


def test_a_session_that_is_over_or_a_file_with_faults_has_no_line(paths: HostPaths) -> None:
    assert find(paths, "egress.allow[1]", UNKNOWN) == ""
    (paths.home / "keyhole.toml").write_text("version = 2")
    assert find(paths, "egress.allow[1]") == ""
    (paths.home / "keyhole.toml").unlink()
    assert find(paths, "egress.allow[1]") == ""
