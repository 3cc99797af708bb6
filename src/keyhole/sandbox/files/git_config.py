"""A repository's config for use inside: only the keys that git needs to work (I1, I11).

Parsed by git itself from bytes on its standard input, so that neither an include nor a link is
followed. Keys pass by an allowlist, which has none that runs commands, names files of the host or
sends credentials.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.credential_patterns import value_looks_secret

if TYPE_CHECKING:
    from pathlib import Path

MAX_CONFIG = 1 << 20
"""Bytes of a config; those with thousands of branches are tenths of that."""
_SECONDS = 10.0

_NAMES = {
    "core": """repositoryformatversion bare filemode ignorecase precomposeunicode symlinks worktree
        logallrefupdates autocrlf eol safecrlf sparsecheckout sparsecheckoutcone untrackedcache
        preloadindex abbrev quotepath compression bigfilethreshold sharedrepository checkstat
        trustctime splitindex commitgraph multipackindex whitespace longpaths protecthfs
        protectntfs commentchar notesref""",
    "remote": """url pushurl fetch push mirror tagopt prune prunetags promisor partialclonefilter
        skipdefaultupdate skipfetchall""",
    "branch": "remote merge rebase pushremote description autosetupmerge autosetuprebase",
    "user": "name email",
    "author": "name email",
    "committer": "name email",
    "submodule": "url active branch ignore path update fetchrecursesubmodules shallow recurse",
    "lfs": "url pushurl repositoryformatversion access locksverify fetchinclude fetchexclude",
    "url": "insteadof pushinsteadof",
    "init": "defaultbranch",
    "pull": "rebase ff",
    "push": "default autosetupremote followtags",
    "fetch": "prune prunetags fsckobjects recursesubmodules",
    "transfer": "fsckobjects",
    "merge": "ff conflictstyle renames",
    "diff": "algorithm renames submodule",
    "rebase": "autosquash autostash updaterefs",
    "rerere": "enabled autoupdate",
    "status": "short branch showuntrackedfiles submodulesummary",
    "log": "date decorate",
    "index": "version",
    "gc": "auto",
    "feature": "manyfiles",
    "i18n": "commitencoding logoutputencoding",
}
_ALLOWED = {section: frozenset(names.split()) for section, names in _NAMES.items()}
_UPDATES = frozenset({"checkout", "merge", "rebase", "none"})
_URLS = frozenset({"url", "pushurl", "insteadof", "pushinsteadof"})
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)", re.IGNORECASE)


class RepositorySetting(Struct, frozen=True):
    """One line of a config: `section[.subsection].name`; no value means true."""

    section: str
    subsection: str | None
    name: str
    value: str | None


def parse(git: Path, data: bytes) -> tuple[RepositorySetting, ...] | None:
    """The settings in a config file's bytes; None when git finds it broken."""
    words = [str(git), "config", "--file", "-", "--no-includes", "--null", "--list"]
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
    clean |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    try:
        done = subprocess.run(  # noqa: S603 - a program outside of every writable tree
            words,
            input=data,
            capture_output=True,
            check=False,
            cwd="/",
            env=clean,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    try:
        text = done.stdout.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return tuple(_setting(record) for record in text.split("\0")[:-1])


def sanitised(settings: tuple[RepositorySetting, ...]) -> str:
    """A config with the permitted settings, in git's own notation."""
    lines, heading = [], None
    for setting in filter(None, map(_kept, settings)):
        if heading != (heading := (setting.section, setting.subsection)):
            lines.append(_heading(setting))
        value = "" if setting.value is None else f" = {_quoted(setting.value)}"
        lines.append(f"\t{setting.name}{value}")
    return "".join(f"{line}\n" for line in lines)


def hooks_path(settings: tuple[RepositorySetting, ...]) -> str | None:
    """The directory of hooks in this config, when it is not the repository's own."""
    found = [s.value for s in settings if (s.section, s.name) == ("core", "hookspath")]
    return found[-1] if found else None


def without_credentials(url: str) -> str | None:
    """The URL without userinfo and query; None for one that runs a command."""
    if "::" in url.partition("/")[0]:
        return None  # `ext::sh -c …` and other remote helpers
    match = _SCHEME.match(url)
    if match is None:
        return url
    scheme, authority, path = match.groups()
    user, at, address = authority.rpartition("@")
    # Over ssh the user is part of the address; over HTTP it may be the token.
    keeps = at and scheme.lower() in ("ssh", "git+ssh", "ssh+git")
    return f"{scheme}://{user.partition(':')[0] + '@' if keeps else ''}{address}{path}"


def _setting(record: str) -> RepositorySetting:
    key, newline, value = record.partition("\n")
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    return RepositorySetting(section, subsection if dot else None, name, value if newline else None)


def _kept(setting: RepositorySetting) -> RepositorySetting | None:
    section, name, value = setting.section, setting.name, setting.value
    if section != "extensions" and name not in _ALLOWED.get(section, ()):
        return None
    if section == "submodule" and name == "update" and value not in _UPDATES:
        return None  # `!command`
    subsection = setting.subsection
    in_heading = subsection if section in ("url", "lfs") else None
    if in_heading is not None and without_credentials(in_heading) != in_heading:
        return None  # url."https://token@forge/".insteadOf
    if value is not None and name in _URLS:
        value = without_credentials(value)
        if value is None:
            return None
    if value_looks_secret(f"{subsection or ''} {value or ''}"):
        return None
    return RepositorySetting(section, subsection, name, value)


def _heading(setting: RepositorySetting) -> str:
    if setting.subsection is None:
        return f"[{setting.section}]"
    escaped = setting.subsection.replace("\\", "\\\\").replace('"', '\\"')
    return f'[{setting.section} "{escaped}"]'


def _quoted(value: str) -> str:
    for raw, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(raw, escaped)
    return f'"{value}"'
