"""A question of a sandbox, answered in the browser."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.rigs.asking import HOST, PORT, PROGRAM, asked_host
from tests.rigs.pictures import picture_page
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until
from tests.rigs.web import foreign_page

if TYPE_CHECKING:
    from tests.rigs.chromium import Chromium, Page
    from tests.rigs.sandbox.projects import Project
    from tests.rigs.web import WebProcess

pytestmark = pytest.mark.outside

CARD = "document.querySelector('.card.ask')"
FIRST = f"{CARD}.querySelector('button')"


def _press(page: Page, label: str) -> None:
    until(lambda: page.run(f"!!{CARD} && !{FIRST}.disabled"))
    page.run(
        f"[...{CARD}.querySelectorAll('button')].find(b => b.textContent === '{label}').click()"
    )


@pytest.mark.parametrize(("label", "said"), [("No", "refused"), ("This session", "ping")])
def test_a_click_lets_the_held_connection_pass_or_refuses_it(
    project: Project, browser: Chromium, web: WebProcess, label: str, said: str
) -> None:
    with asked_host() as policy:
        project.policy(policy)
        page = web.open(browser)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert line_of(run.stdout) == "ready"
            until(lambda: page.run(f"!!{CARD}"))
            assert f"connect to {HOST}:{PORT}" in page.run(f"{CARD}.innerText")
            # No comes first, and has no focus: neither a click that was on its way nor a key
            # answers.
            assert page.run(f"{FIRST}.textContent") == "No"
            assert page.run(f"!{CARD}.contains(document.activeElement)")
            until(lambda: page.run(f"!{FIRST}.disabled"))
            picture_page(page, "guides/web-now.png", (860, 425))
            _press(page, label)
            assert line_of(run.stdout) == said
            until(lambda: page.run(f"!{CARD}"))
            run.wait(PATIENCE)
    answers = [each for each in project.events() if each.get("details", {}).get("via") == "web"]
    assert [each["verdict"] for each in answers] == ["allow" if said == "ping" else "deny"]


def test_always_writes_the_rule_and_shows_the_change(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    with asked_host() as policy:
        project.policy(policy)
        page = web.open(browser)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert line_of(run.stdout) == "ready"
            _press(page, "Always…")
            assert page.run("document.activeElement.textContent") == "Cancel"
            page.run("document.querySelector('dialog .danger').click()")
            assert line_of(run.stdout) == "ping"
            dialog = "document.querySelector('dialog').innerText"
            until(lambda: f'+allow = ["{HOST}:{PORT}"]' in page.run(dialog))
            until(lambda: page.run(f"!{CARD}"))
            picture_page(page, "approvals-always.png", (860, 420))
            run.wait(PATIENCE)
        # The file is accepted as it is now: the next run asks nothing.
        assert project("run", "--", "python3", "-I", "-S", "-c", PROGRAM).out == "ready\nping\n"


@pytest.mark.alone
def test_a_click_lets_the_connection_pass_within_150_milliseconds(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """From the click in the browser to the origin's answer in the sandbox; the median of
    five."""
    program = PROGRAM.replace("made.recv(4).decode()", "made.recv(4) and repr(time.time())")
    program = f"import time\nfor _ in range(5):\n{textwrap.indent(program, ' ')}"
    taken = []
    with asked_host() as policy:
        project.policy(policy)
        page = web.open(browser)
        with project.running("python3", "-I", "-S", "-c", program) as run:
            for _ in range(5):
                assert line_of(run.stdout) == "ready"
                until(lambda: page.run(f"!!{CARD} && !{FIRST}.disabled"))
                clicked = page.run(f"{CARD}.querySelectorAll('button')[1].click(); Date.now()")
                taken.append(float(line_of(run.stdout)) - clicked / 1000)
    assert sorted(taken)[2] <= 0.15, taken


def test_a_question_that_moves_under_the_pointer_takes_no_click(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """Attack: of two sandboxes, one ends when the person is about to press a button of its
    question, and the other's question slides there. A double click does the same."""
    both = f"import threading\n{{}}\n{PROGRAM.replace(HOST, 'second.example')}"
    first = f"threading.Thread(target=lambda: exec({PROGRAM!r})).start()"
    with asked_host() as policy:
        project.policy(policy)
        page = web.open(browser)
        with project.running("python3", "-I", "-S", "-c", both.format(first)):
            enabled = "document.querySelectorAll('.card.ask button:enabled').length"
            until(lambda: page.run(enabled) == 14)  # control: both take clicks
            moved = page.run(
                f"""new Promise((told) => {{
                  new MutationObserver(() => {{
                    if (document.querySelectorAll('.card.ask').length === 1) told({enabled});
                  }}).observe(document.querySelector('main'), {{ childList: true, subtree: true }});
                  {FIRST}.click();
                }})"""
            )
            assert moved == 0
            until(lambda: page.run(enabled) == 7)
            _press(page, "No")
            until(lambda: page.run(f"!{CARD}"))


def test_a_page_of_another_origin_cannot_approve_even_with_the_token_i3(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """The control is the same request, from the page's own origin."""
    token = f"Bearer {web.token()}"
    with asked_host() as policy, foreign_page() as address:
        project.policy(policy)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert line_of(run.stdout) == "ready"
            until(lambda: project("asks", "--json").out != "[]\n")
            (ask,) = json.loads(project("asks", "--json").out)
            path = f"/api/asks/{ask['session']}/{ask['id']}"
            foreign = browser.open(address)
            for mode, headers in (("no-cors", {}), ("cors", {"Authorization": token})):
                given = json.dumps({"method": "POST", "mode": mode, "headers": headers})
                send = f"{{...{given}, body: JSON.stringify({{answer: 'session'}})}}"
                sent = f"fetch('http://{web.authority}{path}', {send})"
                assert foreign.run(f"{sent}.then(a => a.ok, () => false)") is False
            assert json.loads(project("asks", "--json").out)[0]["state"] == "pending"
            own = {"Origin": f"http://{web.authority}", "Authorization": token}
            assert web.ask("POST", path, {"answer": "session"}, **own)[0] == 200
            assert line_of(run.stdout) == "ping"
            run.wait(PATIENCE)


def test_nothing_is_held_when_no_page_is_open(project: Project, web: WebProcess) -> None:
    """Control of the above: `keyhole web` runs, and nobody could answer."""
    with asked_host() as policy:
        project.policy(policy.replace('ask = ["hosts"]\n', ""))
        assert project.run("python3", "-I", "-S", "-c", PROGRAM).out == "ready\nrefused\n"
