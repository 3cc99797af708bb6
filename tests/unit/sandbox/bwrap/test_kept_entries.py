"""Which entries are mounted by descriptor, because untrusted code filled the tree they lie in."""

from __future__ import annotations

from keyhole.sandbox.bwrap.kept_entries import holding_tree, kept_entries
from keyhole.sandbox.files.mount_plan import (
    Bind,
    KeptTree,
    Mask,
    MountKind,
    SeedFile,
    Symlink,
    TextFile,
    Tmpfs,
)

PLAN = (
    Tmpfs("/run", 1),
    KeptTree("/keep/home", "/home/a"),
    KeptTree("/keep/npm", "/home/a/.npm"),
    Bind("/home/a/p", "/home/a/p", MountKind.DIR, writable=True),
    Mask("/home/a/p/.env", MountKind.FILE),
    SeedFile("/home/a/.claude.json", ""),
    Symlink("/home/a/.local/bin/claude", "/opt/claude"),
    TextFile("/etc/passwd", ""),
    Bind("/home/ab", "/home/ab", MountKind.DIR),
)


def test_all_that_lies_below_a_kept_tree_is_mounted_with_the_outermost() -> None:
    assert kept_entries(PLAN) == dict.fromkeys((2, 3, 4, 5, 6), 1)


def test_a_mount_point_is_made_in_the_tree_that_holds_it() -> None:
    assert [holding_tree(number, PLAN) for number in (2, 3, 5, 6)] == [1, 1, 1, 1]
    # The project has it: nothing is made there.
    assert holding_tree(4, PLAN) is None
    assert holding_tree(7, PLAN) is None


def test_a_cache_below_a_fresh_home_is_a_tree_of_its_own() -> None:
    plan = (Tmpfs("/home/a", 1), KeptTree("/keep/npm", "/home/a/.npm"))
    assert kept_entries(plan) == {}
