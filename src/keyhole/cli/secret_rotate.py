"""`keyhole secret rotate NAME`, once the store has the new value: tells sessions, or ends them.

Sessions go on with the new secret; the old one is still removed from their responses until they end
(I7). `--end-sessions` ends the sessions that had the old one.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from keyhole.cli.amounts import count
from keyhole.cli.errors import CliError, exit_code
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import failure, find_gateways
from keyhole.control.client import ControlFailed, NoGateway, RequestDeclined
from keyhole.control.endpoints import ask_all
from keyhole.control.values import SessionPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.control.endpoints import ControlEndpoint


def pass_on(name: str, *, end_sessions: bool) -> int:
    """Tell the gateway, and every run that has its own, that the secret has changed."""
    kept = time.time()
    with find_gateways() as endpoints:

        def tell(endpoint: ControlEndpoint) -> bool:
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


def _end(endpoints: Sequence[ControlEndpoint], name: str, kept: float) -> None:
    """End the sessions that had the old value; those opened later never had it."""
    ended = 0
    for endpoint in endpoints:
        with contextlib.suppress(NoGateway):
            for session in endpoint.sessions():
                # A run that does not answer may have it.
                had = name in session.stored or session.state is SessionPhase.SILENT
                if had and session.opened <= kept:
                    ended += _stop(endpoint, session.id)
    print(f"{count(ended, 'session')} that had the old one ended")


def _stop(endpoint: ControlEndpoint, session: str) -> int:
    try:
        endpoint.stop(session)
    except RequestDeclined as error:
        if error.error != "not-found":  # it ended meanwhile
            raise
        return 0
    return 1
