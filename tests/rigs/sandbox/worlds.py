"""A small host for file plans: a home with a project in it, a system of a few files."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.policy.policy import Sandbox
from keyhole.policy.schema import RuntimeName
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountPlan, TextFile
from keyhole.sandbox.files.mount_planning import PlanningFacts, plan_mounts

if TYPE_CHECKING:
    from keyhole.sandbox.files.tree_walk import WalkBudget

GIT = Path("/usr/bin/git")
PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nmade up\n"
TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"


def a_sandbox(
    writable: tuple[str, ...] = (".",),
    readable: tuple[str, ...] = (),
    unsafe_paths: tuple[str, ...] = (),
    env: tuple[tuple[str, str], ...] = (),
    pass_env: tuple[str, ...] = (),
) -> Sandbox:
    return Sandbox(
        RuntimeName.BWRAP,
        writable,
        readable,
        unsafe_paths,
        env,
        pass_env,
        git_hooks=False,
        image=None,
    )


@dataclass(frozen=True)
class World:
    top: Path

    @property
    def home(self) -> Path:
        return self.top / "home"

    @property
    def project(self) -> Path:
        return self.home / "work"

    @property
    def state(self) -> Path:
        return self.home / ".local/state/keyhole"

    def write(self, name: str, content: str = "x\n") -> Path:
        """A file, relative to the project or absolute."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def git(self, *words: str, cwd: Path | None = None) -> None:
        """Run git as a person would."""
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        identity += ["-c", "protocol.file.allow=always"]
        env = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(
            [str(GIT), *identity, *words],
            cwd=cwd or self.project,
            env=env,
            check=True,
            capture_output=True,
        )

    @property
    def facts(self) -> PlanningFacts:
        return PlanningFacts(
            project=self.project,
            policy=self.project / "keyhole.toml",
            home=self.home,
            user="dev",
            uid=1000,
            gid=1000,
            own=(self.state,),
            git=GIT,
            root=self.top / "root",
            mounts=(),
        )

    def plan(
        self, sandbox: Sandbox | None = None, budget: WalkBudget | None = None, **facts: object
    ) -> MountPlan:
        """The plan for this host."""
        chosen = replace(self.facts, **facts)
        return plan_mounts(sandbox or a_sandbox(), chosen, budget)


def a_world(tmp_path: Path) -> World:
    """An empty project, and a system that has what every system has."""
    world = World(tmp_path)
    world.project.mkdir(parents=True)
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/etc").mkdir()
    return world


def masks(plan: MountPlan, top: Path) -> set[str]:
    """The masked paths below a directory, relative to it."""
    return {
        str(Path(entry.target).relative_to(top))
        for entry in plan.entries
        if isinstance(entry, Mask) and Path(entry.target).is_relative_to(top)
    }


def binds(plan: MountPlan, *, writable: bool) -> set[str]:
    """The targets of the binds of one sort."""
    return {e.target for e in plan.entries if isinstance(e, Bind) and e.writable is writable}


def text(plan: MountPlan, target: object) -> str:
    """The content of the text at a target."""
    (found,) = [e for e in plan.entries if isinstance(e, TextFile) and e.target == str(target)]
    return found.content
