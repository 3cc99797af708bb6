"""The verbs that ask a gateway, as a person types them; behind them a fake gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.amounts import age, size
from keyhole.cli.verb_context import find_host_paths
from keyhole.control import values
from keyhole.control.socket_directory import socket_location
from keyhole.model.errors import Refused
from keyhole.vault.store import Store
from tests.rigs.cli.terminals import PROGRAM, on_terminal
from tests.rigs.control import rig as control
from tests.rigs.control.rig import KNOWN, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.control.peer import Peer
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

TWIN = KNOWN[:4] + "00000000"
OTHER = "0" * 12
OLD, NEW = "tok-5f2c9d417ab0-correct-horse", "tok-77aa9d417ab0-other-horse"


@pytest.fixture
def runtime(keyhole: Keyhole, tmp_path: Path) -> Path:
    os.chmod(tmp_path, 0o700)
    made = tmp_path / "runtime"
    made.mkdir(mode=0o700)
    keyhole.env["XDG_RUNTIME_DIR"] = str(made)
    keyhole.env["TZ"] = "UTC"
    return made


@pytest.fixture
def rig(runtime: Path) -> Iterator[Rig]:
    made = Rig(runtime / "keyhole")
    yield made
    made.close()


def called(rig: Rig) -> list[tuple[object, ...]]:
    """What was asked of the gateway, without who asked."""
    return [call[:-1] for call in rig.gateway.calls]


# places


@pytest.mark.parametrize("value", ["/run/user/7", "relative", "", None])
def test_commands_look_where_the_gateway_is(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    places = find_host_paths()
    assert places.runtime == socket_location(Path(value) if value else None, places.state)


# without a gateway


@pytest.mark.parametrize("words", [("reload",), ("status", "--metrics")])
def test_without_a_gateway_it_is_said_how_to_start_one(
    keyhole: Keyhole, runtime: Path, words: tuple[str, ...]
) -> None:
    ran = keyhole(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "keyhole: no gateway is running; `keyhole up` starts one\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ps",), "no session is open; `keyhole run -- CMD` opens one\n"),
        (("ps", "--json"), "[]\n"),
        (("revoke", "--all"), "no session is open, so there is none to close\n"),
    ],
)
def test_without_a_gateway_and_a_run_there_is_no_session(
    keyhole: Keyhole, runtime: Path, words: tuple[str, ...], said: str
) -> None:
    """A run needs no gateway, so that none is there is no failure."""
    ran = keyhole(*words)
    assert (ran.code, ran.out, ran.err) == (0, said, "")


@pytest.mark.parametrize(
    "words", [("revoke", KNOWN), ("stop", "5e"), ("allow", KNOWN, "billing.example")]
)
def test_without_a_gateway_and_a_run_no_id_is_known(
    keyhole: Keyhole, runtime: Path, words: tuple[str, ...]
) -> None:
    ran = keyhole(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"keyhole: there is no session '{words[1]}'; `keyhole ps` lists them\n"


def test_status_answers_also_when_there_is_none(keyhole: Keyhole, runtime: Path) -> None:
    ran = keyhole("status")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out == "no gateway is running; `keyhole up` starts one\n"
    ran = keyhole("status", "--json")
    assert (ran.code, json.loads(ran.out)) == (1, {"running": False})


def test_a_place_that_others_could_change_is_refused(keyhole: Keyhole, runtime: Path) -> None:
    (runtime / "keyhole").mkdir(mode=0o755)
    (runtime / "keyhole").chmod(0o755)
    for verb in ("status", "ps", "up", "down"):
        ran = keyhole(verb)
        assert (ran.code, ran.out) == (2, "")
        assert "is open to others; `chmod 700` it" in ran.err


# status


def test_status_says_what_the_gateway_is(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = keyhole("status")
    assert (ran.code, ran.err) == (0, "")
    assert f"gateway      process {os.getpid()}, version 0.1.0\n" in ran.out
    assert "since 2027-01-15 08:00:00\n" in ran.out
    assert re.search(r"^PROTECTION  HOLDS\nseccomp     yes$", ran.out, re.MULTILINE)
    found = json.loads(keyhole("status", "--json").out)
    assert found == {
        "running": True,
        "version": "0.1.0",
        "pid": os.getpid(),
        "data_plane": 0,
        "since": "2027-01-15T08:00:00Z",
        "sessions": 1,
        "frozen": 0,
        "workers": [],
        "connections": 0,
        "admitting": True,
        "protections": [{"id": "seccomp", "on": True, "note": None}],
    }

    async def full(_: object) -> values.Status:
        return values.Status("0.1.0", 7, 1_800_000_000, 0, 0, False)

    monkeypatch.setattr(control.FakeGateway, "status", full)
    ran = keyhole("status")
    assert ran.code == 1
    assert "admits       no: the audit log cannot be written" in ran.out


def test_metrics_are_prometheus_s_own_text(keyhole: Keyhole, rig: Rig) -> None:
    ran = keyhole("status", "--metrics")
    assert (ran.code, ran.out) == (0, rig.client.metrics())
    assert "# TYPE keyhole_decisions_total counter" in ran.out
    assert keyhole("status", "--metrics", "--json").code == 2


def test_a_gateway_that_broke_is_told_with_its_log(keyhole: Keyhole, rig: Rig) -> None:
    rig.gateway.broken = RuntimeError("at work")
    ran = keyhole("status")
    rig.faults.clear()
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "keyhole: something broke in the gateway; its log has more\n"
    log = keyhole.home / ".local" / "state" / "keyhole" / "gateway.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert keyhole("status").err.endswith(f"its log is {log}\n")
    rig.faults.clear()


# ps


def sessions(*more: values.SessionView) -> type[object]:
    """A listing of its own for the fake."""

    async def list_sessions(_: object, __: values.SessionQuery) -> values.SessionPage:
        return values.SessionPage(more)

    return list_sessions  # type: ignore[return-value]


def session(**changes: object) -> values.SessionView:
    now = int(time.time())
    fields: dict[str, object] = {
        "id": KNOWN, "state": values.SessionPhase.OPEN, "label": "claude",
        "policy": "/home/you/widgets/keyhole.toml", "pid": 4242, "opened": now - 3700,
        "expires": now + 7230, "connections": 3, "requests": 1204, "denied": 2, "up": 5000,
        "down": 3_000_000, "stored": ("anthropic",), "secrets": ("anthropic",),
        "grants": (values.GrantView("billing.example", now + 330, 3),),
        "budgets": (
            values.BudgetView("anthropic.tokens", 90, 100),
            values.BudgetView("anthropic.upload", 2048, 1 << 20),
        ),
    }  # fmt: skip
    return values.SessionView(**fields | changes)  # type: ignore[arg-type]


def test_ps_lists_use_against_budget_and_grants(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = session(id=OTHER, opened=1, expires=None, budgets=(), grants=(), label="[red]x[/]")
    monkeypatch.setattr(control.FakeGateway, "list_sessions", sessions(session(), older))
    ran = keyhole("ps")
    assert (ran.code, ran.err) == (0, "")
    table, budgets, grants = ran.out.rstrip().split("\n\n")
    head, first, second = table.splitlines()
    assert head.startswith("ID            STATE  GATEWAY  PROGRAM    POLICY")
    assert first.startswith(f"{OTHER}  open   shared   [red]x[/]  ")  # the oldest first; no markup
    assert re.search(r"  1h +2h +3 +1204 +2 +– +4\.9 KiB +2\.9 MiB$", second)
    assert [line.split() for line in budgets.splitlines()[1:]] == [
        [KNOWN, "anthropic.tokens", "90", "100"],
        [KNOWN, "anthropic.upload", "2.0", "KiB", "1.0", "MiB"],
    ]
    assert grants.splitlines()[1].split() == [KNOWN, "billing.example", "3", "5m"]
    (_, found) = json.loads(keyhole("ps", "--json").out)
    assert found["id"] == OTHER
    first_json = json.loads(keyhole("ps", "--json").out)[0]
    assert first_json["grants"][0]["id"] == "billing.example"
    assert first_json["budgets"][0] == {"id": "anthropic.tokens", "used": 90, "limit": 100}
    assert first_json["stored"] == ["anthropic"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first_json["opened"])


def test_without_sessions_ps_says_how_one_begins(keyhole: Keyhole, rig: Rig) -> None:
    rig.gateway.ids.clear()
    assert keyhole("ps").out == "no session is open; `keyhole run -- CMD` opens one\n"
    assert json.loads(keyhole("ps", "--json").out) == []


def test_on_a_terminal_the_table_fits_and_ids_are_whole(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = session(label="x" * 64, policy="/home/you/" + "long/" * 30 + "keyhole.toml")
    monkeypatch.setattr(control.FakeGateway, "list_sessions", sessions(long))
    for width in (60, 80, 160):
        code, shown = on_terminal([PROGRAM, "ps"], keyhole.env, keyhole.project, size=(24, width))
        assert code == 0
        assert "\x1b[32mopen" in shown
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert KNOWN in plain
        assert max(map(len, plain.splitlines())) <= width
        assert ("POLICY" in plain) == (width == 160)
    _, shown = on_terminal([PROGRAM, "ps"], keyhole.env | {"NO_COLOR": "1"}, keyhole.project)
    assert KNOWN in shown
    assert "\x1b" not in shown
    _, shown = on_terminal([PROGRAM, "ps"], keyhole.env | {"TERM": "dumb"}, keyhole.project)
    assert "x" * 64 in shown  # as in a pipe: nothing is cut
    assert "\x1b" not in shown


@pytest.mark.parametrize("verb", ["ps", "status"])
def test_watching_on_a_terminal_ends_by_ctrl_c_with_the_screen_as_it_was(
    keyhole: Keyhole, rig: Rig, verb: str
) -> None:
    wait_for = "claude" if verb == "ps" else "seccomp"
    code, shown = on_terminal(
        [PROGRAM, verb, "--watch"], keyhole.env, keyhole.project, [(wait_for, "\x03")]
    )
    assert code == 130
    assert "Traceback" not in shown
    assert shown.index("\x1b[?1049h") < shown.index(wait_for) < shown.index("\x1b[?1049l")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_watching_in_a_pipe_prints_lines(
    keyhole: Keyhole, rig: Rig, flags: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [PROGRAM, "status", "--watch", *flags],
        env=keyhole.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if flags:
            assert json.loads(first)["running"] is True
        else:
            assert first.startswith("gateway")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "")


# revoke, stop


def test_a_name_of_nothing_is_no_matter_of_a_gateways(keyhole: Keyhole) -> None:
    """Control: what could be an id is."""
    ran = keyhole("stop", "buidl")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "keyhole: there is no sandbox 'buidl'; `keyhole ps` lists them\n"
    assert "there is no session '5e55'" in keyhole("stop", "5e55").err


def test_ids_may_be_cut_short_where_one_session_has_them(keyhole: Keyhole, rig: Rig) -> None:
    rig.gateway.ids += [TWIN, OTHER]
    ran = keyhole("revoke", "5e551", "0")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "".join(f"{i} closed; its connections are cut\n" for i in (KNOWN, OTHER))
    assert keyhole("stop", KNOWN, KNOWN).out == f"{KNOWN} ended\n"
    assert called(rig) == [
        ("revoke_session", KNOWN), ("revoke_session", OTHER), ("stop_session", KNOWN),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("id_", "why"),
    [
        ("5e55", rf"2 sessions begin with 5e55: {TWIN}, {KNOWN}; type more of the id"),
        ("77", "there is no session '77'; `keyhole ps` lists them"),
        ("", "there is no session ''; `keyhole ps` lists them"),
        ("\x1b[2J", r"there is no session '\x1b[2J'"),
        ("../status", "there is no session '../status'"),
    ],
)
def test_what_fits_no_session_or_several_touches_none(
    keyhole: Keyhole, rig: Rig, id_: str, why: str
) -> None:
    """Positive control: the test above."""
    rig.gateway.ids += [TWIN]
    for words in (("revoke", KNOWN, id_), ("stop", KNOWN, id_), ("allow", id_, "b.example")):
        ran = keyhole(*words)
        assert (ran.code, ran.out) == (2, "")
        assert why in ran.err
    assert not rig.gateway.calls


def test_a_session_that_is_gone_does_not_keep_others(keyhole: Keyhole, rig: Rig) -> None:
    ran = keyhole("revoke", "0" * 12, KNOWN)
    assert ran.code == 2
    assert ran.out == f"{KNOWN} closed; its connections are cut\n"
    assert ran.err == "keyhole: there is no session '000000000000'; `keyhole ps` lists them\n"


def test_the_kill_switch_closes_all_and_wants_to_be_meant(keyhole: Keyhole, rig: Rig) -> None:
    rig.gateway.ids += [OTHER]
    for words in ((), ("--all", KNOWN)):
        ran = keyhole("revoke", *words)
        assert (ran.code, ran.out) == (2, "")
        assert "name the sessions to close (`keyhole ps` lists them), or --all" in ran.err
    assert not rig.gateway.calls
    ran = keyhole("revoke", "--all")
    assert (ran.code, ran.out) == (0, "2 sessions closed; their connections are cut\n")
    assert called(rig) == [("revoke_all",)]


# allow


def test_a_grant_is_for_a_time_and_a_number_of_uses(keyhole: Keyhole, rig: Rig) -> None:
    ran = keyhole("allow", "5e", "Billing.Example:8443", "--for", "1h30m", "--uses", "3")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"{KNOWN} may connect to billing.example:8443 3 times, until 2027-01-15 09:30:00\n"
    )
    ((_, _, grant),) = called(rig)
    assert isinstance(grant, values.GrantRequest)
    assert (str(grant.host), grant.seconds, grant.uses) == ("billing.example:8443", 5400, 3)
    assert keyhole("allow", KNOWN, "b.example").out.endswith(
        "b.example 10 times, until 2027-01-15 08:10:00\n"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("*.example.org",), "a grant is for one name"),
        (("https://you:hunter2@b.example/",), "a host pattern has no scheme; try b.example"),
        (("192.0.2.1",), "an IP address is not a host name"),
        (("b.example", "--for", "10"), "a duration is numbers with units"),
        (("b.example", "--for", "2d"), "--for is at most 1d; for longer"),
        (("b.example", "--uses", "0"), "--uses is from 1 to 10000"),
    ],
)
def test_a_grant_that_cannot_be_says_how_to_write_it(
    keyhole: Keyhole, rig: Rig, words: tuple[str, ...], why: str
) -> None:
    ran = keyhole("allow", KNOWN, *words)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
    assert "hunter2" not in ran.err
    assert not rig.gateway.calls


def test_a_no_of_the_gateway_is_told_in_its_words(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def grant(*_: object) -> values.GrantView:
        raise Refused("api.example is a host of services.api; open its paths in the policy")

    monkeypatch.setattr(control.FakeGateway, "grant", grant)
    ran = keyhole("allow", KNOWN, "api.example")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "keyhole: api.example is a host of services.api; open its paths in the policy\n"
    )


# reload


def test_reload_says_which_policy_was_kept_and_why(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = keyhole("reload")
    assert ran.code == 1
    assert ran.out == "kept       /home/you/keyhole.toml: the old one stays: line 3: no\n"
    found = json.loads(keyhole("reload", "--json").out)
    assert found == [{"id": "/home/you/keyhole.toml", "outcome": "kept", "why": "line 3: no"}]

    async def changed(*_: object) -> values.Reloaded:
        return values.Reloaded((values.PolicyReload("/p.toml", values.ReloadOutcome.CHANGED),))

    monkeypatch.setattr(control.FakeGateway, "reload", changed)
    ran = keyhole("reload")
    assert (ran.code, ran.out) == (0, "changed    /p.toml\n")


# secret rotate


def read(keyhole: Keyhole, name: str) -> str:
    store = Store(keyhole.home / ".local" / "state" / "keyhole" / "secrets")
    secret = store.load(name, None).secret
    assert secret is not None
    return secret.reveal()


def test_a_secret_is_replaced_where_it_is_kept_and_the_gateway_told(
    keyhole: Keyhole, rig: Rig
) -> None:
    assert keyhole("secret", "set", "gh", "--plain", stdin=OLD).code == 0
    ran = keyhole("secret", "rotate", "gh", stdin=NEW)
    assert (ran.code, ran.err) == (0, "")
    told = "the sessions that use it were told, and read it again\n"
    assert ran.out == f"replaced gh (plain)\n{told}"
    assert read(keyhole, "gh") == NEW
    assert called(rig) == [("secret_changed", "gh")]


def test_sessions_that_had_the_old_one_are_ended_and_no_others(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = int(time.time()) + 3600
    listed = sessions(
        session(stored=("gh", "other")),
        session(id=TWIN, stored=("other",), secrets=("gh",)),
        session(id=OTHER, stored=("gh",), opened=later),
    )
    monkeypatch.setattr(control.FakeGateway, "list_sessions", listed)
    keyhole("secret", "set", "gh", "--plain", stdin=OLD)
    ran = keyhole("secret", "rotate", "gh", "--end-sessions", stdin=NEW)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("1 session that had the old one ended\n")
    assert called(rig) == [("secret_changed", "gh"), ("stop_session", KNOWN)]


def test_rotation_needs_a_secret_to_replace_and_no_gateway(keyhole: Keyhole, runtime: Path) -> None:
    ran = keyhole("secret", "rotate", "gh", stdin=NEW)
    assert (ran.code, ran.out) == (2, "")
    assert "the store has no gh; `keyhole secret set gh` keeps one" in ran.err
    keyhole("secret", "set", "gh", "--plain", stdin=OLD)
    ran = keyhole("secret", "rotate", "gh", "--end-sessions", stdin=NEW)
    assert ran.code == 0
    assert "\nno session is open, so there is none to tell\n" in ran.out
    assert ran.out.endswith("\n0 sessions that had the old one ended\n")
    assert read(keyhole, "gh") == NEW
    # I1: a value is not an argument, and what was typed there is not repeated.
    ran = keyhole("secret", "rotate", "gh", NEW)
    assert ran.code == 2
    assert NEW not in ran.err


def test_that_the_gateway_did_not_take_it_up_is_no_success(
    keyhole: Keyhole, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object, name: str, __: Peer) -> None:
        raise Refused("the store is locked; `keyhole down` and `keyhole up` ask for its passphrase")

    monkeypatch.setattr(control.FakeGateway, "secret_changed", refuse)
    keyhole("secret", "set", "gh", "--plain", stdin=OLD)
    ran = keyhole("secret", "rotate", "gh", stdin=NEW)
    assert ran.code == 1
    assert "gh is replaced, but the gateway did not take it up: the store is locked;" in ran.err


# amounts


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (10_188, "9.9 KiB"), (10_189, "10 KiB"),
        (1024**2 - 1, "1.0 MiB"), (5 * 1024**3, "5.0 GiB"), (2**60, "1048576 TiB"),
    ],
)  # fmt: skip
def test_sizes_have_two_digits(number: int, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0s"), (59.9, "59s"), (60, "1m"), (7199, "1h"), (1e6, "11d")]
)
def test_ages_have_one_unit(seconds: float, said: str) -> None:
    assert age(seconds) == said
