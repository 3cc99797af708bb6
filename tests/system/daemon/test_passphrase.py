"""A gateway whose store is encrypted: the passphrase is typed at `keyhole up`, once and rightly."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.cli.terminals import on_terminal
from tests.rigs.sandbox.people import open_ground, this_person
from tests.rigs.sandbox.projects import Project
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.outside

SECRET = "tok-5f2c9d417ab0-correct-horse"
PASSPHRASE = "a passphrase of some length"

POLICY = """
[services.own]
hosts = ["own.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "store:own"
allow = ["GET /**"]
"""


@pytest.fixture
def project() -> Iterator[Project]:
    with open_ground("passphrase") as ground:
        made = Project.make(this_person(ground), 0, POLICY)
        yield made
        made("down")


def typed(project: Project, *words: str, answers: tuple[str, ...]) -> tuple[int, str]:
    program = str(project.person.program)
    prompts = [(": ", answer + "\r") for answer in answers]
    return on_terminal([program, *words], project.env, project.directory, prompts)


def test_the_passphrase_of_the_store_is_asked_for_until_it_is_right(project: Project) -> None:
    """I1: it opens the store for sessions, and no file of the home has it."""
    code, said = typed(
        project, "secret", "set", "own", "--encrypted", answers=(PASSPHRASE, PASSPHRASE, SECRET)
    )
    assert code == 0, said
    # The control: without a terminal nobody can be asked, and no session has the secret.
    assert project("up").code == 0
    without = project.run("true")
    assert without.code == 0
    assert "closed, as its secret cannot be read" in without.err
    assert "encrypted" in without.err
    assert project("down").code == 0
    code, said = typed(project, "up", answers=("not the passphrase", PASSPHRASE))
    assert code == 0, said
    assert "once more" in said
    assert PASSPHRASE not in said
    opened = project.run("true")
    assert opened.code == 0
    assert "closed" not in opened.err
    # A data plane that is lost costs nobody the passphrase: the keeper still has it.
    plane = int(json.loads(project("status", "--json").out)["data_plane"])
    os.kill(plane, signal.SIGKILL)
    until(lambda: json.loads(project("status", "--json").out)["data_plane"] != plane)
    assert project.run("true").code == 0
    written = [each for each in project.home.rglob("*") if each.is_file()]
    assert written
    assert not any(PASSPHRASE.encode() in each.read_bytes() for each in written)


def test_a_wrong_passphrase_starts_no_gateway(project: Project) -> None:
    typed(project, "secret", "set", "own", "--encrypted", answers=(PASSPHRASE, PASSPHRASE, SECRET))
    code, said = typed(project, "up", answers=("wrong one here", "wrong two here", "wrong three"))
    assert code == 2, said
    assert "that is not the store's passphrase" in said
    assert project("status").code == 1
