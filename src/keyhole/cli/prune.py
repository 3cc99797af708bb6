"""`keyhole prune`: removes what runs in containers left behind when they were killed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from keyhole.app.containers import prune_engines
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.model.text import visible
from keyhole.sandbox.containers.engine import EngineFailed
from keyhole.sandbox.programs import Missing

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Remove, and say what."""
    try:
        found = prune_engines(dict(os.environ), find_places().state)
    except (EngineFailed, Missing) as error:
        raise CliError(str(error)) from None
    if options.json:
        rows = [{"id": each.id, "what": each.what, "session": each.session} for each in found]
        print(json.dumps(rows, indent=2))
        return 0
    for each in found:
        of = f" of {each.session}" if each.session else ""
        print(visible(f"removed {each.what} {each.id}{of}"))  # labels, which an image may have too
    if not found:
        print("nothing is left behind")
    return 0
