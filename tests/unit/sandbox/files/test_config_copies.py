"""The config of a repository that can be written is a copy of the run's."""

from __future__ import annotations

from keyhole.sandbox.files.config_copies import MAX_COPIES, OWN, with_config_copies
from keyhole.sandbox.files.mount_plan import (
    Bind,
    Entry,
    Mask,
    MountKind,
    MountPlan,
    TextFile,
    Tmpfs,
)

RUN = Tmpfs("/run", 1 << 20)


def tree(path: str, *, writable: bool = True) -> Bind:
    return Bind(path, path, MountKind.DIR, writable=writable)


def copies(*entries: Entry) -> dict[str, str]:
    plan = with_config_copies(MountPlan(entries, ("/p",)))
    assert len(plan.entries) == len(entries)
    return {e.target: e.own_copy for e in plan.entries if isinstance(e, TextFile) and e.own_copy}


def test_a_config_in_a_directory_that_can_be_written_has_a_copy() -> None:
    found = copies(
        RUN,
        tree("/p/.git"),
        TextFile("/p/.git/config", ""),
        TextFile("/p/.git/config.worktree", ""),
        TextFile("/p/.git/other", ""),
    )
    assert found == {
        "/p/.git/config": f"{OWN}/0/config",
        "/p/.git/config.worktree": f"{OWN}/1/config.worktree",
    }


def test_a_config_that_is_hidden_or_lies_in_a_readable_tree_has_none() -> None:
    assert not copies(RUN, tree("/p/.git"), Mask("/p/.git/config", MountKind.FILE))
    assert not copies(RUN, tree("/r", writable=False), TextFile("/r/config", ""))
    assert not copies(RUN, TextFile("/nowhere/config", ""))


def test_no_copy_is_made_in_a_directory_of_the_host() -> None:
    """The policy shows the host's /run: a copy there would be written to the host (I11)."""
    entries = (tree("/p/.git"), TextFile("/p/.git/config", ""))
    assert not copies(RUN, tree("/run/keyhole"), *entries)
    assert not copies(*entries)
    assert copies(RUN, *entries)


def test_the_number_of_copies_is_bounded() -> None:
    many = [
        entry
        for n in range(MAX_COPIES + 1)
        for entry in (tree(f"/p/{n}"), TextFile(f"/p/{n}/config", ""))
    ]
    assert len(copies(RUN, *many)) == MAX_COPIES
