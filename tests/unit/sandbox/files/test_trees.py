"""Which trees a policy may name (I1, I11)."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files.mount_plan import Bind, MountKind, Tmpfs
from tests.rigs.sandbox.worlds import World, a_sandbox, binds, masks


def refusal(world: World, **sandbox: tuple[str, ...]) -> str:
    with pytest.raises(Refused) as caught:
        world.plan(a_sandbox(**sandbox))  # type: ignore[arg-type]
    return str(caught.value)


def test_the_project_is_writable_on_top_of_an_empty_home(world: World) -> None:
    entries = world.plan().entries
    home = next(e for e in entries if isinstance(e, Tmpfs) and e.target == str(world.home))
    project = Bind(str(world.project), str(world.project), MountKind.DIR, writable=True)
    assert entries.index(home) < entries.index(project)


def test_paths_start_at_the_policy_or_at_the_home(world: World) -> None:
    (world.home / "data").mkdir()
    world.write("../beside/f")
    plan = world.plan(a_sandbox(readable=("~/data", "../beside")))
    shown = {str(world.home / "data"), str(world.home / "beside")}
    assert shown <= binds(plan, writable=False)


@pytest.mark.parametrize(
    "path",
    ["/", "~", "..", "/etc", "/usr", "/proc", "/sys", "/dev", "/run", "/var", "/home", "/tmp",  # noqa: S108
     "/proc/self", "/run/user/1000", "/sys/class/net", "/dev/kvm", "/boot/grub", "~/.."],
)  # fmt: skip
@pytest.mark.parametrize("key", ["writable", "readable"])
def test_the_systems_places_and_the_home_are_never_given(world: World, path: str, key: str) -> None:
    reason = refusal(world, **{"unsafe_paths": (path,), key: (path,)})
    assert path in reason
    assert "cannot be given" in reason


def test_what_the_host_executes_is_readable_but_not_writable(world: World) -> None:
    path = "/usr/share/zoneinfo"
    assert "executes" in refusal(world, writable=(path,))
    assert path in binds(world.plan(a_sandbox(readable=(path,))), writable=False)


def test_a_shells_startup_files_cannot_be_writable(world: World) -> None:
    (world.home / ".config/fish").mkdir(parents=True)
    (world.home / ".config/tool").mkdir()
    assert "executes" in refusal(world, writable=("~/.config",))
    assert "executes" in refusal(world, writable=("~/.config/fish",))
    assert str(world.home / ".config/tool") in binds(
        world.plan(a_sandbox(writable=("~/.config/tool",))), writable=True
    )


def test_the_systems_own_credentials_are_refused(world: World) -> None:
    of_root = f"{pwd.getpwuid(0).pw_dir}/.ssh"
    for path in ("/etc/shadow", "/etc/ssh", "/etc/ssl/private/x.key", of_root):
        assert "unsafe_paths" in refusal(world, readable=(path,))


def test_the_home_of_another_is_known_by_its_place(world: World) -> None:
    assert "home directory itself" in refusal(world, readable=("/home/somebody",))
    assert "unsafe_paths" in refusal(world, readable=("/home/somebody/.ssh",))


def test_a_tree_that_is_not_there_is_refused_with_what_to_do(world: World) -> None:
    assert "create it or remove it" in refusal(world, readable=("gone",))


def test_a_tree_cannot_be_readable_and_writable_at_once(world: World) -> None:
    assert "both" in refusal(world, writable=(".",), readable=(".",))


def test_a_path_through_a_link_is_refused_and_the_real_one_named(world: World) -> None:
    real = world.write("../real/sub/f").parent
    (world.home / "link").symlink_to("real")
    reason = refusal(world, readable=("~/link/sub",))
    assert str(world.home / "link") in reason
    assert f"write {real.resolve()} instead" in reason
    assert str(real.resolve()) in binds(
        world.plan(a_sandbox(readable=("~/real/sub",))), writable=False
    )


@pytest.mark.parametrize(
    "name",
    [".ssh", ".aws", ".config/gh", ".gnupg", ".kube", ".mozilla", ".local/share/keyrings",
     ".password-store", ".config/google-chrome", ".config/github-copilot"],
)  # fmt: skip
def test_a_dangerous_directory_is_refused_unless_listed_by_itself(world: World, name: str) -> None:
    world.write(f"../{name}/inner/file")
    for path in (f"~/{name}", f"~/{name}/inner"):
        assert "unsafe_paths" in refusal(world, readable=(path,))
        assert "unsafe_paths" in refusal(world, readable=(path,), unsafe_paths=("~",))
        plan = world.plan(a_sandbox(readable=(path,), unsafe_paths=(path,)))
        assert str(world.home / path[2:]) in binds(plan, writable=False)


@pytest.mark.parametrize("name", [".netrc", ".git-credentials", ".claude/.credentials.json"])
def test_a_dangerous_file_is_refused_unless_listed(world: World, name: str) -> None:
    world.write(f"../{name}")
    assert "unsafe_paths" in refusal(world, readable=(f"~/{name}",))
    plan = world.plan(a_sandbox(readable=(f"~/{name}",), unsafe_paths=(f"~/{name}",)))
    assert str(world.home / name) in binds(plan, writable=False)


def test_a_dangerous_path_behind_a_link_is_known_by_where_it_leads(world: World) -> None:
    world.write("../dotfiles/aws/credentials")
    (world.home / ".aws").symlink_to("dotfiles/aws")
    assert "credentials" in refusal(world, readable=("~/dotfiles/aws",))
    plan = world.plan(a_sandbox(readable=("~/dotfiles",)))
    assert masks(plan, world.home) == {"dotfiles/aws"}


def test_a_dangerous_path_inside_a_tree_is_masked_and_named(world: World) -> None:
    world.write("../.config/gh/hosts.yml")
    world.write("../.config/tool/settings")
    plan = world.plan(a_sandbox(readable=("~/.config",)))
    assert masks(plan, world.home) == {".config/gh"}
    assert any(str(world.home / ".config/gh") in line for line in plan.notices)
    lifted = world.plan(a_sandbox(readable=("~/.config",), unsafe_paths=("~/.config/gh",)))
    assert masks(lifted, world.home) == set()


def test_a_tree_inside_a_masked_directory_does_not_open_it(world: World) -> None:
    world.write("../.config/gh/cache/f")
    inner = "~/.config/gh/cache"
    assert "masked" in refusal(world, readable=("~/.config", inner), unsafe_paths=(inner,))


def test_a_secret_of_the_policy_is_masked_where_it_lies_in_the_project(world: World) -> None:
    secret = world.write("deploy/billing")
    plan = world.plan(secrets=(secret,))
    assert masks(plan, world.project) == {"deploy/billing"}
    assert masks(world.plan(), world.project) == set()


def test_keyholes_own_directories_are_never_writable(world: World) -> None:
    world.state.mkdir(parents=True)
    for path in ("~/.local/state", "~/.local/state/keyhole"):
        assert "Keyhole" in refusal(world, writable=(path,), unsafe_paths=(path,))
    # Nor may it be put there first, when there is none yet.
    world.state.rmdir()
    assert "Keyhole" in refusal(world, writable=("~/.local/state",))


def test_keyholes_own_directories_are_not_read_either(world: World) -> None:
    world.state.mkdir(parents=True)
    assert "Keyhole" in refusal(world, readable=("~/.local/state/keyhole",))
    plan = world.plan(a_sandbox(readable=("~/.local/state",)))
    assert masks(plan, world.home) == {".local/state/keyhole"}


def test_a_container_engines_socket_is_refused_unless_listed(world: World, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))
    assert "root on this host" in refusal(world, readable=(str(path),))
    plan = world.plan(a_sandbox(readable=(str(path),), unsafe_paths=(str(path),)))
    assert Bind(str(path), str(path), MountKind.FILE) in plan.entries
    assert "root on this host" in refusal(world, writable=("/var/run/docker.sock",))


def test_any_other_socket_is_refused_by_its_kind(world: World) -> None:
    os.mkfifo(world.home / "pipe")
    assert "pipe of the host" in refusal(world, readable=("~/pipe",))


def test_a_home_that_is_the_root_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="HOME"):
        world.plan(home=Path("/"))
