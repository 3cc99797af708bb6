"""`keyhole run` with a Docker whose containers have users of their own (`userns-remap`)."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from tests.rigs.containers.engines import TOOLS, NoEngine, OwnEngine, make_image
from tests.rigs.sandbox.projects import Project
from tests.system.containers.conftest import ACCOUNTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.sandbox.people import Person

pytestmark = pytest.mark.outside


def test_what_a_command_writes_is_the_persons_and_no_root_is_gained(
    person: Person, ground: Path
) -> None:
    """I11, I2: such containers are made without that mapping, which is said. They are no root, and
    have no capability; entrypoint.py asserts both before anything runs."""
    directory = ground / "remapped"
    directory.mkdir()
    try:
        engine = OwnEngine(directory, f"--userns-remap={pwd.getpwuid(person.uid).pw_name}")
    except NoEngine as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        assert engine.engine.traits().remaps
        image = make_image(engine.engine, "tools:1", TOOLS, ACCOUNTS)
        os.chown(engine.socket, 0, person.gid)
        os.chmod(engine.socket, 0o660)
        project = Project.make(person, 900, f'[sandbox]\nruntime = "docker"\nimage = "{image}"\n')
        env = {"DOCKER_HOST": f"unix://{engine.socket}"}
        script = "id -u; ls -nd $HOME; echo kept >made; cat /proc/self/status"
        done = project.shell(script, env=env)
        assert done.code == 0, done
        assert "userns-remap" in done.err
        assert done.lines[0] == str(person.uid)
        assert done.lines[1].split()[2] == str(person.uid)
        assert (project.directory / "made").stat().st_uid == person.uid
        assert "CapBnd:\t0000000000000000" in done.lines
    finally:
        engine.close()
