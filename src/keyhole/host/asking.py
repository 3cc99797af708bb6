"""Runs one program of the host and hands back what it printed, within bounds.

Called by `Surroundings.ask`, which has chosen the program and its environment. Nothing here looks
at the environment of Keyhole itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SECONDS = 10.0
"""A package manager that says its settings takes a second; a slow disk, a few."""

MAX_OUTPUT = 1024 * 1024
"""Bytes printed: `npm config list --json` prints about 6,000."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed, and how it ended."""

    text: str
    status: int


def run(argv: Sequence[str], env: Mapping[str, str], *, complaint: bool = False) -> Answer | None:
    """Run without stdin in `/`; None when it could not run, took too long or said too much.

    With `complaint`, the text is what it wrote to stderr.
    """
    try:
        child = subprocess.Popen(  # noqa: S603 - no shell; the caller judged the program (I11)
            argv,
            # Never the project: package managers read settings from the directory they stand in,
            # and those of a cloned repository are its author's.
            cwd="/",
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if complaint else subprocess.PIPE,
            stderr=subprocess.PIPE if complaint else subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    late = threading.Timer(MAX_SECONDS, _end, (child,))
    late.daemon = True
    late.start()
    try:
        with child:
            pipe = child.stderr if complaint else child.stdout
            data = pipe.read(MAX_OUTPUT + 1) if pipe else b""
            if len(data) > MAX_OUTPUT:
                _end(child)
            status = child.wait()
    finally:
        late.cancel()
    if len(data) > MAX_OUTPUT or status < 0:
        return None
    return Answer(data.decode("utf-8", "replace"), status)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the program and its children: a child that holds the pipe would hold us too."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
