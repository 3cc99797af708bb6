"""Budgets of money hold across sessions, processes and gateways, and are shown (I9)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.billing import BUY, billed_model, buy
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.outside


@pytest.fixture
def other(project: Project) -> Project:
    """A second project of the same person, whose account both share."""
    made = Project(project.person, project.directory.parent / "other", project.home)
    made.directory.mkdir()
    project.person.own(made.directory)
    return made


@contextlib.contextmanager
def buying(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    with project.running("python3", "-I", "-S", "-c", BUY, stdin=subprocess.PIPE) as run:
        assert line_of(run.stdout) == "ready"
        yield run


def bought(run: subprocess.Popen[bytes], model: str = "m") -> str:
    buy(run, model)
    return line_of(run.stdout)


def test_a_day_is_of_all_runs_together_and_outlives_them(project: Project, other: Project) -> None:
    """Each run has a gateway of its own. Control: below the amount, both buy."""
    with (
        billed_model(project, 'day = "3 USD"'),
        billed_model(other, 'month = "3 USD"', "bought") as served,
        buying(project) as one,
        buying(other) as two,
    ):
        assert [bought(one), bought(two), bought(one)] == ["200"] * 3
        # The next is refused, in the other run within the second that news take.
        assert bought(one) == "over-budget"
        until(lambda: bought(two) == "over-budget")
        assert len(served.seen) <= 2
        with buying(project) as third:
            assert bought(third) == "over-budget"
    said = json.loads(account_of(project).read_text())
    assert said["day_spent"] == said["month_spent"]
    assert said["day_spent"]["openai"] >= 3 * 10**9


def test_a_gateway_that_is_up_counts_to_the_same_account(project: Project) -> None:
    with billed_model(project, 'day = "2 USD"'):
        with buying(project) as run:
            assert bought(run) == "200"
            run.stdin.close() if run.stdin else None
            run.wait()
        assert project("up").code == 0
        try:
            with buying(project) as run:
                assert [bought(run), bought(run)] == ["200", "over-budget"]
                (shown,) = json.loads(project("ps", "--json").out)
                assert shown["own_gateway"] is False
                assert shown["spent_nano_usd"] == 10**9
                (budget,) = shown["budgets"]
                assert budget == {
                    "id": "services.model.budget.day", "used": 2 * 10**9, "limit": 2 * 10**9
                }  # fmt: skip
        finally:
            assert project("down").code == 0


def test_a_day_is_of_all_workers_of_a_gateway_together(project: Project) -> None:
    """I9: also after one of them was killed. Control: alone, a session may spend the whole."""
    whole = 3 * 10**9
    with billed_model(project, 'day = "3 USD"') as served:
        assert project("up", "--workers", "2").code == 0
        try:
            with buying(project) as alone:
                assert [bought(alone) for _ in range(4)] == ["200"] * 3 + ["over-budget"]
            account_of(project).unlink()  # another day
            with buying(project) as one, buying(project) as other:
                shown = json.loads(project("ps", "--json").out)
                assert {each["worker"] for each in shown} == {1, 2}
                assert [bought(one), bought(other), bought(other)] == ["200"] * 3
                until(lambda: uses_of(project) == {whole})
                assert [bought(one), bought(other)] == ["over-budget"] * 2
            workers = json.loads(project("status", "--json").out)["workers"]
            os.kill(workers[0]["pid"], signal.SIGKILL)
            with buying(project) as fresh:
                assert bought(fresh) == "over-budget"
            assert len(served.seen) == 6
        finally:
            assert project("down").code == 0


def uses_of(project: Project) -> set[int]:
    """What each session knows of the day's spending of all."""
    shown = json.loads(project("ps", "--json").out)
    return {budget["used"] for each in shown for budget in each["budgets"]}


def account_of(project: Project) -> Path:
    return project.home / "state/keyhole/spending/account.json"


def test_an_account_that_cannot_be_read_closes_what_a_day_bounds(project: Project) -> None:
    """I3. Control: a budget of the session asks nobody."""
    account = account_of(project)
    with billed_model(project, 'session = "3 USD"'), buying(project) as run:
        assert bought(run) == "200"
        run.stdin.close() if run.stdin else None
        run.wait()
    account.write_text("nonsense")
    with billed_model(project, 'day = "3 USD"'), buying(project) as run:
        assert bought(run) == "spending-unknown"
        account.unlink()
        until(lambda: bought(run) == "200")


def test_a_share_asks_in_the_terminal_and_a_yes_typed_elsewhere_goes_on(project: Project) -> None:
    with billed_model(project, 'session = "4 USD", ask = "25%"') as served, buying(project) as run:
        assert bought(run) == "200"
        buy(run)
        until(lambda: json.loads(project("asks", "--json").out) != [])
        (ask,) = json.loads(project("asks", "--json").out)
        assert (ask["kind"], len(served.seen)) == ("budgets", 1)
        words = "spend more than 1 USD of 4 USD in this session at model"
        assert words in project("asks").out
        refused = project("approve", ask["id"], "--always")
        assert (refused.code, "raised in the policy by hand" in refused.err) == (2, True)
        assert project("approve", ask["id"], "--session").code == 0
        assert line_of(run.stdout) == "200"
        assert [bought(run), bought(run), bought(run)] == ["200", "200", "over-budget"]
        shown = project("ps", env={"COLUMNS": "140"}).out
        assert "4.00 USD" in shown
