"""Every page can be read and used without a mouse, without good eyes and on a small screen."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.asking import PROGRAM, asked_host
from tests.rigs.audit.million import refusal, request, used, write_lines
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.chromium import Chromium, Page
    from tests.rigs.sandbox.projects import Project
    from tests.rigs.web import WebProcess

pytestmark = pytest.mark.outside

AXE = Path(__file__).parents[3] / ".page/node_modules/axe-core/axe.min.js"
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PAGES = {
    "now": "!!document.querySelector('.card.ask button:enabled')",
    "log": "document.querySelectorAll('.scroller .row').length > 2",
    "policy": "!!document.querySelector('main table')",
    "usage": "document.querySelectorAll('main figure').length === 5",
    "services": "document.querySelectorAll('main article').length > 5",
}


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that knows WCAG; it is no part of the page."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    if not AXE.exists():
        give_up("axe-core is not installed: make setup, and .page/npm.log")
    return AXE.read_text()


@pytest.fixture
def filled(project: Project, web: WebProcess, browser: Chromium) -> Iterator[Page]:
    """A page while a sandbox asks, with a log of everything."""
    now = time.time()
    events = [(now - 3000 + n, each) for n, each in enumerate((request(), refusal()) * 20)]
    events += [(now - 30, used(1000, 10**7)), (now - 20, used(500, 0, known=False))]
    write_lines(project.home / "state/keyhole/audit/a.jsonl", events)
    with asked_host() as policy:
        project.policy(policy + '[egress]\nallow = ["example.org"]\n')
        page = web.open(browser)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert line_of(run.stdout) == "ready"
            yield page


def faults(page: Page) -> list[str]:
    """What the program finds: the rule, what is wrong, and where."""
    found: dict[str, Any] = page.run(
        f"axe.run(document, {{runOnly: {json.dumps(LEVELS)}}})"
        ".then(r => JSON.parse(JSON.stringify({v: r.violations, n: r.passes.length})))"
    )
    assert found["n"] > 5, "nothing was looked at"
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:120]}"
        for fault in found["v"]
        for node in fault["nodes"]
    ]


def open_page(page: Page, name: str) -> None:
    page.run(f"location.hash = '{name}'")
    until(lambda: page.run(f"location.hash === '#{name}' && ({PAGES[name]})"))


def unfold(page: Page) -> None:
    """Open what can be opened. Of a hundred services, a few stand for all."""
    page.run("[...document.querySelectorAll('article')].slice(8).forEach((e) => e.remove())")
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")


def test_no_page_has_a_fault_in_any_colours_or_size(filled: Page, axe: str) -> None:
    """WCAG 2.2 AA, as far as a program can tell. Control: it finds what is wrong."""
    page = filled
    page.run(axe + ";0")
    wrong: list[str] = []
    for name in PAGES:
        for width, dark in ((900, False), (400, True)):
            page.resize(width, 700, dark=dark)
            open_page(page, name)
            unfold(page)
            wrong += [f"{name} {width} {'dark' if dark else 'light'}: {e}" for e in faults(page)]
    assert not wrong, "\n".join(wrong)
    page.run("document.querySelector('main').append(document.createElement('input'))")
    assert any(each.startswith("label:") for each in faults(page))


def test_dialogs_and_the_editor_have_no_fault_either(filled: Page, axe: str) -> None:
    page = filled
    page.run(axe + ";0")
    open_page(page, "log")
    page.run("document.querySelector('.scroller .row').click()")
    until(lambda: page.run("document.querySelector('dialog').open"))
    assert faults(page) == []
    page.key("Escape")
    open_page(page, "policy")
    page.run("document.querySelector('main footer button').click()")
    until(lambda: page.run("!!document.querySelector('textarea')"))
    page.run("document.querySelector('.buttons button').click()")
    until(lambda: page.run("!!document.querySelector('.checked pre, .checked table')"))
    assert faults(page) == []
    open_page(page, "now")
    always = "b => b.textContent === 'Always…'"
    page.run(f"[...document.querySelectorAll('.ask button')].find({always}).click()")
    assert faults(page) == []


def test_nothing_is_cut_off_at_four_hundred_pixels(filled: Page) -> None:
    """1.4.10: no page is scrolled sideways; a wide table is, by itself."""
    page = filled
    page.resize(400, 700)
    for name in PAGES:
        open_page(page, name)
        unfold(page)
        wide = "document.scrollingElement.scrollWidth, document.querySelector('main').scrollWidth"
        assert max(page.run(f"[{wide}]")) <= 400, name


def test_every_control_is_reached_by_the_keyboard_and_shows_that_it_is(filled: Page) -> None:
    """2.1.1, 2.4.3, 2.4.7: in the order of the page, and none holds the focus."""
    page = filled
    for name in ("now", "policy", "usage"):
        open_page(page, name)
        page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
        controls = page.run(
            "[...document.querySelectorAll('a[href], button:enabled, select, input, textarea,"
            ' summary, [tabindex="0"]\')].filter(e => e.checkVisibility()).length'
        )
        seen = 0
        for _ in range(controls + 5):
            page.key("Tab")
            focused = page.run(
                "(() => { const e = document.activeElement; if (!e || e === document.body)"
                " return null; const s = getComputedStyle(e);"
                " return [e.outerHTML.slice(0, 60), s.outlineStyle !== 'none'"
                " && parseFloat(s.outlineWidth) >= 2]; })()"
            )
            if focused is None:
                break
            assert focused[1], f"{name}: {focused[0]} shows no focus"
            seen += 1
        assert seen >= controls * 0.8, (name, seen, controls)
