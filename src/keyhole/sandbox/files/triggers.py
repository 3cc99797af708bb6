"""Files that make the host run something without a request (I11), by name and directory.

Used when a sandbox is planned, to make them read-only, and around the run, to report changes. Rules
come before lists: a variant of a known name counts as that name; the directory of an agent or
editor counts as a whole; a settings file in a directory of an unknown tool is reported.

Not here: files that run only on request (Makefile, package.json scripts, sources, tests,
`.github/`, which the forge runs), and `.git/info/attributes`, which can only choose among filters
that the protected config defines.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.mount_plan import MountKind

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class TriggerGuard(enum.Enum):
    """The protection of a file that the host may execute. Every such file is compared."""

    READ_ONLY = enum.auto()
    """It is read-only inside, if it exists."""
    ENTRIES = enum.auto()
    """For a directory: its existing entries are read-only, and new ones can be made."""
    REPORTED = enum.auto()
    """It can be changed inside: daily work does so (installing packages, a rebase)."""


class Trigger(Struct, frozen=True):
    """A name, the directory it must lie in if any, and what the host does with it."""

    name: str
    why: str
    kind: MountKind = MountKind.FILE
    parent: str | None = None
    guard: TriggerGuard = TriggerGuard.READ_ONLY


_POLICY = "it is what Keyhole grants"
_EDITOR = "an editor runs its tasks and settings"
_AGENT = "an agent on the host runs the hooks and servers it names"
_GIT_HOOKS = "git runs it at the next commit"
_VERSIONS = "a version control system runs the hooks and aliases it names"
_CARGO = "cargo runs the compilers and wrappers it names, also when an editor asks"
_SHELL = "a shell runs it on entering the directory"
_PROMPT = "an interpreter or a debugger runs it when it is started there"
_UNKNOWN = "a tool of the host may run what it names"

REPOSITORY = "git runs what its config and hooks name"
POINTER = "git looks for config and hooks where it points"
UNFINISHED = "git runs what it says when the operation is continued"
ENVIRONMENT = "shells and editors run its programs, and Python runs its .pth files"
PROGRAMS = "package scripts, shells and editors run its programs"
PLACE = "tools of the host look there for settings and programs"
SEARCHED = "it is on your PATH"


def _directories(names: str, why: str, guard: TriggerGuard) -> tuple[Trigger, ...]:
    return tuple(Trigger(name, why, MountKind.DIR, guard=guard) for name in names.split())


TRIGGERS = (
    Trigger("keyhole.toml", _POLICY),
    Trigger(".envrc", _SHELL),
    Trigger("mise.toml", _SHELL),
    Trigger(".mise.toml", _SHELL),
    Trigger("config.toml", _SHELL, parent="mise"),
    Trigger("config.toml", _SHELL, parent=".mise"),
    Trigger(".autoenv", _SHELL),
    Trigger(".autoenv.zsh", _SHELL),
    Trigger(".autoenv_leave.zsh", _SHELL),
    # direnv and similar tools keep scripts here, which they run again without asking.
    *_directories(".direnv .devenv .devbox", _SHELL, TriggerGuard.REPORTED),
    *_directories(
        ".vscode .idea .zed .fleet .devcontainer .helix .nvim .vim .theia .sublime .nova",
        _EDITOR,
        TriggerGuard.READ_ONLY,
    ),
    Trigger(".devcontainer.json", _EDITOR),
    Trigger(".nvim.lua", _EDITOR),
    Trigger(".exrc", _EDITOR),
    Trigger(".nvimrc", _EDITOR),
    Trigger(".vimrc", _EDITOR),
    Trigger(".lvimrc", _EDITOR),
    Trigger(".dir-locals.el", _EDITOR),
    *_directories(".cursor .windsurf .continue .junie", _AGENT, TriggerGuard.READ_ONLY),
    # Agents keep new settings, plans and worktrees in these while they work inside.
    *_directories(
        ".claude .codex .gemini .qwen .opencode .kiro .roo .amazonq .factory .crush .cline .goose "
        ".kilocode .augment .trae .amp .agents .agent .openhands .iflow .codebuddy",
        _AGENT,
        TriggerGuard.ENTRIES,
    ),
    Trigger(".mcp.json", _AGENT),
    Trigger("opencode.json", _AGENT),
    Trigger(".aider.conf.yml", _AGENT),
    Trigger(".crush.json", _AGENT),
    Trigger("crush.json", _AGENT),
    *_directories(".husky .githooks .lefthook", _GIT_HOOKS, TriggerGuard.READ_ONLY),
    Trigger(".pre-commit-config.yaml", _GIT_HOOKS),
    Trigger("lefthook.yml", _GIT_HOOKS),
    Trigger(".lefthook.yml", _GIT_HOOKS),
    Trigger("hgrc", _VERSIONS, parent=".hg"),
    # In `.jj/repo`, whose other content must stay writable.
    Trigger("config.toml", _VERSIONS, parent="repo"),
    Trigger("config.toml", _CARGO, parent=".cargo"),
    Trigger("config", _CARGO, parent=".cargo"),
    Trigger("rust-toolchain.toml", _CARGO, guard=TriggerGuard.REPORTED),
    Trigger("rust-toolchain", _CARGO, guard=TriggerGuard.REPORTED),
    *(
        Trigger(name, _PROMPT)
        for name in ".pdbrc .Rprofile .irbrc .pryrc .ghci .gdbinit .lldbinit".split()
    ),
)
WORKSPACE = Trigger("*.code-workspace", _EDITOR)
_BY_NAME = {(trigger.parent, trigger.name): trigger for trigger in TRIGGERS}

_SETTINGS = frozenset({"json", "jsonc", "json5", "toml", "yaml", "yml"})
"""Suffixes of settings files: tools that read one often read the others."""
_VARIANTS = {
    (trigger.parent, f"{trigger.name.rpartition('.')[0]}."): trigger
    for trigger in TRIGGERS
    if trigger.name.rpartition(".")[2] in _SETTINGS and trigger.why != _POLICY
}
_LOCAL = re.compile(r"[._-]local(?=\.|$)")

OWN_WORK = frozenset(
    """
    agent agents cache checkpoints command commands docs logs memory modes notes output-styles plans
    prompts rules sessions skills specs steering tmp todos
    """.split()
)
"""Directories in an agent's own in which people and agents write prompts, plans and records, and
which differ between branches of a repository: writable, and compared. Their content is used when a
person or the agent asks for it."""
CHECKOUTS = frozenset({"worktrees"})
"""Those that hold whole checkouts, which are searched as any other."""

_BESIDE_ENVRC = frozenset(
    {"default.nix", "devbox.json", "devenv.nix", "devenv.yaml", "flake.lock", "flake.nix",
     "shell.nix"}
)  # fmt: skip
_NEXT_TO_ENVRC = Trigger("flake.nix", _SHELL, guard=TriggerGuard.REPORTED)

_TOOL_SETTINGS = frozenset(
    {"config", "extensions", "hooks", "plugins", "servers", "settings", "startup", "tools"}
)
_NOT_TOOLS = frozenset(
    """
    .git .github .gitlab .circleci .buildkite .woodpecker .forgejo .gitea .cache .gradle .next .nuxt
    .npm .pnpm-store .terraform .tox .nox .mypy_cache .pytest_cache .ruff_cache .venv .storybook
    """.split()
)
"""Dot-directories that a forge reads, or that hold what a build made."""
_TOOL = Trigger(".*/settings", _UNKNOWN, guard=TriggerGuard.REPORTED)
_TOOL_DIRECTORY = Trigger(".*/hooks", _UNKNOWN, MountKind.DIR, guard=TriggerGuard.REPORTED)

NODE_MODULES = "node_modules"
NODE_PROGRAMS = ".bin"
PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Directories in which Python looks for packages, and runs `.pth` files and two modules at its
start."""
_AT_START = frozenset({"sitecustomize", "usercustomize"})
ENVIRONMENT_NAMES = frozenset({".venv", "venv", ".env", "env"})
"""Directories that tools take for a Python environment by their name."""

