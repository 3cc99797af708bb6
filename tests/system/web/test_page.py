"""`keyhole web` in a real browser: each page, hostile texts, and those who are not the page."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rigs.audit.million import closed, refusal, request, used, write_lines
from tests.rigs.lacking import give_up
from tests.rigs.pictures import picture_page
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until
from tests.rigs.web import foreign_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.chromium import Chromium, Page
    from tests.rigs.sandbox.projects import Project
    from tests.rigs.web import WebProcess

pytestmark = pytest.mark.outside

HOSTILE = "<img src=x onerror=document.title='pwned'>\u202e\x1b[31m\"'&amp;{{7*7}}"
SHOWN = {
    "now": "<img src=x",
    "log": "<img src=x",
    "policy": "keyhole.toml",
    "usage": "<img src=x",
    "services": "anthropic",
}
PAGES = tuple(SHOWN)
LARGEST_LOAD = 300 * 1024


def _text(page: Page) -> str:
    return str(page.run("document.body.innerText"))


def _wait_for(page: Page, text: str) -> None:
    until(lambda: text in _text(page), told=lambda: f"{text!r} is not in {_text(page)}")


def _wait_for_match(page: Page, pattern: str) -> None:
    until(lambda: re.search(pattern, _text(page)) is not None)


def _go(page: Page, name: str) -> None:
    page.run(f"location.hash = '{name}'")
    _wait_for_page(page, name)


def _wait_for_page(page: Page, name: str) -> None:
    until(lambda: page.run("document.querySelector('[aria-current]').dataset.page") == name)


def _audit(project: Project) -> Path:
    return Path(project.env["XDG_STATE_HOME"]) / "keyhole/audit"


@contextlib.contextmanager
def _session(project: Project, *words: str) -> Iterator[str]:
    """A session while the block lasts; its id."""
    script = words or ("echo ready; exec sleep 600",)
    with project.running("sh", "-c", *script) as process:
        assert line_of(process.stdout) == "ready"
        (found,) = json.loads(project("ps", "--json").out)
        yield found["id"]


def test_every_page_shows_hostile_texts_as_text_and_no_error(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """I8: names, paths, refs and commands of a sandbox are never read as HTML."""
    write_lines(
        _audit(project) / "hostile.jsonl",
        [
            (time.time() - 5, request("/" + HOSTILE, HOSTILE, HOSTILE)),
            (time.time() - 4, refusal(HOSTILE)),
        ],
        session=HOSTILE,
    )
    with _session(project, "echo ready; exec sleep 600", HOSTILE) as session:
        project.policy(f"[services.api]\nhosts = ['{HOSTILE}']\n")
        page = web.open(browser)
        until(lambda: session in _text(page))
        page.run(
            "window.faults = [];"
            "addEventListener('error', e => faults.push(e.message));"
            "addEventListener('securitypolicyviolation', e => faults.push(e.violatedDirective))"
        )
        for name in PAGES:
            _go(page, name)
            _wait_for(page, SHOWN[name])
            assert page.run("document.querySelectorAll('main img').length") == 0
            assert not set("\u202e\x1b") & set(_text(page))
        _go(page, "log")
        rows = "[...document.querySelectorAll('.scroller .row')]"
        hostile = f"{rows}.find(row => row.innerText.match(/deny[^]*<img/))"
        until(lambda: page.run(f"!!{hostile}"))
        page.run(f"{hostile}.click()")
        until(lambda: page.run("document.querySelector('dialog').open"))
        assert "no rule names it" in page.run("document.querySelector('dialog').innerText")
        assert page.run("faults") == []
        assert "pwned" not in page.run("document.title")


def test_details_have_the_line_of_the_policy_at_which_the_rule_stands(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    project.policy('[services.api]\nhosts = ["api.example"]\nallow = [\n  "GET /v1/**",\n]\n')
    with _session(project) as session:
        write_lines(_audit(project) / "one.jsonl", [(time.time(), request())], session=session)
        page = web.open(browser)
        _go(page, "log")
        rows = "[...document.querySelectorAll('.scroller .row')]"
        row = f"{rows}.find(row => row.innerText.match('items'))"
        until(lambda: page.run(f"!!{row}"))
        page.run(f"{row}.click()")
        _wait_for_match(page, r"services\.api\.allow\[0\]\s+[\s\S]*line\s+\S*keyhole\.toml:5")
    written = project.directory.joinpath("keyhole.toml").read_text().splitlines()
    assert written[5 - 1] == '  "GET /v1/**",'


def test_a_session_is_revoked_and_stopped_by_the_page_and_by_it_alone(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    with _session(project) as session:
        page = web.open(browser)
        until(lambda: session in _text(page))
        # A page of another origin, which knows the address, and even the token.
        with foreign_page() as address:
            foreign = browser.open(address)
            for token in ("", "Bearer guess"):
                assert _try_to_act(foreign, web, session, token) == "failed"
            assert _state(project) == "open"
        # The page itself: first a question, in which "no" has the focus.
        _press(page, f"Revoke session {session}")
        assert page.run("document.activeElement.textContent") == "Cancel"
        page.run("document.activeElement.click()")
        assert _state(project) == "open"
        _press(page, f"Revoke session {session}")
        page.run("document.querySelector('dialog .danger').click()")
        until(lambda: _state(project) == "revoked")
        until(lambda: "revoked" in _text(page))
        _press(page, f"Stop session {session}")
        page.run("document.querySelector('dialog .danger').click()")
        until(lambda: _state(project) == "")
        until(lambda: "No session is open" in _text(page))


def _state(project: Project) -> str:
    found = json.loads(project("ps", "--json").out)
    return str(found[0]["state"]) if found else ""


def _press(page: Page, label: str) -> None:
    page.run(f"document.querySelector('[aria-label=\"{label}\"]').click()")
    until(lambda: page.run("document.querySelector('dialog').open"))


def _try_to_act(page: Page, web: WebProcess, session: str, token: str) -> str:
    code = f"""fetch("http://{web.authority}/api/sessions/{session}/revoke",
        {{ method: "POST", mode: "%s", headers: %s }})
        .then(answer => answer.ok ? "done" : "failed", () => "failed")"""
    given = json.dumps({"Authorization": token} if token else {})
    simple = page.run(code % ("no-cors", "{}"))
    return "failed" if simple == page.run(code % ("cors", given)) == "failed" else "done"


def test_a_link_opens_one_page_and_leaves_no_trace_in_it(
    browser: Chromium, web: WebProcess
) -> None:
    page = web.open(browser)
    assert web.key not in page.run("location.href")
    assert page.run("document.cookie + localStorage.length + sessionStorage.length") == "00"
    second = browser.open(web.link)
    until(lambda: "This link was used" in _text(second))
    assert second.run("document.querySelectorAll('nav a').length") == 0


def test_the_server_refuses_other_names_and_programs_without_a_token(web: WebProcess) -> None:
    token = f"Bearer {web.token()}"
    assert web.ask("GET", "/api/choices", Authorization=token)[0] == 200  # control
    named = {"Authorization": token, "Host": f"rebound.example:{web.port}"}
    assert web.ask("GET", "/api/choices", **named) == (421, {"error": "wrong-host"})
    assert web.ask("GET", "/", Host=f"localhost:{web.port}")[0] == 421
    assert web.ask("GET", "/api/choices")[0] == 401
    assert web.ask("GET", "/api/../etc/passwd", Authorization=token)[0] == 404
    own = {"Authorization": token, "Origin": f"http://{web.authority}"}
    large = {"key": "x" * (300 * 1024)}
    assert web.ask("POST", "/api/login", large, **own)[0] == 413
    assert web.ask("POST", "/api/sessions/..%2f/revoke", **own)[0] == 404
    for query in ("first=nan", "first=-1", "count=x", f"text={'x' * 300}", "since=1e999"):
        assert web.ask("GET", f"/api/log?{query}", Authorization=token)[0] == 400
    assert web.ask("GET", "/api/usage?by=x", Authorization=token)[0] == 400


def test_a_client_of_another_loopback_address_gets_nothing(web: WebProcess) -> None:
    """The kernel is asked for the user at 127.0.0.1 alone."""
    statuses = []
    for source in ("127.0.0.1", "127.0.0.2"):
        connection = http.client.HTTPConnection(
            "127.0.0.1", web.port, timeout=PATIENCE, source_address=(source, 0)
        )
        connection.request("GET", "/")
        statuses.append(connection.getresponse().status)
        connection.close()
    assert statuses == [200, 403]  # the first is the control


def test_silent_connections_keep_nobody_from_the_page(web: WebProcess) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(64):
            silent.enter_context(socket.create_connection(("127.0.0.1", web.port), PATIENCE))
        assert web.ask("GET", "/")[0] == 200


def test_another_user_of_this_host_gets_nothing_even_with_the_token(web: WebProcess) -> None:
    if os.geteuid() != 0:
        give_up("only root can be another user")
    token = f"Bearer {web.token()}"
    assert web.ask("GET", "/api/choices", Authorization=token)[0] == 200  # control
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another user's process
        with contextlib.suppress(BaseException):
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, str(web.ask("GET", "/api/choices", Authorization=token)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == str((403, {"error": "wrong-user"}))
    os.waitpid(child, 0)


def test_a_long_log_that_grows_fast_is_searched_and_scrolled(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """Ten thousand events a second, of which the page has only the rows that are seen."""
    count, now = 60_000, time.time() - 600
    made = [(now + n / 1000, request(f"/item/{n}/")) for n in range(count)]
    write_lines(_audit(project) / "0.jsonl", made)
    page = web.open(browser)
    _go(page, "log")
    until(lambda: "60\u202f000 events" in _text(page))
    assert page.run("document.querySelectorAll('.row').length") < 100
    page.run("document.querySelector('.scroller').scrollTop = 1e9")
    until(lambda: "/item/0/" in _text(page))
    page.run("document.querySelector('.scroller').scrollTop = 0")
    for second in range(3):
        more = [(now + 61 + second, refusal(f"h{second}.example"))] * 10_000
        write_lines(_audit(project) / f"{second + 1}.jsonl", more)
        _wait_for(page, f"{(second + 7) * 10}\u202f000 events")
    until(lambda: "h2.example" in _text(page))
    page.run(
        "const input = document.querySelector('[name=text]'); input.value = '/item/777/';"
        "input.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    until(lambda: "1 event" in _text(page))
    assert "/item/777/" in _text(page)


@pytest.mark.attack
def test_a_million_events_are_scrolled_and_searched(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """Browsers bound the height of what is scrolled: every event must be in reach all the same."""
    count, now = 1_000_000, time.time() - 6000
    write_lines(
        _audit(project) / "0.jsonl",
        ((now + n / 1000, request(f"/item/{n}/")) for n in range(count)),
    )
    page = web.open(browser)
    _go(page, "log")
    _wait_for(page, "1\u202f000\u202f000 events")
    for part, expected in (("1", "/item/0/"), ("0", "/item/999999/"), ("0.5", "/item/49|/item/50")):
        page.run(
            "{ const list = document.querySelector('.scroller');"
            f" list.scrollTop = list.scrollHeight * {part}; }}"
        )
        _wait_for_match(page, expected)
        assert page.run("document.querySelectorAll('.row').length") < 100
    page.run(
        "const input = document.querySelector('[name=text]'); input.value = '/item/777777/';"
        "input.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    until(lambda: "1 event" in _text(page))
    assert "/item/777777/" in _text(page)


def test_the_log_and_usage_are_drawn_on_a_wide_and_on_a_narrow_screen(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    """A day of requests; each chart has its numbers as a table."""
    now, chance = time.time(), random.Random(1)  # noqa: S311 - the same in every run
    made = (request(), refusal(), closed(9_000, 120_000))
    events = [(now - chance.randint(60, 80_000), chance.choice(made)) for _ in range(200)]
    for _ in range(120):
        tokens = chance.randint(1_000, 90_000)
        events.append((now - chance.randint(60, 80_000), used(tokens, tokens * 3_000)))
    write_lines(_audit(project) / "0.jsonl", sorted(events, key=lambda each: each[0]))
    page = web.open(browser)
    _go(page, "usage")
    until(lambda: page.run("document.querySelectorAll('main figure').length === 5"))
    assert page.run("document.querySelectorAll('main section table').length") >= 5
    page.resize(860, 700)
    page.run("document.querySelectorAll('main section')[4].scrollIntoView()")
    picture_page(page, "guides/web-usage.png", (860, 700))
    _go(page, "log")
    page.resize(400, 560, dark=True)
    until(lambda: page.run("document.querySelectorAll('.scroller .row').length") > 2)
    picture_page(page, "guides/web-log.png", (400, 560), dark=True)


def test_the_page_is_small_and_everything_in_it_is_its_own(
    browser: Chromium, web: WebProcess
) -> None:
    page = web.open(browser)
    for name in PAGES:
        _go(page, name)
    loaded = page.run(
        "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
        ".filter(e => !e.name.includes('/api/')).map(e => [e.name, e.transferSize])"
    )
    assert all(name.startswith(f"http://{web.authority}/") for name, _ in loaded)
    assert 10_000 < sum(size for _, size in loaded) < LARGEST_LOAD


def test_the_page_fits_a_narrow_screen_and_is_used_by_keys_alone(
    project: Project, browser: Chromium, web: WebProcess
) -> None:
    write_lines(_audit(project) / "0.jsonl", [(time.time(), refusal("long" * 15 + ".example"))])
    page = web.open(browser)
    page.resize(400, 700)
    for number, name in enumerate(PAGES, 1):
        page.key(str(number))
        _wait_for_page(page, name)
        assert page.run("document.documentElement.scrollWidth") <= 400
    page.key("/")
    until(lambda: page.run("document.activeElement.name") == "text")
    page.key("Escape")
    until(lambda: page.run("!!document.querySelector('.scroller .row')"))
    page.run("document.querySelector('.scroller').focus()")
    page.key("ArrowDown")
    page.key("Enter")
    until(lambda: page.run("document.querySelector('dialog').open"))
    page.key("Escape")
    until(lambda: not page.run("document.querySelector('dialog').open"))
