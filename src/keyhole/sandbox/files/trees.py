"""The trees that the policy names, resolved and judged before anything is looked at.

Called by `planning.py`. A path through a link is refused rather than resolved: a link in a tree
that an earlier run could write decides where it leads today (I11).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass
from keyhole.sandbox.files import danger
from keyhole.sandbox.files.fileplan import Kind, Refused
from keyhole.sandbox.files.paths import absolute, canonical, depth, is_below, is_within
from keyhole.sandbox.files.walk import LinkInPath, open_beneath_no_links

if TYPE_CHECKING:
    from keyhole.policy.policy import Sandbox


@dataclass(frozen=True, slots=True)
class Tree:
    """A file or directory of the host that the sandbox is given."""

    path: str
    writable: bool
    kind: Kind = Kind.DIR


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy's paths are judged by."""

    project: str
    home: str
    homes: tuple[str, ...]
    unsafe: frozenset[str]
    secret: tuple[danger.Danger, ...]
    startup: tuple[danger.Danger, ...]
    own: tuple[danger.Danger, ...]

    @classmethod
    def of(
        cls,
        sandbox: Sandbox,
        project: str,
        home: str,
        own: tuple[str, ...],
        secrets: tuple[str, ...],
    ) -> Rules:
        """From the policy, and what the caller knows of Keyhole's own places."""

        def resolved(texts: tuple[str, ...]) -> frozenset[str]:
            return frozenset(canonical(absolute(text, project, home)) for text in texts)

        homes = danger.homes(home, resolved((*sandbox.writable, *sandbox.readable)))
        mine = [danger.Danger(path, "Keyhole keeps its own files there") for path in own]
        return cls(
            project,
            home,
            homes,
            resolved(sandbox.unsafe_paths),
            danger.dangers(homes, secrets),
            danger.startups(homes),
            danger.with_real_paths(mine),
        )


def resolve_trees(
    writable: tuple[str, ...], readable: tuple[str, ...], rules: Rules
) -> tuple[Tree, ...]:
    """The policy's trees, outermost first; Refused for the first that cannot be given."""
    found: dict[str, Tree] = {}
    for key, texts in (("writable", writable), ("readable", readable)):
        for text in texts:
            tree = _tree(text, key, rules)
            if found.get(tree.path, tree) != tree:
                raise Refused(f"{visible(text)} is both in sandbox.writable and sandbox.readable")
            found[tree.path] = tree
    return tuple(sorted(found.values(), key=lambda tree: (depth(tree.path), tree.path)))


def judge(tree: Tree, what: str, rules: Rules) -> None:
    """Raise Refused if this tree is one of the dangerous paths. `what` names it to the person."""
    path = tree.path
    reason = danger.structural(path, rules.homes, writable=tree.writable)
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
    if danger.engine_socket(path):
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


def _tree(text: str, key: str, rules: Rules) -> Tree:
    what = f"sandbox.{key} {visible(text)}"
    path = canonical(absolute(text, rules.project, rules.home))
    # 1. By name, so that the reason is the path's own even where nothing is there.
    judge(Tree(path, key == "writable"), what, rules)
    # 2. As it lies there: no link on the way, and a kind that can be bound.
    tree = Tree(path, key == "writable", _kind(path, what, rules))
    if os.path.realpath(path) != path:
        raise Refused(f"{what} changed while it was looked at; run again")
    return tree


def _kind(path: str, what: str, rules: Rules) -> Kind:
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
        return Kind.DIR
    if stat.S_ISREG(mode) or path in rules.unsafe:
        return Kind.FILE
    raise Refused(_unless(what, "it is a socket, device or pipe of the host", path))
