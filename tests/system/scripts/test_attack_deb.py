"""The Debian package, installed and used in a clean root file system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rigs.lacking import give_up

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 1800
"""Debian's own packages come over the network."""

pytestmark = [pytest.mark.attack, pytest.mark.outside]


def test_the_package_works_for_root_and_an_ordinary_user_and_leaves_nothing() -> None:
    if os.geteuid() != 0:
        give_up("a root file system is made by root")
    for program in ("dpkg-deb", "debootstrap"):
        if shutil.which(program) is None:
            give_up(f"{program} is not installed")
    for script in ("build", "try"):
        done = subprocess.run(
            [ROOT / "packaging" / "debian" / script],
            capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert said.count("every wall stands") == 2
    assert "── as root" in said
    assert "── as ann" in said
    assert said.endswith("removed\ntry: it works\n")
