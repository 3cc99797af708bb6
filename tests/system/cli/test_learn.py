"""`keyhole learn` and `keyhole replay` of a log, typed by a user. Names in a log are hostile."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog, LogBounds
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.audit.million import request, write_lines
from tests.rigs.audit.writing import NOON
from tests.rigs.cli.terminals import PROGRAM, on_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY
POLICY = """
[services.billing]
hosts = ["billing.example"]
allow = ["GET /v1/**"]
"""
EVIL = '/v1/\x1b[2J"]\nallow = ["*.evil.example"'


def connect(host: str, reason: str = "learning") -> Event:
    verdict = DENY if reason == "no-rule" else ALLOW
    return Event(EventKind.CONNECT, verdict, reason, host=host, details=(("port", 443),))


def denied(path: str, method: str = "POST") -> Event:
    details = (("method", method), ("path", path))
    return Event(EventKind.REQUEST, DENY, "no-rule", host="billing.example", details=details)


def write_log(keyhole: Keyhole, *events: Event, session: str = "5e551011") -> None:
    path: Path = keyhole.home / ".local/state/keyhole/audit"
    with AuditLog(path, bounds=LogBounds(per_second=10**6)) as log:
        for event in events:
            log.record(session, event)


@pytest.fixture
def project(keyhole: Keyhole) -> Keyhole:
    keyhole.policy(POLICY)
    keyhole("policy", "trust", "--trust")
    return keyhole


def text(keyhole: Keyhole) -> str:
    return (keyhole.project / "keyhole.toml").read_text()


def test_lines_are_picked_on_a_terminal(project: Keyhole) -> None:
    write_log(
        project,
        connect("api.github.com"),
        *[connect("files.example")] * 3,
        connect("telemetry.example"),
        *(denied(f"/v1/quotes/{n}") for n in range(6)),
    )
    shown = project("learn")
    assert shown.code == 0
    assert shown.out.index("[x] services.github.use github") < shown.out.index("not known:")
    assert "[ ] services.billing.allow POST /v1/quotes/*" in shown.out
    assert "+use = " in shown.out
    assert text(project) == "version = 1\n" + POLICY
    words = [PROGRAM, "learn", "--save"]
    pick, agree = "none for none: ", "accept the policy with it?"
    code, said = on_terminal(words, project.env, project.project, [(pick, "none\n")])
    assert (code, "nothing was picked" in said) == (0, True)
    # Anything that is no line is said, not taken for nothing.
    for wrong in ("7-x", "1 9", "1-9", "2-1", "12", "9" * 3000):
        code, said = on_terminal(words, project.env, project.project, [(pick, f"{wrong}\n")])
        assert (code, "is none of the lines 1 to 4" in said) == (2, True), said
    answers = [(pick, "1 3\n"), (agree, "y\n")]
    code, said = on_terminal(words, project.env, project.project, answers)
    assert code == 0, said
    assert '"files.example",  # seen 3 times' in text(project)
    assert "[services.github]" in text(project)
    assert "quotes" not in text(project)
    code, said = on_terminal(words, project.env, project.project, [(pick, "1-2\n"), (agree, "\n")])
    assert (code, "nothing was written" in said) == (1, True)


def test_all_known_takes_what_the_catalogue_knows_and_nothing_else(project: Keyhole) -> None:
    write_log(project, connect("api.github.com"), connect("files.example"))
    saved = project("learn", "--save", "--all-known", "--yes")
    assert saved.code == 0, saved
    assert 'use = "github"' in text(project)
    assert "secret =" not in text(project).replace("secret = 'store:github'", "")
    assert "files.example" not in text(project)
    assert project("learn", "--save", "--all-known").out.endswith("so nothing was written\n")


def test_hostile_texts_stay_texts(project: Keyhole) -> None:
    """I8: code in the sandbox chooses names and paths, and would like to choose rules."""
    write_log(
        project,
        denied(EVIL),
        denied('/v1/"],x'),
        denied("/v1/%22%5D%0Aallow"),
        connect("a\x1b]0;x\x07.example"),
        connect('b.example"]', "no-rule"),
        connect("xn--80ak6aa92e.example", "no-rule"),
    )
    shown = project("learn")
    assert "\x1b" not in shown.out + shown.err
    listed = json.loads(project("learn", "--json").out)
    assert [row["id"] for row in listed] == ["egress.allow xn--80ak6aa92e.example"]
    assert listed[0]["concern"].startswith("a name in another script")
    replayed = project("replay")
    assert (replayed.code, "\x1b" in replayed.out) == (0, False)


def test_sessions_and_times_choose_what_is_read(project: Keyhole) -> None:
    assert "no log yet" in project("learn").err
    assert "no log yet" in project("replay").err
    write_log(project, connect("one.example"), session="aaaa1111")
    write_log(project, connect("two.example"), session="bbbb2222")
    ids = {
        words: [row["value"] for row in json.loads(project("learn", *words, "--json").out)]
        for words in ((), ("aaaa",), ("aaaa", "bbbb"), ("--since", "1h"))
    }
    both = ["one.example", "two.example"]
    assert [*ids.values()] == [["two.example"], ["one.example"], both, both]
    assert "no session cccc" in project("learn", "cccc").err
    assert project("learn", "--yes").code == 2
    unknown = project("learn", "--save", "--take", "egress.allow evil.example")
    assert "not proposed" in unknown.err
    assert (
        json.loads(project("replay", "--session", "aaaa", "--json").out)[0]["would_be"] == "denied"
    )


def test_lines_that_do_not_fit_together_are_left_out(project: Keyhole) -> None:
    write_log(project, connect("chatgpt.com"), connect("auth.openai.com"))
    saved = project("learn", "--save", "--all-known", "--yes")
    assert saved.code == 0, saved
    assert "is left out" in saved.err
    assert "[services.codex]" in text(project)
    assert "\n[services.codex-pat]" not in text(project)


def test_a_policy_that_nobody_accepted_is_not_learnt_into(project: Keyhole) -> None:
    write_log(project, connect("api.github.com"))
    project.policy(POLICY + "# changed\n")
    refused = project("learn", "--save", "--all-known", "--yes")
    assert refused.code == 2
    assert "not accepted as it is now" in refused.err


def test_what_a_person_approved_is_a_use(project: Keyhole) -> None:
    details = (("method", "POST"), ("path", "/v1/*"))
    request = Event(EventKind.REQUEST, ALLOW, "approved", host="billing.example", details=details)
    write_log(project, connect("late.example", "approved"), request)
    listed = {row["id"]: row["concern"] for row in json.loads(project("learn", "--json").out)}
    assert listed == {
        "egress.allow late.example": None,
        "services.billing.allow POST /v1/*": "a pattern that the code itself wrote",
    }
    replayed = project("replay")
    assert replayed.code == 1
    assert "late.example" in replayed.out
    shown = project("learn").out
    assert shown.index("set apart") < shown.index("POST /v1/*")


def test_a_question_that_nobody_answered_is_a_denial_and_a_no_is_none(project: Keyhole) -> None:
    """A no is the person's word: nothing is proposed against it."""

    def refused(host: str, reason: str) -> Event:
        details = (("port", 443),)
        return Event(EventKind.CONNECT, DENY, reason, "approvals.ask", host, details)

    hosts = {"late.example": "unanswered", "many.example": "too-many-asked"}
    write_log(
        project, *(refused(*each) for each in hosts.items()), refused("no.example", "not-approved")
    )
    listed = [row["id"] for row in json.loads(project("learn", "--json").out)]
    assert listed == ["egress.allow late.example", "egress.allow many.example"]
    project.policy(f'{POLICY}\n[egress]\nallow = ["late.example", "no.example"]\n')
    replayed = [row["id"] for row in json.loads(project("replay", "--json").out)]
    assert replayed == ["late.example"]


