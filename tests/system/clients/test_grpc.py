"""grpcio's clients by `keyhole run`, to a grpcio server: with threads, and asyncio's (I1, I3, I7).

tests/system/gateway/test_grpc.py has the same calls without a sandbox, and what is written down.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.clients.services import CLIENTS, PROGRAMS, random_text
from tests.rigs.lacking import give_up
from tests.rigs.nginx import write_chain
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

SECRET = random_text("sk-real-")
KINDS = {
    "threads": ("grpc_client.py", "/etc/keyhole/bundle.pem", "echo.example", "any-key"),
    "asyncio": ("grpc_asyncio.py", "echo.example"),
}
POLICY = """
[services.echo]
hosts = ["echo.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:{secret}"
env = ["ECHO_KEY"]
placeholder = "sk-{{alnum:32}}"
http = "2"
allow = ["GRPC acme.v1.Echo/*"]
deny = ["GRPC acme.v1.Echo/Drop"]
[limits]
requests_per_second = 1000
[upstream]
ca_file = "{authority}"
[upstream.connect]
"echo.example:443" = "127.0.0.1:{port}"
"""


@dataclass(frozen=True)
class Called:
    """What the calls of each client came to."""

    project: Project
    found: dict[str, dict[str, Any]]
    printed: str


@pytest.fixture(scope="module")
def called(ground: Path, new_project: Callable[[], Project], inside: Inside) -> Iterator[Called]:
    if not (CLIENTS / "bin/python").exists():
        give_up("the clients are not installed: scripts/setup")
    directory = ground / "grpc"
    directory.mkdir(mode=0o755)
    authority = trustme.CA()
    chain = directory / "chain.pem"
    write_chain(chain, authority, "echo.example")
    (directory / "authority.pem").write_bytes(authority.cert_pem.bytes())
    (directory / "secret").write_text(SECRET)
    (directory / "secret").chmod(0o600)
    words = [str(CLIENTS / "bin/python"), str(PROGRAMS / "grpc_server.py"), str(chain), str(chain)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        project = new_project()
        policy = POLICY.format(
            secret=directory / "secret",
            authority=directory / "authority.pem",
            port=line_of(server.stdout),
        )
        project.policy(policy + inside.policy)
        found, printed = {}, ""
        for kind, (program, *arguments) in KINDS.items():
            project.write(program, (PROGRAMS / program).read_text())
            done = project.run(inside.python, "-s", program, *arguments)
            assert done.code == 0, done
            found[kind] = json.loads(done.out)
            printed += done.out + done.err
        yield Called(project, found, printed)
        server.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_every_kind_pass(called: Called, kind: str) -> None:
    found = called.found[kind]
    assert found["unary"] == "hi"
    assert found["fail"] == ["NOT_FOUND", "no such thing: 100 % é"]
    assert (found["large"], found["many"], found["total"]) == (True, True, 499500)
    assert found["chat"][:3] == ["ONE", "TWO", "THREE"]
    assert found["deadline"] == [["DEADLINE_EXCEEDED", "Deadline Exceeded"], True]
    assert found["cancelled"] == 1


def test_many_calls_of_asyncio_share_a_connection(called: Called) -> None:
    assert called.found["asyncio"]["chat"][3] == "OK"
    assert called.found["asyncio"]["together"] == list(range(40))
    events = called.project.events()
    opened = [e for e in events if (e["kind"], e["reason"]) == ("connect", "rule")]
    assert len([e for e in opened if e["session"] == opened[-1]["session"]]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_denied_call_says_why(called: Called, kind: str) -> None:
    """I3; the calls above are the control."""
    code, said = called.found[kind]["drop"]
    assert code == "PERMISSION_DENIED"
    assert said.startswith("keyhole: ")
    assert "(denied-by-rule)" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_reflected_credential_is_not_seen(called: Called, kind: str) -> None:
    """I1, I7: the server had it, and sent it back."""
    given = called.found[kind]["given"]
    assert "Bearer sk-" in (given if isinstance(given, str) else given[0])
    assert SECRET not in called.printed
