"""What the verbs that speak of sessions share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest

from keyhole.cli.gateway_client import find_sessions, for_each
from keyhole.cli.ps import _look
from keyhole.control.client import ControlFailed
from keyhole.control.endpoints import ControlEndpoint
from keyhole.control.runs import ProcessIdentity, RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.control.values import SessionView

ONE, TWO = "0123456789ab", "ba9876543210"


def test_a_session_that_cannot_be_asked_does_not_keep_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I12: `keyhole revoke ONE TWO` closes the second, whatever becomes of the first."""
    own = ProcessIdentity.of(os.getpid())
    runs = [RunRecord(each, "x", "/p", 1, own, own) for each in (ONE, TWO)]
    endpoints = [ControlEndpoint(tmp_path), *(ControlEndpoint(tmp_path, each) for each in runs)]
    acted: list[str] = []

    def act(_: ControlEndpoint, session: str) -> None:
        acted.append(session)
        if session == ONE:
            raise ControlFailed("the gateway did not answer within 0.1 s")

    assert for_each(endpoints, [ONE, TWO], act, "closed") == 2
    assert acted == [ONE, TWO]
    said = capsys.readouterr()
    assert said.out == f"{TWO} closed\n"
    assert "did not answer" in said.err


class Broken:
    """A gateway that answers in a way that cannot be read, as one of another version may."""

    run = None

    def sessions(self) -> list[SessionView]:
        raise ControlFailed("the gateway's answer cannot be read")


def test_a_gateway_that_cannot_be_asked_hides_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`keyhole ps` lists the runs beside it, and `keyhole revoke` finds them by a few letters."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own = ProcessIdentity.of(os.getpid())
    run = ControlEndpoint(tmp_path, RunRecord(ONE, "x", "/p", 1, own, own))
    endpoints = [cast("ControlEndpoint", Broken()), run]
    listed, _ = _look(endpoints)
    assert [each.view.id for each in listed] == [ONE]
    assert "the gateway is not listed: the gateway's answer cannot" in capsys.readouterr().err
    assert find_sessions(endpoints, [ONE[:4]]) == [(ONE, run)]
    # What only the gateway could know is not said to be nothing.
    with pytest.raises(ControlFailed):
        find_sessions(endpoints, [TWO[:4]])
    with pytest.raises(ControlFailed):
        _look(endpoints[:1])
