"""The clients of forges, built from source once: a current `gh`, and `glab`, which Debian has not.

`make attack` calls it before the tests, with the caller's own environment: a proxy or a mirror of
Go's modules is the caller's to name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from tests.rigs.lacking import give_up


class GoClient(Struct, frozen=True):
    """A client and its module, by version and by the sum of its files."""

    name: str
    module: str
    version: str
    sum: str
    settings: str = ""
    """Texts that the linker writes into it."""


CLIENTS = (
    GoClient(
        "gh",
        "github.com/cli/cli/v2",
        "v2.100.0",
        "h1:KpRmXTAmd8JhvO0FLMq3LLpW4kE5Ff8VfvMKRrtqyCE=",
        "-X github.com/cli/cli/v2/internal/build.Version=2.100.0",
    ),
    GoClient(
        "glab",
        "gitlab.com/gitlab-org/cli",
        "v1.115.0",
        "h1:O1Yp0i8jh4Gk6JcH3jtAXmq+sAoo7AsY4lO6gSbyoUQ=",
        "-X main.version=1.115.0",
    ),
)


def _place(client: GoClient) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "keyhole-clients" / f"{client.name}-{client.version}" / client.name


def find_built(name: str) -> Path:
    """The program, or the end of the test where it was not built."""
    (client,) = (each for each in CLIENTS if each.name == name)
    place = _place(client)
    if not place.exists():
        give_up(f"{name} {client.version} is not built: `python -m tests.rigs.git.clients`")
    return place


def build(client: GoClient, go: str) -> None:
    """Build a client that is missing. Raises RuntimeError, CalledProcessError."""
    place = _place(client)
    if place.exists():
        return
    sys.stderr.write(f"building {client.name} {client.version} for the tests, once\n")
    wanted = f"{client.module}@{client.version}"
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"}
    # Outside of any module: this directory is not Go's.
    found = json.loads(
        subprocess.run(
            [go, "mod", "download", "-json", wanted], cwd="/", env=env, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout
    )  # fmt: skip
    if found["Sum"] != client.sum:
        raise RuntimeError(f"{wanted} is not what it was: {found['Sum']}")
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f"{place.name}.{os.getpid()}.new")
    words = [go, "build", "-ldflags", f"-s -w {client.settings}", "-o", str(beside)]
    subprocess.run([*words, f"./cmd/{client.name}"], cwd=found["Dir"], env=env, check=True)
    beside.replace(place)


def main() -> int:
    """Build what is missing, where Go is installed."""
    go = shutil.which("go")
    if go is None:
        sys.stderr.write("no current gh and no glab: Go is not installed\n")
        return 0
    for client in CLIENTS:
        build(client, go)
    return 0


if __name__ == "__main__":
    sys.exit(main())
