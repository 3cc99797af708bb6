"""The doorkeeper between a door and a session that ends before it."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.app.doorkeeper import REVOKED, Doorkeeper
from keyhole.app.doorway import Expected
from keyhole.app.ending import Ending
from keyhole.app.furniture import Furnishing
from keyhole.app.places import Places
from keyhole.control.values import Opened, State
from keyhole.sandbox.files.fileplan import Text
from keyhole.sandbox.launch import Bounds

if TYPE_CHECKING:
    from pathlib import Path


class FakeLine:
    """The gateway's end, as far as it is heard."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def say(self, **message: str) -> None:
        self.said.put_nowait(message)


@pytest.mark.parametrize("ending", [Ending.REVOKED, Ending.IDLE])
def test_behind_a_session_that_was_cut_off_nothing_is_started_anew(
    tmp_path: Path, ending: Ending
) -> None:
    """I2. Control: until then it would be; and what runs still finds its files."""
    furnishing = Furnishing(
        Opened("0123456789ab", State.OPEN, ""), 60.0, tmp_path, {},
        (Text("/etc/keyhole/ca.pem", "a certificate"),), Bounds(16, 1 << 30), (),
    )  # fmt: skip
    furnishing.place("net:[1]", b"a cookie")
    entry = tmp_path / "entry"
    assert entry.exists()  # control

    async def cut_off() -> None:
        places = Places(tmp_path, tmp_path, tmp_path, tmp_path)
        line = FakeLine()
        expected = Expected(tmp_path, tmp_path, tmp_path / "keyhole.toml")
        keeper = Doorkeeper(expected, places, cast("Any", line))
        ours, holder = socket.socketpair()
        endings: asyncio.Queue[Ending] = asyncio.Queue()
        with ours, holder:
            holding = asyncio.ensure_future(keeper._hold(ours, endings, furnishing))
            endings.put_nowait(ending)
            assert await line.said.get() == {"lacks": REVOKED}
            assert not entry.exists()
            assert (tmp_path / "ca.pem").read_text() == "a certificate"
            assert not holding.done()  # what runs goes on, until its door is gone
            holder.close()
            await holding

    asyncio.run(cut_off())
