"""What the verbs that speak of sessions share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.cli.asking import for_each
from keyhole.control.client import Silent
from keyhole.control.endpoints import Endpoint
from keyhole.control.runs import Process, RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ONE, TWO = "0123456789ab", "ba9876543210"


def test_a_session_that_cannot_be_asked_does_not_keep_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I12: `keyhole revoke ONE TWO` closes the second, whatever becomes of the first."""
    own = Process.of(os.getpid())
    runs = [RunRecord(each, "x", "/p", 1, own, own) for each in (ONE, TWO)]
    endpoints = [Endpoint(tmp_path), *(Endpoint(tmp_path, each) for each in runs)]
    acted: list[str] = []

    def act(_: Endpoint, session: str) -> None:
        acted.append(session)
        if session == ONE:
            raise Silent(0.1)

    assert for_each(endpoints, [ONE, TWO], act, "closed") == 2
    assert acted == [ONE, TWO]
    said = capsys.readouterr()
    assert said.out == f"{TWO} closed\n"
    assert "did not answer" in said.err
