"""`keyhole stop NAME|ID…`: ends sandboxes; those with a name can be started again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.named import NotPossible, every, is_name, no_such
from keyhole.cli.asking import asking_all, complain, for_each
from keyhole.cli.main import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.app.named import Named

_OF_AN_ID = "0123456789abcdef"


def run(options: argparse.Namespace) -> int:
    """End each of them; a name goes before an id that begins so."""
    known = {each.name: each for each in every(find_places().sandboxes)}
    code = EXIT_OK
    ids = [text for text in options.ids if text not in known]
    for name in dict.fromkeys(text for text in options.ids if text in known):
        code = max(code, end(known[name], f"ended; `keyhole start {name}` starts it again"))
    for text in ids:
        # A name, then, and nobody's: no gateway knows of it.
        if is_name(text) and text.strip(_OF_AN_ID):
            raise CliError(str(no_such(text)))
    if ids:
        with asking_all() as endpoints:
            stopped = for_each(endpoints, ids, lambda each, session: each.stop(session), "ended")
            code = max(code, stopped)
    return code


def end(named: Named, done: str) -> int:
    """End one, and say what it left behind."""
    try:
        life = named.stop()
    except NotPossible as error:
        complain(str(error))
        return EXIT_UNUSABLE
    print(f"{named.name} {done}")
    if life.left:
        complain(f"files your host may execute, left or changed by {named.name}:")
    for line in life.left:
        complain(visible(line))
    return EXIT_OK
