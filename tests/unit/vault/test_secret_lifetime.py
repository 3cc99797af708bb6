"""How long a printed secret lives: one form declares it, and near-misses are refused (I3, I9)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.vault.printed_secret import read_printed
from keyhole.vault.secret_lifetime import FRESH, MAX_LIFE, MIN_WAIT, SecretLifetime
from tests.rigs.vault.rig import VALUE, World, ref, shell

if TYPE_CHECKING:
    from pathlib import Path


def declared(**document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize("seconds", [1, 0.5, 3600, MAX_LIFE])
@pytest.mark.parametrize("around", ["{}", "\n {}\n"])
def test_the_form_declares_a_life_from_the_asking_on(seconds: float, around: str) -> None:
    text = around.replace("{}", declared(secret=VALUE, expires_in=seconds).decode())
    reading = read_printed(text.encode(), 100.0)
    assert reading.secret is not None
    assert reading.secret.reveal() == VALUE
    assert reading.life == SecretLifetime(100.0, 100.0 + seconds)


@pytest.mark.parametrize(
    "printed",
    [
        VALUE.encode(),
        VALUE.encode() + b"\n",
        declared(type="service_account", private_key="x" * 40),
        b"{not JSON, but a secret all the same}",
        b'["secret", "0123456789"]',
        b"{" * 5000 + b"0123456789",
        b'{"a":' * 5000,
    ],
)
def test_anything_else_is_the_secret_as_it_was_printed(printed: bytes) -> None:
    reading = read_printed(printed, 0.0)
    assert reading.secret is not None
    assert reading.secret.reveal() == printed.decode().strip("\n")
    assert reading.life is None


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"secret": VALUE}, "but not"),
        ({"secret": VALUE, "expires": 60}, "but not"),
        ({"secret": VALUE, "expires_in": 60, "more": 1}, "but not"),
        ({"secret": [VALUE], "expires_in": 60}, "but not"),
        ({"secret": VALUE, "expires_in": "60"}, "number of seconds"),
        ({"secret": VALUE, "expires_in": True}, "number of seconds"),
        ({"secret": VALUE, "expires_in": None}, "number of seconds"),
        ({"secret": VALUE, "expires_in": 0}, "number of seconds"),
        ({"secret": VALUE, "expires_in": -1}, "number of seconds"),
        ({"secret": VALUE, "expires_in": float("nan")}, "number of seconds"),
        ({"secret": VALUE, "expires_in": float("inf")}, "number of seconds"),
        ({"secret": VALUE, "expires_in": 10**400}, "number of seconds"),
        ({"secret": "", "expires_in": 60}, "empty"),
        ({"secret": VALUE + "\x01", "expires_in": 60}, "control"),
        ({"secret": VALUE + "\ud800", "expires_in": 60}, "UTF-8"),
    ],
)
def test_a_near_miss_is_refused_and_not_sent_as_a_secret(
    document: dict[str, object], why: str
) -> None:
    """I3, I8: what is said does not quote it."""
    reading = read_printed(declared(**document), 0.0)
    assert reading.secret is None
    assert reading.life is None
    assert why in reading.flaw
    assert VALUE not in reading.flaw


@given(st.binary(max_size=80), st.text(max_size=20))
def test_nothing_that_is_printed_raises(data: bytes, text: str) -> None:
    for printed in (data, b"{" + data, declared(secret=text, expires_in=text)):
        reading = read_printed(printed, 0.0)
        assert bool(reading.flaw) is (reading.secret is None)


@pytest.mark.parametrize(
    ("length", "renewal"), [(3600, 3600 - FRESH), (400, 200), (20, 10), (2, MIN_WAIT)]
)
def test_a_secret_is_renewed_before_its_end_but_not_at_every_moment(
    length: float, renewal: float
) -> None:
    assert SecretLifetime(1000.0, 1000.0 + length).renewal == 1000.0 + renewal


# ── kept for its life ─────────────────────────────────────────────────────────────────────────────


def test_what_declares_a_life_is_printed_once_for_all_who_ask(tmp_path: Path) -> None:
    note = tmp_path / "runs"
    body = r'printf "%s" "{\"secret\":\"tok-0123456789-abc\",\"expires_in\":600}"'
    command = shell(f"echo x >> {note}; {body}")
    vault = World(tmp_path).vault()
    first, second = vault.fetch(command), vault.fetch(command)
    assert first.secret.reveal() == second.secret.reveal() == "tok-0123456789-abc"
    assert first.life == second.life
    assert note.read_text() == "x\n"
    plain = shell(f"echo x >> {note}; echo 0123456789-abcdef")  # the control: without a life
    vault.fetch(plain)
    vault.fetch(plain)
    assert note.read_text() == "x\nx\nx\n"


def test_what_is_over_is_printed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    monkeypatch.setattr("keyhole.system.clock.now", lambda: moment[0])
    note = tmp_path / "runs"
    body = r'printf "%s" "{\"secret\":\"tok-0123456789-abc\",\"expires_in\":2}"'
    vault = World(tmp_path).vault()
    for moment[0] in (0.0, 1.0, 2.0, 3.0, 4.0):
        vault.fetch(shell(f"echo x >> {note}; {body}"))
    assert note.read_text() == "x\n" * 3


def test_other_sources_declare_no_life(tmp_path: Path) -> None:
    """A file with such a text is a secret as it is."""
    world = World(tmp_path)
    world.write("home/key", declared(secret=VALUE, expires_in=60))
    given = world.vault().fetch(ref("file:~/key"))
    assert given.life is None
    assert given.secret.reveal().startswith("{")
