"""Where a sandbox lodges: at the gateway that `keyhole up` started, or at one of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.attached import Lodged
    from keyhole.app.furnish import Furnished
    from keyhole.app.plane import DataPlane
    from keyhole.app.prepare import Intent
    from keyhole.vault.stored import Ask

SOCKET = "control.sock"
"""As `control.place` has it, which not every run needs."""


def find_lodging(
    intent: Intent,
    *,
    alone: bool,
    asked: Callable[[], Ask | None],
    plane: DataPlane | None = None,
) -> Lodged | Furnished:
    """Have one. `asked` is who is asked for the store's passphrase, where secrets are read here;
    `plane` is a data plane that was started ahead, where none was expected elsewhere.

    Raises Refused, Missing or Unavailable.
    """
    # By its name first: most runs need none of what asks for more.
    if not alone and os.path.lexists(intent.places.runtime / SOCKET):
        from keyhole.app.attached import lodge

        lodged = lodge(intent)
        if lodged is not None:
            return lodged
    from keyhole.app.furnish import furnish
    from keyhole.app.session import new_session

    reads = any(service.secret for service in intent.joined.policy.services)
    return furnish(intent, new_session(), asked() if reads else None, plane)
