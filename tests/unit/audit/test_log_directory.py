"""Where the log lies: no one else may have a hand in it (I8)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.audit.log import AuditLog
from keyhole.model.errors import ResourceUnusable
from tests.rigs.audit.writing import only_file, write

if TYPE_CHECKING:
    from pathlib import Path


def test_the_directory_and_its_files_are_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keyhole" / "audit"
    write(path, 1)
    assert path.stat().st_mode & 0o777 == 0o700
    assert only_file(path).stat().st_mode & 0o777 == 0o600


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    """I8; positive control: the directory that the link leads to is taken."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link = tmp_path / "audit"
    link.symlink_to(real)
    with pytest.raises(ResourceUnusable, match="is a link"):
        AuditLog(link)
    assert list(real.iterdir()) == []
    write(real, 1)


def test_a_link_to_nowhere_and_a_file_in_its_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(ResourceUnusable, match=r"no directory|not a directory"):
            AuditLog(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """I8; positive control: without their bit it is taken."""
    path = tmp_path / "audit"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ResourceUnusable, match="writable by others"):
        AuditLog(path)
    path.chmod(mode & 0o755)
    write(path, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_someone_else_is_refused(tmp_path: Path) -> None:
    """I8; positive control: given back, it is taken."""
    path = tmp_path / "audit"
    path.mkdir(mode=0o700)
    try:
        os.chown(path, 65534, 65534)
    except PermissionError:
        pytest.skip("root without CAP_CHOWN")
    with pytest.raises(ResourceUnusable, match="belongs to uid 65534"):
        AuditLog(path)
    os.chown(path, 0, 0)
    write(path, 1)
