"""Where a policy's volumes may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.sandbox.files.generated_files import ImageAccounts
from keyhole.sandbox.files.mount_plan import SeedFile, TextFile, Volume
from keyhole.sandbox.files.volumes import refuse_below_shared
from tests.rigs.sandbox.worlds import a_sandbox, a_world

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.files.mount_plan import MountPlan

_IMAGE = ImageAccounts("root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n")

PROJECT = "~/work"


def planned(top: Path, **places: str) -> MountPlan:
    volumes = tuple((place, name) for name, place in places.items())
    return a_world(top).plan(replace(a_sandbox(), volumes=volumes), image=_IMAGE)


def test_volumes_are_a_users_own_and_lie_beside_the_project(tmp_path: Path) -> None:
    plan = planned(tmp_path, cache="/cache", crates="~/.cargo/registry")
    assert [entry for entry in plan.entries if isinstance(entry, Volume)] == [
        Volume("/cache", "keyhole-1000-cache", shared=True),
        Volume(f"{tmp_path}/home/.cargo/registry", "keyhole-1000-crates", shared=True),
    ]


@pytest.mark.parametrize(
    "place",
    [
        "/etc/keyhole", "/etc", "/.keyhole/own", "/proc/1", "/dev/x", "/usr/bin", "/usr",
        "~/.ssh", "~/.bashrc", "~/.local/state/keyhole", PROJECT, f"{PROJECT}/sub",
        "/run/docker.sock",
    ],
)  # fmt: skip
def test_no_volume_is_where_something_of_ours_or_of_the_hosts_is(
    tmp_path: Path, place: str
) -> None:
    """I1, I11: the rules of paths, and what is mounted. Control: the test above."""
    with pytest.raises(Refused):
        planned(tmp_path, x=place)


def test_nothing_is_mounted_in_a_volume_that_another_sandbox_may_have(tmp_path: Path) -> None:
    """I11: who has it meanwhile could lead the engine elsewhere. Control: in a home of one's own,
    which nobody else has; and what is written inside is no mount."""
    with pytest.raises(Refused, match="would be mounted in the volume"):
        planned(tmp_path, a="/cache", b="/cache/sub")
    shared, own = Volume("/h/.config", "keyhole-1-x", shared=True), Volume("/h", "keyhole-home-x")
    settings = TextFile("/h/.config/pip/pip.conf", "")
    with pytest.raises(Refused):
        refuse_below_shared([own, shared, settings])
    refuse_below_shared([own, settings])
    refuse_below_shared([own, shared, SeedFile("/h/.config/x", "")])


def test_volumes_are_for_containers(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="for docker and podman"):
        a_world(tmp_path).plan(replace(a_sandbox(), volumes=(("/cache", "x"),)))
