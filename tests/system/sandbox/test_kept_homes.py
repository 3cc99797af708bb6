"""Homes and caches that stay: `sandbox.home`, `sandbox.caches`, `keyhole home` (I9, I11, I12).

Hostile code of one run decides what the next run finds. It must not lead Keyhole's own writes and
mounts elsewhere, nor reach the sandboxes of another project or policy.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.services import keep
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE
from tests.system.sandbox.test_agents import claude, install, own_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

KEEP = '[sandbox]\nhome = "keep"\n'
CACHES = '[sandbox]\ncaches = ["npm", "uv", "cargo"]\n'


def homes(project: Project) -> list[dict[str, Any]]:
    said = project("home", "list", "--json")
    assert said.code == 0, said
    found: list[dict[str, Any]] = json.loads(said.out)
    return found


def kept_directory(project: Project) -> Path:
    (found,) = (project.home / "state/keyhole/homes").iterdir()
    return found


def test_a_home_stays_if_the_policy_says_so_and_else_does_not(
    new_project: Callable[..., Project],
) -> None:
    fresh, kept = new_project(), new_project(KEEP)
    for project in (fresh, kept):
        assert project.shell("echo mine > ~/history; mkdir -p ~/.claude/projects").code == 0
    assert fresh.shell("cat ~/history").code != 0
    assert kept.shell("cat ~/history; ls -d ~/.claude/projects").out.startswith("mine\n")
    assert homes(fresh) == []
    (home,) = homes(kept)
    assert (home["project"], home["in_use"]) == (str(kept.directory), False)
    assert home["bytes"] > 0
    # A policy that is edited has the same home.
    kept.policy(f'{KEEP}env = {{ MODE = "other" }}\n')
    assert kept.shell("cat ~/history").out == "mine\n"
    # Another policy of the same project has its own.
    kept.write("other.toml", f"version = 1\n{KEEP}")
    ran = kept.run("cat", f"{kept.home}/history", flags=("--policy", "other.toml"))
    assert ran.code != 0
    assert len(homes(kept)) == 2
    # The host's own home has none of it.
    assert not (kept.home / "history").exists()


@pytest.mark.by_turns
def test_a_cache_stays_with_a_fresh_home_and_another_project_does_not_see_it(
    new_project: Callable[..., Project],
) -> None:
    first, second = new_project(CACHES), new_project(CACHES)
    leave = "echo poison > ~/.npm/package; echo x > ~/.cargo/registry/index; echo lost > ~/.cargo/x"
    assert first.shell(leave).code == 0
    said = first.shell("cat ~/.npm/package ~/.cargo/registry/index; ls ~/.cargo; env")
    assert said.lines[:2] == ["poison", "x"]
    assert "UV_LINK_MODE=copy" in said.lines
    assert first.shell("ls ~/.cargo/x").code != 0
    assert second.shell("ls -A ~/.npm ~/.cache/uv").out.split() == [
        f"{second.home}/.cache/uv:",
        f"{second.home}/.npm:",
    ]
    for project in (first, second):
        assert not (project.home / ".npm").exists()
    # A tree of the host that the policy shows counts, and no cache covers it.
    keep(second, ".npm/own", "the host's").chmod(0o644)
    own_all(second)
    second.policy(f'{CACHES}readable = ["~/.npm"]\n')
    assert second.shell("cat ~/.npm/own").out == "the host's"


VERSION = ".local/share/claude/versions/2.1.325"
SHOW = """
import json, os
names = ("shown/tool", ".claude/CLAUDE.md", ".claude.json")
print(json.dumps({name: open(os.path.expanduser(f"~/{name}")).read() for name in names}))
"""

PLACES = (".npm", ".cargo", ".claude", ".claude.json", ".local", "shown", ".cache")
"""Where the next run mounts or writes something, or makes the directory above it."""


KINDS = ("link", "deep-link", "pipe", "directory", "closed")


@pytest.mark.parametrize(
    "kind", ["mixed", *(pytest.param(kind, marks=pytest.mark.attack) for kind in KINDS)]
)
def test_what_was_left_in_the_home_leads_no_mount_and_no_file_elsewhere(
    kind: str, new_project: Callable[..., Project]
) -> None:
    """Attack: bubblewrap would make the mount points behind links, in the host's own root."""
    project = new_project(KEEP)
    path = claude(project)
    install(project, VERSION, f"#!/usr/bin/python3 -IS\n{SHOW}")
    victim = project.home / "victim"
    (victim / "registry").mkdir(parents=True)
    (victim / "settings.json").write_text("of the host")
    keep(project, "shown/tool", "a tool").chmod(0o644)
    own_all(project)
    before = sorted(str(each) for each in victim.rglob("*"))
    makes = {
        "link": f"ln -s {victim} ~/$place",
        "deep-link": f"mkdir ~/$place; for n in registry settings.json bin share uv; do"
        f" ln -s /oldroot{victim} ~/$place/$n; done",
        "pipe": "mkfifo ~/$place",
        "directory": "mkdir -p ~/$place/full",
        "closed": "mkdir ~/$place; chmod 000 ~/$place",
    }
    kinds = [kind] * len(PLACES) if kind != "mixed" else [*KINDS, *KINDS]
    steps = [f"place={place}; {makes[kind]}" for place, kind in zip(PLACES, kinds, strict=False)]
    script = f"{'; '.join(steps)}; ls -A ~"
    left = project.shell(script)
    assert set(left.out.split()) >= set(PLACES), left  # the control: it can be left there
    keep(project, ".claude/CLAUDE.md", "be kind")
    own_all(project)
    project.policy(f'{KEEP}caches = ["npm", "uv", "cargo"]\nreadable = ["~/shown"]\n')
    ran = project("run", "--trust", "claude", env={"PATH": path})
    assert ran.code == 0, ran
    files = json.loads(ran.out)
    assert files["shown/tool"] == "a tool"
    assert files[".claude/CLAUDE.md"] == "be kind"
    assert json.loads(files[".claude.json"])["hasCompletedOnboarding"] is True
    assert sorted(str(each) for each in victim.rglob("*")) == before
    assert (victim / "settings.json").read_text() == "of the host"
    written = project.shell("echo new > ~/.npm/x; echo new > ~/.cargo/registry/x; cat ~/.npm/x")
    assert written.out == "new\n"
    assert sorted(str(each) for each in victim.rglob("*")) == before


