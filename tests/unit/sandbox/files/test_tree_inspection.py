"""What is found and covered inside the bound trees (I1, I2)."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files import overlay, settings_files, tree_inspection
from keyhole.sandbox.files.mount_plan import Mask, MountKind
from keyhole.sandbox.files.tree_walk import WalkBudget
from tests.rigs.sandbox.worlds import PRIVATE_KEY, TOKEN, World, a_sandbox, binds, masks


def masked(world: World, **sandbox: tuple[str, ...]) -> set[str]:
    return masks(world.plan(a_sandbox(**sandbox)), world.project)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".env", "A=1"),
        ("app/.env.local", "A=1"),
        (".npmrc", "//registry.example/:_authToken=x"),
        (".yarnrc.yml", "npmAuthToken: x"),
        (".pypirc", "[pypi]"),
        (".netrc", "machine x"),
        (".git-credentials", "https://u:p@h"),
        ("tls/site.pem", PRIVATE_KEY),
        ("tls/SITE.KEY", PRIVATE_KEY),
        ("id_ed25519", PRIVATE_KEY),
        ("credentials.json", '{"private_key": "x"}'),
        (".docker/config.json", '{"auths": {"r": {"auth": "eDp5"}}}'),
        (".aws/credentials", "[default]"),
        (".kube/config", "users:\n- user:\n    token: x"),
        (".m2/settings.xml", "<settings><password>x</password></settings>"),
        (".envrc", "export API_TOKEN=x"),
        ("store.p12", "x"),
        (".codex/auth.json", "{}"),
    ],
)
def test_a_credential_file_is_masked_and_named_unless_listed(
    world: World, name: str, content: str
) -> None:
    world.write(name, content)
    plan = world.plan()
    assert masks(plan, world.project) == {name}
    assert any(str(world.project / name) in line for line in plan.notices)
    assert masked(world, unsafe_paths=(name,)) == set()
    assert masked(world, unsafe_paths=(".",)) == {name}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".env.example", "A=1"),
        (".env.sample", "A=1"),
        (".npmrc", "save-exact=true"),
        ("cert.pem", "-----BEGIN CERTIFICATE-----"),
        ("translations.key", "hello"),
        ("credentials.json", '{"type": "none"}'),
        (".docker/config.json", '{"auths": {}}'),
        (".envrc", "use nix"),
        ("terraform.tfstate", "{}"),
        ("node_modules/x/test/key.pem", PRIVATE_KEY),
    ],
)
def test_a_file_that_only_resembles_one_is_shown(world: World, name: str, content: str) -> None:
    world.write(name, content)
    assert masked(world) == set()


SETTINGS = [
    ".mcp.json", ".claude/settings.local.json", ".vscode/settings.json", "mise.toml", ".mise.toml",
    "infra/prod/eu/west/a/terraform.tfvars", ".codex/config.toml", "docker-compose.override.yml",
    "src/main/resources/a/b/application-prod.properties", "api/appsettings.Development.json",
    ".idea/httpRequests/x/http-client.private.env.json", "deploy/values.yaml", "app.ini", ".bashrc",
    "packages/web/config/local.json", ".continue/a/b/c/d/config.yaml",
]  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_token_in_a_settings_file_is_masked_and_named_unless_listed(
    world: World, name: str
) -> None:
    """I1. Control: the same file without the token, and with a reference to a variable."""
    world.write(name, '{"GITHUB_TOKEN": "${GITHUB_TOKEN}"}')
    assert masked(world) == set()
    world.write(name, f'{{"GITHUB_TOKEN": "{TOKEN}"}}')
    plan = world.plan()
    assert masks(plan, world.project) == {name}
    (notice,) = plan.notices
    assert notice.startswith("masked, a token is in it (what sandbox.unsafe_paths lists is shown)")
    assert str(world.project / name) in notice
    assert TOKEN not in notice
    assert masked(world, unsafe_paths=(name,)) == set()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "google-services.json",
            '{"current_key": "AIza' + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uX" + '"}',
        ),
        ("src/a/b/c/fixture.json", TOKEN),
        ("main.py", f"TOKEN = '{TOKEN}'"),
        (".mypy_cache/3.11/x.meta.json", TOKEN),
        ("node_modules/x/package.json", TOKEN),
        ("large.json", TOKEN + " " * (1 << 16)),
    ],
)
def test_a_token_in_what_is_no_settings_file_is_left_alone(
    world: World, name: str, content: str
) -> None:
    """The bounds of the rule, as docs/THREATS.md says them."""
    world.write(name, content)
    assert masked(world) == set()


def test_a_settings_file_behind_a_link_is_masked_where_it_lies(world: World) -> None:
    world.write("data/shared", f'{{"token": "{TOKEN}"}}')
    (world.project / ".mcp.json").symlink_to("data/shared")
    assert masked(world) == {"data/shared"}
    world.write("data/shared", "{}")
    assert masked(world) == set()


def test_an_address_with_a_password_in_a_reflog_stops_the_run(world: World) -> None:
    """I1: a mask would keep git from committing. Control: without it, and where it is listed."""
    entry = f"{'0' * 40} {'1' * 40} A <a@b.example> 1 +0000\tpull https://"
    world.write("x/.git/HEAD", "ref: refs/heads/main")
    for name in ("x/.git/logs/HEAD", "x/.git/modules/m/logs/refs/heads/main"):
        world.write(name, f"{entry}forge.corp.example/x\n")
        assert masked(world) == set()
        world.write(name, f"{entry}me:{TOKEN}@forge.corp.example/x\n" * 2000)
        with pytest.raises(Refused, match="git reflog expire") as refused:
            world.plan()
        assert str(world.project / name) in str(refused.value)
        assert TOKEN not in str(refused.value)
        assert masked(world, unsafe_paths=(name,)) == set()
        assert masks(world.plan(a_sandbox(writable=(), readable=(".",))), world.project) == {name}
        (world.project / name).unlink()


def test_settings_files_are_looked_into_within_bounds_and_the_rest_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: by number and by time, each."""
    for index in range(5):
        world.write(f"{index}.json", TOKEN)
    for bound in ({"files": 3}, {"seconds": 0.0}):
        made = partial(settings_files.SettingsFiles, **bound)
        monkeypatch.setattr(tree_inspection, "SettingsFiles", made)
        plan = world.plan()
        expected = bound.get("files", 0)
        assert len(masks(plan, world.project)) == expected
        assert any(f"too many settings files: {5 - expected}" in line for line in plan.notices)