GIT_HOOKS_DIR = "hooks"
GIT_CONFIGS = ("config", "config.worktree")
GIT_POINTERS = ("commondir", "gitdir")
"""Files in a repository's directory that decide which commands git runs."""
GIT_UNFINISHED = ("rebase-merge", "rebase-apply", "sequencer")
"""An operation in progress: `git rebase --continue` runs `exec` lines, merge strategies and signing
programs that these directories name."""
GIT_DATA = frozenset({"objects", "refs", "logs", "lfs"})
"""Entries of `.git` that decide nothing, so that a search skips them."""
_GIT_OBJECTS = frozenset({"objects"})

_PARENTS = frozenset(trigger.parent for trigger in TRIGGERS if trigger.parent)


def trigger_of(parent: str, name: str, kind: MountKind = MountKind.FILE) -> Trigger | None:
    """The rule for an entry of a directory called `parent`; None for an ordinary one."""
    found = _BY_NAME.get((None, name)) or _BY_NAME.get((parent, name))
    if found is None:
        found = _variant(parent, name)
    if found is not None:
        return found if found.kind is kind else None
    if parent.startswith(".") and parent not in _NOT_TOOLS:
        stem = name.partition(".")[0]
        if stem in _TOOL_SETTINGS or stem.startswith("mcp"):
            return _TOOL if kind is MountKind.FILE else _TOOL_DIRECTORY
    return None


