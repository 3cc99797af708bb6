"""The line that installs what is missing, for each package manager."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox import programs
from keyhole.system import packages
from keyhole.system.packages import find_missing, how_to_install, install_line

ALL = ("bwrap", "nft", "libseccomp", "libstdc++")


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "apt-get install bubblewrap nftables libseccomp2 libstdc++6"),
        ("dnf", "dnf install bubblewrap nftables libseccomp libstdc++"),
        ("pacman", "pacman -S --needed bubblewrap nftables libseccomp gcc-libs"),
        ("zypper", "zypper install bubblewrap nftables libseccomp2 libstdc++6"),
        ("apk", "apk add bubblewrap nftables libseccomp libstdc++"),
    ],
)
def test_each_package_manager_has_its_own_line(manager: str, line: str) -> None:
    assert install_line(ALL, manager, root=True) == line


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = {name: Path("/usr/bin") / name for name in names}
    monkeypatch.setattr(packages, "find_program", found.get)
    monkeypatch.setattr(programs, "find_program", found.get)


def test_the_manager_of_this_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    only(monkeypatch, "dnf")
    assert how_to_install(["nft"]) == "type `sudo dnf install nftables`"
    only(monkeypatch)
    assert "install nftables with this system's package manager" in how_to_install(["nft"])


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: this host, which lacks nothing."""
    assert find_missing() == []
    only(monkeypatch, "apk")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "_loads", lambda file: "stdc" in file)
    assert find_missing() == ["bwrap", "nft", "libseccomp"]
    assert find_missing(contained=True) == ["nft", "libseccomp"]
    with pytest.raises(
        ResourceUnusable,
        match=r"bwrap is not installed; type `apk add bubblewrap nftables libseccomp`",
    ):
        programs.find_programs()
