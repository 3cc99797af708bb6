"""Lines about refusals: an agent's telemetry takes none of them, and hides none."""

from __future__ import annotations

from keyhole.gateway.refusal_reports import MAX_PATHS, RefusalReports
from keyhole.inject.quiet_refusals import QuietRefusals
from keyhole.model.decision import Reason


def test_quiet_refusals_are_not_shown_and_take_no_place_of_others() -> None:
    said: list[str] = []
    quiet = QuietRefusals(("telemetry.example", "api.example POST /log/**"))
    reports = RefusalReports(said.append, quiet)
    reports.connection("telemetry.example", 443, Reason.NO_RULE)
    for number in range(MAX_PATHS * 2):
        reports.request("POST", "api.example", f"/log/{number}", Reason.NO_RULE)
    assert said == []
    reports.connection("other.example", 443, Reason.NO_RULE)
    reports.request("GET", "api.example", "/missed", Reason.NO_RULE)
    assert [line.split(" (")[0] for line in said] == [
        "denied other.example:443",
        "denied GET https://api.example/missed",
    ]
    # Control: without the list each of them is told.
    told: list[str] = []
    RefusalReports(told.append).connection("telemetry.example", 443, Reason.NO_RULE)
    assert len(told) == 1
