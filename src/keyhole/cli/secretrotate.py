"""`keyhole secret rotate NAME`, when the store has the new value: the gateway and its sessions.

Sessions go on with the new secret; the old one stays on their list of what is removed from answers
until they end (I7). With `--end-sessions` those that had the old one are ended.
"""

from __future__ import annotations

import time

from keyhole.cli.asking import complain, count, exit_code, failure
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.control.client import Client, ControlFailed, Declined, NoGateway


def pass_on(name: str, *, end_sessions: bool) -> int:
    """Tell the gateway, if there is one, and end what has to end."""
    kept = time.time()
    client = Client(find_places().runtime)
    try:
        client.secret_changed(name)
        print("the gateway was told, and reads it again")
        if end_sessions:
            _end(client, name, kept)
    except NoGateway:
        print("no gateway is running, so there is none to tell")
        if end_sessions:
            complain("runs that have no gateway are not ended: end their commands")
    except ControlFailed as error:
        text = f"{name} is replaced, but the gateway did not take it up: {failure(error)}"
        raise CliError(text, exit_code(error)) from None
    return EXIT_OK


def _end(client: Client, name: str, kept: float) -> None:
    """Sessions that were opened later never had the old one."""
    ended = 0
    for session in client.sessions():
        if name not in session.stored or session.opened > kept:
            continue
        try:
            client.stop_session(session.id)
        except Declined as error:
            if error.error != "not-found":  # it ended meanwhile
                raise
        else:
            ended += 1
    print(f"{count(ended, 'session')} that had the old one ended")
