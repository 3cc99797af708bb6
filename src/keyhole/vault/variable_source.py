"""`unsafe-env:NAME`: a variable of the environment in which Keyhole was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.vault import container_detection
from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretReading, SecretUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.model.secret import SecretRef
    from keyhole.vault.container_detection import ContainerSigns


class VariableSource:
    """The variables as `cli` read them once, at the start."""

    def __init__(
        self,
        env: Mapping[str, str],
        look: Callable[[Mapping[str, str]], ContainerSigns] | None = None,
    ) -> None:
        self._env = env
        self._look = look or container_detection.detect_container

    def read(self, ref: SecretRef) -> SecretReading:
        """The variable's value, and the warning that others can read it as well."""
        sign = self._look(self._env).container
        if sign:
            # Engines show a container's variables to every user of their API, and keep them on
            # disk.
            raise SecretUnavailable(
                ref,
                f"this is a container ({sign}), and its engine shows variables to others; "
                "have the secret mounted as a file: file:/run/secrets/NAME",
            )
        if not self._env.get(ref.locator):
            raise SecretUnavailable(ref, "the variable is not set, or is empty")
        reading = seal_secret(self._env[ref.locator].encode("utf-8", "surrogateescape"))
        return replace(
            reading,
            warning=f"{ref} can be read in /proc by every process of yours; "
            "`keyhole secret set` keeps it from them",
        )

    def mark(self, ref: SecretRef) -> object:
        """None: the value read at the start stays."""
        return None
