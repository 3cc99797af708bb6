"""The file plan of a run: called outside, as the user, before anything is mounted.

Numbered steps; each may refuse. What is opened here is opened again, the same way, when it is
mounted (`walk.py`): a link put in its place meanwhile stops the run and is not followed (I11).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox.files.executables import refuse_inside
from keyhole.sandbox.files.fileplan import Entry, FilePlan, Kind, Refused, Tmpfs, Volume
from keyhole.sandbox.files.generated import Account, Accounts, generated_files, image_files
from keyhole.sandbox.files.inspection import Inspection
from keyhole.sandbox.files.mounts import read_mount_points
from keyhole.sandbox.files.overlay import Overlay
from keyhole.sandbox.files.paths import canonical, depth, is_below
from keyhole.sandbox.files.repositories import Repositories, common_directory
from keyhole.sandbox.files.survey import Budget
from keyhole.sandbox.files.system import system_files
from keyhole.sandbox.files.trees import Rules, Tree, judge, resolve_trees
from keyhole.sandbox.files.triggers import REPOSITORY, SEARCHED
from keyhole.sandbox.files.volumes import plan_volumes

if TYPE_CHECKING:
    from keyhole.policy.policy import Sandbox

HOME_BYTES = 4 << 30
"""The empty home, in memory: package caches and build trees fit."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows of the host. All paths are absolute."""

    project: Path
    """The policy's directory."""
    policy: Path
    """The policy file, whatever its name."""
    home: Path
    user: str
    uid: int
    gid: int
    own: tuple[Path, ...]
    """Keyhole's state, config and runtime directories and its installation."""
    secrets: tuple[Path, ...] = ()
    """Files that the policy reads secrets from."""
    git: Path | None = None
    image: Accounts | None = None
    """Whom an image knows; then the system's trees are the image's."""
    search: tuple[str, ...] = ()
    """The directories of the person's PATH."""
    shell: str = "/bin/sh"
    hostname: str = "keyhole"
    home_bytes: int = HOME_BYTES
    home_volume: str = ""
    """What an engine keeps the home in; else it is empty, and in memory."""
    root: Path = Path("/")
    """Where the system's trees are; tests have their own."""
    mounts: tuple[str, ...] | None = None
    """The host's mount points, unless they are to be read from /proc."""


def plan_files(sandbox: Sandbox, facts: Facts, budget: Budget | None = None) -> FilePlan:
    """What the sandbox sees, in mount order; Refused when it must not start."""
    home = canonical(str(facts.home))
    if home == "/" or not home.startswith("/"):
        raise Refused("your home directory is /; set HOME to a directory of your own")
    rules = Rules.of(
        sandbox,
        canonical(str(facts.project)),
        home,
        tuple(canonical(str(path)) for path in facts.own),
        tuple(canonical(str(path)) for path in facts.secrets),
    )
    # 1. The trees that the policy names, and the rest of a linked worktree.
    trees = resolve_trees(sandbox.writable, sandbox.readable, rules)
    trees = _with_worktrees(trees, rules)
    writable = tuple(tree.path for tree in trees if tree.writable)
    if facts.git is not None:
        refuse_inside([facts.git], writable)
    # 2. What is in them.
    overlay = Overlay(trees)
    repositories = Repositories(overlay, facts.git, rules.unsafe)
    mounts = read_mount_points() if facts.mounts is None else facts.mounts
    inspection = Inspection(overlay, repositories, rules, trees, mounts)
    budget = budget or Budget()
    for tree in _outermost(trees):
        inspection.look(tree, budget)
    hooks = tuple(dict.fromkeys(repositories.hooks))
    inspection.look_behind_links(hooks, budget)
    _protect_policy(facts, overlay)
    overlay.refuse_uncovering(rules.unsafe)
    # 3. The system, the accounts, an empty home, the trees with all that covers them.
    account = Account(facts.user, facts.uid, facts.gid, str(facts.home), facts.shell)
    notices = list(inspection.notices())
    base: tuple[Entry, ...]
    if facts.image is not None:
        base = image_files(account, facts.hostname, facts.image)
    else:
        links = frozenset(_top_link(str(path)) for path in (facts.home, facts.project)) - {""}
        system = system_files(facts.root, links)
        base = (*system.entries, *generated_files(account, facts.hostname))
        if system.withheld:
            notices.append(f"masked, credentials: {', '.join(system.withheld)}")
    if repositories.unread:
        shown = ", ".join(map(visible, repositories.unread))
        notices.append(f"masked, git could not read it: {shown}")
    kept = Tmpfs(home, facts.home_bytes, 0o700)
    entries: tuple[Entry, ...] = (
        *base,
        Volume(home, facts.home_volume) if facts.home_volume else kept,
        *overlay.mounts(),
    )
    if sandbox.volumes and facts.image is None:
        raise Refused("sandbox.volumes are for docker and podman")
    return FilePlan(
        (*entries, *plan_volumes(sandbox.volumes, rules, trees, entries, facts.uid)),
        writable,
        (
            *((path, REPOSITORY) for path in hooks),
            *((path, SEARCHED) for path in _searched(facts.search, writable)),
        ),
        tuple(notices),
    )


def _with_worktrees(trees: tuple[Tree, ...], rules: Rules) -> tuple[Tree, ...]:
    named = tuple(tree.path for tree in trees)
    found = list(trees)
    for tree in trees:
        if not tree.writable or tree.kind is not Kind.DIR:
            continue
        common = common_directory(tree.path, tuple(t.path for t in found))
        if common is None:
            continue
        added = Tree(common, writable=True)
        judge(added, f"the repository of {visible(tree.path)}, {visible(common)},", rules)
        if any(is_below(path, common) for path in named):
            raise Refused(f"{visible(common)} is the repository's own; name the work tree alone")
        found.append(added)
    return tuple(sorted(found, key=lambda tree: (depth(tree.path), tree.path)))


def _outermost(trees: tuple[Tree, ...]) -> list[Tree]:
    paths = [tree.path for tree in trees]
    return [tree for tree in trees if not any(is_below(tree.path, path) for path in paths)]


def _searched(search: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """Directories on the person's PATH in which the sandbox can write programs, and links there."""
    named = [os.path.normpath(path) for path in search if path.startswith("/")]
    found = dict.fromkeys([*named, *map(os.path.realpath, named)])
    return [path for path in found if any(is_below(path, tree) for tree in writable)]


def _protect_policy(facts: Facts, overlay: Overlay) -> None:
    """The policy is what Keyhole grants: read-only under any name, and wherever a link leads."""
    for path in {canonical(str(facts.policy)), os.path.realpath(facts.policy)}:
        if not overlay.holds(path) or not overlay.is_writable(path):
            continue
        if overlay.is_tree(path):
            raise Refused(f"{visible(path)} is the policy itself and cannot be writable")
        if os.path.islink(path):
            raise Refused(
                f"{visible(path)} is a symbolic link that the sandbox could replace; "
                f"pass --policy {visible(os.path.realpath(path))}"
            )
        if os.path.isfile(path):
            overlay.protect(path, Kind.FILE)


def _top_link(path: str) -> str:
    top = path[1:].partition("/")[0]
    return top if top and os.path.islink(f"/{top}") else ""
