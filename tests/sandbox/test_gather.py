"""What is put together before bubblewrap sees it, and what is not."""

from __future__ import annotations

from keyhole.sandbox.files.fileplan import Bind, Kind, Mask, Symlink, Text, Tmpfs
from keyhole.sandbox.gather import gathered


def test_what_is_read_only_below_etc_is_put_together() -> None:
    plan = (
        Bind("/usr", "/usr", Kind.DIR),
        Bind("/etc/fonts", "/etc/fonts", Kind.DIR),
        Symlink("/etc/localtime", "/usr/share/zoneinfo/UTC"),
        Text("/etc/passwd", ""),
        Mask("/etc/apt/auth.conf", Kind.FILE),
        Tmpfs("/etc/scratch", 1),
        Bind("/etcetera", "/etcetera", Kind.DIR),
    )
    assert gathered(plan) == {1, 2, 3, 4}


def test_what_can_be_written_is_not() -> None:
    assert gathered((Bind("/etc/own", "/etc/own", Kind.DIR, writable=True),)) == frozenset()


def test_nothing_is_made_in_a_directory_of_the_host() -> None:
    """I11: a place for what covers a file in a bound directory would be made in the host's own."""
    plan = (
        Bind("/etc/ssl/certs", "/etc/ssl/certs", Kind.DIR),
        Text("/etc/ssl/certs/ca-certificates.crt", "roots"),
        Bind("/etc/profile", "/etc/profile", Kind.FILE),
        Text("/etc/profile", "covers it"),
    )
    assert gathered(plan) == {0, 2}


def test_a_plan_without_etc_has_nothing_to_put_together() -> None:
    assert gathered((Bind("/usr", "/usr", Kind.DIR),)) == frozenset()
