"""Chooses a run's gateway: the one that `keyhole up` started, or one of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.run.own_gateway_setup import prepare_own_gateway
from keyhole.app.session.session_events import new_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.run.daemon_gateway import DaemonRun
    from keyhole.app.run.data_plane_process import RunDataPlaneProcess
    from keyhole.app.run.own_gateway_setup import OwnGatewayRun
    from keyhole.app.setup.launch_preparation import RunRequest
    from keyhole.vault.store_source import PassphrasePrompt


def choose_gateway(
    intent: RunRequest,
    *,
    alone: bool,
    asked: Callable[[], PassphrasePrompt | None],
    plane: RunDataPlaneProcess | None = None,
) -> DaemonRun | OwnGatewayRun:
    """Choose and prepare one. `asked` prompts for the store's passphrase, where secrets are read
    here; `plane` is a data plane that was started early, when no gateway was expected to run.

    Raises Refused, ResourceUnusable or SecretUnavailable.
    """
    # Ports are served by a run's own gateway alone. A learning run has one, too: the gateway that
    # is up reads policies itself, and no session can tell it to open what they do not name.
    alone = alone or intent.joined.policy.sandbox.uses_ports or intent.learning is not None
    # Its socket is looked for first: most runs need no module that talks to a gateway.
    if not alone and os.path.lexists(intent.places.control_socket):
        from keyhole.app.run.daemon_gateway import attach_to_daemon

        attached_run = attach_to_daemon(intent)
        if attached_run is not None:
            return attached_run
    reads = any(service.secret for service in intent.joined.policy.services)
    return prepare_own_gateway(intent, new_session(), asked() if reads else None, plane)
