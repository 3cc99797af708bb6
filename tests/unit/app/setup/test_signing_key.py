"""The keyring of the host's gpg is nothing that a sandbox can steer (I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.signing_key import KEYRING_FILES, refuse_writable_keyring
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a keyring, and a project that the sandbox can write."""
    (tmp_path / "home/.gnupg").mkdir(parents=True)
    (tmp_path / "home/dotfiles").mkdir()
    return tmp_path / "home"


def refuse(home: Path, **env: str) -> None:
    refuse_writable_keyring(env, home, [home / "dotfiles"])


@pytest.mark.parametrize("name", KEYRING_FILES)
def test_a_file_of_the_keyring_that_leads_to_the_project_is_refused(home: Path, name: str) -> None:
    """Attack: the project is a person's dotfiles. Controls: a plain file, and a link elsewhere."""
    file = home / ".gnupg" / name
    refuse(home)
    file.touch()
    refuse(home)
    file.unlink()
    (home / "elsewhere").touch()
    file.symlink_to(home / "elsewhere")
    refuse(home)
    file.unlink()
    file.symlink_to(home / "dotfiles" / name)
    with pytest.raises(Refused, match=f"{name} in the directory of gpg .* can write"):
        refuse(home)
    (home / "dotfiles" / name).touch()
    with pytest.raises(Refused, match="can write"):
        refuse(home)


def test_the_directory_of_gpg_may_be_named_by_the_environment(home: Path) -> None:
    """Control: the usual one is not where the sandbox can write."""
    refuse(home)
    with pytest.raises(Refused, match=r"the directory of gpg of sandbox\.sign is where"):
        refuse(home, GNUPGHOME=str(home / "dotfiles/keys"))
