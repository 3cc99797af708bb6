"""`keyhole doctor`: every row was executed, here, and has its control."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Keyhole

pytestmark = pytest.mark.outside


def test_every_wall_stands_on_this_host(keyhole: Keyhole) -> None:
    """I2: what the facts say is alive inside an empty namespace is tried, and closed."""
    ran = keyhole("doctor", "--json")
    rows = {row["id"]: row for row in json.loads(ran.out)}
    assert [name for name, row in rows.items() if not row["held"]] == []
    assert ran.code == 0
    expected = {
        "only-lo", "vsock", "io-uring", "32-bit-call", "new-user-namespace", "tiocsti",
        "literal-address", "host-loopback", "abstract-socket", "unknown-name", "host-process",
        "control-own-loopback", "control-allowed-name", "control-child",
    }  # fmt: skip
    assert expected <= set(rows)
    # The same call outside is not refused in the same way, so the filter is what refuses it.
    for name in ("vsock", "io-uring", "new-user-namespace", "tiocsti"):
        assert rows[name]["control"] not in ("", f"outside: {rows[name]['seen']}")


def test_the_doctor_is_readable(keyhole: Keyhole) -> None:
    ran = keyhole("doctor")
    assert ran.code == 0
    assert ran.out.endswith("every wall stands\n")
