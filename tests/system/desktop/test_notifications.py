"""Questions on a desktop: a real bus, Debian's dunst, and servers and clients that misbehave."""

from __future__ import annotations

import json
import os
import select
import signal as signals
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jeepney import HeaderFields, message_bus

from keyhole.app.desktop.ask_notices import READ_SECONDS
from keyhole.control.watchers import is_watched
from tests.rigs.asking import HOST, PORT, PROGRAM, asked_host
from tests.rigs.desktop import StandInServer, connect, dunst_desktop, session_bus, signal
from tests.rigs.sandbox.people import open_ground, ordinary_user, this_person
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.outside

WORDS = f"wants to connect to {HOST}:{PORT}."


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    with open_ground("desktop") as path:
        yield path


@pytest.fixture
def project(ground: Path) -> Iterator[Project]:
    """A project whose policy says nothing about questions: they need somebody to answer."""
    number = len(list(ground.iterdir()))
    with asked_host() as policy:
        yield Project.make(this_person(ground), number, policy.split("\n", 3)[3])


@pytest.fixture
def bus(project: Project) -> Iterator[dict[str, str]]:
    with session_bus(project.home / "desktop") as env:
        yield env


@contextmanager
def shown_by(project: Project, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`keyhole watch --desktop` while the block lasts."""
    watch = project.start("watch", "--desktop", env=env)
    try:
        until(lambda: any(project.home.rglob("watch.lock")) or watch.poll() is not None)
        yield watch
    finally:
        watch.send_signal(signals.SIGTERM)
        watch.communicate(timeout=PATIENCE)


@contextmanager
def asking(project: Project, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose program asks for a host."""
    with project.running("python3", "-I", "-S", "-c", PROGRAM, env=env) as run:
        assert line_of(run.stdout) == "ready"
        yield run


def heard(run: subprocess.Popen[bytes]) -> str:
    """What the program got; its run has ended, and its log is whole."""
    line = line_of(run.stdout)
    assert run.wait(PATIENCE) == 0
    return line


def last_answer(project: Project) -> tuple[str, str]:
    """How the last question ended, and by which way it was answered."""
    event = [e for e in project.events() if e["kind"] == "ask"][-1]
    return event["reason"], event["details"].get("via", "")


def test_a_run_on_a_desktop_asks_there_and_a_button_answers(project: Project) -> None:
    """With Debian's dunst: nobody started anything but the run."""
    with dunst_desktop(project.home / "desktop") as (env, dunst), asking(project, env) as run:
        until(lambda: dunst.count() == 1, pause=0.05)
        time.sleep(READ_SECONDS)  # a yes within it is not taken
        assert "No" in dunst.press("Allow once")
        assert heard(run) == "ping"
        until(lambda: dunst.count() == 0, pause=0.05)
    assert last_answer(project) == ("approved", "desktop")


def test_closing_the_notification_says_nothing(project: Project) -> None:
    """I3: with Debian's dunst. The positive control is the "no", which the run hears at once."""
    with dunst_desktop(project.home / "desktop") as (env, dunst), shown_by(project, env):
        with asking(project, env) as run:
            until(lambda: dunst.count() == 1, pause=0.05)
            dunst.close_all()
            until(lambda: dunst.count() == 0, pause=0.05)
            (ask,) = json.loads(project("asks", "--json", env=env).out)
            assert ask["state"] == "pending"
            assert project("approve", ask["id"], env=env).code == 0
            assert heard(run) == "ping"
        with asking(project, env) as run:
            until(lambda: dunst.count() == 1, pause=0.05)
            dunst.press("No")
            assert heard(run) == "refused"
    assert last_answer(project) == ("not-approved", "desktop")


def test_only_the_server_can_say_that_a_button_was_pressed(
    project: Project, bus: dict[str, str]
) -> None:
    """I3: another client of the bus sends the same signal, to all and to us, and nothing happens;
    a click on the text and an unknown button say nothing either."""
    with StandInServer(bus) as server, shown_by(project, bus), asking(project, bus) as run:
        until(lambda: server.shown)
        ((number, shown),) = server.shown.items()
        assert WORDS in shown[4]
        assert shown[5][:2] == ["no", "No"]  # the first button is not a yes
        time.sleep(READ_SECONDS)
        with connect(bus) as client:
            client.send(signal("ActionInvoked", "us", (number, "once")))
            for name in client.send_and_get_reply(message_bus.ListNames()).body[0]:
                forged = signal("ActionInvoked", "us", (number, "once"))
                forged.header.fields[HeaderFields.destination] = name
                client.send(forged)
            client.send_and_get_reply(message_bus.ListNames())
        for key in ("default", "always", "Allow once"):
            server.press(number, key)
        server.press(number + 1, "once")
        assert run.stdout is not None
        assert not select.select([run.stdout], [], [], 1.0)[0]
        server.press(number, "once")
        assert heard(run) == "ping"
    assert last_answer(project) == ("approved", "desktop")


def test_nobody_is_there_to_answer_without_a_server_that_has_buttons(
    project: Project, bus: dict[str, str]
) -> None:
    """I3: the policy says nothing about questions, so without an answerer all is refused at once.
    When a server with buttons comes, a later run asks it; when that dies, nobody is asked."""
    with asking(project, bus) as run:
        assert heard(run) == "refused"
    with StandInServer(bus, able=("body",)), asking(project, bus) as run:
        assert heard(run) == "refused"
    said = project("watch", "--desktop", env=bus)
    assert said.code != 0
    assert "no notification server with buttons" in said.err
    with shown_by(project, bus | {"DISPLAY": ""}) as watch:
        assert watch.wait(PATIENCE) != 0
    with StandInServer(bus) as server, shown_by(project, bus):
        with asking(project, bus):
            until(lambda: server.shown)
        server.close()
        until(lambda: not is_watched(Path(bus["XDG_RUNTIME_DIR"]) / "keyhole"))
        with asking(project, bus) as run:
            assert heard(run) == "refused"
        with StandInServer(bus) as again:
            until(lambda: is_watched(Path(bus["XDG_RUNTIME_DIR"]) / "keyhole"))
            with asking(project, bus) as run:
                until(lambda: again.shown)
                time.sleep(READ_SECONDS)
                again.press(next(iter(again.shown)), "session")
                assert heard(run) == "ping"


def test_notifications_can_be_switched_off(project: Project, bus: dict[str, str]) -> None:
    settings = project.home / "config" / "keyhole"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("version = 1\n[desktop]\nnotifications = false\n")
    with StandInServer(bus) as server:
        with asking(project, bus) as run:
            assert heard(run) == "refused"
        assert not server.ever
        said = project("watch", "--desktop", env=bus)
        assert "desktop.notifications is false" in said.err


def test_the_bus_of_another_user_is_not_used(project: Project, ground: Path) -> None:
    """Its owner would answer for this one. The control is every other test here."""
    if os.geteuid() != 0:
        return  # it takes a second account
    with ordinary_user(ground / "other") as other:
        become = {"user": other.uid, "group": other.gid}
        with session_bus(other.directory / "desktop", **become) as env:
            env["XDG_RUNTIME_DIR"] = str(project.home)
            said = project("watch", "--desktop", env=env)
            assert said.code != 0
            assert "another user's" in said.err or "refuses us" in said.err, said


def test_a_second_process_for_the_desktop_is_refused(project: Project, bus: dict[str, str]) -> None:
    with StandInServer(bus), shown_by(project, bus):
        said = project("watch", "--desktop", env=bus)
        assert said.code != 0
        assert "held by another process" in said.err
