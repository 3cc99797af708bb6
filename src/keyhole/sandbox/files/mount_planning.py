"""Makes the mount plan of a run: called outside, as the user, before anything is mounted.

Numbered steps; each may refuse. A path that is opened here is opened again, the same way, when it
is mounted: a link put in its place meanwhile stops the run and is not followed (I11).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.policy.schema import ChangesMode
from keyhole.sandbox.files.generated_files import (
    Account,
    ImageAccounts,
    generated_files,
    image_files,
)
from keyhole.sandbox.files.mount_plan import Entry, KeptTree, MountKind, MountPlan, Tmpfs, Volume
from keyhole.sandbox.files.mounts import read_mount_points
from keyhole.sandbox.files.overlay import Overlay
from keyhole.sandbox.files.paths import canonical, depth, is_below
from keyhole.sandbox.files.repositories import Repositories, common_directory
from keyhole.sandbox.files.system_trees import system_files
from keyhole.sandbox.files.tree_inspection import TreeInspection
from keyhole.sandbox.files.tree_walk import WalkBudget
from keyhole.sandbox.files.trees import Tree, TreeRules, judge_tree, resolve_trees
from keyhole.sandbox.files.triggers import REPOSITORY, SEARCHED
from keyhole.sandbox.files.trusted_programs import refuse_writable_programs
from keyhole.sandbox.files.volumes import plan_volumes

if TYPE_CHECKING:
    from keyhole.policy.policy import Sandbox

HOME_BYTES = 4 << 30
"""The empty home, in memory: package caches and build trees fit."""


class PlanningFacts(Struct, frozen=True):
    """The caller's facts about the host. All paths are absolute."""

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
    image: ImageAccounts | None = None
    """The accounts of an image; then the system's trees are the image's."""
    search: tuple[str, ...] = ()
    """The directories of the person's PATH."""
    shell: str = "/bin/sh"
    hostname: str = "keyhole"
    home_bytes: int = HOME_BYTES
    home_volume: str = ""
    """The volume in which an engine keeps the home; without one, the home is empty and in
    memory."""
    kept_home: str = ""
    """The directory of Keyhole's own that is the home; without one, the home is empty and in
    memory."""
    kept_caches: tuple[tuple[str, str], ...] = ()
    """Further directories of Keyhole's own, each with its place below the home."""
    root: Path = Path("/")
    """The directory that holds the system's trees; tests have their own."""
    mounts: tuple[str, ...] | None = None
    """The host's mount points, unless they are to be read from /proc."""


def plan_mounts(
    sandbox: Sandbox, facts: PlanningFacts, budget: WalkBudget | None = None
) -> MountPlan:
    """The mount plan of the sandbox. Raises Refused when it must not start."""
    home = canonical(str(facts.home))
    if home == "/" or not home.startswith("/"):
        raise Refused("your home directory is /; set HOME to a directory of your own")
    rules = TreeRules.of(
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
        refuse_writable_programs([facts.git], writable)
    # 2. Their content.
    overlay = Overlay(trees)
    repositories = Repositories(overlay, facts.git, rules.unsafe)
    mounts = read_mount_points() if facts.mounts is None else facts.mounts
    inspection = TreeInspection(overlay, repositories, rules, trees, mounts)
    budget = budget or WalkBudget()
    for tree in _outermost(trees):
        inspection.look(tree, budget)
    hooks = tuple(dict.fromkeys(repositories.hooks))
    inspection.look_behind_links(hooks, budget)
    _protect_policy(facts, overlay)
    overlay.refuse_uncovering(rules.unsafe)
    # 3. The system, the accounts, an empty home, and the trees with everything that covers them.
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
    entries: tuple[Entry, ...] = (
        *base,
        _home(home, facts),
        *_caches(home, facts, overlay),
        *overlay.mounts(),
    )
    if sandbox.volumes and facts.image is None:
        raise Refused("sandbox.volumes are for docker and podman")
    return MountPlan(
        (*entries, *plan_volumes(sandbox.volumes, rules, trees, entries, facts.uid)),
        writable,
        (
            *((path, REPOSITORY) for path in hooks),
            *((path, SEARCHED) for path in _searched(facts.search, writable)),
        ),
        tuple(notices),
        _reviewed(trees) if sandbox.changes is ChangesMode.REVIEW else (),
    )


def _reviewed(trees: tuple[Tree, ...]) -> tuple[str, ...]:
    """The trees whose changes are held for review."""
    writable = _outermost(tuple(tree for tree in trees if tree.writable))
    for tree in writable:
        if tree.kind is not MountKind.DIR:
            raise Refused(
                f"{visible(tree.path)} is a file, and changes are reviewed in directories; name "
                'its directory in sandbox.writable, or set sandbox.changes = "direct"'
            )
    return tuple(tree.path for tree in writable)


def _home(home: str, facts: PlanningFacts) -> Entry:
    if facts.home_volume:
        return Volume(home, facts.home_volume)
    if facts.kept_home:
        return KeptTree(facts.kept_home, home)
    return Tmpfs(home, facts.home_bytes, 0o700)


def _caches(home: str, facts: PlanningFacts, overlay: Overlay) -> list[KeptTree]:
    """The kept caches; where the policy shows a tree of the host, that one counts."""
    placed = ((source, f"{home}/{place}") for source, place in facts.kept_caches)
    return [KeptTree(source, target) for source, target in placed if not overlay.holds(target)]


def _with_worktrees(trees: tuple[Tree, ...], rules: TreeRules) -> tuple[Tree, ...]:
    named = tuple(tree.path for tree in trees)
    found = list(trees)
    for tree in trees:
        if not tree.writable or tree.kind is not MountKind.DIR:
            continue
        common = common_directory(tree.path, tuple(t.path for t in found))
        if common is None:
            continue
        added = Tree(common, writable=True)
        judge_tree(added, f"the repository of {visible(tree.path)}, {visible(common)},", rules)
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


def _protect_policy(facts: PlanningFacts, overlay: Overlay) -> None:
    """Make the policy read-only, under any name, and also the target if it is a link."""
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
            overlay.protect(path, MountKind.FILE)


def _top_link(path: str) -> str:
    top = path[1:].partition("/")[0]
    return top if top and os.path.islink(f"/{top}") else ""
