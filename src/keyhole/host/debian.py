"""The preset `debian`: the hosts of apt's sources on this host.

Called through `presets`. Inside, apt reads the same files under /etc/apt; nothing is placed there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host import apt_sources
from keyhole.host.netrc import login_for, logins
from keyhole.host.preset_draft import PresetDraft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = "no apt sources on this host; name your mirror under [egress] allow"

_MIRROR = "mirror+"
_LOCAL = ("cdrom:", "file:", "copy:")


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that apt fetches from on this host."""
    draft = PresetDraft("debian", surroundings)
    known = logins(draft, *_login_files(surroundings))
    for path in _source_files(surroundings):
        text = draft.read(path)
        where = surroundings.shown(path)
        for uri in apt_sources.uris(path.name, text) if text else ():
            for found in _mirrors(draft, uri, where):
                at = draft.locate(found, where)
                if at:
                    draft.grant(at, where, credential=at.credential or login_for(at, known))
    return draft.finish(ADVICE)


def _source_files(surroundings: HostEnvironment) -> list[Path]:
    directory = surroundings.at("/etc/apt/sources.list.d")
    return [
        surroundings.at("/etc/apt/sources.list"),
        *(path for path in _entries(directory) if apt_sources.reads(path.name)),
    ]


def _login_files(surroundings: HostEnvironment) -> list[Path]:
    directory = surroundings.at("/etc/apt/auth.conf.d")
    return [
        surroundings.at("/etc/apt/auth.conf"),
        *(path for path in _entries(directory) if path.suffix == ".conf"),
    ]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _mirrors(draft: PresetDraft, uri: str, where: str) -> Iterator[str]:
    """The URLs that a source stands for: itself, or those that its list of mirrors names."""
    if uri.startswith(_LOCAL):
        return
    if uri.startswith(_MIRROR + "file:"):
        path = Path("/" + uri.removeprefix(_MIRROR + "file:").lstrip("/"))
        text = draft.read(draft.surroundings.at(str(path)))
        if text is None:
            draft.note(f"{where}: its list of mirrors cannot be read")
        for line in (text or "").splitlines():
            words = line.partition("#")[0].split()
            if words and not words[0].startswith((_MIRROR, *_LOCAL)):
                yield words[0]
    elif uri.startswith((_MIRROR + "http:", _MIRROR + "https:")):
        draft.note(f"{where}: the mirrors that a list on another host names are not known here")
        yield uri.removeprefix(_MIRROR)
    else:
        yield uri