def _variant(parent: str, name: str) -> Trigger | None:
    """The rule for a variant of a known name: `.envrc.local`, `mise.local.toml`,
    `lefthook-local.yaml`."""
    suffix = name.rpartition(".")[2]
    if suffix == "code-workspace":
        return WORKSPACE
    if suffix not in _SETTINGS and "local" not in name and not name.startswith(".envrc."):
        return None  # called for every file, so most return here
    plain = _LOCAL.sub("", name)
    stem, _, suffix = plain.rpartition(".")
    if plain.startswith(".envrc."):
        plain = ".envrc"
    elif suffix == "toml" and plain.startswith(("mise.", ".mise.")):
        plain = "mise.toml"  # `mise.ENVIRONMENT.toml`
    found = _BY_NAME.get((None, plain)) or _BY_NAME.get((parent, plain))
    if found is None and suffix in _SETTINGS:
        found = _VARIANTS.get((None, f"{stem}.")) or _VARIANTS.get((parent, f"{stem}."))
    return found if found is not None and found.why != _POLICY else None


def beside_envrc(name: str, names: AbstractSet[str]) -> Trigger | None:
    """The rule for a file that a shell evaluates again with an `.envrc` that a person has
    allowed."""
    return _NEXT_TO_ENVRC if name in _BESIDE_ENVRC and ".envrc" in names else None


def names_a_place(name: str) -> bool:
    """Whether a link of this name to a directory decides what the host finds in that directory."""
    return is_known_place(name) or (name.startswith(".") and name not in _NOT_TOOLS)


def is_known_place(name: str) -> bool:
    """Whether a known tool looks into a directory of this name."""
    return (
        name in _PARENTS
        or name in ENVIRONMENT_NAMES
        or name in PACKAGES
        or name in (NODE_MODULES, NODE_PROGRAMS)
    )


def holds_programs(name: str) -> bool:
    """Whether a directory of this name, in the directory of a tool, holds programs that the tool
    runs."""
    return name in _TOOL_SETTINGS


def runs_at_start(name: str) -> bool:
    """Whether Python runs an entry of `site-packages` at its start."""
    return name.endswith(".pth") or name.partition(".")[0] in _AT_START


def is_environment(names: AbstractSet[str]) -> bool:
    """Whether a directory with these entries is an environment of Python's, or of conda's."""
    return "pyvenv.cfg" in names or "conda-meta" in names


def git_data(path: str, names: AbstractSet[str]) -> AbstractSet[str]:
    """The entries of a directory with these names that hold git's data alone.

    Only of `.git` itself. Attack: a submodule may be called `logs/vendor`, and its settings and
    hooks lie in `.git/modules/logs/vendor`. Of a submodule's own directory, only its objects are
    left out; and elsewhere such names may be anything.
    """
    if path.endswith("/.git"):
        return GIT_DATA
    if "/.git/modules/" in path and {"HEAD", "objects", "refs"} <= names:
        return _GIT_OBJECTS
    return frozenset()


def is_git_directory(path: str, names: AbstractSet[str]) -> bool:
    """Whether git takes a directory with these entries for a repository's: `.git` (even a broken
    one, which `git init` repairs with its hooks), a bare one, a submodule's, a worktree's."""
    if path.endswith("/.git"):
        return True
    return "HEAD" in names and (("objects" in names and "refs" in names) or "commondir" in names)
