"""The environment that this room may use, handed in by `cli`, and how to read files and programs.

Used by the preset learners and by `keyhole init`. A program or file is trusted only if no step
of its path lies in a tree that the sandbox can write (I11): sandboxed code can leave a fake
`npm` in node_modules/.bin or .venv/bin, where the user's PATH finds it first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.host.settings_file import read_text
from keyhole.model.redacted import redacted_repr
from keyhole.system.symlinks import follow
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHEBANG_BYTES = 256
"""Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE)."""


class Invocation(Struct, frozen=True):
    """A command and its environment, which may hold tokens."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]

    __repr__ = redacted_repr("environment")


class HostEnvironment(Struct, frozen=True):
    """The user's environment, home and file system; `writable` trees are the sandbox's."""

    env: Mapping[str, str]  # it may hold tokens
    home: Path
    root: Path = Path("/")
    writable: tuple[Path, ...] = ()
    answers: Path | None = None
    """Keyhole's own directory for answers of slow programs."""

    __repr__ = redacted_repr("env")

    def at(self, path: str) -> Path:
        """A path of the system, as in `/etc/pip.conf`."""
        return self.root / path.lstrip("/")

    def config_home(self) -> Path:
        """The directory of the user's settings (XDG base directories)."""
        chosen = self.env.get("XDG_CONFIG_HOME", "")
        return Path(chosen) if chosen.startswith("/") else self.home / ".config"

    def config_dirs(self) -> tuple[Path, ...]:
        """The directories of the system's settings, the most important first."""
        chosen = [Path(d) for d in self.env.get("XDG_CONFIG_DIRS", "").split(":") if d[:1] == "/"]
        return tuple(chosen) or (self.at("/etc/xdg"),)

    def expand(self, text: str) -> Path:
        """A path that a variable names; `~` is the user's home."""
        return self.home / text[2:] if text.startswith("~/") else Path(text)

    def shown(self, path: Path) -> str:
        """The path as a person writes it."""
        if path.is_relative_to(self.home):
            return f"~/{path.relative_to(self.home)}"
        return str(Path("/") / path.relative_to(self.root)) if self._below(path) else str(path)

    def trusts(self, path: Path) -> bool:
        """Whether the sandbox can write no step of this path."""
        if not path.is_absolute():
            return False
        try:
            steps = [Path(entry) for entry in follow(str(path)).entries]
        except LinkInPath:
            return False
        trees = [tree.resolve() for tree in self.writable]
        return not any(step.is_relative_to(tree) for step in steps for tree in trees)

    def read(self, path: Path) -> str | None:
        """The text of a trusted, regular file of bounded size, else None."""
        return read_text(path) if self.trusts(path) else None

    def pick(self, names: Iterable[str]) -> dict[str, str]:
        """These variables, where they are set."""
        return {name: self.env[name] for name in names if name in self.env}

    def program(self, name: str) -> Path | None:
        """The first program of this name on PATH that the sandbox could not have put there."""
        for entry in self.env.get("PATH", "").split(os.pathsep):
            # An empty or relative entry means the current directory: the project.
            candidate = Path(entry) / name
            if entry.startswith("/") and self.trusts(candidate) and _is_program(candidate):
                return candidate
        return None

    def ask(
        self,
        program: Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        complaint: bool = False,
    ) -> str | None:
        """Run a program in `/` with a minimal environment and `env`; None if it fails.

        With `complaint`, its stderr, however it ends.
        """
        invocation = self.invocation(program, *args, env=env)
        if invocation is None:
            return None
        from keyhole.host.program_output import (
            run_program,  # `subprocess` is slow to import, and often unused
        )

        answer = run_program(invocation.argv, invocation.environment, complaint=complaint)
        if answer is None or (answer.status and not complaint):
            return None
        return answer.text

    def invocation(
        self, program: Path, *args: str, env: Mapping[str, str] | None = None
    ) -> Invocation | None:
        """The command that `ask` runs; None if it cannot be trusted."""
        argv = self._command(program)
        if argv is None:
            return None
        given = {
            name: value
            for name, value in (env or {}).items()
            # A settings file that a variable names is trusted on the same terms as any other.
            if not value.startswith("/") or self.trusts(Path(value))
        }
        minimal = {"PATH": self._search_path(), "HOME": str(self.home), "LANG": "C"}
        return Invocation((*argv, *args), given | minimal)

    def _command(self, program: Path) -> list[str] | None:
        """The program, with its interpreter if its first line would search PATH for it."""
        if not self.trusts(program):
            return None
        words = _shebang(program)
        if not words:
            return [str(program)]
        if Path(words[0]).name != "env":
            return [str(program)] if self.trusts(Path(words[0])) else None
        # `#!/usr/bin/env node` takes the first node on PATH, which may be a link into a tree of
        # the sandbox, so it is chosen here, as any program is.
        names = [word for word in words[1:] if word != "-S"]
        interpreter = self.program(names[0]) if names else None
        return [str(interpreter), *names[1:], str(program)] if interpreter else None

    def _search_path(self) -> str:
        entries = self.env.get("PATH", "").split(os.pathsep)
        return os.pathsep.join(e for e in entries if e.startswith("/") and self.trusts(Path(e)))

    def _below(self, path: Path) -> bool:
        return self.root != Path("/") and path.is_relative_to(self.root)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _shebang(program: Path) -> list[str]:
    try:
        with program.open("rb") as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