@pytest.mark.by_turns
def test_an_agent_keeps_its_home_and_its_own_changes(new_project: Callable[..., Project]) -> None:
    project = new_project()
    path = claude(project)
    keep(project, ".claude.json", json.dumps({"theme": "dark"}))
    own_all(project)
    changes = (
        "import json, os\n"
        "path = os.path.expanduser('~/.claude.json')\n"
        "table = json.load(open(path))\n"
        "print(json.dumps(table))\n"
        "table |= {'theme': 'light', 'numStartups': 7, 'autoUpdates': True}\n"
        "json.dump(table, open(path, 'w'))\n"
    )
    install(project, VERSION, f"#!/usr/bin/python3 -IS\n{changes}")
    own_all(project)
    first, second = (
        json.loads(project("run", "--trust", "claude", env={"PATH": path}).out) for _ in range(2)
    )
    assert (first["theme"], first["autoUpdates"]) == ("dark", False)
    assert "numStartups" not in first
    assert (second["theme"], second["numStartups"], second["autoUpdates"]) == ("light", 7, False)
    assert second["projects"][str(project.directory)]["hasTrustDialogAccepted"] is True
    # The policy's word wins over the profile.
    project.policy('[sandbox]\nhome = "fresh"\n')
    third = json.loads(project("run", "--trust", "claude", env={"PATH": path}).out)
    assert third == first


@pytest.mark.by_turns
def test_two_runs_share_a_home_which_is_not_removed_while_they_use_it(
    new_project: Callable[..., Project],
) -> None:
    project = new_project(KEEP)
    script = "echo first > ~/file; mkdir -p ~/a/b; chmod 000 ~/a; echo ready; sleep 600"
    with project.running("sh", "-c", script) as running:
        assert line_of(running.stdout) == "ready"
        assert project.shell("cat ~/file; echo second > ~/file").out == "first\n"
        refused = project("home", "reset", "--yes")
        assert refused.code == 2
        assert "is in use" in refused.err
        assert [home["in_use"] for home in homes(project)] == [True]
    deadline = time.monotonic() + PATIENCE
    while homes(project)[0]["in_use"]:
        assert time.monotonic() < deadline
    assert project.shell("cat ~/file").out == "second\n"
    unasked = project("home", "reset")
    assert (unasked.code, "--yes" in unasked.err) == (2, True), unasked
    assert project("home", "reset", str(project.directory), "--yes").code == 0
    assert homes(project) == []
    assert project.shell("ls -A ~").out == ""


