"""A link counts as what it leads to: protected where it exists, reported where it is new (I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files import comparison, executable_finder
from keyhole.sandbox.files.comparison import (
    Snapshot,
    compare_snapshots,
    finding_lines,
    take_snapshot,
)
from keyhole.sandbox.files.executable_finder import MAX_DETOURS
from keyhole.sandbox.files.mount_plan import ComparisonScope
from tests.rigs.sandbox.worlds import a_sandbox, binds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.sandbox.worlds import World


def looked(world: World) -> Snapshot:
    return take_snapshot(ComparisonScope((str(world.project),)))


def left(world: World, before: Snapshot) -> set[str]:
    found = finding_lines(compare_snapshots(before, looked(world)))
    return {line.partition(" (")[0].replace(f"{world.project}/", "") for line in found}


def link(world: World, name: str, to: str) -> Path:
    path = world.project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(to)
    return path


def protected(world: World, **sandbox: tuple[str, ...]) -> set[str]:
    plan = world.plan(a_sandbox(**sandbox))  # type: ignore[arg-type]
    own = f"{world.project}/"
    return {path.removeprefix(own) for path in binds(plan, writable=False) if path.startswith(own)}


# ── existing links: what they lead to is read-only ────────────────────────────────────────────────


@pytest.mark.parametrize("to", ["env/common.sh", "../PROJECT/env/common.sh", "way/common.sh"])
def test_what_a_link_named_like_a_trigger_leads_to_is_read_only(world: World, to: str) -> None:
    """I11. Control: the file beside it is not."""
    world.write("env/common.sh", "use nix")
    world.write("env/other.sh", "use nix")
    link(world, "way", "env")
    link(world, ".envrc", to.replace("PROJECT", world.project.name))
    assert protected(world) == {"env/common.sh"}


def test_a_chain_of_links_is_followed_to_its_end(world: World) -> None:
    world.write("c", "use nix")
    link(world, "b", "c")
    link(world, "a", "b")
    link(world, ".envrc", "a")
    assert protected(world) == {"c"}


@pytest.mark.parametrize("name", [".vscode", ".husky", ".cursor"])
def test_a_directory_behind_a_link_is_read_only_whole(world: World, name: str) -> None:
    world.write("shared/settings.json")
    link(world, name, "shared")
    assert protected(world) == {"shared"}


def test_of_an_agents_directory_behind_a_link_the_entries_are_read_only(world: World) -> None:
    world.write("shared/settings.json")
    world.write("shared/hooks/x")
    world.write("shared/plans/x")
    link(world, ".claude", "shared")
    assert protected(world) == {"shared/settings.json", "shared/hooks"}


def test_a_parent_of_a_trigger_that_is_a_link_makes_a_trigger_of_its_entries(world: World) -> None:
    world.write("shared/config.toml")
    world.write("shared/other.toml")
    assert protected(world) == set()
    link(world, ".cargo", "shared")
    assert protected(world) == {"shared/config.toml"}


@pytest.mark.parametrize("place", [".husky", ".git/hooks"])
def test_a_link_in_a_directory_of_hooks_protects_the_script(world: World, place: str) -> None:
    """I11: `.git/hooks/pre-commit -> ../../scripts/check`."""
    world.git("init", "-q")
    script = world.write("scripts/check")
    world.write("scripts/other")
    link(world, f"{place}/pre-commit", str(script))
    found = protected(world)
    assert "scripts/check" in found
    assert "scripts/other" not in found


def test_hooks_that_a_config_names_may_be_links_too(world: World) -> None:
    world.git("init", "-q")
    world.git("config", "core.hooksPath", "tools/hooks")
    script = world.write("scripts/check")
    link(world, "tools/hooks/pre-commit", str(script))
    assert {"tools/hooks", "scripts/check"} <= protected(world)


def test_hooks_that_a_config_names_may_be_behind_a_link(world: World) -> None:
    """I11: and where the work tree itself would be the hooks, nothing can be protected."""
    world.git("init", "-q")
    world.git("config", "core.hooksPath", "hooks")
    world.write("tools/hooks/pre-commit")
    link(world, "hooks", "tools/hooks")
    assert "tools/hooks" in protected(world)
    before = take_snapshot(world.plan().scope)
    world.write("evil/pre-commit")
    link(world, "hooks", "evil")
    found = finding_lines(compare_snapshots(before, take_snapshot(world.plan().scope)))
    assert any(line.startswith(f"changed: {world.project}/hooks (a link to evil") for line in found)
    link(world, "hooks", ".")
    with pytest.raises(Refused, match="cannot be writable"):
        world.plan()


def test_a_link_to_another_tree_that_is_writable_is_refused(world: World) -> None:
    world.write("../shared/tasks.json")
    link(world, ".vscode", "../shared")
    with pytest.raises(Refused, match="cannot be writable"):
        protected(world, writable=(".", "../shared"))


def test_a_link_in_an_agents_directory_does_not_lock_the_sources(world: World) -> None:
    """Daily work: `.claude/docs` may be a link to what people write; hooks are another matter."""
    world.write("docs/x")
    world.write("tools/hooks/x")
    link(world, ".claude/docs", "../docs")
    link(world, ".claude/hooks", "../tools/hooks")
    assert protected(world) == {"tools/hooks"}
    before = looked(world)
    world.write("docs/x", "changed")
    assert left(world, before) == {"changed: docs/x"}


def test_a_link_that_leaves_the_tree_protects_nothing_and_harms_nothing(world: World) -> None:
    world.write("../elsewhere/common.sh", "use nix")
    link(world, ".envrc", "../elsewhere/common.sh")
    link(world, ".vscode", "/nonexistent")
    link(world, ".exrc", ".exrc")
    assert protected(world) == set()


@pytest.mark.parametrize("to", [".", "..", "/"])
def test_a_link_to_a_directory_that_holds_it_is_refused_or_says_nothing(
    world: World, to: str
) -> None:
    """I11: what is in `.claude -> .` is everything. Outside of the trees it is the host's."""
    world.write("settings.json")
    link(world, ".claude", to)
    if to != ".":
        assert protected(world) == set()
        return
    with pytest.raises(Refused, match=r"\.claude"):
        world.plan()
    assert protected(world, unsafe_paths=(".claude",)) == set()


