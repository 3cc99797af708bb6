"""Where Keyhole keeps and finds things on the host. Made by `cli/` from its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from pathlib import Path

POLICY_NAME = "keyhole.toml"


@dataclass(frozen=True, slots=True)
class Places:
    """The host's directories for one user."""

    home: Path
    config: Path
    state: Path
    runtime: Path
    """The control socket's, `control.place.location` says where; gone with the login."""

    @property
    def user_defaults(self) -> Path:
        """Secrets by service name and default limits."""
        return self.config / "config.toml"

    @property
    def tried(self) -> Path:
        """Which set-ups passed the self-test since this boot."""
        return self.state / "selftest.json"

    @property
    def trust(self) -> Path:
        """Which policies were accepted."""
        return self.state / "trust"

    @property
    def store(self) -> Path:
        """Keyhole's own secrets."""
        return self.state / "secrets"

    @property
    def quarantine(self) -> Path:
        """Where pushes wait until they are judged; nothing in it has a name."""
        return self.state / "quarantine"

    @property
    def sessions(self) -> Path:
        """Which sandboxes a gateway serves, for the next one if it dies."""
        return self.state / "sessions"

    @property
    def findings(self) -> Path:
        """What runs left behind that the host may execute, a file for each project."""
        return self.state / "findings"

    @property
    def sandboxes(self) -> Path:
        """Those that are kept under a name, a directory each."""
        return self.state / "sandboxes"

    @property
    def faults(self) -> Path:
        """Reports of errors in Keyhole itself."""
        return self.state / "faults"

    @property
    def gateway_log(self) -> Path:
        """What a gateway in the background says; decisions are in the audit log."""
        return self.state / "gateway.log"

    @property
    def audit(self) -> Path:
        """The event log's files."""
        return self.state / "audit"
