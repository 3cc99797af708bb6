"""`keyhole destroy NAME…`: ends sandboxes that have a name, and removes all that is theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.named import NotPossible, find
from keyhole.app.supervise import destroy
from keyhole.cli.asking import complain
from keyhole.cli.main import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.setting import find_places
from keyhole.cli.stop import end

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Remove each, also when it failed for one before."""
    places = find_places()
    code = EXIT_OK
    for name in dict.fromkeys(options.names):
        try:
            named = find(places.sandboxes, name)
            if named.is_held():
                end(named, "ended")
            destroy(named, places)
        except NotPossible as error:
            complain(str(error))
            code = EXIT_UNUSABLE
        else:
            print(f"{name} is gone, with its home")
    return code
