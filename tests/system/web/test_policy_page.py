"""A policy is edited in the page as carefully as at a terminal (I11)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.rigs.chromium import Chromium, Page
    from tests.rigs.sandbox.projects import Project
    from tests.rigs.web import WebProcess

pytestmark = pytest.mark.outside

AREA = "document.querySelector('main textarea')"
HOSTILE = '<img src=x onerror="window.evil=1">'


def press(page: Page, label: str, within: str = "main") -> None:
    find = (
        f"[...document.querySelectorAll('{within} button')].find(b => b.textContent === '{label}')"
    )
    until(lambda: page.run(f"!!{find} && !{find}.disabled"))
    page.run(f"{find}.click()")


def write(page: Page, text: str) -> None:
    page.run(f"{AREA}.value = {json.dumps(text)}; {AREA}.dispatchEvent(new Event('input'))")


def said(page: Page) -> str:
    text: str = page.run("(document.querySelector('.checked') ?? {innerText: ''}).innerText")
    return text


def begin(page: Page) -> None:
    page.run("location.hash = 'policy'")
    press(page, "Edit or accept…")
    until(lambda: page.run(f"!!{AREA} && document.activeElement === {AREA}"))


def test_a_policy_is_checked_shown_written_and_accepted(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    project.policy('[egress]\nallow = ["example.org"]\n')
    assert project("run", "--", "true").code == 125  # nobody has accepted it yet
    page = web.open(browser)
    begin(page)
    write(page, f'version = 1\n[egress]\nallow = ["example.org", "{HOSTILE}"]\n')
    press(page, "Check")
    until(lambda: "It cannot be used" in said(page))
    assert HOSTILE in said(page)  # as text
    assert re.search(r"\n +3 \| allow = .*\n +\| +\^", said(page))  # the line, and its place
    new = 'version = 1\n# \u202eevil\n[egress]\nallow = ["example.net"]\n'
    write(page, new)
    assert said(page) == "", "what was checked is another text"
    press(page, "Check")
    until(lambda: "It would grant" in said(page))
    assert "example.net" in said(page)
    assert "\u202e" not in said(page)
    before = (project.directory / "keyhole.toml").read_text()
    assert 'allow = ["example.org"]' in before, "nothing is written before the yes"
    press(page, "Write and accept…")
    assert page.run("document.activeElement.textContent") == "Cancel"
    press(page, "Write and accept", "dialog")
    until(lambda: (project.directory / "keyhole.toml").read_text() == new)
    until(
        lambda: page.run("document.querySelector('main .card .allow')?.textContent") == "accepted"
    )
    assert project("run", "--", "true").code == 0  # accepted: no flag, and no terminal
    assert page.run("window.evil ?? 0") == 0


def test_a_file_that_changed_meanwhile_is_not_overwritten(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    page = web.open(browser)
    begin(page)
    project.policy('[egress]\nallow = ["other.example"]\n')
    write(page, "version = 1\n")
    press(page, "Check")
    until(lambda: "the file has changed" in said(page))
    assert "other.example" in (project.directory / "keyhole.toml").read_text()


def test_a_yes_is_for_the_text_that_was_shown_and_for_listed_files_alone(
    project: Project, web: WebProcess
) -> None:
    """Attack: another text, another file, or another program sends the yes. Control: the text that
    was checked passes."""
    origin, bearer = f"http://{web.authority}", f"Bearer {web.token()}"
    known = {"Origin": origin, "Authorization": bearer}
    status, listed = web.ask("GET", "/api/policies", **known)
    assert status == 200
    place = f"/api/policies/{listed[0]['id']}"  # type: ignore[index]
    _, read = web.ask("GET", place, **known)
    edit = {"text": 'version = 1\n[egress]\nallow = ["a.example"]\n', "base": read["base"]}
    _, found = web.ask("POST", f"{place}/check", edit, **known)
    other = edit | {"text": edit["text"].replace("a.example", "evil.example")}
    for sent, path, headers, expected in (
        (other | {"digest": found["digest"]}, place, known, 409),
        (edit | {"digest": ""}, place, known, 409),
        (edit | {"digest": found["digest"]}, "/api/policies/0123456789abcdef", known, 409),
        (edit | {"digest": found["digest"]}, place, {"Origin": origin}, 401),
        (edit | {"digest": found["digest"]}, place, known | {"Origin": "http://evil"}, 403),
        (edit | {"digest": 5}, place, known, 400),
    ):
        assert web.ask("POST", f"{path}/save", sent, **headers)[0] == expected
        assert "evil.example" not in (project.directory / "keyhole.toml").read_text()
    assert web.ask("POST", f"{place}/save", edit | {"digest": found["digest"]}, **known)[0] == 200
    assert (project.directory / "keyhole.toml").read_text() == edit["text"]
