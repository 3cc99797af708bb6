"""stub"""

from __future__ import annotations

from keyhole.model.host import Host
from keyhole.model.value import dataclass


class Ungrantable(Exception): ...


@dataclass(frozen=True, slots=True)
class Grant:
    host: Host
    port: int
    expires: float
    uses: int
