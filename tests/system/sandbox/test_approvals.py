"""What no rule names waits for a person, who answers as a user types it (I3, I9, I12)."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.cli.terminals import on_terminal
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

CURL = "curl -sS --max-time 60 --cacert ca.pem https://{}/page"
ASK = '[approvals]\nask = ["hosts", "requests"]\nwait = "{}"\n'


@pytest.fixture
def unnamed(
    new_project: Callable[..., Project], origin: GitAndWeb, authority: trustme.CA
) -> Callable[..., Project]:
    """Makes projects whose policy names no host; the names would lead to the origin."""
    plain = re.sub(
        r"(?s)\[egress\].*?(?=\[upstream)",
        "# Mine.\n",
        origin.policy("origin.example", "second.example"),
    )

    def make(more: str = "") -> Project:
        made = new_project(more + plain)
        made.write("ca.pem", authority.cert_pem.bytes().decode())
        return made

    return make


def asked(project: Project, count: int = 1) -> list[dict[str, Any]]:
    """Wait for questions, as `keyhole asks` lists them."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        said = project("asks", "--json")
        assert said.code == 0, said
        found[:] = json.loads(said.out)
        return len(found) >= count

    until(look, pause=0.1)
    return found


@contextlib.contextmanager
def waiting(project: Project, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose command waits for an answer."""
    with project.running("sh", "-c", script) as run:
        yield run


def result(run: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, _ = run.communicate(timeout=90)
    return run.returncode, out.decode()


@pytest.mark.parametrize("shared", [False, True], ids=["own gateway", "keyhole up"])
def test_a_held_connection_goes_through_when_it_is_approved(
    unnamed: Callable[..., Project], shared: bool
) -> None:
    project = unnamed(ASK.format("60s"))
    if shared:
        assert project("up").code == 0
    try:
        with waiting(project, CURL.format("origin.example") + " -s") as run:
            (ask,) = asked(project)
            assert (ask["kind"], ask["rule"], ask["state"]) == (
                "hosts", "origin.example", "pending"
            )  # fmt: skip
            assert "connect to origin.example:443" in project("asks").out
            assert project("approve", ask["id"][:4]).code != 0  # it may meet a newer question
            done = project("approve", ask["id"], "--session")
            assert "may connect to origin.example:443, for this session" in done.out
            assert result(run) == (0, "hello /page")
    finally:
        if shared:
            assert project("down").code == 0
    events = [e for e in project.events() if e["kind"] == "ask"]
    assert [e["reason"] for e in events] == ["held", "approved"]
    said = events[1]["details"]
    assert (said["answer"], said["via"]) == ("session", "approve")
    assert said["by"]


def test_no_to_all_refuses_many_at_once_and_another_sandbox_is_unharmed(
    unnamed: Callable[..., Project],
) -> None:
    """I12: the positive control runs beside those that wait."""
    project = unnamed(ASK.format("60s"))
    other = unnamed('[egress]\nallow = ["second.example"]\n')
    many = "; ".join(f"curl -s -m 90 https://h{n}.example/ &" for n in range(40))
    script = f"{many}; {CURL.format('origin.example')}; wait"
    with waiting(project, script.replace("&;", "&")) as run:
        found = asked(project, 20)
        assert len(found) <= 32  # I9: approvals.most_pending
        passed = other.shell(CURL.format("second.example"))
        assert (passed.code, passed.out) == (0, "hello /page")
        refused = project("deny", found[0]["id"], "--all")
        assert "refused everything" in refused.out
        assert "hello" not in result(run)[1]
    assert project("approve", found[0]["id"]).code != 0
    reasons = {e["reason"] for e in project.events()}
    assert {"held", "not-approved"} <= reasons


def test_a_late_yes_serves_the_retry(unnamed: Callable[..., Project]) -> None:
    """I3: nobody answered in time, so the first try was refused."""
    project = unnamed(ASK.format("1s"))
    curl = CURL.format("origin.example")
    script = f"{curl} || echo refused; while [ ! -e go ]; do sleep 0.1; done; {curl}"
    with waiting(project, script) as run:
        (ask,) = asked(project)
        until(lambda: asked(project)[0]["state"] == "lapsed", pause=0.1)
        assert project("approve", ask["id"]).code == 0
        project.write("go", "")
        assert result(run) == (0, "refused\nhello /page")


def test_always_is_written_into_the_policy_and_accepted(unnamed: Callable[..., Project]) -> None:
    project = unnamed(ASK.format("60s"))
    with waiting(project, CURL.format("origin.example")) as run:
        (ask,) = asked(project)
        said = project("approve", ask["id"], "--always")
        assert said.code == 0, said
        assert '+allow = ["origin.example"]' in said.out
        assert result(run) == (0, "hello /page")
    assert json.loads(project("findings", "--json").out) == []  # it is the person's own change
    text = (project.directory / "keyhole.toml").read_text()
    assert '[egress]\nallow = ["origin.example"]' in text
    assert "# Mine." in text
    again = project("run", "--", "sh", "-c", CURL.format("origin.example"))
    assert (again.code, again.out) == (0, "hello /page")  # accepted: nothing asks


def test_always_refuses_a_file_that_nobody_accepted(unnamed: Callable[..., Project]) -> None:
    """I11."""
    project = unnamed(ASK.format("60s"))
    with waiting(project, CURL.format("origin.example")) as run:
        (ask,) = asked(project)
        file = project.directory / "keyhole.toml"
        file.write_text(file.read_text() + "\n# by somebody else\n")
        said = project("approve", ask["id"], "--always")
        assert said.code != 0
        assert "not accepted" in said.err
        assert "origin.example" not in file.read_text().split("[upstream")[0]
        assert project("approve", ask["id"]).code == 0
        assert result(run) == (0, "hello /page")


def test_a_command_of_the_policy_answers(unnamed: Callable[..., Project]) -> None:
    """The question is JSON on its standard input, and trust marks the command (I11)."""
    project = unnamed(
        '[sandbox]\nwritable = ["out"]\n[approvals]\ncommand = "python3 ./bot.py"\nwait = "30s"\n'
    )
    project.write("out/ca.pem", (project.directory / "ca.pem").read_text())
    project.write(
        "bot.py",
        "import json, sys\n"
        "ask = json.load(sys.stdin)\n"
        "yes = ask['host'] == 'origin.example'\n"
        "print(json.dumps({'answer': 'once' if yes else 'no'}))\n",
    )
    checked = project("check")
    assert "runs a command of this host, which may answer for you" in checked.out, checked
    both = f"{CURL.format('origin.example')}; {CURL.format('second.example')}"
    done = project.shell(f"cd {project.directory}/out && {both}")
    assert done.out == "hello /page", done
    assert "is allowed, as approvals.command said (once)" in done.err
    answers = [(e["host"], e["reason"]) for e in project.events() if e["kind"] == "ask"]
    assert ("origin.example", "approved") in answers
    assert ("second.example", "not-approved") in answers


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-command", "gave no answer: the command of approvals.command was not found"),
        ("false", "gave no answer: the command ended with 1"),
        ("true", ""),  # it leaves the question to the person
    ],
)
def test_a_command_that_gives_no_answer_leaves_the_question_to_the_person(
    unnamed: Callable[..., Project], command: str, why: str
) -> None:
    """Otherwise the client would wait in silence for an answer that nobody knows to give."""
    project = unnamed(f'[approvals]\ncommand = "{command}"\nwait = "60s"\n')
    with waiting(project, CURL.format("origin.example") + " -s") as run:
        said = [line_of(run.stderr)]
        while "waits for you" not in said[-1]:
            said.append(line_of(run.stderr))
        found = re.search("`(keyhole approve [0-9a-f]{6})`", said[-1])
        assert found
        assert project(*found[1].split()[1:]).code == 0  # as pasted
        assert result(run) == (0, "hello /page")
    assert [why in line for line in said].count(True) == 1 if why else len(said) == 1


def test_watch_shows_a_question_through_a_pipe_and_takes_the_answer(
    unnamed: Callable[..., Project],
) -> None:
    """While it runs, hosts are asked about without a word of the policy."""
    project = unnamed()
    watch = project.start("watch", "--json", stdin=subprocess.PIPE)
    assert watch.stdout is not None
    assert watch.stdin is not None
    assert watch.stderr is not None
    try:
        until(lambda: any(project.home.rglob("watch.lock")))
        with waiting(project, CURL.format("origin.example")) as run:
            ask: dict[str, Any] = {}
            while not ask:
                ask = json.loads(watch.stdout.readline()).get("ask", {})
            watch.stdin.write(f"a {ask['id']}\n".encode())
            watch.stdin.flush()
            assert result(run) == (0, "hello /page")
        watch.stdin.write(b"q\n")
        watch.stdin.flush()
        assert watch.wait(60) == 0
    finally:
        watch.kill()
        watch.wait()
        for pipe in (watch.stdin, watch.stdout, watch.stderr):
            pipe.close()


@pytest.mark.by_turns("root")
def test_watch_on_a_terminal(unnamed: Callable[..., Project]) -> None:
    project = unnamed()
    if project.person.name != "root":
        return  # a terminal is made for this process's own user
    code, shown = on_terminal(
        [str(project.person.program), "watch", "--plain"],
        project.env,
        project.directory,
        typed=[("answers are typed", "zz 1\n"), ("none of the answers", "q\n")],
    )
    assert code == 0, shown
    assert "watching" in shown
