"""The files that a program needs, in the layouts in which people install agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.host.program_trees import ProgramTrees, program_trees
from keyhole.system.walk import LinkInPath
from tests.rigs.host.building import host, program, write


def link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def script(path: Path, first: str, rest: str = "") -> Path:
    write(path, f"#!{first}\n{rest}\n").chmod(0o755)
    return path


def trees(tmp_path: Path, path: Path, *search: Path, **env: str) -> ProgramTrees:
    given = {"PATH": ":".join(map(str, (*search, "/usr/bin", "/bin"))), **env}
    return program_trees(path, host(tmp_path, env=given))


def node_prefix(prefix: Path) -> Path:
    """A prefix of npm with node, npm and an agent, as nvm, fnm and mise make them."""
    program(prefix / "bin" / "node", "")
    write(prefix / "lib/node_modules/npm/package.json", "{}")
    write(prefix / "lib/node_modules/other/package.json", "{}")
    script(prefix / "lib/node_modules/@acme/agent/cli.js", "/usr/bin/env node")
    return link(prefix / "bin" / "agent", "../lib/node_modules/@acme/agent/cli.js")


def test_a_program_of_the_system_needs_nothing(tmp_path: Path) -> None:
    found = trees(tmp_path, Path("/usr/bin/env"))
    assert (found.trees, found.links, found.search) == ((), (), ())


def test_a_single_binary_behind_a_link_is_shown_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    real = program(home / ".local/share/claude/versions/2.1.0", "")
    write(home / ".local/share/claude/history", "")
    start = link(home / ".local/bin/claude", real)
    found = trees(tmp_path, start)
    assert found.program == str(start)
    assert found.real == str(real)
    assert found.trees == (str(real),)
    assert found.links == ((str(start), str(real)),)
    assert found.search == (str(start.parent),)


def test_a_package_of_a_prefix_comes_with_its_node_and_npm_and_no_other_package(
    tmp_path: Path,
) -> None:
    prefix = tmp_path / "home/.nvm/versions/node/v22.1.0"
    start = node_prefix(prefix)
    found = trees(tmp_path, start, prefix / "bin")
    modules = prefix / "lib/node_modules"
    assert set(found.trees) == {
        str(modules / "@acme/agent"), str(prefix / "bin"), str(modules / "npm"),
    }  # fmt: skip
    assert found.links == ()
    assert found.search == (str(prefix / "bin"),)


def test_a_directory_on_path_that_is_a_link_is_named_by_where_it_leads(tmp_path: Path) -> None:
    """fnm has a link for each shell, which is gone with the shell."""
    prefix = tmp_path / "home/.local/share/fnm/node-versions/v22/installation"
    node_prefix(prefix)
    shell = link(tmp_path / "run/fnm_multishells/123", prefix)
    found = trees(tmp_path, shell / "bin" / "agent", shell / "bin")
    assert found.program == str(prefix / "bin" / "agent")
    assert found.links == ()


def test_a_package_without_node_names_it_as_missing(tmp_path: Path) -> None:
    start = script(tmp_path / "home/agent", "/usr/bin/env no-such-node --flag")
    assert trees(tmp_path, start).missing == ("no-such-node",)
    gone = script(tmp_path / "home/gone", "/nowhere/python")
    assert trees(tmp_path, gone).missing == ("/nowhere/python",)
    empty = script(tmp_path / "home/empty", " ")
    assert trees(tmp_path, empty).missing == ()


def test_packages_that_lie_side_by_side_are_shown_together(tmp_path: Path) -> None:
    modules = tmp_path / "home/.bun/install/global/node_modules"
    script(modules / "agent/cli.js", "/usr/bin/env true")
    start = link(tmp_path / "home/.bun/bin/agent", modules / "agent/cli.js")
    assert trees(tmp_path, start).trees == (str(modules),)


def test_a_wrapper_of_pnpm_leads_to_its_store(tmp_path: Path) -> None:
    root = tmp_path / "home/.local/share/pnpm"
    node = program(tmp_path / "node/bin/node", "")
    store = root / "global/5/.pnpm/agent@1/node_modules/agent"
    script(store / "cli.js", "/usr/bin/env node")
    link(root / "global/5/node_modules/agent", store)
    wrapper = (
        'basedir=$(dirname "$0")\nexec node  "$basedir/global/5/node_modules/agent/cli.js" "$@"'
    )
    start = script(root / "agent", "/bin/sh", wrapper)
    found = trees(tmp_path, start, node.parent)
    assert str(root / "global/5") in found.trees
    assert found.real == str(store / "cli.js")
    assert str(node.parent) in found.search
    broken = script(root / "broken", "/bin/sh", 'exec node "$basedir/gone.js"')
    assert trees(tmp_path, broken).trees == (str(broken),)


def python_prefix(prefix: Path, version: str = "3.12") -> Path:
    program(prefix / "bin" / f"python{version}", "")
    write(prefix / f"lib/python{version}/os.py", "")
    link(prefix / "bin" / "python3", f"python{version}")
    return prefix / "bin" / f"python{version}"


def test_a_tool_of_uv_comes_with_its_environment_and_its_python(tmp_path: Path) -> None:
    base = tmp_path / "home/.local/share/uv/python/cpython-3.12"
    python = python_prefix(base)
    tool = tmp_path / "home/.local/share/uv/tools/aider-chat"
    write(tool / "pyvenv.cfg", f"home = {base}/bin\nversion = 3.12\n")
    link(tool / "bin/python", python)
    script(tool / "bin/aider", f"{tool}/bin/python", "from aider.main import main")
    start = link(tmp_path / "home/.local/bin/aider", tool / "bin/aider")
    found = trees(tmp_path, start)
    assert set(found.trees) == {str(tool), str(base)}
    assert found.links == ((str(start), str(tool / "bin/aider")),)
    assert found.search == (str(start.parent),)


def test_a_real_virtual_environment_is_found(tmp_path: Path) -> None:
    made = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    start = script(made / "bin/tool", f"{made}/bin/python")
    found = trees(tmp_path, start)
    assert str(made) in found.trees
    base = os.path.realpath(sys.base_prefix)
    assert (base in found.trees) is (base != "/usr")


def test_a_script_of_a_pyenv_comes_with_that_python(tmp_path: Path) -> None:
    root = tmp_path / "home/.pyenv"
    for version in ("3.12.1", "3.13.0"):
        python = python_prefix(root / "versions" / version, version[:4])
        script(root / f"versions/{version}/bin/aider", str(python))
    shim = program(root / "shims/aider", "exec pyenv exec aider")
    write(root / "version", "3.12.1\n")
    assert trees(tmp_path, shim).trees == (str(root / "versions/3.12.1"),)
    named = trees(tmp_path, shim, PYENV_VERSION="3.13.0")
    assert named.program == str(root / "versions/3.13.0/bin/aider")
    os.utime(root / "versions/3.12.1/bin/aider", (1, 1))
    write(root / "version", "system ../../x\n")
    assert trees(tmp_path, shim).trees == (str(root / "versions/3.13.0"),)


def test_a_shim_of_mise_leads_to_the_installed_version(tmp_path: Path) -> None:
    root = tmp_path / "home/.local/share/mise"
    node_prefix(root / "installs/node/22.1.0")
    shim = link(root / "shims/agent", program(tmp_path / "home/.local/bin/mise", ""))
    found = trees(tmp_path, shim, root / "installs/node/22.1.0/bin")
    assert found.program == str(root / "installs/node/22.1.0/bin/agent")
    alone = program(root / "shims/alone", "")
    assert trees(tmp_path, alone).trees == (str(alone),)


def test_packages_of_the_user_come_along_for_their_scripts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    version = os.path.basename(os.path.realpath("/usr/bin/python3"))
    if not version.startswith("python3."):
        pytest.skip("no Python of the system")
    library = home / f".local/lib/{version}/site-packages"
    write(library / "aider/__init__.py", "")
    start = script(home / ".local/bin/aider", "/usr/bin/python3")
    assert set(trees(tmp_path, start).trees) == {str(start), str(library)}
    other = program(home / ".local/bin/other", "")
    assert trees(tmp_path, other).trees == (str(other),)


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\0\0\0\0 \0", b"#!/usr/bin/python\0x\n"])
def test_a_binary_among_the_scripts_of_the_user_is_shown_alone(
    tmp_path: Path, content: bytes
) -> None:
    """npm with the prefix `~/.local` puts a link to a binary there."""
    binary = program(tmp_path / "home/.local/lib/node_modules/agent/bin/agent.exe", "")
    binary.write_bytes(content)
    found = trees(tmp_path, link(tmp_path / "home/.local/bin/agent", binary))
    assert found.real == str(binary)
    assert found.trees == (str(binary.parent.parent),)


def test_links_that_form_a_loop_are_an_error(tmp_path: Path) -> None:
    link(tmp_path / "a", tmp_path / "b")
    link(tmp_path / "b", tmp_path / "a")
    with pytest.raises(LinkInPath):
        trees(tmp_path, tmp_path / "a")


def test_of_a_directory_that_many_programs_share_only_the_interpreter_is_shown(
    tmp_path: Path,
) -> None:
    """I1: `~/.local` has keys and histories of other programs beside a Python and a node."""
    local = tmp_path / "home/.local"
    write(local / "share/atuin/key", "a key")
    write(local / "lib/python3.12/site-packages/a.py", "")
    tool = local / "share/uv/tools/agent"
    start = script(tool / "bin/agent", f"{tool}/bin/python")
    # As `~/.local/bin/python3 -m venv` writes it, whether that is a Python or a link to one.
    write(tool / "pyvenv.cfg", f"home = {local}/bin\n")
    real = program(tmp_path / "pythons/3.12/bin/python3.12", "")
    write(tmp_path / "pythons/3.12/lib/python3.12/os.py", "")
    first = link(local / "bin/python3", real)
    link(tool / "bin/python", first)
    library = str(local / "lib/python3.12")
    assert set(trees(tmp_path, start).trees) == {
        str(tool), str(tmp_path / "pythons/3.12"), library,
    }  # fmt: skip
    first.unlink()
    program(first, "")
    assert set(trees(tmp_path, start).trees) == {str(tool), str(first), library}
    program(local / "bin/node", "")
    write(local / "lib/node_modules/npm/package.json", "{}")
    agent = script(local / "lib/node_modules/agent/cli.js", "/usr/bin/env node")
    assert set(trees(tmp_path, agent, local / "bin").trees) == {
        str(agent.parent), str(local / "bin/node"), str(local / "lib/node_modules/npm"),
    }  # fmt: skip
    # And `python -m venv ~/.local` itself.
    own = write(local / "pyvenv.cfg", "home = /usr/bin\n")
    mine = script(local / "bin/mine", f"{local}/bin/python3")
    assert set(trees(tmp_path, mine).trees) == {str(own), str(mine), str(first), library}
