"""I12: long bodies that are judged do not delay another session.

Through a whole gateway, with two sessions of a model's service of the real catalogue. One sends
10 MiB in the shapes that take a reader longest, to a path that is judged and to one that its policy
opens unjudged, which is the control.
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from typing import TYPE_CHECKING

import pytest

from benchmarks.players.modelbodies import HOST, JUDGED, LONG, PASSED, SHAPES, SMALL, made
from keyhole.system.serving_memory import prepare_memory
from tests.rigs.gateway.models import real_catalogue
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import tls_for
from tests.rigs.gateway.pulse import Pulse
from tests.rigs.gateway.stage import SECRET, Stage, make_services, serving, set_up
from tests.rigs.gateway.talk import END, Message, Talk, get, head, ok

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    import trustme

pytestmark = pytest.mark.alone

DELAY = 0.020
"""Seconds that a judged body may delay another session more than one that is passed on."""

TRIES = 3
"""A core that is shared with others makes CPU time longer, too."""

POLICY = f"""[services.own]
use = "anthropic"
secret = "file:/nowhere"
allow_also = ["POST {PASSED}"]
"""


def swallow(sock: socket.socket) -> None:
    """Read bodies, and keep none."""
    talk = Talk(sock)
    while True:
        left = int(Message(talk.until(END)).one("content-length") or 0)
        while left:
            left -= len(talk.more())
        talk.send(ok(b"fine"))


class Sessions:
    """One that sends bodies, and another that asks for something small again and again."""

    def __init__(self, sender: Stage, other: Stage) -> None:
        self.sender, self.other = sender, other
        self.pulse = Pulse(sender.rig)

    def send(self, target: str, body: bytes) -> float:
        """Send a body while the other session asks and is answered; the longest that the loop was
        held meanwhile."""
        done, answers = threading.Event(), list[int]()

        def ask() -> None:
            talk = self.other.visit(HOST)
            while not done.is_set() or len(answers) < 3:
                talk.send(get(SMALL, host=HOST))
                answers.append(talk.answer().status)

        asking = threading.Thread(target=ask)
        self.pulse.begin()
        asking.start()
        try:
            lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
            talk = self.sender.ask(head("POST", target, *lines, host=HOST), body, name=HOST)
            answer = talk.answer()
            assert answer.status == 200, json.loads(answer.body)
        finally:
            done.set()
            asking.join(30)
        assert set(answers) == {200}
        return self.pulse.end()


@pytest.fixture(scope="module")
def sessions(authority: trustme.CA) -> Iterator[Sessions]:
    """Two sessions of one gateway."""
    # As the daemon's data plane does when it is ready.
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    prepare_memory()
    with real_catalogue(), contextlib.ExitStack() as stack:
        services = make_services(authority, own=SECRET)
        stage = stack.enter_context(set_up(authority, services))
        neighbour = Namespace.make()
        stack.callback(neighbour.close)
        other = Stage(neighbour, stage.rig, authority, services)
        stack.callback(other.close_talks)
        origin = stack.enter_context(serving(swallow, tls_for(authority, HOST)))
        for each in (stage, other):
            each.open(POLICY, api_anthropic_com=origin)
        yield Sessions(stage, other)
    gc.unfreeze()
    gc.set_threshold(*usual)


WORST = ("as an agent", "deep", "many names", "long escapes")
"""The shapes of most values and most work; `make attack` tries the others, too."""


@pytest.mark.parametrize(
    "shape",
    [pytest.param(each, marks=() if each in WORST else pytest.mark.attack) for each in SHAPES],
)
def test_a_long_judged_body_does_not_delay_another_session(sessions: Sessions, shape: str) -> None:
    body = made(shape, LONG)
    for left in reversed(range(TRIES)):
        passed, judged = (sessions.send(target, body) for target in (PASSED, JUDGED))
        if judged - passed < DELAY:
            return
        if not left:
            pytest.fail(f"{judged * 1e3:.1f} ms, and {passed * 1e3:.1f} ms where it is not judged")
