"""WebSocket messages of a judged service, on the wire (I3).

A real client inside, a real server, and a model's service of the real catalogue.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyhole.model.decision import Verdict
from tests.rigs.clients.program_origin import PYTHON, running_program
from tests.rigs.clients.services import PROGRAMS
from tests.rigs.gateway.frames import OFFER, PING, masked
from tests.rigs.gateway.models import real_catalogue
from tests.rigs.gateway.stage import SECRET, Stage, make_services, set_up
from tests.rigs.gateway.talk import get
from tests.rigs.lacking import give_up
from tests.rigs.nginx import write_chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

    from tests.rigs.gateway.origins import Origin

HOST = "api.openai.com"
PATH = "/v1/responses"
POLICY = '[services.own]\nuse = "openai"\nsecret = "file:/nowhere"\n'

OPEN = '{"type": "response.create", "model": "m", "store": false, "input": "hi"}'
CLOSED = OPEN.replace('"hi"', '"hi", "tools": [{"type": "web_search"}]')
FILLED = '"%s"' % ("é" * 400_000)
LONG, LONG_CLOSED = OPEN.replace('"hi"', FILLED), CLOSED.replace('"hi"', FILLED)

CASES = {
    "whole": [["whole", OPEN], ["whole", OPEN]],
    "fragments": [["fragments", OPEN], ["whole", OPEN]],
    "pings": [["pings", OPEN], ["fragments", OPEN]],
    "long": [["fragments", LONG]],
    "closed": [["whole", OPEN], ["whole", CLOSED], ["whole", OPEN]],
    "closed-fragments": [["fragments", CLOSED]],
    "closed-pings": [["whole", OPEN], ["pings", CLOSED]],
    "closed-long": [["fragments", LONG_CLOSED]],
    "bytes": [["bytes", OPEN]],
    "no-json": [["whole", "hi"]],
}


COMPRESSED = zlib.compress(CLOSED.encode(), wbits=-15)

RAW = {
    # No extension was agreed on, so a server that reads RSV1 all the same must not get it.
    "compressed": [b"\xc1" + masked(COMPRESSED)[1:]],
    "compressed-part": [masked(b"{", final=False), b"\xc0" + masked(COMPRESSED)[1:]],
    # A ping is not held with the message in whose middle it comes.
    "unfinished": [masked(CLOSED[:90].encode(), final=False), masked(b"?", PING)],
}
"""Frames that no client of a library sends, by the case."""


@dataclass(frozen=True)
class Conversations:
    """What the client and the server saw."""

    answers: dict[str, list[Any]]
    """Of each case, the answers inside; the last may be the status and the reason of the close."""
    server: dict[str, dict[str, Any]]
    stage: Stage

    def at_origin(self, case: str) -> dict[str, Any]:
        """The frames that the server got, and what it agreed on."""
        return self.server[f"{PATH}?case={case}"]

    def text_at_origin(self, case: str) -> str:
        """All that the server read."""
        return "".join(self.at_origin(case)["frames"])


def send_raw(stage: Stage, case: str, frames: list[bytes]) -> bytes:
    """All that is heard after the handshake until the connection ends, or a pong."""
    talk = stage.ask(
        get(f"{PATH}?case={case}", *OFFER, "Sec-WebSocket-Version: 13", host=HOST), name=HOST
    )
    assert talk.answer().status == 101
    talk.send(*frames)
    if case == "unfinished":
        return talk.exactly(3)
    with contextlib.suppress(OSError):
        return talk.rest()
    return b"cut"


@pytest.fixture(scope="module")
def talked(
    authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversations]:
    """All conversations, and what was left of them."""
    if not PYTHON.exists():
        give_up("the clients are not installed: scripts/setup")
    directory = tmp_path_factory.mktemp("websocket")
    directory.chmod(0o755)
    bundle, chain = directory / "bundle.pem", directory / "chain.pem"
    write_chain(chain, authority, HOST)
    with (
        real_catalogue(),
        running_program("websocket_server.py", chain, chain) as server,
        set_up(authority, make_services(authority, own=SECRET)) as stage,
    ):
        bundle.write_bytes(stage.services.authority.pem)
        stage.open(POLICY, api_openai_com=cast("Origin", server))
        program = str(PROGRAMS / "websocket_client.py")
        words = (str(PYTHON), program, str(bundle), HOST)
        done = stage.namespace.run(*words, text=json.dumps(CASES))
        assert done.returncode == 0, done.stderr
        raw = {case: [send_raw(stage, case, frames)] for case, frames in RAW.items()}
        stage.close_talks()
        seen = json.loads(server.end())
        yield Conversations(json.loads(done.stdout) | raw, seen, stage)


@pytest.mark.parametrize("case", ["whole", "fragments", "pings", "long"])
def test_open_messages_pass_as_they_came(talked: Conversations, case: str) -> None:
    """The controls of all that follows."""
    sent = CASES[case]
    assert talked.answers[case] == ["heard"] * len(sent)
    assert talked.text_at_origin(case) == "".join(text for _, text in sent)
    frames = len(talked.at_origin(case)["frames"])
    # The library ends the five fragments of a message with an empty one.
    assert frames == sum(1 if how == "whole" else 6 for how, _ in sent)
    assert talked.at_origin(case)["key"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("case", ["closed", "closed-fragments", "closed-pings", "closed-long"])
def test_a_closed_feature_closes_the_websocket_and_nothing_of_it_is_sent(
    talked: Conversations, case: str
) -> None:
    """I3, I8: messages before it have passed, and none after it."""
    *before, (code, reason) = talked.answers[case]
    sent = CASES[case][: len(before)]
    assert before == ["heard"] * len(sent)
    assert code == 1008
    # All of it does not fit into a frame that closes.
    assert reason == (
        "keyhole: it asks for web-search, which services.own leaves closed; "
        'features = ["web-search"] opens it'
    )
    assert talked.text_at_origin(case) == "".join(text for _, text in sent)
    event = talked.stage.watch.until("feature-closed", method="WEBSOCKET", path=PATH)
    assert (event.verdict, event.rule) == (Verdict.DENY, "catalogue.openai-responses.web-search")
    assert 'features = ["web-search"] opens it' in str(dict(event.details)["why"])


@pytest.mark.parametrize(
    ("case", "why"), [("bytes", "a message of bytes"), ("no-json", "it is not JSON")]
)
def test_a_message_that_cannot_be_judged_closes_the_websocket(
    talked: Conversations, case: str, why: str
) -> None:
    """I3: the bytes are those of an open message."""
    ((code, reason),) = talked.answers[case]
    assert (code, reason.startswith("keyhole: its body cannot be judged: ")) == (1008, True)
    assert why in reason
    assert not talked.at_origin(case)["frames"]
    assert talked.stage.watch.until("body-unjudged", method="WEBSOCKET", path=PATH)


def test_compression_is_never_agreed_on(talked: Conversations) -> None:
    """The client and the server would both use it. A compressed message could not be judged."""
    assert [talked.at_origin(case)["extensions"] for case in CASES] == [[]] * len(CASES)


@pytest.mark.parametrize("case", ["compressed", "compressed-part"])
def test_a_compressed_frame_ends_the_connection(talked: Conversations, case: str) -> None:
    """I3, I4: also one in the middle of a message."""
    assert b"heard" not in talked.answers[case][0]
    assert not talked.at_origin(case)["frames"]


def test_a_ping_passes_a_message_that_is_held(talked: Conversations) -> None:
    """The server answers it, and has nothing of the message."""
    assert talked.answers["unfinished"] == [b"\x8a\x01?"]
    assert not talked.at_origin("unfinished")["frames"]


def test_one_line_tells_the_person_why(talked: Conversations) -> None:
    """I8: in the run's own output."""
    said = [line for line in talked.stage.watch.lines if "web-search" in line]
    assert said
    assert all(HOST in line and "\n" not in line for line in said)
