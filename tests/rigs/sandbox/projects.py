"""A project of one's own, and the installed command in it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.rigs.sandbox.people import Person
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Stream = int | IO[bytes] | None


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Project:
    """A directory with a policy, a home beside it, and whose they are."""

    person: Person
    directory: Path
    home: Path

    @classmethod
    def make(cls, person: Person, number: int, policy: str = "") -> Project:
        """A new project with a policy; `version = 1` is put before it."""
        base = person.directory / str(number)
        made = cls(person, base / "project", base / "home")
        for path in (base, made.directory, made.home):
            path.mkdir()
            person.own(path)
        made.policy(policy)
        return made

    def policy(self, text: str) -> None:
        self.write("keyhole.toml", "version = 1\n" + text)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project, as the person would."""
        path = self.directory / name
        for directory in reversed(path.relative_to(self.directory).parents[:-1]):
            if not (self.directory / directory).exists():
                (self.directory / directory).mkdir()
                self.person.own(self.directory / directory)
        path.write_text(text)
        self.person.own(path)
        return path

    @property
    def env(self) -> dict[str, str]:
        """The variables of somebody with a home of their own."""
        return {
            "PATH": SEARCH,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
        }

    def start(
        self,
        *words: str,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        env: dict[str, str] | None = None,
        **more: Any,  # noqa: ANN401 - subprocess's own
    ) -> subprocess.Popen[bytes]:
        """Start `keyhole` with these words."""
        started: subprocess.Popen[bytes] = subprocess.Popen(
            [str(self.person.program), *words],
            cwd=self.directory,
            env=self.env | (env or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            **self.person.become(),
            **more,
        )
        return started

    def __call__(
        self,
        *words: str,
        text: bytes | None = None,
        env: dict[str, str] | None = None,
        **more: Any,  # noqa: ANN401 - subprocess's own
    ) -> Ran:
        """Run `keyhole` to its end: of the process and of everybody who holds its output."""
        if text is not None:
            more["stdin"] = subprocess.PIPE
        process = self.start(*words, env=env, **more)
        try:
            out, err = process.communicate(text, timeout=PATIENCE)
        except BaseException:
            process.kill()
            process.wait()
            raise
        said = Ran(process.returncode, (out or b"").decode(), (err or b"").decode())
        assert "Traceback" not in said.err, said.err
        return said

    def run(self, *command: str, flags: tuple[str, ...] = (), **more: Any) -> Ran:  # noqa: ANN401
        """`keyhole run --trust -- COMMAND`."""
        return self("run", "--trust", *flags, "--", *command, **more)

    def shell(self, script: str, **more: Any) -> Ran:  # noqa: ANN401
        """Run a shell script inside."""
        return self.run("sh", "-c", script, **more)

    def python(self, code: str, *words: str, **more: Any) -> Any:  # noqa: ANN401
        """Run Python inside; what it prints, as JSON."""
        done = self.run("python3", "-I", "-S", "-c", code, *words, **more)
        assert done.code == 0, done
        return json.loads(done.out)

    @contextlib.contextmanager
    def running(self, *command: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:  # noqa: ANN401
        """`keyhole run` while the block lasts."""
        process = self.start("run", "--trust", "--", *command, **more)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def events(self) -> list[dict[str, Any]]:
        said = self("log", "--json")
        assert said.code == 0, said
        found: list[dict[str, Any]] = json.loads(said.out)
        return found


def line_of(pipe: IO[bytes] | None) -> str:
    """The next line that a running command says, in bounded time."""
    assert pipe is not None
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        assert ready, f"nothing was said after {data!r}"
        more = os.read(pipe.fileno(), 1)
        assert more, f"ended after {data!r}"
        data += more
    return data.decode().rstrip("\n")


def rest_of(pipe: IO[bytes] | None) -> bytes:
    """All until everybody who can write to it is gone, in bounded time."""
    assert pipe is not None
    data = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        assert ready, f"somebody still holds the output after {data!r}"
        more = os.read(pipe.fileno(), 65536)
        if not more:
            return data
        data += more


def holders_of_namespace(namespace: str, kind: str = "net") -> list[int]:
    """Processes of this host in a namespace that the sandbox named, as /proc tells."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / kind) == namespace:
                    found.append(int(entry.name))
    return found


def until_nobody_is_in(namespace: str) -> None:
    """The kernel ends a pid namespace's processes one after another; wait for the last."""
    deadline = time.monotonic() + PATIENCE
    while holders := holders_of_namespace(namespace):
        assert time.monotonic() < deadline, f"{holders} are still in {namespace}"
        for pid in holders:
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], PATIENCE)
                os.close(descriptor)


def mounts_of(project: Project) -> list[str]:
    """The host's mounts that have to do with a project."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(project.directory.parent) in line]
