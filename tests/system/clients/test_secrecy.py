"""No secret is inside, in whatever form: all that a sandbox can see is searched (I1)."""

from __future__ import annotations

import base64
import itertools
import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.errands import Household
from tests.rigs.clients.services import random_text
from tests.rigs.sandbox.projects import Project
from tests.system.clients.conftest import inside_for

if TYPE_CHECKING:
    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.people import Person

pytestmark = pytest.mark.outside

POLICY = """
[services.anthropic]
secret = "store:anthropic"
[services.billing]
hosts = ["billing.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/billing"
allow = ["GET /v1/**"]
"""
"""One built-in service and one of one's own."""

_numbers = itertools.count()


def renderings(text: str) -> list[bytes]:
    """How a secret may be written; for base64, the part that what is around it does not change."""
    raw = text.encode()
    found = [raw, raw[::-1]]
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        start = (before * 8 + 5) // 6  # characters that bytes before it have a part in
        end = (before + len(raw)) * 8 // 6
        found += [encoded[start:end], encoded[start:end].translate(_URL_SAFE)]
    found += [raw.hex().encode(), raw.hex().upper().encode()]
    found += ["".join(f"%{byte:{form}}" for byte in raw).encode() for form in ("02X", "02x")]
    return found


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Searched:
    """A sandbox that was searched for secrets, for a planted text, and for a placeholder."""

    def __init__(self, person: Person, services: Services) -> None:
        self.services = services
        self.household = Household(
            Project.make(person, next(_numbers)), services, inside_for(person)
        )
        project = self.household.project
        planted = [random_text("planted-") for _ in range(8)]
        raw, variable, word, held = planted[:4]
        self.household.policy(POLICY, f'PLANTED = "{variable}"\n')
        self.household.place("look.py", "caller.py")
        project.write("planted/raw", f"x{raw}x")
        for number, text in enumerate(planted[4:7]):
            encoded = base64.b64encode(bytes(number) + text.encode() + b"more").decode()
            project.write(f"planted/base64-{number}", encoded)
        project.write("planted/hex", planted[7].encode().hex())
        project.write("planted/percent", "".join(f"%{byte:02X}" for byte in raw.encode()))
        masked = self._spec(planted)
        masked["client"] = [
            self.household.inside.python, "-s", "caller.py", held.encode().hex(), word
        ]  # fmt: skip
        project.write("spec.json", json.dumps(masked))
        ran = self.household.run("python3", "-I", "-S", "look.py", "spec.json")
        assert ran.code == 0, ran
        self.ran = ran
        self.result: dict[str, Any] = json.loads(ran.out)

    def _spec(self, planted: list[str]) -> dict[str, Any]:
        groups = {
            "secret": [r for key in self.services.keys.all() for r in renderings(key)],
            "planted": [r for text in planted for r in renderings(text)],
            "stand-in": [b"sk-ant-api03-keyhole"],
        }
        pad = secrets.token_bytes(4096)
        return {
            "pad": base64.b64encode(pad).decode(),
            "since": self.services.since,
            "texts": {
                group: [base64.b64encode(_masked(text, pad)).decode() for text in texts]
                for group, texts in groups.items()
            },
        }

    @property
    def found(self) -> dict[str, list[str]]:
        """Where, by group."""
        found: dict[str, list[str]] = self.result["found"]
        return found


def _masked(text: bytes, pad: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(text, pad, strict=False))


@pytest.fixture(scope="module")
def searched(somebody: Person, services: Services) -> Searched:
    """As root, and as an ordinary user."""
    return Searched(somebody, services)


def test_an_sdk_and_a_custom_service_work_while_the_sandbox_is_searched(searched: Searched) -> None:
    """What "no secret inside" is worth without: a sandbox in which nothing works."""
    said = json.loads(searched.result["said"])
    assert said["sdk"] == "HELLO"
    assert said["echo"].startswith("Bearer keyhole-")


def test_no_secret_is_anywhere_inside(searched: Searched) -> None:
    """I1: the environment, /proc, a client's memory and every file, raw and encoded."""
    assert searched.found["secret"] == []
    assert not [k for k in searched.services.keys.all() if k in searched.ran.out + searched.ran.err]


def test_the_search_finds_what_was_planted(searched: Searched) -> None:
    """The control: the same search finds a text in every place and form that it is about."""
    project = searched.household.project.directory
    places = searched.found["planted"]
    names = ("raw", "base64-0", "base64-1", "base64-2", "hex", "percent")
    assert {f"{project}/planted/{name}" for name in names} <= set(places)
    assert "environment" in places
    ends = {place.rpartition("/")[2] for place in places if place.startswith("/proc/")}
    assert {"environ", "cmdline"} <= ends
    assert [place for place in places if "/fd/" in place]
    assert [place for place in places if place.startswith("memory of the client")]


def test_the_placeholder_is_where_the_secret_would_be(searched: Searched) -> None:
    """The control of where to look: a client's environment and memory, and its stub file."""
    places = searched.found["stand-in"]
    assert "environment" in places
    assert [place for place in places if place.startswith("memory of the client")]


def test_the_search_saw_the_whole_file_system(searched: Searched) -> None:
    """It is no search of an empty room."""
    looked = searched.result["looked"]
    assert looked["older"] > 10_000
    assert looked["files"] > 100
    assert looked["processes"] >= 3
    assert looked["memory"] > 10_000_000
