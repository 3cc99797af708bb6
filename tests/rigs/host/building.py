"""Small hosts for tests (a home, a system tree, programs), and what a preset shows of itself."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from keyhole.host.host_environment import HostEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.inject.preset import Preset

PASSWORD = "hunter2-correct-horse"
"""The secret of most tests: long enough that no other text contains it."""


def write(path: Path, text: str) -> Path:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def program(path: Path, script: str) -> Path:
    """Write an executable shell script."""
    write(path, f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def host(
    tmp_path: Path,
    *,
    home: Mapping[str, str] | None = None,
    system: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    writable: tuple[Path, ...] = (),
) -> HostEnvironment:
    """A host with these files in the home and in the system; no program unless PATH says so."""
    for name, text in (home or {}).items():
        write(tmp_path / "home" / name, text)
    for name, text in (system or {}).items():
        write(tmp_path / "root" / name.lstrip("/"), text)
    (tmp_path / "home").mkdir(parents=True, exist_ok=True)
    return HostEnvironment(dict(env or {}), tmp_path / "home", tmp_path / "root", writable)


def this_host(tmp_path: Path, *, env: Mapping[str, str] | None = None) -> HostEnvironment:
    """The programs and system of the machine that runs the tests, with an empty home."""
    (tmp_path / "home").mkdir(exist_ok=True)
    return HostEnvironment({"PATH": os.environ["PATH"], **(env or {})}, tmp_path / "home")


def needs(tool: str) -> str:
    """The path of a real tool; a host without that ecosystem has nothing to compare with."""
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"no {tool} here")
    return found


def grants(preset: Preset) -> dict[str, list[str]]:
    """Each host of a preset with the text of its rules."""
    return {str(host.pattern): [rule.text for rule in host.allow] for host in preset.hosts}


def injections(preset: Preset) -> dict[str, str]:
    """Each host that has a credential, with how it is written."""
    return {str(host.pattern): str(host.inject) for host in preset.hosts if host.inject}


def revealed(preset: Preset, pattern: str) -> str | None:
    """The credential of one host in its characters."""
    found = next(host for host in preset.hosts if str(host.pattern) == pattern)
    return found.credential.reveal() if found.credential else None


def shown(preset: Preset) -> str:
    """All that a preset lets anyone see, inside the sandbox or on the screen."""
    lists = (preset.env, preset.files, preset.sources, preset.notes, grants(preset))
    return repr(preset) + "".join(map(str, lists))
