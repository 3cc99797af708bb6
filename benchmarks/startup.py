"""How long a command takes to start, against a bare interpreter in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rounds import Row, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION_BOUND = 2.0
CHECK_BOUND = 9.0
"""`check` parses TOML and reads the catalogue: about as much as importing asyncio alone."""


def measure() -> list[Row]:
    """`--version` and `check` as multiples of a bare interpreter."""
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    with tempfile.TemporaryDirectory() as directory:
        policy = Path(directory) / "keyhole.toml"
        example = Path("src/keyhole/app/example.toml")
        policy.write_bytes(example.read_bytes())
        found = interleave(
            {
                "bare": _timer(sys.executable, "-c", "pass"),
                "version": _timer(keyhole, "--version"),
                "check": _timer(keyhole, "check", str(policy)),
            },
            rounds=9,
        )
    bare = found["bare"]
    return [
        Row("bare interpreter", bare.shown("ms", 1e3)),
        *(
            Row(
                f"keyhole {name}",
                found[key].shown("ms", 1e3),
                found[key].median / bare.median,
                bound,
            )
            for name, key, bound in (
                ("--version", "version", VERSION_BOUND),
                ("check", "check", CHECK_BOUND),
            )
        ),
    ]


def _timer(*command: str) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
        return time.perf_counter() - start

    return run
