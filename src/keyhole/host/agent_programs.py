"""Finds the agents of this host, and tells them from other programs of the same name.

Used by `keyhole run AGENT`, `keyhole agents` and `keyhole init`. No program is run.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host.program_trees import ProgramTrees, program_trees
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.agent_profile import AgentProfile

MAX_SEARCHED = 1 << 30
"""Bytes of a program that are searched for a text of its profile: the largest has 250 MiB."""


def find_agent(
    profile: AgentProfile, host: HostEnvironment, named: str | None = None
) -> ProgramTrees | None:
    """The agent's program, by the path that was typed or by PATH; None if it is not there.

    A program in a tree that the sandbox can write counts as not there (I11), and so does one of
    the same name that is another's.
    """
    if named is not None and "/" in named:
        typed = Path(os.path.abspath(named))
        candidates = [typed] if typed.is_file() and host.trusts(typed) else []
    else:
        names = (named,) if named is not None else profile.programs
        candidates = [found for name in names if (found := host.program(name))]
    for candidate in candidates:
        try:
            trees = program_trees(candidate, host)
        except LinkInPath:
            continue
        if is_agent(profile, trees):
            return trees
    return None


def is_agent(profile: AgentProfile, trees: ProgramTrees) -> bool:
    """Whether a program is this agent's: by its real path, or by a text in it."""
    if any(mark in trees.real or mark in trees.program for mark in profile.marks):
        return True
    return any(_contains(trees.real, text.encode()) for text in profile.contents)


def _contains(path: str, text: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= MAX_SEARCHED:
            return False
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)
