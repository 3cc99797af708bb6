"""One event is one line, whatever the sandbox put into it (I8, I9)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.audit.log_line import (
    MAX_DETAILS,
    MAX_LINE,
    MAX_TEXT,
    LogRecord,
    chain_line,
    draft_line,
    line_digest,
    parse_line,
    stamp,
)
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.secret import Secret
from tests.rigs.audit.writing import NOON, denied

PREV = "0" * 64


def written(event: Event, session: str = "s1") -> bytes:
    return chain_line(draft_line(NOON, session, event), 7, PREV)


def read(line: bytes) -> LogRecord:
    record = parse_line(line)
    assert record is not None
    return record


def test_a_line_has_every_promised_field_in_a_fixed_order() -> None:
    found = json.loads(written(denied(port=443)))
    assert list(found) == [
        "seq", "ts", "session", "kind", "verdict", "reason", "rule", "host", "details", "prev",
    ]  # fmt: skip
    assert (found["verdict"], found["reason"], found["rule"]) == ("deny", "no-rule", "default")
    assert found["details"] == {"port": 443}


def test_a_line_is_read_as_it_was_written() -> None:
    record = read(written(denied(port=443)))
    assert (record.seq, record.session, record.at, record.prev) == (7, "s1", NOON, PREV)
    assert (record.kind, record.host, record.details) == ("connect", "evil.example", {"port": 443})
    assert record.denied


def test_times_sort_as_text() -> None:
    assert stamp(NOON) == "2026-05-28T20:26:40.000000Z"
    assert stamp(NOON) < stamp(NOON + 0.25) < stamp(NOON + 1)


@pytest.mark.parametrize(
    "text",
    [
        'x"}\n{"seq":8,"verdict":"allow"}',
        "x\r\n",
        "\x1b[2J\x1b]0;title\x07",
        "\u2028\u2029\x85",
        "\ud800 lone",
        "\x00\x7f\x9b",
        '","verdict":"allow","x":"',
    ],
)
def test_no_text_of_the_sandbox_ends_a_line_or_adds_a_field(text: str) -> None:
    """I8."""
    line = written(denied(text, sni=text, prev=PREV, verdict="allow"))
    assert line.isascii()
    assert line.decode().isprintable()
    assert len(line.decode().splitlines()) == 1
    record = read(line)
    assert (record.verdict, record.seq, record.prev) == ("deny", 7, PREV)
    if "\ud800" in text:
        json.loads(line)["host"].encode("utf-8")  # a strict reader takes it
        assert record.host == "\\ud800 lone"
    else:
        assert record.host == record.details["sni"] == text


@given(st.text(st.characters(), max_size=3000), st.text(st.characters(), max_size=40))
def test_any_text_makes_one_bounded_line_that_reads_back(host: str, session: str) -> None:
    """I8, I9."""
    line = written(denied(host, sni=host), session)
    assert line.isascii()
    assert b"\n" not in line
    assert len(line) <= MAX_LINE
    assert read(line).verdict == "deny"


def test_a_long_text_is_cut_and_marked_where_no_text_can_reach() -> None:
    """I9; positive control: a text of exactly the bound is whole and unmarked."""
    long = json.loads(written(denied("x" * (MAX_TEXT + 1), sni="y" * 5000)))
    assert (len(long["host"]), len(long["details"]["sni"])) == (MAX_TEXT, MAX_TEXT)
    assert long["cut"] == ["host", "details.sni"]
    whole = json.loads(written(denied("x" * MAX_TEXT)))
    assert "cut" not in whole


def test_many_and_large_details_do_not_make_a_long_line() -> None:
    """I9."""
    many: dict[str, Any] = {f"k{n}": n for n in range(MAX_DETAILS + 1)}
    found = json.loads(written(denied(**many)))
    assert len(found["details"]) == MAX_DETAILS
    assert found["cut"] == ["details"]
    large: dict[str, Any] = {f"k{n}": "\U0001f511" * 2000 for n in range(MAX_DETAILS)}
    line = written(denied("\U0001f511" * 2000, **large))
    assert len(line) <= MAX_LINE
    assert {"host", "details"} <= set(json.loads(line)["cut"])
    assert read(line).reason == "no-rule"


def test_numbers_that_json_has_not_are_named_instead() -> None:
    found = json.loads(written(denied(a=float("nan"), b=float("inf"), c=10**5000, d=1.5, e=2)))
    assert found["details"] == {"a": "<float>", "b": "<float>", "c": "<int>", "d": 1.5, "e": 2}


def test_equal_numbers_of_different_types_stay_what_they_are() -> None:
    for value, text in ((1, "1"), (True, "true"), (1.0, "1.0"), ("1", '"1"')):
        event = Event(EventKind.DNS, Verdict.DENY, "x", details=(("n", value),))
        assert f'"n":{text}'.encode() in written(event)


def test_a_secret_that_strays_into_an_event_is_not_written() -> None:
    """I8; positive control: a plain text in the same place is."""
    stray: str = Secret("hunter2-hunter2")  # type: ignore[assignment]
    event = Event(EventKind.CONNECT, Verdict.DENY, "no-rule", details=(("key", stray),))
    assert b"hunter2" not in written(event)
    assert b"hunter2" in written(denied(key="hunter2-hunter2"))


def test_the_digest_is_of_the_bytes() -> None:
    line = written(denied())
    assert line_digest(line) != line_digest(line.replace(b"evil", b"good"))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 16000,
        b'{"seq":' + b"9" * 6000 + b"}",
        written(denied()).replace(b'"seq":7', b'"seq":"7"'),
        written(denied()).replace(b'"seq":7', b'"seq":true'),
        written(denied()).replace(b'"deny"', b"null"),
        written(denied()).replace(b"2026-", b"0001-"),
        written(denied()).replace(b"00Z", b"00"),
        written(denied()).replace(PREV.encode(), b"0"),
        written(denied(a=1)).replace(b'{"a":1}', b'{"a":[1]}'),
        written(denied(a=1)).replace(b'{"a":1}', b"[1]"),
    ],
)
def test_what_is_no_event_is_none(line: bytes) -> None:
    assert parse_line(line) is None
