"""Mounts each source at a place that only the helper sees, opened without following links.

Between planning and mounting, hostile leftovers of an earlier run could have put a link where a
directory was. So each source is walked component by component, cloned as a mount by descriptor, and
attached under a private tmpfs; bubblewrap binds from there and follows nothing (I11). What lies in
a kept tree is mounted here, too, by descriptor (`kept_entries.py`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from keyhole.sandbox.bwrap.gathered_entries import gathered_entries
from keyhole.sandbox.bwrap.kept_entries import holding_tree, kept_entries
from keyhole.sandbox.bwrap.kept_files import KeptDirectory, KeptOwner
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Entry,
    KeptTree,
    Mask,
    MountKind,
    SeedFile,
    Symlink,
    TextFile,
    entry_bytes,
)
from keyhole.system import syscalls
from keyhole.system.walk import open_beneath_no_links

if TYPE_CHECKING:
    from keyhole.sandbox.launch import ReviewView

STAGE = "/tmp"  # noqa: S108 - covered by a tmpfs in a mount namespace of the helper's own


GATHERED = f"{STAGE}/together"
"""The directory in which the files of /etc are collected, under their own names."""


def stage(
    entries: tuple[Entry, ...],
    owner_map: int | None,
    owner: KeptOwner | None = None,
    views: tuple[ReviewView, ...] = (),
) -> dict[int, str]:
    """Mount every source. Returns the paths to bind them from, by the entry's number.

    `owner` is the sandbox's user, where this process is another one.
    """
    _fill_kept_trees(entries, owner)
    binds = {i: e for i, e in enumerate(entries) if isinstance(e, Bind)}
    viewed = {i: view for i, e in binds.items() if (view := _view_of(e.source, views)) is not None}
    trees = {
        i: _clone(e, owner_map)
        for i, e in enumerate(entries)
        if isinstance(e, Bind | KeptTree) and i not in viewed
    }
    layers = [_open_layer(view, owner_map) for view in views]
    syscalls.make_mounts_private()
    syscalls.mount_tmpfs(STAGE)
    before = os.umask(0o022)  # directories that we make are for the sandbox's user to read
    try:
        merged = {
            view.tree: _mount_view(number, *opened)
            for number, (view, opened) in enumerate(zip(views, layers, strict=True))
        }
        # Whatever lies in a reviewed tree is bound from its view, never from the tree itself.
        trees |= {i: _clone_inside(binds[i], v, merged[v.tree]) for i, v in viewed.items()}
        return _filled(entries, trees)
    finally:
        os.umask(before)


def _view_of(source: str, views: tuple[ReviewView, ...]) -> ReviewView | None:
    return next((v for v in views if source == v.tree or source.startswith(f"{v.tree}/")), None)


def _open_layer(view: ReviewView, owner_map: int | None) -> tuple[int, int]:
    """The tree and its layer, each as a detached mount."""
    if not view.layer:
        raise RuntimeError(f"the changes of {view.tree} are to be reviewed, and have no layer")
    lower = _clone(Bind(view.tree, view.tree, MountKind.DIR, writable=True), owner_map)
    layer = _clone(Bind(view.layer, view.layer, MountKind.DIR), None)
    return lower, layer


def _mount_view(number: int, lower: int, layer: int) -> str:
    places = [f"{STAGE}/view{number}.{part}" for part in ("lower", "layer", "merged")]
    for place in places:
        os.mkdir(place, 0o755)
    for tree, place in ((lower, places[0]), (layer, places[1])):
        syscalls.attach_tree(tree, place)
        os.close(tree)
    try:
        syscalls.mount_overlay(places[2], places[0], places[1])
    except OSError as error:
        raise RuntimeError(
            f'no view can be made for sandbox.changes = "review" ({error.strerror}): it needs '
            "overlayfs in a user namespace (Linux 5.11), a state directory on a file system with "
            "extended attributes, and no other file system mounted in the project"
        ) from None
    return places[2]


def _clone_inside(bind: Bind, view: ReviewView, merged: str) -> int:
    top = os.open(merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = bind.source.removeprefix(view.tree) or "/"
        descriptor = open_beneath_no_links(path, dir_fd=top)
    finally:
        os.close(top)
    try:
        return syscalls.clone_tree(descriptor)
    finally:
        os.close(descriptor)


def _filled(entries: tuple[Entry, ...], trees: dict[int, int]) -> dict[int, str]:
    staged = {}
    bound: dict[str, str] = {}
    together = gathered_entries(entries)
    kept = kept_entries(entries)
    for index, entry in enumerate(entries):
        place = f"{STAGE}/{index}"
        if index in kept:
            outer = entries[kept[index]].target
            where = f"{STAGE}/{kept[index]}", entry.target.removeprefix(outer)
            if not _attach_kept(entry, trees.get(index), place, *where):
                staged[index] = place
            continue
        if isinstance(entry, KeptTree):
            _make(place, MountKind.DIR)
            syscalls.attach_tree(trees[index], place)
            os.close(trees[index])
            staged[index] = place
            continue
        if isinstance(entry, Bind):
            place = _place_together(entry.target) if index in together else place
            _make(place, entry.kind)
            syscalls.attach_tree(trees[index], place)
            os.close(trees[index])
            staged[index] = bound[entry.target] = place
            continue
        elif isinstance(entry, Mask | TextFile | BinaryFile):
            _make_source(entry, place)
            if isinstance(entry, TextFile) and cover_by_link(entry, f"{place}.link", bound):
                continue
        elif isinstance(entry, Symlink) and index in together:
            os.symlink(entry.to, _place_together(entry.target))
            continue
        else:
            continue
        staged[index] = _mounted_together(entry, place) if index in together else place
    return staged


def _fill_kept_trees(entries: tuple[Entry, ...], owner: KeptOwner | None) -> None:
    """Make mount points, files and links in the kept trees: on the host's own mounts, because an
    idmapped one has no owner for files that this process makes."""
    for index in kept_entries(entries):
        holder = holding_tree(index, entries)
        if holder is None:
            continue
        tree, entry = entries[holder], entries[index]
        if not isinstance(tree, KeptTree):
            raise RuntimeError(f"{tree.target} is not a kept tree")
        root = open_beneath_no_links(tree.source)
        try:
            _make_in(KeptDirectory(root, owner), entry, entry.target[len(tree.target) + 1 :])
        finally:
            os.close(root)


def _make_in(tree: KeptDirectory, entry: Entry, path: str) -> None:
    if isinstance(entry, SeedFile):
        tree.write_file(path, entry_bytes(entry), entry.mode)
    elif isinstance(entry, Symlink):
        tree.make_link(path, entry.to)
    elif isinstance(entry, KeptTree) or getattr(entry, "kind", None) is MountKind.DIR:
        tree.make_directory(path)
    else:
        tree.make_mount_point(path)


def _attach_kept(entry: Entry, tree: int | None, made: str, root: str, path: str) -> bool:
    """Mount an entry below a kept tree that is staged at `root`; `made` is a free place. Returns
    whether a link to the sandbox's copy covers it."""
    if isinstance(entry, SeedFile | Symlink):
        return False  # a file of the tree, not a mount
    if tree is None:
        if not isinstance(entry, Mask | TextFile | BinaryFile):
            raise RuntimeError(f"{entry.target} cannot be mounted in a kept tree")
        if isinstance(entry, TextFile) and entry.own_copy:
            os.symlink(entry.own_copy, f"{made}.link")
            with contextlib.suppress(OSError):  # this system does not mount links
                _attach_below(_cloned(f"{made}.link"), root, path)
                return True
        _make_source(entry, made)
        tree = _cloned(made)
    is_writable = isinstance(entry, KeptTree) or (isinstance(entry, Bind) and entry.writable)
    # Bubblewrap would set these by path, and another run could put a link there meanwhile.
    syscalls.restrict_tree(tree, read_only=not is_writable)
    _attach_below(tree, root, path)
    return False