def test_a_link_back_to_the_project_in_an_editors_directory_is_no_obstacle(world: World) -> None:
    """Control: one that is named like a place of programs is."""
    world.write(".idea/x")
    link(world, ".idea/project", "..")
    assert protected(world) == {".idea"}
    link(world, ".idea/plugins", "..")
    with pytest.raises(Refused, match="plugins"):
        world.plan()


def test_what_unsafe_paths_lists_stays_writable_by_either_name(world: World) -> None:
    world.write("env/common.sh", "use nix")
    link(world, ".envrc", "env/common.sh")
    for name in (".envrc", "env/common.sh"):
        assert protected(world, unsafe_paths=(name,)) == set()


# ── new links, and old ones that lead elsewhere ───────────────────────────────────────────────────


def test_a_new_link_to_a_directory_makes_its_content_a_finding(world: World) -> None:
    """I11: `.claude -> innocuous/`, made inside. Control: without the link nobody is told."""
    before = looked(world)
    world.write("innocuous/settings.json", '{"hooks": {}}')
    assert left(world, before) == set()
    link(world, ".claude", "innocuous")
    assert left(world, before) == {"new: .claude", "new: innocuous/settings.json"}


@pytest.mark.parametrize(
    ("name", "entry"),
    [(".cargo", "config.toml"), (".vscode", "tasks.json"), (".husky", "pre-commit"),
     (".hg", "hgrc"), (".nextagent", "settings.json"), ("node_modules", ".bin/eslint")],
)  # fmt: skip
def test_a_new_link_of_any_such_name_does(world: World, name: str, entry: str) -> None:
    before = looked(world)
    world.write(f"innocuous/{entry}")
    link(world, name, "innocuous")
    found = left(world, before)
    assert f"new: {name}" in found
    assert found & {f"new: innocuous/{entry}", "new: innocuous/.bin"}