def test_a_settings_file_that_cannot_be_read_is_masked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: its owner, who the sandbox runs as, could make it readable."""
    world.write(".mcp.json", "{}")
    real = os.open

    def refusing(name: str, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401
        if str(name).endswith(".mcp.json"):
            raise PermissionError(13, "no")
        return real(name, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    assert masked(world) == {".mcp.json"}


def test_a_directory_called_env_is_no_credential(world: World) -> None:
    world.write(".env/bin/python")
    assert masked(world) == set()


def test_a_credential_behind_a_telling_link_is_masked_where_it_lies(world: World) -> None:
    world.write("config/production", "A=1")
    (world.project / ".env").symlink_to("config/production")
    assert masked(world) == {"config/production"}


def test_a_link_out_of_the_tree_is_left_alone(world: World) -> None:
    world.write("../elsewhere", "A=1")
    (world.project / ".env").symlink_to("../elsewhere")
    assert masked(world) == set()


def test_credentials_in_a_readable_tree_are_masked_too(world: World) -> None:
    world.write("../lib/.env")
    plan = world.plan(a_sandbox(readable=("~/lib",)))
    assert masks(plan, world.home) == {"lib/.env"}


def test_sockets_and_pipes_in_a_tree_are_masked(world: World) -> None:
    world.write("run/file")
    os.mkfifo(world.project / "run/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(world.project / "run/s"))
        assert masked(world) == {"run/pipe", "run/s"}


def test_a_file_system_mounted_in_a_tree_is_masked_unless_named(world: World) -> None:
    disk = world.write("disk/inner/.env").parent.parent
    mounts = (str(disk), "/", "/proc")
    plan = world.plan(mounts=mounts)
    assert Mask(str(disk), MountKind.DIR) in plan.entries
    assert any("file system" in line and str(disk) in line for line in plan.notices)
    named = world.plan(a_sandbox(writable=(".", "disk")), mounts=mounts)
    assert masks(named, world.project) == {"disk/inner/.env"}
    assert str(disk) in binds(named, writable=True)


def test_what_is_too_large_to_know_is_refused_unless_listed(world: World) -> None:
    for index in range(20):
        world.write(f"f{index}")
    with pytest.raises(Refused, match="too large"):
        world.plan(budget=WalkBudget(entries=10))
    with pytest.raises(Refused, match="too large"):
        world.plan(budget=WalkBudget(seconds=-1))
    plan = world.plan(a_sandbox(unsafe_paths=(".",)), budget=WalkBudget(entries=10))
    assert any("too large" in line for line in plan.notices)
    assert world.plan(budget=WalkBudget(entries=100)).notices == ()


def test_more_masks_than_a_project_has_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "MAX_MOUNTS", 5)
    for index in range(4):
        world.write(f".env.{index}")
    assert len(masked(world)) == 4
    world.write(".env.4")
    with pytest.raises(Refused, match="more than 5"):
        world.plan()


def test_what_cannot_be_looked_into_is_masked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner, who the sandbox runs as, could open it again with chmod."""
    closed = str(world.write("closed/secret").parent)
    scandir = os.scandir

    def refusing(path: str) -> Any:  # noqa: ANN401 - what os.scandir returns has no public name
        if path == closed:
            raise PermissionError
        return scandir(path)

    assert masked(world) == set()
    monkeypatch.setattr(os, "scandir", refusing)
    assert masked(world) == {"closed"}


def test_a_key_that_cannot_be_read_is_masked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(world.write("site.pem", "a certificate"))
    open_ = os.open

    def refusing(name: str, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401
        if name == path:
            raise PermissionError
        return open_(name, flags, *more, **named)

    assert masked(world) == set()
    monkeypatch.setattr(os, "open", refusing)
    assert masked(world) == {"site.pem"}


def test_a_path_too_long_to_mount_over_is_cut_where_it_can_be(world: World) -> None:
    start = os.open(world.project, os.O_RDONLY)
    here = start
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        following = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = following
    os.close(here)
    (found,) = masked(world)
    assert 2048 < len(str(world.project / found)) < 4096


def test_a_hostile_name_cannot_write_a_line_of_its_own(world: World) -> None:
    world.write("a\n\x1b[2Jkeyhole: all is well/.env")
    (notice,) = world.plan().notices
    assert "\n" not in notice
    assert "\x1b" not in notice


def test_many_findings_are_counted_rather_than_listed(world: World) -> None:
    for index in range(20):
        world.write(f"{index}/.env")
    (notice,) = world.plan().notices
    assert "and 12 more" in notice


def test_a_credential_that_is_named_needs_to_be_listed_too(world: World) -> None:
    world.write(".env")
    world.write("other/file")
    for writable in (("other",), (".",)):
        with pytest.raises(Refused, match="unsafe_paths"):
            world.plan(a_sandbox(writable=writable, readable=(".env",)))
        lifted = a_sandbox(writable=writable, readable=(".env",), unsafe_paths=(".env",))
        assert str(world.project / ".env") in binds(world.plan(lifted), writable=False)