@pytest.mark.by_turns
def test_a_home_over_its_limit_starts_nothing_until_it_is_reset(
    new_project: Callable[..., Project],
) -> None:
    project = new_project(f'{KEEP}[limits]\nhome = "1MiB"\n')
    assert project.shell("head -c 3000000 /dev/zero > ~/large").code == 0
    refused = project.shell("true")
    assert refused.code == 125
    assert "limits.home (1MiB)" in refused.err
    assert "keyhole home reset" in refused.err
    assert project("home", "reset", "--all", "--yes").code == 0
    assert project.shell("true").code == 0


def test_a_run_that_fills_its_home_is_ended_and_another_is_not(
    new_project: Callable[..., Project],
) -> None:
    full = new_project(f'{KEEP}[limits]\nhome = "1MiB"\n')
    other = new_project(KEEP)
    with other.running("sh", "-c", "echo ready; sleep 600") as beside:
        assert line_of(beside.stdout) == "ready"
        filled = full.shell("head -c 3000000 /dev/zero > ~/large; echo full; sleep 600")
        assert (filled.code, filled.out) == (125, "full\n")
        assert "limits.home (1MiB)" in filled.err
        assert beside.poll() is None
    reasons = [event["reason"] for event in full.events()]
    assert "home-full" in reasons


def test_a_run_that_closes_its_home_neither_hides_its_size_nor_spoils_the_next(
    new_project: Callable[..., Project],
) -> None:
    """Attack: `chmod 0 ~`. The owner of a directory can close it to itself, and to Keyhole."""
    project = new_project(f'{KEEP}[limits]\nhome = "1MiB"\n')
    assert project.shell("echo mine > ~/history; chmod 0 ~").code == 0
    assert project.shell("cat ~/history").out == "mine\n"
    assert [home["in_use"] for home in homes(project)] == [False]
    hidden = "head -c 3000000 /dev/zero > ~/large; chmod 0 ~; echo full; sleep 600"
    filled = project.shell(hidden)
    assert (filled.code, filled.out) == (125, "full\n")
    assert homes(project)[0]["bytes"] > 3000000
    assert project("home", "reset", "--all", "--yes").code == 0
    assert homes(project) == []


@pytest.mark.attack
def test_another_run_that_swaps_links_all_the_time_leads_nothing_elsewhere(
    new_project: Callable[..., Project],
) -> None:
    """Attack: a run of the same policy, older than an edit of it, races with the next start."""
    project = new_project(KEEP)
    victim = project.home / "victim"
    keep(project, "victim/x/tool", "of the host").chmod(0o644)
    keep(project, "shown/x/tool", "a tool").chmod(0o644)
    own_all(project)
    before = sorted(str(each) for each in victim.rglob("*"))
    swap = (
        "import os\n"
        "home = os.path.expanduser('~')\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for name in ('shown', '.npm', 'shown/x'):\n"
        "        path = f'{home}/{name}'\n"
        "        try:\n"
        "            os.rename(path, f'{home}/old-{os.urandom(4).hex()}')\n"
        "        except OSError: pass\n"
        "        try:\n"
        f"            os.symlink('/oldroot{victim}', path)\n"
        "        except OSError: pass\n"
    )
    outcomes = set()
    with project.running("python3", "-I", "-S", "-c", swap) as running:
        assert line_of(running.stdout) == "ready"
        project.policy(f'{KEEP}caches = ["npm"]\nreadable = ["~/shown/x"]\n')
        for _ in range(12):
            ran = project.shell("cat ~/shown/x/tool; echo in > ~/.npm/mark")
            outcomes.add(ran.code)
            assert ran.code in (0, 1, 125), ran
            assert "of the host" not in ran.out
            assert sorted(str(each) for each in victim.rglob("*")) == before
        assert running.poll() is None
    assert outcomes
    assert project.shell("cat ~/shown/x/tool").out == "a tool"


def test_on_a_terminal_reset_asks_first(new_project: Callable[..., Project]) -> None:
    project = new_project(KEEP)
    assert project.shell("echo x > ~/file").code == 0
    for answer, left in (("n", 1), ("y", 0)):
        master, slave = os.openpty()
        try:
            process = project.start("home", "reset", stdin=slave, stderr=slave)
            os.write(master, f"{answer}\n".encode())
            out, _ = process.communicate(timeout=PATIENCE)
        finally:
            os.close(master)
            os.close(slave)
        assert (process.returncode == 0) is (answer == "y")
        assert len(homes(project)) == left
        assert (b"removed" in out) is (answer == "y")


def test_a_container_keeps_its_home_by_its_name_alone(new_project: Callable[..., Project]) -> None:
    project = new_project('[sandbox]\nruntime = "docker"\nimage = "x"\nhome = "keep"\n')
    said = project("check")
    assert said.code == 2
    assert "a kept home is for bwrap" in said.out + said.err
