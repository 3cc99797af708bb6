"""Ends a named sandbox, for `keyhole stop` and `keyhole destroy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.gateway_client import complain
from keyhole.model.errors import Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.app.containers.named_sandbox import NamedSandbox


def end_sandbox(named: NamedSandbox, done: str) -> int:
    """End one sandbox, and print the files that it left and the host may execute, and
    the changes that wait."""
    try:
        life = named.stop()
    except Refused as error:
        complain(str(error))
        return EXIT_UNUSABLE
    print(f"{named.name} {done}")
    if life.left:
        complain(f"files your host may execute, left or changed by {named.name}:")
    for line in life.left:
        complain(visible(line))
    if life.waiting:
        complain(visible(life.waiting))
    return EXIT_OK
