"""Events of sessions: a refusal is one by its verdict, too, so that a search for those finds it."""

from __future__ import annotations

import pytest

from keyhole.app.session.session_events import noted_event
from keyhole.model.decision import Verdict


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ("remote-refused", Verdict.DENY),
        ("inbound-refused", Verdict.DENY),
        ("exec-refused", Verdict.DENY),
        ("remote-connected", Verdict.ALLOW),
        ("exec", Verdict.ALLOW),
    ],
)
def test_what_the_holder_of_a_sandbox_reports_as_refused_is_denied_i8(
    what: str, verdict: Verdict
) -> None:
    event = noted_event(what, why="x", times=2)
    assert (event.reason, event.verdict) == (what, verdict)
    assert dict(event.details) == {"why": "x", "times": 2}
