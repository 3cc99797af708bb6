"""What is put together before bubblewrap sees it, and what is not."""

from __future__ import annotations

from keyhole.sandbox.bwrap.gathered_entries import gathered_entries
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind, Symlink, TextFile, Tmpfs


def test_what_is_read_only_below_etc_is_put_together() -> None:
    plan = (
        Bind("/usr", "/usr", MountKind.DIR),
        Bind("/etc/fonts", "/etc/fonts", MountKind.DIR),
        Symlink("/etc/localtime", "/usr/share/zoneinfo/UTC"),
        TextFile("/etc/passwd", ""),
        Mask("/etc/apt/auth.conf", MountKind.FILE),
        Tmpfs("/etc/scratch", 1),
        Bind("/etcetera", "/etcetera", MountKind.DIR),
    )
    assert gathered_entries(plan) == {1, 2, 3, 4}


def test_what_can_be_written_is_not() -> None:
    assert (
        gathered_entries((Bind("/etc/own", "/etc/own", MountKind.DIR, writable=True),))
        == frozenset()
    )


def test_nothing_is_made_in_a_directory_of_the_host() -> None:
    """I11: a place for what covers a file in a bound directory would be made in the host's own."""
    plan = (
        Bind("/etc/ssl/certs", "/etc/ssl/certs", MountKind.DIR),
        TextFile("/etc/ssl/certs/ca-certificates.crt", "roots"),
        Bind("/etc/profile", "/etc/profile", MountKind.FILE),
        TextFile("/etc/profile", "covers it"),
    )
    assert gathered_entries(plan) == {0, 2}


def test_a_plan_without_etc_has_nothing_to_put_together() -> None:
    assert gathered_entries((Bind("/usr", "/usr", MountKind.DIR),)) == frozenset()
