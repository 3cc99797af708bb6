"""Lines that wait while a program has the terminal (I9)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from keyhole.cli.run_messages import MAX_HELD, MAX_SHOWN, RunMessages

if TYPE_CHECKING:
    import pytest

    from keyhole.sandbox.interface import Console


class _Taken:
    """A terminal that a program has."""

    occupied, raw = True, False

    def make_room(self) -> None: ...


def test_the_lines_that_wait_are_bounded_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    messages = RunMessages(quiet=False)
    messages.terminal = cast("Console", _Taken())
    for number in range(MAX_HELD + 1000):
        messages.tell(f"line {number}")
    messages.tell("line 0")
    assert len(messages._held) == MAX_HELD
    assert capsys.readouterr().err == ""
    messages.release()
    said = capsys.readouterr().err
    assert "line 0 (2 times)" in said
    assert f"and {MAX_HELD + 1000 - MAX_SHOWN} more lines" in said
    assert not messages._held
