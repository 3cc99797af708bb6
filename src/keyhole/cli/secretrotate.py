"""`keyhole secret rotate NAME`, when the store has the new value: who is told, and who is ended.

Sessions go on with the new secret; the old one stays on their list of what is removed from answers
until they end (I7). With `--end-sessions` those that had the old one are ended.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from keyhole.cli.asking import asking_all, count, exit_code, failure
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.control.client import ControlFailed, Declined, NoGateway
from keyhole.control.endpoints import ask_all
from keyhole.control.values import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.control.endpoints import Endpoint


def pass_on(name: str, *, end_sessions: bool) -> int:
    """Tell the gateway and every run that has its own, and end what has to end."""
    kept = time.time()
    with asking_all() as endpoints:

        def tell(endpoint: Endpoint) -> bool:
            endpoint.client().secret_changed(name)
            return True

        told = ask_all(endpoints, tell)
        for endpoint, answer in told:
            if isinstance(answer, ControlFailed) and not isinstance(answer, NoGateway):
                who = endpoint.run.session if endpoint.run else "the gateway"
                text = f"{name} is replaced, but {who} did not take it up: {failure(answer)}"
                raise CliError(text, exit_code(answer))
        if all(isinstance(answer, NoGateway) for _, answer in told):
            print("no session is open, so there is none to tell")
        else:
            print("the sessions that use it were told, and read it again")
        if end_sessions:
            _end(endpoints, name, kept)
    return EXIT_OK


def _end(endpoints: Sequence[Endpoint], name: str, kept: float) -> None:
    """Sessions that were opened later never had the old one."""
    ended = 0
    for endpoint in endpoints:
        with contextlib.suppress(NoGateway):
            for session in endpoint.sessions():
                # A run that does not answer may have it, too.
                had = name in session.stored or session.state is State.SILENT
                if had and session.opened <= kept:
                    ended += _stop(endpoint, session.id)
    print(f"{count(ended, 'session')} that had the old one ended")


def _stop(endpoint: Endpoint, session: str) -> int:
    try:
        endpoint.stop(session)
    except Declined as error:
        if error.error != "not-found":  # it ended meanwhile
            raise
        return 0
    return 1
