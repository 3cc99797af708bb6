"""Where a path leads inside: the plan's links and the host's, as the sandbox would follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.inside_path import resolve_inside
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind, Symlink, TextFile, Tmpfs
from keyhole.system.symlinks import MAX_LINKS

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.files.mount_plan import Entry


def leads(path: str, *entries: Entry) -> tuple[str, bool, bool]:
    place = resolve_inside(path, entries)
    assert place is not None
    return place.path, place.is_file, place.is_free


def test_a_file_in_a_bound_tree_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("x")
    (tmp_path / "deep").mkdir()
    bind = Bind(str(tmp_path), "/etc/certs", MountKind.DIR)
    assert leads("/etc/certs/a.pem", bind) == ("/etc/certs/a.pem", True, False)
    assert leads("/etc/certs/deep", bind) == ("/etc/certs/deep", False, False)
    assert leads("/etc/certs/none.pem", bind) == ("/etc/certs/none.pem", False, False)


def test_a_file_that_is_bound_alone_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("x")
    bind = Bind(str(tmp_path / "a.pem"), "/etc/cert.pem", MountKind.FILE)
    assert leads("/etc/cert.pem", bind) == ("/etc/cert.pem", True, False)


def test_links_of_the_host_and_of_the_plan_are_followed_inside(tmp_path: Path) -> None:
    """An absolute link means what lies there inside, whatever lies there on the host."""
    (tmp_path / "ssl").mkdir()
    (tmp_path / "jvm").mkdir()
    (tmp_path / "ssl/real").write_text("x")
    (tmp_path / "ssl/near").symlink_to("./real")
    (tmp_path / "jvm/cacerts").symlink_to("/etc/ssl/../ssl/near")
    plan = (
        Bind(str(tmp_path / "ssl"), "/etc/ssl", MountKind.DIR),
        Bind(str(tmp_path / "jvm"), "/usr/jvm", MountKind.DIR),
        Symlink("/lib", "usr"),
    )
    assert leads("/lib/jvm/cacerts", *plan) == ("/etc/ssl/real", True, False)


def test_what_is_mounted_last_decides(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    bind = Bind(str(tmp_path), "/home/me", MountKind.DIR)
    assert leads("/home/me/a", bind, Mask("/home/me/a", MountKind.FILE)) == (
        "/home/me/a",
        False,
        False,
    )
    assert leads("/home/me/a", bind, TextFile("/home/me/a", "y")) == ("/home/me/a", False, False)
    assert leads("/home/me/a", bind, Tmpfs("/home", 1)) == ("/home/me/a", False, False)
    assert leads("/home/me/a", Tmpfs("/home", 1), bind) == ("/home/me/a", True, False)


def test_where_nothing_is_planned_is_free() -> None:
    assert leads("/etc/new/file") == ("/etc/new/file", False, True)
    assert leads("/") == ("/", False, True)
    assert leads("/../etc/./x") == ("/etc/x", False, True)


def test_a_link_that_leads_out_of_what_is_shown_leads_to_a_free_place(tmp_path: Path) -> None:
    (tmp_path / "bundle.pem").symlink_to("/var/lib/certs/bundle.pem")
    bind = Bind(str(tmp_path), "/etc/ssl", MountKind.DIR)
    assert leads("/etc/ssl/bundle.pem", bind) == ("/var/lib/certs/bundle.pem", False, True)


def test_a_circle_leads_nowhere(tmp_path: Path) -> None:
    """I9. Control: as many links as the kernel follows."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    bind = Bind(str(tmp_path), "/etc", MountKind.DIR)
    assert resolve_inside("/etc/a", (bind,)) is None
    (tmp_path / f"{MAX_LINKS}").write_text("x")
    for number in range(MAX_LINKS):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    assert leads("/etc/0", bind) == (f"/etc/{MAX_LINKS}", True, False)
