"""Says why a program that this host has did not start: the sandbox does not show its files.

Called by `keyhole run` when a command ended with 126 or 127, so that other runs pay nothing for it.
The advice is text for the policy that works as it is pasted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.host.program_trees import program_trees
from keyhole.model.text import visible
from keyhole.sandbox.files.inside_path import resolve_inside
from keyhole.sandbox.files.mount_plan import Bind
from keyhole.sandbox.files.paths import is_within
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.host.program_trees import ProgramTrees
    from keyhole.inject.agent_profile import AgentProfile
    from keyhole.policy.policy import Sandbox
    from keyhole.sandbox.launch import Launch

NOT_STARTED = (126, 127)
"""The exit codes of a command that could not be started, as a shell has them."""
_SHEBANG_BYTES = 256
_INTERPRETER = re.compile(
    r"(?:python|pypy|ruby|perl|php|lua|node|nodejs|deno|bun|bash|zsh|fish)[0-9.]*"
)


class HiddenProgram(Struct, frozen=True):
    """A program of the host, and the path that the sandbox does not show."""

    typed: str
    path: str
    trees: ProgramTrees
    interpreter: bool = False
    """It is named by the first line of the program that was typed."""
    by_sandbox: bool = False
    """Whether a file that a sandbox can write names it."""


def explain_hidden(launch: Launch, sandbox: Sandbox, host: HostEnvironment) -> tuple[str, ...]:
    """The lines for a command that did not start; none if its program is visible or not there."""
    hidden = _find_hidden(launch, host)
    if hidden is None:
        return ()
    shown = [entry.target for entry in launch.files if isinstance(entry, Bind)]
    needed = [t for t in hidden.trees.trees if not any(is_within(t, tree) for tree in shown)]
    if not needed:
        return ()
    if hidden.by_sandbox and not _is_interpreter(hidden.trees.real):
        return (_cause(hidden, host),)
    lines = [_cause(hidden, host), "add under [sandbox] in the policy:"]
    lines.append(f"  readable = {_list([*sandbox.readable, *map(host.shown, map(Path, needed))])}")
    search = [path for path in hidden.trees.search[1:] if path not in _search(launch)]
    if search:
        path = ":".join([*map(host.shown, map(Path, search)), launch.environment["PATH"]])
        lines.append("and under [sandbox.env]:")
        lines.append(f"  PATH = {json.dumps(path, ensure_ascii=False)}")
    again = _command_for(hidden, shown, needed)
    if again:
        lines.append(f"then run `keyhole run -- {visible(again)}`")
    return tuple(lines)


def _command_for(hidden: HiddenProgram, shown: list[str], needed: list[str]) -> str:
    """The program to type once the trees are shown; empty if what was typed will do.

    A Python of a virtual environment is started by its own path: by that of the interpreter behind
    the link it would not find the environment's packages.
    """
    if hidden.interpreter or any(is_within(hidden.path, tree) for tree in shown):
        return ""
    if any(is_within(hidden.path, tree) for tree in needed):
        return "" if "/" in hidden.typed else hidden.path
    return hidden.trees.real


def explain_missing(
    name: str, profiles: Mapping[str, AgentProfile], host: HostEnvironment
) -> tuple[str, ...]:
    """The line for an agent that this host does not have, and that therefore did not start."""
    if name not in profiles or shutil.which(name, path=host.env.get("PATH", "")):
        return ()
    profile = profiles[name]
    return (f"{profile.title} is not installed on this host; `{profile.install}` installs it",)


def _find_hidden(launch: Launch, host: HostEnvironment) -> HiddenProgram | None:
    name = launch.command[0]
    found = _inside(name, launch)
    if found is not None:
        return _hidden_interpreter(name, found, launch, host)
    if "/" in name:
        path = os.path.normpath(os.path.join(launch.directory, name))
    else:
        path = shutil.which(name, path=host.env.get("PATH", "")) or ""
    return _hidden(name, path, host, launch, path) if _is_program(path) else None


def _hidden_interpreter(
    name: str, program: str, launch: Launch, host: HostEnvironment
) -> HiddenProgram | None:
    """The interpreter of a script that is shown, if it is not shown itself."""
    words = _first_line(program)
    if not words:
        return None
    interpreter = words[0]
    if os.path.basename(interpreter) == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        interpreter = names[0] if names else ""
    if not interpreter or _inside(interpreter, launch) is not None:
        return None
    if "/" not in interpreter:
        interpreter = shutil.which(interpreter, path=host.env.get("PATH", "")) or ""
    if not _is_program(interpreter):
        return None
    hidden = _hidden(name, interpreter, host, launch, program)
    return hidden and replace(hidden, interpreter=True)


def _is_program(path: str) -> bool:
    """Whether a path is a program's. Attack: the sandbox leaves a script whose first line names a
    private file, or a link to it, and ends with 127: the person would be told to show that file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_interpreter(real: str) -> bool:
    """Whether a program runs others' code. Attack: the sandbox leaves a script or a link that names
    a program with private files around it. Of programs that it names, only these are advised."""
    return _INTERPRETER.fullmatch(os.path.basename(real)) is not None


def _hidden(
    name: str, path: str, host: HostEnvironment, launch: Launch, source: str
) -> HiddenProgram | None:
    """The program at this path, which `source` names."""
    writable = [e.source for e in launch.files if isinstance(e, Bind) and e.writable]
    by_sandbox = any(is_within(source, tree) for tree in writable)
    try:
        trees = program_trees(Path(path), host)
    except LinkInPath:
        return None
    return HiddenProgram(name, path, trees, by_sandbox=by_sandbox)


def _inside(name: str, launch: Launch) -> str | None:
    """The host's path of the program that the sandbox finds by this name."""
    places = [""] if "/" in name else _search(launch)
    for place in places:
        path = os.path.normpath(os.path.join(launch.directory, place, name))
        found = resolve_inside(path, launch.files)
        if found is not None and found.is_file and isinstance(found.entry, Bind):
            return found.entry.source + found.path.removeprefix(found.entry.target)
    return None


def _search(launch: Launch) -> list[str]:
    return [path for path in launch.environment.get("PATH", "").split(os.pathsep) if path]


def _first_line(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    is_path = line.startswith(b"#!") and b"\0" not in line
    return os.fsdecode(line[2:]).split() if is_path else []


def _cause(hidden: HiddenProgram, host: HostEnvironment) -> str:
    shown = visible(host.shown(Path(hidden.path)))
    real = os.path.realpath(hidden.path)
    leads = "which the sandbox cannot see"
    if real != hidden.path:
        leads = f"a link to {visible(host.shown(Path(real)))}, {leads}"
    if hidden.interpreter:
        return f"the first line of {visible(hidden.typed)} names {shown}, {leads}"
    if real != hidden.path:
        return f"{shown} is {leads}"
    return f"{shown} is a file that the sandbox cannot see"


def _list(paths: Iterable[str]) -> str:
    return f"[{', '.join(json.dumps(visible(path), ensure_ascii=False) for path in paths)}]"
