"""Writes the filter that the compose file names: `python -m tests.rigs.compose.publish`."""

from __future__ import annotations

import json
from pathlib import Path

from keyhole.confine.seccomp import profile

PLACE = Path(__file__).parents[3] / "packaging" / "container" / "seccomp.json"


def text() -> str:
    """A rule a line, and no architecture: an engine takes its machine's own, and kills others."""
    made = json.loads(profile())
    rules = ",\n".join(f"    {json.dumps(rule)}" for rule in made["syscalls"])
    action = json.dumps(made["defaultAction"])
    return f'{{\n  "defaultAction": {action},\n  "syscalls": [\n{rules}\n  ]\n}}\n'


if __name__ == "__main__":
    PLACE.write_text(text(), "utf-8")
