"""The trees that the policy names, resolved and judged before anything in them is read.

Called by `mount_planning.py`. A path through a link is refused, not resolved: an earlier run that
could write the link decides where it leads today (I11).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files import dangerous_paths
from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.paths import absolute, canonical, depth, is_below, is_within
from keyhole.system.walk import LinkInPath, open_beneath_no_links

if TYPE_CHECKING:
    from keyhole.policy.policy import Sandbox


class Tree(Struct, frozen=True):
    """A file or directory of the host that the sandbox is given."""

    path: str
    writable: bool
    kind: MountKind = MountKind.DIR


class TreeRules(Struct, frozen=True):
    """The rules by which the policy's paths are judged."""

    project: str
    home: str
    homes: tuple[str, ...]
    unsafe: frozenset[str]
    secret: tuple[dangerous_paths.DangerousPath, ...]
    startup: tuple[dangerous_paths.DangerousPath, ...]
    own: tuple[dangerous_paths.DangerousPath, ...]

    @classmethod
    def of(
        cls,
        sandbox: Sandbox,
        project: str,
        home: str,
        own: tuple[str, ...],
        secrets: tuple[str, ...],
    ) -> TreeRules:
        """Make them of the policy and of the caller's facts about Keyhole's own directories."""

        def resolved(texts: tuple[str, ...]) -> frozenset[str]:
            return frozenset(canonical(absolute(text, project, home)) for text in texts)

        homes = dangerous_paths.homes(home, resolved((*sandbox.writable, *sandbox.readable)))
        mine = [
            dangerous_paths.DangerousPath(path, "Keyhole keeps its own files there") for path in own
        ]
        return cls(
            project,
            home,
            homes,
            resolved(sandbox.unsafe_paths),
            dangerous_paths.dangerous_to_see(homes, secrets),
            dangerous_paths.dangerous_to_write(homes),
            dangerous_paths.with_real_paths(mine),
        )


def resolve_trees(
    writable: tuple[str, ...], readable: tuple[str, ...], rules: TreeRules
) -> tuple[Tree, ...]:
    """The policy's trees, outermost first. Raises Refused for the first that cannot be bound."""
    found: dict[str, Tree] = {}
    for key, texts in (("writable", writable), ("readable", readable)):
        for text in texts:
            tree = _tree(text, key, rules)
            if found.get(tree.path, tree) != tree:
                raise Refused(f"{visible(text)} is both in sandbox.writable and sandbox.readable")
            found[tree.path] = tree
    return tuple(sorted(found.values(), key=lambda tree: (depth(tree.path), tree.path)))


def judge_tree(tree: Tree, what: str, rules: TreeRules) -> None:
    """Raise Refused if this tree is one of the dangerous paths. `what` names it to the
    person."""
    path = tree.path
    reason = dangerous_paths.never_bindable(path, rules.homes, writable=tree.writable)
    if reason:
        raise Refused(f"{what} cannot be given to the sandbox: {reason}")
    for mine in rules.own:
        if tree.writable and (is_within(path, mine.path) or is_below(mine.path, path)):
            raise Refused(
                f"{what} cannot be writable: {visible(mine.path)} is there, and "
                "nothing that Keyhole trusts may be writable from the sandbox"
            )
    if path in rules.unsafe:
        return
    if dangerous_paths.engine_socket(path):
        raise Refused(
            _unless(what, "whoever commands a container engine is root on this host", path)
        )
    for found in (*rules.own, *rules.secret):
        if is_within(path, found.path):
            raise Refused(_unless(what, found.reason, path))
    for found in rules.startup if tree.writable else ():
        if is_within(path, found.path) or is_below(found.path, path):
            reason = f"{found.reason} ({visible(found.path)})"
            raise Refused(_unless(what, reason, path))


def _unless(what: str, reason: str, path: str) -> str:
    return (
        f"{what} is not given to the sandbox: {reason}. Remove it, or list "
        f"{visible(path)} in sandbox.unsafe_paths if you accept that"
    )


def _tree(text: str, key: str, rules: TreeRules) -> Tree:
    what = f"sandbox.{key} {visible(text)}"
    path = canonical(absolute(text, rules.project, rules.home))
    # 1. By name, so that the reason names the path even if nothing is there.
    judge_tree(Tree(path, key == "writable"), what, rules)
    # 2. As it is on the disk: no link on the way, and a kind that can be bound.
    tree = Tree(path, key == "writable", _kind(path, what, rules))
    if os.path.realpath(path) != path:
        raise Refused(f"{what} changed while it was looked at; run again")
    return tree


def _kind(path: str, what: str, rules: TreeRules) -> MountKind:
    try:
        opened = open_beneath_no_links(path)
    except LinkInPath as error:
        raise Refused(
            f"{what} goes through the symbolic link {visible(error.filename)}; "
            f"write {visible(os.path.realpath(path))} instead"
        ) from None
    except ValueError:
        raise Refused(f"{what} is not a path") from None
    except OSError as error:
        reason = error.strerror.lower() if error.strerror else "cannot be opened"
        raise Refused(
            f"{what}: {visible(str(error.filename))}: {reason}; "
            "create it or remove it from the policy"
        ) from None
    mode = os.fstat(opened).st_mode
    os.close(opened)
    if stat.S_ISDIR(mode):
        return MountKind.DIR
    if stat.S_ISREG(mode) or path in rules.unsafe:
        return MountKind.FILE
    raise Refused(_unless(what, "it is a socket, device or pipe of the host", path))
