"""The settings that `git submodule init` would write into a repository's config, which is read-only
inside.

Called for each work tree of a run. Git looks up a submodule's address in all its configuration. So
it finds the address in a file that is included for this repository alone, and has nothing to write.
The text comes from `.gitmodules`, which the sandbox may have written; only the sandbox reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.git_config import without_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.host.git_config import GitSetting
    from keyhole.policy.git_settings import Line

_UPDATES = frozenset({"checkout", "merge", "rebase", "none"})
"""Not `!command`, which git does not accept from a `.gitmodules` either."""


def submodule_settings(modules: Sequence[GitSetting], own: Sequence[GitSetting]) -> list[Line]:
    """Settings for the submodules in `modules` that the repository's `own` config does not know."""
    known = {(s.subsection, s.name) for s in own if s.section == "submodule"}
    remote = _remote(own)
    lines: list[Line] = []
    for setting in modules:
        name, value = setting.subsection, setting.value
        if setting.section != "submodule" or not name or not value or not name.isprintable():
            continue
        if (name, setting.name) in known:
            continue
        if setting.name == "url" and (address := _address(value, remote)):
            lines.append(("submodule", name, "url", address))
        elif setting.name == "update" and value in _UPDATES:
            lines.append(("submodule", name, "update", value))
    return lines


def _remote(own: Sequence[GitSetting]) -> str | None:
    """The address that others are relative to: of `origin`, or of the only remote."""
    urls = {
        s.subsection: s.value for s in own if (s.section, s.name) == ("remote", "url") and s.value
    }
    return urls.get("origin") or (next(iter(urls.values())) if len(urls) == 1 else None)


def _address(written: str, remote: str | None) -> str | None:
    if not written.startswith(("./", "../")):
        return without_credentials(written)
    if remote is None:
        return None
    base, separator = remote.rstrip("/"), "/"
    while written.startswith(("./", "../")):
        if written.startswith("../"):
            # `git@host:widgets` has no slash left to cut at.
            separator = "/" if "/" in base else ":"
            base, cut, _ = base.rpartition(separator)
            if not cut:
                return None
        written = written.partition("/")[2]
    return f"{base}{separator}{written.rstrip('/')}"
