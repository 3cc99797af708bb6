"""Caches of real package managers stay for the next run. Needs the package indexes of this host."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.rigs.lacking import give_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.attack]


def index_of(*words: str) -> tuple[str, str]:
    """The host and the address of the index that a package manager of this host uses."""
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        host = urlsplit(said.split(",")[0].strip()).hostname or ""
        return host, str(socket.getaddrinfo(host, 443, socket.AF_INET)[0][4][0])
    except (OSError, subprocess.SubprocessError) as error:
        give_up(f"no package index: {error}")


def policy_for(preset: str, index: tuple[str, str]) -> str:
    """The policy; an index may lie at an address that is not public."""
    host, address = index
    return f'[egress]\npresets = ["{preset}"]\n[upstream.connect]\n"{host}:443" = "{address}:443"\n'


def requests_of_last(project: Project) -> int:
    """Answers of the index to the last run."""
    events = project.events()
    last = [e["session"] for e in events if e["session"]][-1]
    return len([e for e in events if (e["session"], e["kind"]) == (last, "request") and e["host"]])


def test_a_second_npm_install_takes_its_packages_from_the_cache(
    new_project: Callable[..., Project],
) -> None:
    """Control: the first one asks for each of them."""
    project = new_project(policy_for("node", index_of("npm", "config", "get", "registry")))
    project.write("package.json", json.dumps({"name": "a", "dependencies": {"express": "4"}}))
    asked = []
    for _ in range(2):
        done = project.run("npm", "install", "--prefer-offline", "--no-progress", "--no-audit")
        assert done.code == 0, done
        assert (project.directory / "node_modules/express").is_dir()
        asked.append(requests_of_last(project))
        shutil.rmtree(project.directory / "node_modules")
    assert asked[0] > 50
    assert asked[1] < asked[0] / 2, asked
