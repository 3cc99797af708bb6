"""Files that make the host run something without anyone asking for it (I11): the one table.

Those that exist are read-only inside; those that appear or change are reported after the run. Not
here: what runs only when someone says so (Makefile, package.json scripts, sources, `.github/` which
the forge runs), and `.git/info/attributes`, which can only choose among filters that the protected
config defines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Kind

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True, slots=True)
class Trigger:
    """A name, the directory it must lie in if any, and what the host does with it."""

    name: str
    why: str
    kind: Kind = Kind.FILE
    parent: str | None = None


_EDITOR = "an editor runs its tasks and settings"
_AGENT = "an agent on the host runs the hooks and servers it names"
_GIT_HOOKS = "git runs it at the next commit"
_VERSIONS = "a version control system runs the hooks and aliases it names"
_CARGO = "cargo runs the compilers and wrappers it names, also when an editor asks"
_SHELL = "a shell runs it on entering the directory"

TRIGGERS = (
    Trigger("keyhole.toml", "it is what Keyhole grants"),
    Trigger(".envrc", _SHELL),
    Trigger("mise.toml", _SHELL),
    Trigger(".mise.toml", _SHELL),
    Trigger(".autoenv.zsh", _SHELL),
    Trigger(".vscode", _EDITOR, Kind.DIR),
    Trigger(".idea", _EDITOR, Kind.DIR),
    Trigger(".zed", _EDITOR, Kind.DIR),
    Trigger(".fleet", _EDITOR, Kind.DIR),
    Trigger(".nvim.lua", _EDITOR),
    Trigger(".exrc", _EDITOR),
    Trigger(".nvimrc", _EDITOR),
    Trigger(".vimrc", _EDITOR),
    Trigger("languages.toml", _EDITOR, parent=".helix"),
    Trigger(".devcontainer", _EDITOR, Kind.DIR),
    Trigger(".devcontainer.json", _EDITOR),
    Trigger("settings.json", _AGENT, parent=".claude"),
    Trigger("settings.local.json", _AGENT, parent=".claude"),
    Trigger("hooks", _AGENT, Kind.DIR, parent=".claude"),
    Trigger("plugins", _AGENT, Kind.DIR, parent=".claude"),
    Trigger(".mcp.json", _AGENT),
    Trigger(".cursor", _AGENT, Kind.DIR),
    Trigger("settings.json", _AGENT, parent=".gemini"),
    Trigger("config.toml", _AGENT, parent=".codex"),
    Trigger("opencode.json", _AGENT),
    Trigger(".aider.conf.yml", _AGENT),
    Trigger("mcp.json", _AGENT, parent=".roo"),
    Trigger("settings", _AGENT, Kind.DIR, parent=".kiro"),
    Trigger("mcp.json", _AGENT, parent=".amazonq"),
    Trigger(".windsurf", _AGENT, Kind.DIR),
    Trigger(".continue", _AGENT, Kind.DIR),
    Trigger("settings.json", _AGENT, parent=".qwen"),
    Trigger("mcp.json", _AGENT, parent=".factory"),
    Trigger(".junie", _AGENT, Kind.DIR),
    Trigger(".crush.json", _AGENT),
    Trigger(".husky", _GIT_HOOKS, Kind.DIR),
    Trigger(".githooks", _GIT_HOOKS, Kind.DIR),
    Trigger(".pre-commit-config.yaml", _GIT_HOOKS),
    Trigger("lefthook.yml", _GIT_HOOKS),
    Trigger(".lefthook.yml", _GIT_HOOKS),
    Trigger(".lefthook", _GIT_HOOKS, Kind.DIR),
    Trigger("hgrc", _VERSIONS, parent=".hg"),
    # Of `.jj/repo`, whose other content must stay writable.
    Trigger("config.toml", _VERSIONS, parent="repo"),
    Trigger("config.toml", _CARGO, parent=".cargo"),
    Trigger("config", _CARGO, parent=".cargo"),
)
_WORKSPACE = Trigger("*.code-workspace", _EDITOR)
_BY_NAME = {(trigger.parent, trigger.name): trigger for trigger in TRIGGERS}
_NAMES = frozenset(trigger.name for trigger in TRIGGERS)

REPOSITORY = "git runs what its config and hooks name"
POINTER = "git looks for config and hooks where it points"
ENVIRONMENT = "shells and editors run its programs"

GIT_HOOKS_DIR = "hooks"
GIT_CONFIGS = ("config", "config.worktree")
GIT_POINTERS = ("commondir", "gitdir")
"""Inside a repository's directory: what decides which commands git runs."""
GIT_TODO = "rebase-merge/git-rebase-todo"
"""A rebase in progress: `git rebase --continue` runs its `exec` lines."""
GIT_DATA = frozenset({"objects", "refs", "logs", "lfs"})
"""And what decides nothing, so that the comparison passes it over."""


def trigger_of(parent: str, name: str) -> Trigger | None:
    """The table's row for an entry of a directory called `parent`."""
    if name not in _NAMES:
        return _WORKSPACE if name.endswith(".code-workspace") else None
    return _BY_NAME.get((None, name)) or _BY_NAME.get((parent, name))


def is_git_directory(path: str, names: AbstractSet[str]) -> bool:
    """Whether git takes a directory with these entries for a repository's: `.git` (also a broken
    one, which `git init` repairs with its hooks), a bare one, a submodule's, a worktree's."""
    if path.endswith("/.git"):
        return True
    return "HEAD" in names and (("objects" in names and "refs" in names) or "commondir" in names)