def test_replay_tells_both_ways(project: Keyhole) -> None:
    write_log(project, connect("one.example"), connect("two.example", "no-rule"), denied("/v1/x"))
    same = project("replay")
    assert same.code == 1
    wider = POLICY.replace('"]\nallow', '"]\nallow_also = ["POST /v1/*"]\nallow')
    project.policy(f'{wider}\n[egress]\nallow = ["one.example", "two.example"]\n')
    changed = project("replay")
    assert changed.code == 0
    assert "denied, and would be allowed" in changed.out
    assert "1x  two.example  egress.allow[1]" in changed.out
    assert "1x  POST https://billing.example/v1/x" in changed.out


def test_a_hundred_thousand_events_are_judged_in_ten_seconds(project: Keyhole) -> None:
    """Its own processor time is judged: other tests may run beside it. All events differ."""
    count = 100_000
    uses = (request(f"/v1/items/{number}", "billing.example", "billing") for number in range(count))
    lines = ((NOON + number / 1000, use) for number, use in enumerate(uses))
    write_lines(project.home / ".local/state/keyhole/audit/0.jsonl", lines)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    same = project("replay")
    assert (same.code, "nothing would change" in same.out) == (0, True), same
    assert f"{count} decisions of 1 session" in same.out
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 10
    project.policy(POLICY.replace("/v1/**", "/v1/items/9*"))
    narrow = project("replay", "--json")
    assert narrow.code == 1
    assert len(json.loads(narrow.out)) == count - 11_111
