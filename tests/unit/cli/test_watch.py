"""The line mode of `keyhole watch`: what `l` lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from keyhole.app.watch.watched_gateways import WatchedGateways
from keyhole.cli.watch import PlainWatch
from keyhole.control.values import AskStanding, WatchEvent, WatchKind
from tests.rigs.control.rig import ASK

if TYPE_CHECKING:
    import pytest

    from keyhole.control.endpoints import ControlEndpoint

A, B = "a" * 12, "b" * 12
LATER = 2**32
"""An expiry that is never reached."""


def test_one_sandbox_hides_no_other_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """I12."""
    watch = PlainWatch(WatchedGateways(Path("/nonexistent")), None, as_json=False)
    endpoint = cast("ControlEndpoint", None)
    for number in range(200):
        ask = replace(ASK, id=f"{number:06x}", session=A, state=AskStanding.LAPSED, expires=LATER)
        watch._show(WatchEvent(WatchKind.SETTLED, 0, A, ask, "unanswered"), endpoint)
    waits = replace(ASK, id="0000ff", session=B, asked=ASK.asked + 9, expires=LATER)
    watch._show(WatchEvent(WatchKind.ASK, 0, B, waits), endpoint)
    capsys.readouterr()
    watch._answer("l")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"0000ff  {B}  ")
    assert len(lines) == 201
    watch._show(WatchEvent(WatchKind.SESSION, 0, A, state="closed"), endpoint)
    capsys.readouterr()
    watch._answer("l")
    assert len(capsys.readouterr().out.splitlines()) == 1
