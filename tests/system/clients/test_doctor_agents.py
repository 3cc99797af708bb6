"""`keyhole doctor --agents`: what an agent asks for, seen in the product's own sandbox (I1, I2).

A small program takes the agent's place; real agents run in the attack battery.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.services import keep, random_text
from tests.rigs.sandbox.projects import SEARCH
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

AGENT = """#!/usr/bin/python3 -IS
import os, sys, urllib.request
assert sys.argv[1] == "-p"
def ask(url, body=None):
    key = {"X-Api-Key": os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(url, body, key), timeout=30).read()
for url in ("https://statsig.anthropic.com/x", "https://new.example/collect?id=7",
            "https://api.anthropic.com/api/event_logging/v2", "https://api.anthropic.com/v1/new"):
    try:
        ask(url, b"{}")
    except OSError as error:
        print(error)
home = os.environ["HOME"]
print(sorted(os.listdir(home + "/.claude")), open(home + "/.claude/settings.json").read())
print(ask("https://api.anthropic.com/v1/messages", b"{}").decode())
"""


def install(project: Project, text: str) -> str:
    """The agent in the person's home, as its own installer puts it; returns PATH."""
    made = keep(project, ".local/share/claude/versions/2.1.325", text)
    made.chmod(0o755)
    (project.home / ".local/bin").mkdir(parents=True)
    (project.home / ".local/bin/claude").symlink_to(made)
    return f"{project.home}/.local/bin:{SEARCH}"


def test_what_an_agent_asks_for_is_compared_with_its_profile_and_service(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    path = install(project, AGENT)
    token = random_text("sk-ant-oat01-")
    login = keep(project, ".claude/.credentials.json", json.dumps({"token": token}))
    settings = keep(project, ".claude/settings.json", json.dumps({"model": "the-own-model"}))
    before = [each.stat().st_mtime_ns for each in (login, settings, project.home / ".claude")]
    ran = project("doctor", "--agents", "--json", env={"PATH": path})
    (row,) = json.loads(ran.out)
    assert row["id"] == "claude"
    assert row["answered"], row
    # The profile names two of these, the service one; the others have drifted.
    assert ran.code == 1
    assert sorted(row["drifted"]) == [
        "POST https://api.anthropic.com/v1/new",
        "POST https://new.example/collect",
    ]
    known = {each["path"]: each["allowed"] for each in row["requests"] if each["known"]}
    assert known["/v1/messages"] is True
    assert known["/api/event_logging/v2"] is False
    assert row["certificates"] == ["SSL_CERT_FILE"]
    assert "api.anthropic.com" in row["protocols"]
    # The person's login and settings were neither shown nor touched, and no run is in their log.
    assert token not in ran.out + ran.err
    assert before == [e.stat().st_mtime_ns for e in (login, settings, project.home / ".claude")]
    assert not [event for event in project.events() if event["session"]]


def test_an_agent_that_does_not_answer_fails_and_one_that_is_missing_says_how_to_install_it(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    own = 'print(open(__import__("os").environ["HOME"] + "/.claude/settings.json").read())'
    path = install(project, f"#!/usr/bin/python3 -IS\n{own}\nprint('my last words')\n")
    keep(project, ".claude/settings.json", json.dumps({"model": "the-own-model"}))
    ran = project("doctor", "--agents", "claude", "goose", env={"PATH": path})
    assert ran.code == 1
    assert "claude  does not answer: my last words" in ran.out
    assert "the-own-model" not in ran.out
    assert "goose is not installed: brew install" in ran.out
    unknown = project("doctor", "--agents", "nothing", env={"PATH": path})
    assert (unknown.code, "no profile of an agent is named 'nothing'" in unknown.err) == (2, True)
    none = project("doctor", "--agents")
    assert (none.code, none.out) == (
        0,
        "no agent is installed; `keyhole agents` lists those that have a profile\n",
    )


def test_an_interrupt_ends_the_agent_and_leaves_nothing(
    new_project: Callable[[], Project],
) -> None:
    project = new_project()
    waits = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"
    path = install(project, f"#!/usr/bin/python3 -IS\n{waits}")
    place = project.home / "tmp"
    place.mkdir()
    project.person.own(place)
    process = project.start("doctor", "--agents", env={"PATH": path, "TMPDIR": str(place)})
    try:
        said = "keyhole-doctor-*/*/transcript"
        until(lambda: any(each.read_text() for each in place.glob(said)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, b"", b"")
    assert list(place.iterdir()) == []
