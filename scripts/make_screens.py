"""Draws the pictures of docs/guides/watch.md: `keyhole web` and `keyhole watch`, of a real run.

Run it by hand (`python -m scripts.make_screens`) when the page or the screen has changed: times and
ids differ from run to run, so no test compares the pictures.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.screen.watch_app import WatchApp
from keyhole.app.screen.watch_source import WatchSource
from keyhole.app.setup.host_paths import HostPaths
from scripts.make_docs import ROOT
from tests.rigs.asking import HOST, PORT, asked_host
from tests.rigs.audit.million import closed, refusal, request, used, write_lines
from tests.rigs.chromium import chromium
from tests.rigs.sandbox.people import open_ground, this_person
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import until
from tests.rigs.web import WebProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = ROOT / "docs" / "guides"
SIZE = 860, 560

PROGRAM = f"""
import socket
def reach(host, port):
    try:
        with socket.create_connection((host, port), 100) as made:
            made.sendall(b"ping")
            made.recv(4)
    except OSError:
        pass
for name in ("telemetry.example", "pastebin.example"):
    reach(name, 443)
print("ready", flush=True)
reach("{HOST}", {PORT})
"""


@contextlib.contextmanager
def _project() -> Iterator[Project]:
    with open_ground("screens") as ground, asked_host() as policy:
        plain = Project.make(this_person(ground), 0)
        made = dataclasses.replace(plain, directory=plain.home / "widgets")
        made.directory.mkdir()
        made.policy(policy + '[egress]\nallow = ["registry.example"]\n')
        yield made


def _draw_web(project: Project) -> None:
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile)) as browser,
        WebProcess.start(project) as web,
    ):
        page = web.open(browser)
        page.resize(*SIZE)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert line_of(run.stdout) == "ready"  # noqa: S101 - a rig's habit
            until(lambda: page.run("!!document.querySelector('.card.ask button:enabled')"))
            (PLACE / "web-now.png").write_bytes(page.picture())
            page.run("location.hash = 'log'")
            page.resize(400, 560, dark=True)
            until(lambda: page.run("document.querySelectorAll('.scroller .row').length") > 2)
            (PLACE / "web-log.png").write_bytes(page.picture())


def _draw_usage(project: Project) -> None:
    """A day of made-up requests of a made-up model."""
    now, chance = time.time(), random.Random(1)  # noqa: S311 - a picture
    made = (request(), refusal(), closed(9_000, 120_000))
    events = [(now - chance.randint(60, 80_000), chance.choice(made)) for _ in range(200)]
    for _ in range(120):
        tokens = chance.randint(1_000, 90_000)
        events.append((now - chance.randint(60, 80_000), used(tokens, tokens * 3_000)))
    events.sort(key=lambda each: each[0])
    write_lines(project.home / "state/keyhole/audit/a.jsonl", events)
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile)) as browser,
        WebProcess.start(project) as web,
    ):
        page = web.open(browser)
        page.resize(860, 700)
        page.run("location.hash = 'usage'")
        until(lambda: page.run("document.querySelectorAll('main figure').length === 5"))
        page.run("document.querySelectorAll('main section')[4].scrollIntoView()")
        (PLACE / "web-usage.png").write_bytes(page.picture())


async def _draw_watch(project: Project) -> None:
    state = Path(project.env["XDG_STATE_HOME"]) / "keyhole"
    paths = HostPaths(project.home, project.home / "config/keyhole", state, state / "run")
    app = WatchApp(WatchSource(paths))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(1)
        with project.running("python3", "-I", "-S", "-c", PROGRAM) as run:
            assert await asyncio.to_thread(line_of, run.stdout) == "ready"  # noqa: S101
            while not app.query_one("#asks").display:
                await pilot.pause(0.1)
            await pilot.pause(1)
            drawn = app.export_screenshot(title="keyhole watch")
            (PLACE / "watch.svg").write_text(_alone(drawn), "utf-8")


def _alone(picture: str) -> str:
    """The picture without fonts of other sites, which a reader's browser would fetch."""
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return re.sub(r"<!--.*?-->", "", picture, flags=re.DOTALL)


def main() -> None:
    """Draw all."""
    with _project() as project:
        _draw_usage(project)
    with _project() as project:
        _draw_web(project)
        asyncio.run(_draw_watch(project))


if __name__ == "__main__":
    main()