@pytest.mark.parametrize("name", [".envrc", ".vscode", ".claude", ".cargo", "lefthook.yml"])
@pytest.mark.parametrize("to", ["/etc", "../elsewhere", "nothing", ".", ".envrc"])
def test_a_new_link_is_a_finding_wherever_it_leads(world: World, name: str, to: str) -> None:
    before = looked(world)
    link(world, name, to)
    assert left(world, before) == {f"new: {name}"}


def test_an_existing_link_whose_target_is_rewritten_is_a_finding(world: World) -> None:
    """I11: where it was not read-only, as in another tree that appears later."""
    world.write("env/common.sh")
    world.write("env/other.sh")
    link(world, ".envrc", "env/common.sh")
    before = looked(world)
    world.write("env/other.sh", "changed")
    assert left(world, before) == set()
    world.write("env/common.sh", "changed")
    assert left(world, before) == {"changed: .envrc"}


@pytest.mark.parametrize("hop", [".envrc", "a", "b", "dir"])
def test_each_link_of_a_chain_counts(world: World, hop: str) -> None:
    world.write("real/c")
    world.write("evil/c")
    link(world, "dir", "real")
    link(world, "b", "dir/c")
    link(world, "a", "b")
    link(world, ".envrc", "a")
    before = looked(world)
    assert left(world, before) == set()
    link(world, hop, "evil/c" if hop != "dir" else "evil")
    assert left(world, before) == {"changed: .envrc"}


def test_a_link_that_led_nowhere_and_now_does_is_a_finding(world: World) -> None:
    link(world, ".envrc", "env/common.sh")
    before = looked(world)
    world.write("env/common.sh")
    assert left(world, before) == {"changed: .envrc"}


def test_a_link_to_dependencies_hides_nothing(world: World) -> None:
    before = looked(world)
    world.write("node_modules/x/evil/settings.json")
    link(world, ".claude", "node_modules/x/evil")
    assert "new: node_modules/x/evil/settings.json" in left(world, before)


def test_an_ordinary_link_is_no_finding(world: World) -> None:
    """The control."""
    before = looked(world)
    world.write("docs/x")
    link(world, "latest", "docs")
    link(world, ".eslintrc", "docs/x")
    link(world, "src/current", "../docs")
    assert left(world, before) == set()


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────


def test_links_in_a_circle_end(world: World) -> None:
    before = looked(world)
    link(world, ".vscode/a", "b")
    link(world, ".vscode/b", "a")
    link(world, ".claude", ".vscode/a")
    assert left(world, before) == {"new: .vscode/a", "new: .vscode/b", "new: .claude"}


def test_directories_that_link_to_one_another_are_each_looked_at_once(world: World) -> None:
    before = looked(world)
    for name, other in (("a", "b"), ("b", "a")):
        world.write(f"{name}/file")
        link(world, f"{name}/other", f"../{other}")
    link(world, ".vscode", "a")
    found = left(world, before)
    assert {"new: .vscode", "new: a/file"} <= found


def test_more_links_to_directories_than_are_looked_through_are_said(world: World) -> None:
    """I9."""
    for index in range(MAX_DETOURS + 5):
        (world.project / f"d{index}").mkdir()
        link(world, f".vscode/{index}", f"../d{index}")
    assert looked(world).unseen == (str(world.project),)
    with pytest.raises(Refused, match="symbolic links"):
        world.plan()


def test_following_links_has_a_time_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9. Attack: a hundred thousand links with long ways. Control: with time all is seen."""
    for index in range(5):
        link(world, f".vscode/{index}", "x")
    assert looked(world).unseen == ()
    monkeypatch.setattr(executable_finder, "FOLLOW_SECONDS", -1.0)
    assert looked(world).unseen == (str(world.project),)


def test_what_is_compared_is_bounded_and_the_rest_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(comparison, "MAX_SIGHTS", 3)
    for index in range(3):
        world.write(f".vscode/{index}")
    assert looked(world).unseen == ()
    world.write(".vscode/more")
    found = looked(world)
    assert (len(found.sights), found.unseen) == (3, (str(world.project),))
