"""`unsafe-env:NAME`: a variable of the environment in which Keyhole was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import replace
from keyhole.vault import container
from keyhole.vault.custody import seal
from keyhole.vault.interface import Reading, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.model.secret import SecretRef
    from keyhole.vault.container import Signs


class VariableSource:
    """The variables as `cli` read them once, at the start."""

    def __init__(
        self, env: Mapping[str, str], look: Callable[[Mapping[str, str]], Signs] | None = None
    ) -> None:
        self._env = env
        self._look = look or container.look

    def read(self, ref: SecretRef) -> Reading:
        """The variable's value, and the warning that others can read it as well."""
        sign = self._look(self._env).container
        if sign:
            # Engines show a container's variables to whoever may inspect it, and keep them on disk.
            raise Unavailable(
                ref,
                f"this is a container ({sign}), and its engine shows variables to others; "
                "have the secret mounted as a file: file:/run/secrets/NAME",
            )
        if not self._env.get(ref.locator):
            raise Unavailable(ref, "the variable is not set, or is empty")
        reading = seal(self._env[ref.locator].encode("utf-8", "surrogateescape"))
        return replace(
            reading,
            warning=f"{ref} can be read in /proc by every process of yours; "
            "`keyhole secret set` keeps it from them",
        )

    def mark(self, ref: SecretRef) -> object:
        """None: what was read at the start stays."""
        return None
