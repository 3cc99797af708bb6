"""A person's home with projects in it, the gateway that serves them all, and agents that run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.services import keep
from tests.rigs.sandbox.projects import Project, Ran, line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.daemon.origin import Origin
    from tests.rigs.sandbox.people import Person

AGENT = Path(__file__).with_name("agent.py").read_text()

_numbers = itertools.count()

ONE = """
[services.one]
hosts = ["one.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/one"
env = ["ONE_KEY"]
allow = ["GET /v1/**"]
"""

TWO = """
[services.two]
hosts = ["two.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "store:two"
env = ["TWO_KEY"]
allow = ["GET /v1/**"]
"""


class Home:
    """Where one person keeps secrets and projects; at most one gateway is up here."""

    def __init__(self, person: Person, origin: Origin) -> None:
        self.person = person
        self.origin = origin
        self._first = Project.make(person, next(_numbers))
        self.directory = self._first.home
        self._second: Project | None = None
        self.keep("origin-ca.pem", origin.ca)

    @property
    def state(self) -> Path:
        """What Keyhole keeps."""
        return self.directory / "state" / "keyhole"

    @property
    def socket(self) -> Path:
        """The gateway's."""
        return self.state / "run" / "control.sock"

    def __call__(self, *words: str, **more: Any) -> Ran:  # noqa: ANN401 - subprocess's own
        return self._first(*words, **more)

    def project(self, *policy: str) -> Project:
        """A project with this policy, which leads to the origin; accepted when it is run.

        The same for all tests: the walls are tried once for each, which takes a while.
        """
        self.rewrite(self._first, *policy)
        return self._first

    def second(self, *policy: str) -> Project:
        """Another one beside it."""
        if self._second is None:
            directory = self._first.directory.with_name("second")
            directory.mkdir()
            self.person.own(directory)
            self._second = Project(self.person, directory, self.directory)
        self.rewrite(self._second, *policy)
        return self._second

    def rewrite(self, project: Project, *policy: str) -> None:
        """Another policy."""
        project.policy("\n".join((*policy, self.origin.policy)))

    def accept(self, project: Project) -> None:
        """The word of the person for the policy as it is now."""
        said = project("policy", "trust", "--trust")
        assert said.code == 0, said

    def keep(self, name: str, text: str) -> None:
        """A file of the home, put in the place of an older one as an editor does it."""
        new = keep(self._first, f"{name}.new", text)
        new.rename(new.with_suffix(""))

    def store(self, name: str, text: str, *words: str, verb: str = "set") -> Ran:
        """A secret in Keyhole's own store."""
        said = self("secret", verb, name, *words, text=text.encode())
        assert said.code == 0, said
        return said

    def up(self) -> int:
        """Start the gateway; its process."""
        said = self("up", "--json")
        assert said.code == 0, said
        return int(json.loads(said.out)["pid"])

    def foreground(self) -> subprocess.Popen[bytes]:
        """Start the gateway as a service manager does, with faults told; it is up."""
        env = {"PYTHONFAULTHANDLER": "1"}
        process = self._first.start("up", "--foreground", "--workers", "2", env=env)
        until(lambda: self("status").code == 0)
        return process

    def sessions(self) -> dict[int, dict[str, Any]]:
        """What `keyhole ps` shows, by the process of the run."""
        said = self("ps", "--json")
        assert said.code == 0, said
        return {each["pid"]: each for each in json.loads(said.out)}

    def reasons(self, session: str) -> list[tuple[str, dict[str, Any]]]:
        """The events of a session itself, in order."""
        said = self("log", "--json", "--session", session)
        assert said.code == 0, said
        events = [each for each in json.loads(said.out) if each["kind"] == "session"]
        return [(each["reason"], each["details"]) for each in events]

    @contextlib.contextmanager
    def agent(self, project: Project, *flags: str, **more: Any) -> Iterator[Agent]:  # noqa: ANN401
        """An agent in a sandbox while the block lasts."""
        command = ("python3", "-I", "-S", "-c", AGENT)
        process = project.start(
            "run", "--trust", *flags, "--", *command, stdin=subprocess.PIPE, **more
        )
        try:
            yield Agent(self, process)
        finally:
            process.kill()
            process.wait(PATIENCE)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


class Agent:
    """What runs in one sandbox."""

    def __init__(self, home: Home, process: subprocess.Popen[bytes]) -> None:
        self._home = home
        self.process = process
        self._said = ""
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            pytest.fail(f"no agent: {process.communicate(timeout=PATIENCE)[1].decode()}")

    @property
    def session(self) -> dict[str, Any]:
        """As the gateway shows it now."""
        return self._home.sessions()[self.process.pid]

    def begin(self, *errand: object) -> None:
        """Send it on an errand; `result` says what came of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(errand).encode() + b"\n")
        self.process.stdin.flush()

    def result(self) -> Any:  # noqa: ANN401 - by the errand
        """What came of the errand."""
        return json.loads(line_of(self.process.stdout))

    def do(self, *errand: object) -> Any:  # noqa: ANN401 - by the errand
        """An errand of agent.py, to its end."""
        self.begin(*errand)
        return self.result()

    def finish(self) -> int:
        """Let it end by itself; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def until_said(self, text: str) -> None:
        """Wait until the run has told the person this; what came before it is forgotten."""
        pipe = self.process.stderr
        assert pipe is not None
        while text not in self._said:
            ready, _, _ = select.select([pipe], [], [], PATIENCE)
            assert ready, f"not said: {text!r}; {self._said!r}"
            data = os.read(pipe.fileno(), 65536)
            assert data, f"ended without {text!r}: {self._said!r}"
            self._said += data.decode()
        self._said = self._said.partition(text)[2]
