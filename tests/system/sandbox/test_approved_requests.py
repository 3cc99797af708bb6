"""Requests of a real client in a real sandbox that no rule names, held until a person answers by
the verb, on the screen, by lines or in the page's own API (I3, I9)."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.sandbox.projects import rest_of
from tests.rigs.tmux import tmux_screen
from tests.rigs.waiting import PATIENCE, until
from tests.rigs.web import WebProcess

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

KEY = "k3y-0123456789abcdefghijklm"
CURL = "curl -sS --max-time 80 -o /dev/null -w '%{http_code} '"
POSTED = f"{CURL} -d x=1 https://web.example/v1/items?n=1"


@pytest.fixture(scope="module")
def service(authority: trustme.CA) -> Iterator[tuple[Service, str]]:
    seen = Service()
    with closing(Origin(seen, tls_for(authority, "web.example"))) as origin:
        yield seen, origin.address


@pytest.fixture
def asking(
    new_project: Callable[..., Project], service: tuple[Service, str], authority: trustme.CA
) -> Callable[..., Project]:
    """Makes projects with a service of which only reading is allowed."""

    def make(wait: str = "80s") -> Project:
        made = new_project(f"""
[approvals]
ask  = ["requests"]
wait = "{wait}"
[services.web]
hosts  = ["web.example"]
allow  = ["GET /**"]
deny   = ["* /admin/**"]
secret = "file:~/key"
inject = {{ header = "X-Key", value = "{{secret}}" }}
[upstream]
ca_file = "~/ca.pem"
connect = {{ "web.example:443" = "{service[1]}" }}
""")
        for name, data in (("ca.pem", authority.cert_pem.bytes()), ("key", KEY.encode())):
            (made.home / name).write_bytes(data)
            (made.home / name).chmod(0o600)
            made.person.own(made.home / name)
        service[0].seen.clear()
        return made

    return make


@contextmanager
def held(project: Project, script: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A run that waits for an answer, and its question."""
    with project.running("sh", "-c", script) as run:
        yield run, question(project)


def question(project: Project, state: str = "pending") -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look() -> bool:
        told = project("asks", "--json")
        assert told.code == 0, told
        found[:] = json.loads(told.out)
        return [each["state"] for each in found] == [state]

    until(look, pause=0.1)
    return found[0]


def said(run: subprocess.Popen[bytes]) -> str:
    """What the client printed until its end."""
    out = rest_of(run.stdout).decode()
    assert run.wait(PATIENCE) == 0
    return out


def test_a_request_passes_once_and_the_next_is_asked_about_again(
    asking: Callable[..., Project], service: tuple[Service, str]
) -> None:
    """I3: nothing has left while it waits, a denied path is never asked about, and of two equal
    requests a yes for once is for one."""
    project = asking()
    script = f"{CURL} -d x=1 https://web.example/admin/x; {POSTED}; {POSTED}"
    with held(project, script) as (run, ask):
        assert (ask["kind"], ask["rule"]) == ("requests", "POST /v1/items")
        assert not service[0].seen
        done = project("approve", ask["id"])
        assert "may request POST /v1/items of web.example, with the credential of web" in done.out
        again = question(project)
        assert again["id"] != ask["id"]
        assert [each.target for each in service[0].seen] == ["/v1/items?n=1"]
        assert KEY.encode() in service[0].seen[0].head
        assert project("deny", again["id"]).code == 0
        assert said(run) == "403 200 403 "
    assert len(service[0].seen) == 1


def test_a_late_yes_serves_the_retry_of_a_request(asking: Callable[..., Project]) -> None:
    project = asking("1s")
    script = f"{POSTED}; while [ ! -e go ]; do sleep 0.1; done; {POSTED}"
    with project.running("sh", "-c", script) as run:
        ask = question(project, "lapsed")
        assert project("approve", ask["id"]).code == 0
        project.write("go", "")
        assert said(run) == "403 200 "


def test_always_is_found_in_the_policy_beside_what_was_there(
    asking: Callable[..., Project],
) -> None:
    project = asking()
    with held(project, POSTED) as (run, ask):
        done = project("approve", ask["id"], "--always")
        assert '+allow_also = ["POST /v1/items"]' in done.out, done
        assert said(run) == "200 "
    assert 'allow_also = ["POST /v1/items"]' in (project.directory / "keyhole.toml").read_text()
    again = project("run", "--", "sh", "-c", f"{POSTED}; {CURL} https://web.example/read")
    assert again.out == "200 200 "


@pytest.mark.by_turns("root")
def test_a_request_is_answered_on_the_screen_and_in_the_page(
    asking: Callable[..., Project],
) -> None:
    project = asking()
    if project.person.name != "root":
        return  # once is enough for two programs that know no user but their own
    with tmux_screen(project, "watch") as screen, held(project, POSTED) as (run, _):
        screen.until("request POST /v1/items")
        screen.press("a")
        screen.until("May it request")
        screen.press("Right", "Enter")
        assert said(run) == "200 "
    with WebProcess.start(project) as web, held(project, POSTED) as (run, ask):
        path = f"/api/asks/{ask['session']}/{ask['id']}"
        headers = {"Origin": f"http://{web.authority}", "Authorization": f"Bearer {web.token()}"}
        status, told = web.ask("POST", path, {"answer": "session"}, **headers)
        assert status == 200, told
        assert said(run) == "200 "
    answered = [e for e in project.events() if (e["kind"], e["reason"]) == ("ask", "approved")]
    assert [each["details"]["via"] for each in answered] == ["watch", "web"]
