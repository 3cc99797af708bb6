"""A run that is interrupted in the middle of an intercepted answer leaves nothing behind."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.errands import Household
from tests.rigs.sandbox.projects import mounts_of, until_nobody_is_in
from tests.rigs.sandbox.screens import Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

CTRL_C = "\x03"
STREAM = """
readlink /proc/self/ns/net
exec curl -sSN https://billing.example/v1/endless
"""


def test_ctrl_c_ends_the_stream_the_sandbox_and_the_gateway(
    new_project: Callable[[], Project], services: Services, inside: Inside
) -> None:
    """I2: typed on a terminal, which is afterwards as it was."""
    household = Household(new_project(), services, inside)
    project = household.project
    with Screen(
        lambda **ends: project.start(
            "run", "--trust", "--", "sh", "-c", STREAM, env=household.env, **ends
        )
    ) as screen:
        namespace = screen.until(r"net:\[\d+\]").group()
        screen.until("(tick\\s+){3}")
        screen.type(CTRL_C)
        assert screen.wait() == 128 + signal.SIGINT
        assert screen.settings == screen.before
    until_nobody_is_in(namespace)
    assert mounts_of(project) == []
    services.until_left("/v1/endless")
    events = project.events()
    assert [e["reason"] for e in events if e["kind"] == "session"] == ["started", "ended"]
    requests = [e["details"]["path"] for e in events if e["kind"] == "request"]
    assert requests == ["/v1/endless"]
    assert project("log", "verify").code == 0
