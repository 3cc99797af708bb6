"""Reads the URL of a project's git remote, without running git.

Called by `look`. git in a hostile tree runs what its config says (fsmonitor, aliases, includes);
this reader takes one value of one file and trusts nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from keyhole.host.settings_file import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\["\\])*)")?\s*\](.*)')
_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_SCP = re.compile(r"(?:[^@/:\s]+@)?([A-Za-z0-9.-]+):(?!//)([^\s:]+)")
_SCHEMES = frozenset({"https", "http", "ssh", "git"})


def origin(project: Path) -> str | None:
    """The URL of `origin` as `scheme://host/path`, never with userinfo; None if there is none."""
    config = _config(project / ".git")
    text = read_text(config) if config else None
    url = next(_values(text or "", "remote", "origin", "url"), None)
    return _plain(url) if url else None


def _config(git: Path) -> Path | None:
    if git.is_dir():
        return git / "config"
    # A linked worktree: `.git` is a file that names its directory inside the main repository.
    directory = _named(git, "gitdir:")
    if directory is None:
        return None
    # A cloned project can have any path in `.git`; a real worktree is registered at that path.
    back = _named(directory / "gitdir")
    common = _named(directory / "commondir")
    if back is None or common is None or back.resolve() != git.resolve():
        return None
    return common / "config"


def _named(file: Path, label: str = "") -> Path | None:
    """The path that a one-line file holds, taken from where the file is."""
    text = (read_text(file) or "").rstrip("\n")
    if not text.startswith(label) or not text.removeprefix(label).strip() or not text.isprintable():
        return None
    return file.parent / text.removeprefix(label).strip()


def _values(text: str, section: str, subsection: str, key: str) -> Iterator[str]:
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        header = _SECTION.fullmatch(line)
        if header:
            inside = header[1].lower() == section and header[2] == subsection
            line = header[3].strip()
        pair = _PAIR.fullmatch(line) if inside else None
        # Quotes, escapes and continued lines are legal, but no remote needs them: not read.
        if pair and pair[1].lower() == key and not set(pair[2]) & set('"\\;#'):
            yield pair[2]


def _plain(url: str) -> str | None:
    if not url.isprintable():
        return None
    scp = _SCP.fullmatch(url)
    if scp:
        return f"ssh://{scp[1]}/{scp[2].lstrip('/')}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    address = parts.netloc.rpartition("@")[2]
    if parts.scheme not in _SCHEMES or not address or "@" in parts.path:
        return None
    # A query or fragment may hold a token as well.
    return f"{parts.scheme}://{address}{parts.path}"
