"""`kube:NAME/KEY`: a Secret of the cluster, which the node agent keeps beside the policy's file.

Only the agent writes there (`app/kube/policy_files.py`): for each policy the Secrets of its own
namespace that it names, and no others. A policy elsewhere finds none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.vault.custody import MAX_SIZE, seal_secret
from keyhole.vault.interface import SecretReading, SecretUnavailable, mark_of

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.model.secret import SecretRef

SECRETS = "secrets"
"""The directory beside a policy's file: one for each Secret, with a file for each key."""


class ClusterSource:
    """Secrets beside a policy."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / SECRETS

    def read(self, ref: SecretRef) -> SecretReading:
        """Read the value that the cluster has now."""
        try:
            descriptor = os.open(
                self._directory / ref.locator, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            raise SecretUnavailable(ref, "the cluster has no such Secret or key") from None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise SecretUnavailable(ref, "only a node agent provides it")
            return seal_secret(file.read(MAX_SIZE + 1))

    def mark(self, ref: SecretRef) -> object:
        """The mark of the file, which is replaced when the Secret changes."""
        return mark_of(self._directory / ref.locator)
