"""What the verbs share: this process's variables as values, and the policy they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.places import POLICY_NAME, Places
from keyhole.app.policyfile import PolicyFile, Unreadable, open_policy
from keyhole.cli.parser import CliError

if TYPE_CHECKING:
    from keyhole.app.catalogue import FileCatalogue


def find_places() -> Places:
    """The host's directories by the XDG variables; a relative one is ignored, as XDG says."""
    home = Path(os.environ.get("HOME") or os.path.expanduser("~"))
    state = _xdg("XDG_STATE_HOME", home / ".local" / "state") / "keyhole"
    # As `control.place.location`, whose module would bring sockets to verbs that have none.
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return Places(
        home=home,
        config=_xdg("XDG_CONFIG_HOME", home / ".config") / "keyhole",
        state=state,
        runtime=runtime / "keyhole" if runtime.is_absolute() else state / "run",
    )


def environment() -> dict[str, str]:
    """A copy of this process's variables, for rooms that are handed values."""
    return dict(os.environ)


def read_policy(path: Path | None, places: Places, catalogue: FileCatalogue) -> PolicyFile:
    """The policy that a verb speaks of, or an error to show."""
    try:
        return open_policy(path or Path(POLICY_NAME), places, catalogue)
    except Unreadable as error:
        raise CliError(str(error)) from None


def _xdg(name: str, default: Path) -> Path:
    value = Path(os.environ.get(name, ""))
    return value if value.is_absolute() else default
