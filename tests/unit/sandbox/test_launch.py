"""What is started crosses to the helper as JSON, and what of it is watched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyhole.sandbox.bwrap import arguments as bwrap
from keyhole.sandbox.bwrap import helper_main
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Mask,
    MountKind,
    SeedFile,
    Symlink,
    TextFile,
    Tmpfs,
    entry_bytes,
    guarding_targets,
    mount_targets,
)
from keyhole.sandbox.launch import FIRST_SEED_DESCRIPTOR, MAX_SEEDS, Launch, ResourceLimits

if TYPE_CHECKING:
    from keyhole.sandbox.files.mount_plan import Entry

ONE_OF_EACH: tuple[Entry, ...] = (
    Bind("/usr", "/usr", MountKind.DIR),
    Mask("/usr/etc/npmrc", MountKind.FILE),
    Tmpfs("/home/me", 1 << 20, 0o700),
    SeedFile("/home/me/a", "first"),
    TextFile("/etc/passwd", "x\u00e9\n"),
    TextFile("/etc/ssl/bundle.pem", "y", guards=False),
    BinaryFile("/etc/ssl/cacerts", bytes(range(256))),
    Symlink("/bin", "usr/bin"),
    SeedFile("/home/me/b", "second", 0o644),
)


def launch(files: tuple[Entry, ...] = ONE_OF_EACH) -> Launch:
    return Launch(
        ("true",), "/", {"A": "b"}, files, ResourceLimits(1, 2), 3, 4, "bwrap", "nft", "python"
    )


def test_a_path_that_is_not_utf8_keeps_its_bytes() -> None:
    """Attack: a project with such a directory, whose files are covered."""
    path = os.fsdecode(b"/p/\xff")
    entries = (Bind(path, path, MountKind.DIR), SeedFile("/home/me/a", path))
    crossed = Launch.from_json(launch(entries).to_json())
    assert crossed.files == entries
    assert list(helper_main.seed_contents(crossed).values()) == [b"/p/\xff"]
    assert entry_bytes(TextFile("/a", path)) == entry_bytes(BinaryFile("/a", b"/p/\xff"))


def test_a_launch_comes_out_as_it_went_in() -> None:
    """Bytes too, which JSON does not know."""
    assert Launch.from_json(launch().to_json()) == launch()


def test_what_is_no_mount_is_not_looked_for_among_the_mounts() -> None:
    assert set(mount_targets(ONE_OF_EACH)) == {
        "/usr", "/usr/etc/npmrc", "/home/me", "/etc/passwd", "/etc/ssl/bundle.pem",
        "/etc/ssl/cacerts",
    }  # fmt: skip


def test_a_cover_that_hides_nothing_may_be_lost() -> None:
    """When the host's roots are updated, a run goes on. Control: a mask ends it (I1)."""
    left = set(mount_targets(ONE_OF_EACH)) - set(guarding_targets(ONE_OF_EACH))
    assert left == {"/etc/ssl/bundle.pem", "/etc/ssl/cacerts"}


def test_each_seed_is_copied_from_a_descriptor_of_its_own() -> None:
    words = bwrap.bwrap_arguments(launch(), {n: f"/stage/{n}" for n in range(len(ONE_OF_EACH))})
    pairs = {words[i + 2]: words[i - 1 : i + 2] for i, w in enumerate(words) if w == "--file"}
    assert pairs == {
        "/home/me/a": ["600", "--file", str(FIRST_SEED_DESCRIPTOR)],
        "/home/me/b": ["644", "--file", str(FIRST_SEED_DESCRIPTOR + 1)],
    }
    contents = helper_main.seed_contents(launch())
    assert contents == {FIRST_SEED_DESCRIPTOR: b"first", FIRST_SEED_DESCRIPTOR + 1: b"second"}


def test_seeds_are_bounded() -> None:
    """I9: their descriptors must not reach those that are moved out of their way."""
    most = tuple(SeedFile(f"/home/me/{n}", "x") for n in range(MAX_SEEDS))
    assert len(helper_main.seed_contents(launch(most))) == MAX_SEEDS
    with pytest.raises(RuntimeError, match=f"over {MAX_SEEDS}"):
        helper_main.seed_contents(
            msgspec.structs.replace(launch(), files=(*most, SeedFile("/home/me/x", "x")))
        )
