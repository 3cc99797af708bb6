"""Refuses programs and files that Keyhole executes or trusts if the sandbox could write them (I11).

Called outside before a run, with programs, `exec:` commands, `ca_file`, Keyhole's own packages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.system.symlinks import follow
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHEBANG_BYTES = 256
"""Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE)."""


def refuse_writable_programs(programs: Iterable[Path], writable: Iterable[Path | str]) -> None:
    """Raise Refused if a step of the way to any of these, each link included, is in such a tree.

    The final target is not enough: code that can replace a link on the way decides where the path
    leads tomorrow. The interpreter in a script's first line is a program too.
    """
    trees = [Path(os.path.realpath(tree)) for tree in writable]
    roots = {identity for tree in trees if (identity := _identity(tree))}
    for program in programs:
        for step in _steps(program):
            if any(step.is_relative_to(tree) for tree in trees) or _is_alias(step, roots):
                raise Refused(
                    f"{visible(str(program))} leads through {visible(str(step))}, which the "
                    "sandbox can write: it could change what runs on this host. Install it "
                    "elsewhere, or take that directory out of sandbox.writable"
                )


def _steps(program: Path) -> Iterator[Path]:
    yield from _trail(program)
    interpreter = _interpreter(program)
    if interpreter is not None:
        yield from _trail(interpreter)


def _trail(path: Path) -> list[Path]:
    """Each entry visited on the way to a path, links resolved one by one."""
    if not path.is_absolute():
        raise Refused(f"{visible(str(path))} is not an absolute path")
    try:
        return [Path(entry) for entry in follow(str(path)).entries]
    except LinkInPath:
        raise Refused(f"{visible(str(path))} leads through too many links") from None


def _is_alias(step: Path, roots: set[tuple[int, int]]) -> bool:
    """Whether it is one of the trees under another name: a bind mount of it elsewhere."""
    return _identity(step) in roots


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _interpreter(program: Path) -> Path | None:
    try:
        with program.open("rb") as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    return Path(words[0]) if words and words[0].startswith("/") else None