def _cloned(place: str) -> int:
    descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return syscalls.clone_tree(descriptor)
    finally:
        os.close(descriptor)


def _attach_below(tree: int, root: str, path: str) -> None:
    """Mount a detached tree, and close it. No link is followed on the way."""
    top = os.open(root, os.O_PATH | os.O_CLOEXEC)
    try:
        point = open_beneath_no_links(path, dir_fd=top)
        try:
            syscalls.attach_tree_at(tree, point)
        finally:
            os.close(point)
    finally:
        os.close(top)
        os.close(tree)


def _make_source(entry: Mask | TextFile | BinaryFile, place: str) -> None:
    if isinstance(entry, Mask):
        _make(place, entry.kind)
        os.chmod(place, _HIDDEN_MODES[entry.kind])
        return
    _make(place, MountKind.FILE)
    with open(place, "wb") as file:
        file.write(entry_bytes(entry))
    os.chmod(place, entry.mode)


def linked_entries(entries: tuple[Entry, ...], staged: dict[int, str]) -> dict[int, SeedFile]:
    """The copies that the sandbox owns, instead of the files that a link covers; by number."""
    return {
        index: SeedFile(entry.own_copy, entry.content, _COPY_MODE)
        for index, entry in enumerate(entries)
        if isinstance(entry, TextFile) and entry.own_copy and index not in staged
    }


def cover_by_link(entry: TextFile, link: str, bound: dict[str, str]) -> bool:
    """Cover the file by a link to the sandbox's copy, in the staged directory that holds it.

    Bubblewrap cannot mount a link, but binds what is mounted in a directory along with it. False:
    this system does not mount links, and the file stays read-only.
    """
    directory, _, name = entry.target.rpartition("/")
    if not entry.own_copy or directory not in bound:
        return False
    os.symlink(entry.own_copy, link)
    try:
        tree = _cloned(link)
        try:
            # The last component is not followed, should it have become a link by now.
            syscalls.attach_tree(tree, f"{bound[directory]}/{name}")
        finally:
            os.close(tree)
    except OSError:
        return False
    return True


def _place_together(target: str) -> str:
    place = f"{GATHERED}{target}"
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    return place


def _mounted_together(entry: Mask | TextFile | BinaryFile, made: str) -> str:
    place = _place_together(entry.target)
    _make(place, entry.kind if isinstance(entry, Mask) else MountKind.FILE)
    descriptor = os.open(made, os.O_PATH | os.O_CLOEXEC)
    tree = syscalls.clone_tree(descriptor)
    syscalls.attach_tree(tree, place)
    os.close(tree)
    os.close(descriptor)
    return place


_COPY_MODE = 0o644
_HIDDEN_MODES = {MountKind.FILE: 0o444, MountKind.DIR: 0o555}


def _clone(entry: Bind | KeptTree, owner_map: int | None) -> int:
    descriptor = open_beneath_no_links(entry.source)
    try:
        tree = syscalls.clone_tree(descriptor)
    finally:
        os.close(descriptor)
    if owner_map is not None and (isinstance(entry, KeptTree) or entry.writable):
        syscalls.map_owner(tree, owner_map)
    return tree


def _make(place: str, kind: MountKind) -> None:
    if kind is MountKind.DIR:
        os.mkdir(place, 0o755)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
