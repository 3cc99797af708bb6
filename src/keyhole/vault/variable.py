"""`unsafe-env:NAME`: a variable of the environment in which Keyhole was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import replace
from keyhole.vault.custody import seal
from keyhole.vault.interface import Reading, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.secret import SecretRef


class VariableSource:
    """The variables as `cli` read them once, at the start."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def read(self, ref: SecretRef) -> Reading:
        """The variable's value, and the warning that others can read it as well."""
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
