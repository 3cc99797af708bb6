"""`keyhole log`, as a user types it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog
from tests.rigs.audit.writing import (
    NOON,
    Hands,
    allowed,
    denied,
    only_file,
    session_event,
    write,
)
from tests.rigs.cli.terminals import PROGRAM, on_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

DEADLINE = 30.0


def place(keyhole: Keyhole) -> Path:
    return keyhole.home / ".local" / "state" / "keyhole" / "audit"


def filled(keyhole: Keyhole) -> str:
    """A log of two sessions; its head."""
    with AuditLog(place(keyhole)) as log:
        log.record("aaaa1111-long", session_event("started"))
        log.record("aaaa1111-long", allowed("good.example", port=443))
        log.record("aaaa1111-long", denied("evil.example", port=443, sni="x.example"))
        log.record("bbbb2222-long", denied("worse.example", port=22))
    return log.head()


def test_log_has_help(keyhole: Keyhole) -> None:
    assert "usage: keyhole log" in keyhole("log", "--help").out
    assert "--head DIGEST" in keyhole("log", "verify", "--help").out


def test_without_a_log_it_says_so(keyhole: Keyhole) -> None:
    ran = keyhole("log")
    assert (ran.code, ran.out) == (0, "")
    assert "there is no log yet" in ran.err
    assert keyhole("log", "--csv").out.startswith("ts,session,")
    assert json.loads(keyhole("log", "--json").out) == []
    missing = keyhole("log", "verify")
    assert missing.code == 2
    assert "there is no log at" in missing.err
    assert not place(keyhole).exists()


def test_each_event_is_one_readable_line(keyhole: Keyhole) -> None:
    filled(keyhole)
    ran = keyhole("log")
    assert (ran.code, ran.err) == (0, "")
    rows = ran.out.splitlines()
    assert len(rows) == 6
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  aaaa1111  deny   connect   evil", rows[3])
    assert rows[3].endswith("no-rule  [default]  sni=x.example")
    assert "evil.example:443" in rows[3]
    assert "allow  connect   good.example:443" in rows[2]
    assert "rule  [egress.allow[0]]" in rows[2]


def test_times_are_those_of_the_reader(keyhole: Keyhole) -> None:
    write(place(keyhole), 1)
    keyhole.env["TZ"] = "UTC"
    assert keyhole("log").out.startswith("2026-05-28 20:26:40  ")
    keyhole.env["TZ"] = "XYZ-3"
    assert keyhole("log").out.startswith("2026-05-28 23:26:40  ")


def test_events_are_chosen_by_session_and_verdict(keyhole: Keyhole) -> None:
    filled(keyhole)
    assert len(keyhole("log", "--denied").out.splitlines()) == 2
    assert len(keyhole("log", "--session", "aaaa1111").out.splitlines()) == 3
    (row,) = keyhole("log", "--denied", "--session", "bbbb2222-long").out.splitlines()
    assert "worse.example:22" in row
    none = keyhole("log", "--session", "cccc")
    assert (none.out, "nothing that was asked for" in none.err) == ("", True)
    assert json.loads(keyhole("log", "--session", "cccc", "--json").out) == []


def test_json_is_an_array_of_the_lines_each_with_its_digest(keyhole: Keyhole) -> None:
    filled(keyhole)
    found = json.loads(keyhole("log", "--json").out)
    assert [entry["seq"] for entry in found] == list(range(6))
    assert [entry["prev"] for entry in found[1:]] == [entry["id"] for entry in found[:-1]]
    assert {"ts", "session", "kind", "verdict", "reason", "rule", "host", "prev"} <= set(found[3])
    assert json.loads(keyhole("log", "--json", "--session", "none").out) == []


def test_nothing_of_the_sandbox_reaches_the_terminal_as_it_is(keyhole: Keyhole) -> None:
    """I8; positive control: plain names are shown plainly."""
    hostile = "a\nb\x1b[31mc\u202ed\u2028e\ud800f\x9bg\x7f"
    with AuditLog(place(keyhole)) as log:
        log.record(hostile, denied(hostile, note=hostile))
        log.record("s", denied("plain.example"))
    ran = keyhole("log")
    assert len(ran.out.splitlines()) == 4
    assert "plain.example" in ran.out
    assert r"a\x0ab\x1b[31mc\u202ed\u2028e\ud800f\x9bg\x7f" in ran.out
    assert not set("\x1b\u202e\u2028\x9b\x7f") & set(ran.out)
    assert not set("\x1b\u202e\u2028\x9b\x7f") & set(keyhole("log", "--json").out)


def test_a_name_outside_the_terminals_alphabet_is_no_error(keyhole: Keyhole) -> None:
    with AuditLog(place(keyhole)) as log:
        log.record("s", denied("schlüssel.example"))
    assert "schlüssel.example" in keyhole("log").out
    keyhole.env["PYTHONIOENCODING"] = "ascii"
    assert r"schl\xfcssel.example" in keyhole("log").out


def test_verdicts_have_colours_on_a_terminal_only(keyhole: Keyhole) -> None:
    filled(keyhole)
    _, shown = on_terminal([PROGRAM, "log"], keyhole.env, keyhole.project)
    assert "\x1b[31mdeny \x1b[0m" in shown
    assert "\x1b[32mallow\x1b[0m" in shown
    assert "\x1b" not in keyhole("log").out


# a log in a bad state


def test_a_torn_end_and_foreign_lines_are_told_without_a_traceback(keyhole: Keyhole) -> None:
    write(place(keyhole), 3)
    file = only_file(place(keyhole))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"\x1b[2J\xff\n", *lines[3:]])[:-9])
    ran = keyhole("log")
    assert ran.code == 0
    assert f"{file.name}:3 is no event" in ran.err
    assert "the last batch was lost" in ran.err
    assert len(ran.out.splitlines()) == 3
    ran = keyhole("log", "--json")
    assert len(json.loads(ran.out)) == 3
    assert "\x1b" not in ran.out + ran.err


def test_a_link_in_the_logs_place_is_unusable(keyhole: Keyhole, tmp_path: Path) -> None:
    write(tmp_path / "real", 1)
    place(keyhole).parent.mkdir(parents=True)
    place(keyhole).symlink_to(tmp_path / "real")
    for words in (("log",), ("log", "verify")):
        ran = keyhole(*words)
        assert (ran.code, ran.out) == (2, "")
        assert "is a link" in ran.err


# verify


def test_verify_says_that_the_log_is_whole(keyhole: Keyhole) -> None:
    head = filled(keyhole)
    ran = keyhole("log", "verify")
    assert (ran.code, ran.out, ran.err) == (0, "whole: 6 lines in 1 file\n", "")
    assert keyhole("log", "verify", "--head", head).code == 0
    assert keyhole("log", "verify", "--head", f"sha256:{head}").code == 0


def test_verify_tells_each_problem_with_its_place_and_exits_1(keyhole: Keyhole) -> None:
    """I8; positive control: the test above."""
    filled(keyhole)
    file = only_file(place(keyhole))
    file.write_bytes(file.read_bytes().replace(b"evil.example", b"good.example"))
    ran = keyhole("log", "verify")
    assert ran.code == 1
    assert f"broken: {file.name}:4: is not what the next line says of it" in ran.out
    report = json.loads(keyhole("log", "verify", "--json").out)
    assert (report["whole"], report["problems"][0]["line"]) == (False, 4)


def test_verify_finds_a_cut_tail_by_the_head(keyhole: Keyhole) -> None:
    head = filled(keyhole)
    file = only_file(place(keyhole))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    ran = keyhole("log", "verify")
    assert ran.code == 0
    assert f"note: {file.name}:4: was not closed" in ran.out
    ran = keyhole("log", "verify", "--head", head)
    assert ran.code == 1
    assert head in ran.out


@pytest.mark.parametrize("head", ["", "xyz", "0" * 63, "sha256:"])
def test_verify_refuses_what_is_no_digest(keyhole: Keyhole, head: str) -> None:
    filled(keyhole)
    ran = keyhole("log", "verify", f"--head={head}")
    assert (ran.code, ran.out) == (2, "")


# -f


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_following_shows_what_comes_and_ends_by_ctrl_c(
    keyhole: Keyhole, flags: tuple[str, ...]
) -> None:
    write(place(keyhole), 30)
    process = subprocess.Popen(
        [PROGRAM, "log", "-f", "--denied", *flags],
        env=keyhole.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        backlog = [process.stdout.readline() for _ in range(10)]
        assert "h20.example" in backlog[0]
        with AuditLog(place(keyhole)) as log:
            log.record("s", allowed("quiet.example"))
            log.record("s", denied("fresh.example"))
            line = process.stdout.readline()
            assert "fresh.example" in line
            if flags:
                assert json.loads(line)["host"] == "fresh.example"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert process.stderr.read() == ""


# which events, and in which form


def at(keyhole: Keyhole, *events: tuple[float, str]) -> None:
    hands = Hands()
    with AuditLog(place(keyhole), clock=hands.clock()) as log:
        for hands.now, host in events:
            log.record("s", denied(host, port=443))


def hosts(text: str) -> list[str]:
    return re.findall(r"\b(\w+\.example)\b", text)


def test_the_last_events_are_chosen_by_number(keyhole: Keyhole) -> None:
    write(place(keyhole), 30)
    assert hosts(keyhole("log", "-n", "2", "--denied").out) == ["h28.example", "h29.example"]
    listed = json.loads(keyhole("log", "-n", "3", "--denied", "--json").out)
    assert [each["host"] for each in listed] == ["h27.example", "h28.example", "h29.example"]
    assert "nothing that was asked for" in keyhole("log", "-n", "0").err
    wrong = keyhole("log", "-n", "-1")
    assert (wrong.code, "a number of events" in wrong.err) == (2, True)


def test_events_are_chosen_by_time(keyhole: Keyhole) -> None:
    now = time.time()
    at(keyhole, (now - 7200, "old.example"), (now - 60, "new.example"))
    assert hosts(keyhole("log", "--since", "1h").out) == ["new.example"]
    assert hosts(keyhole("log", "--since", "3h").out) == ["old.example", "new.example"]
    moment = datetime.fromtimestamp(now - 600).isoformat(" ", "seconds")
    assert hosts(keyhole("log", "--since", moment).out) == ["new.example"]
    tomorrow = datetime.fromtimestamp(now + 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert hosts(keyhole("log", "--since", tomorrow).out) == []
    wrong = keyhole("log", "--since", "yesterdya")
    assert (wrong.code, "'yesterdya' is no time" in wrong.err) == (2, True)


def test_a_file_that_was_not_written_since_is_not_read(keyhole: Keyhole) -> None:
    at(keyhole, (time.time(), "h.example"))
    before = time.time() - 10 * 86400
    os.utime(only_file(place(keyhole)), (before, before))
    assert hosts(keyhole("log").out) == ["h.example"]
    assert hosts(keyhole("log", "--since", "9d").out) == []


def test_events_are_chosen_by_host(keyhole: Keyhole) -> None:
    at(keyhole, *((NOON, host) for host in ("a.example", "b.a.example", "ba.example")))
    assert keyhole("log", "--host", "A.example", "--csv").out.count("\n") == 2
    assert "b.a.example" in keyhole("log", "--host", "*.a.example").out
    assert keyhole("log", "--host", "*.a.example", "--csv").out.count("\n") == 2


def test_csv_has_a_head_and_a_row_for_each_event_and_no_formula(keyhole: Keyhole) -> None:
    """I8: a spreadsheet would compute what the sandbox wrote."""
    with AuditLog(place(keyhole)) as log:
        log.record("s", denied("=HYPERLINK(1)", port=443, path='a,"b"\n-c'))
        log.record("s", denied("ok.example"))
    ran = keyhole("log", "--csv", "--session", "s")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [row["host"] for row in rows] == ["'=HYPERLINK(1)", "ok.example"]
    assert (rows[0]["port"], rows[0]["times"], rows[1]["details"]) == ("443", "1", "")
    assert "path" in json.loads(rows[0]["details"])
    assert ran.out.count("\n") == 3
    assert keyhole("log", "--csv", "--json").code == 2


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_row_fits_the_terminal_and_nothing_is_lost(keyhole: Keyhole, width: int) -> None:
    filled(keyhole)
    env = keyhole.env | {"NO_COLOR": "1"}
    _, said = on_terminal([PROGRAM, "log"], env, keyhole.project, size=(24, width))
    assert max(map(len, said.splitlines())) <= width
    for words in ("worse.example:22", "no-rule", "[egress.allow[0]]", "sni=x.example"):
        assert words in said
