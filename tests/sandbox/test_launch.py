"""What is started crosses to the helper as JSON, and what of it is watched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox import bwrap, enter
from keyhole.sandbox.files.fileplan import (
    Bind,
    Blob,
    Kind,
    Mask,
    Seed,
    Symlink,
    Text,
    Tmpfs,
    guarding,
    mounted,
)
from keyhole.sandbox.launch import FIRST_SEED_DESCRIPTOR, MAX_SEEDS, Bounds, Launch

if TYPE_CHECKING:
    from keyhole.sandbox.files.fileplan import Entry

ONE_OF_EACH: tuple[Entry, ...] = (
    Bind("/usr", "/usr", Kind.DIR),
    Mask("/usr/etc/npmrc", Kind.FILE),
    Tmpfs("/home/me", 1 << 20, 0o700),
    Seed("/home/me/a", "first"),
    Text("/etc/passwd", "x\u00e9\n"),
    Text("/etc/ssl/bundle.pem", "y", guards=False),
    Blob("/etc/ssl/cacerts", bytes(range(256))),
    Symlink("/bin", "usr/bin"),
    Seed("/home/me/b", "second", 0o644),
)


def launch(files: tuple[Entry, ...] = ONE_OF_EACH) -> Launch:
    return Launch(("true",), "/", {"A": "b"}, files, Bounds(1, 2), 3, 4, "bwrap", "nft", "python")


def test_a_launch_comes_out_as_it_went_in() -> None:
    """Bytes too, which JSON does not know."""
    assert Launch.from_json(launch().to_json()) == launch()


def test_what_is_no_mount_is_not_looked_for_among_the_mounts() -> None:
    assert set(mounted(ONE_OF_EACH)) == {
        "/usr", "/usr/etc/npmrc", "/home/me", "/etc/passwd", "/etc/ssl/bundle.pem",
        "/etc/ssl/cacerts",
    }  # fmt: skip


def test_a_cover_that_hides_nothing_may_be_lost() -> None:
    """When the host's roots are updated, a run goes on. Control: a mask ends it (I1)."""
    left = set(mounted(ONE_OF_EACH)) - set(guarding(ONE_OF_EACH))
    assert left == {"/etc/ssl/bundle.pem", "/etc/ssl/cacerts"}


def test_each_seed_is_copied_from_a_descriptor_of_its_own() -> None:
    words = bwrap.words(launch(), {n: f"/stage/{n}" for n in range(len(ONE_OF_EACH))})
    pairs = {words[i + 2]: words[i - 1 : i + 2] for i, w in enumerate(words) if w == "--file"}
    assert pairs == {
        "/home/me/a": ["600", "--file", str(FIRST_SEED_DESCRIPTOR)],
        "/home/me/b": ["644", "--file", str(FIRST_SEED_DESCRIPTOR + 1)],
    }
    contents = enter.seed_contents(launch())
    assert contents == {FIRST_SEED_DESCRIPTOR: b"first", FIRST_SEED_DESCRIPTOR + 1: b"second"}


def test_seeds_are_bounded() -> None:
    """I9: their descriptors must not reach those that are moved out of their way."""
    most = tuple(Seed(f"/home/me/{n}", "x") for n in range(MAX_SEEDS))
    assert len(enter.seed_contents(launch(most))) == MAX_SEEDS
    with pytest.raises(RuntimeError, match="over 32"):
        enter.seed_contents(dataclasses.replace(launch(), files=(*most, Seed("/home/me/x", "x"))))
