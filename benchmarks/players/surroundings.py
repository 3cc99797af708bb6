"""What a gateway has around it in a measurement: an origin with a certificate, and sandboxes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import trustme

from benchmarks.players import duties
from benchmarks.players.peer import Peer

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


class Surroundings(NamedTuple):
    """An origin's port, the authority of its certificate, and the process with the sandboxes."""

    port: int
    authority: str
    tenants: Peer


def surround(stack: ExitStack, desk: Path, origin_core: int, tenants_core: int) -> Surroundings:
    """Start both; the stack ends them."""
    roots = trustme.CA()
    pem = desk / "origin.pem"
    roots.issue_cert(duties.HOST).private_key_and_cert_chain_pem.write_to_path(pem)
    origin = stack.enter_context(Peer("benchmarks.players.httporigin", str(pem), core=origin_core))
    before = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    tenants = stack.enter_context(
        Peer("benchmarks.players.tenants", core=tenants_core, before=before)
    )
    return Surroundings(origin.ask("port"), roots.cert_pem.bytes().decode(), tenants)
