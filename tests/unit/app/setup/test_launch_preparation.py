"""What a command finds inside, by the mounts that are planned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.setup.launch_preparation import MAX_LABEL, SHELL, label_of, shell_inside
from keyhole.sandbox.files.mount_plan import Bind, MountKind

if TYPE_CHECKING:
    from pathlib import Path


def test_the_shell_is_the_persons_own_where_it_exists_inside(tmp_path: Path) -> None:
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for directory in (shown, hidden):
        directory.mkdir()
        (directory / "zsh").touch(mode=0o755)
    (shown / "link").symlink_to(hidden / "zsh")
    (shown / "inner").symlink_to("zsh")
    entries = (Bind(str(shown), "/opt/shells", MountKind.DIR),)
    found = {
        name: shell_inside(f"/opt/shells/{name}", entries)
        for name in ("zsh", "inner", "link", "none", "")
    }
    assert found == {
        "zsh": "/opt/shells/zsh",
        "inner": "/opt/shells/inner",
        "link": SHELL,
        "none": SHELL,
        "": SHELL,
    }


@pytest.mark.parametrize("own", ["", "zsh", "/opt/z\nsh"])
def test_a_shell_that_is_no_path_is_not_taken(own: str) -> None:
    assert shell_inside(own, ()) == SHELL


@pytest.mark.parametrize(
    ("name", "program", "label"),
    [
        ("", "/usr/bin/make", "make"),
        ("", "/", "/"),
        ("", "m\nake", "m?ake"),
        ("box", "/bin/sh", "box"),
        ("team/agent", "pod", "team/agent"),
        ("other/agent", "pod", "other/agent"),
    ],
)
def test_a_label_is_a_name_with_its_namespace_or_a_program(
    name: str, program: str, label: str
) -> None:
    intent: Any = SimpleNamespace(name=name, command=(program, "--secret"))
    assert label_of(intent) == label


def test_a_long_label_keeps_its_beginning_and_its_end() -> None:
    intent: Any = SimpleNamespace(name=f"team/{'x' * 80}-4f7b9", command=("pod",))
    label = label_of(intent)
    assert len(label) == MAX_LABEL
    assert label.startswith("team/")
    assert label.endswith("-4f7b9")
