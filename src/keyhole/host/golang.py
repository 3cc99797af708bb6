"""The preset `go`: the module proxies and the checksum database that go uses on this host.

Called through `presets`. It runs `go env`, which knows the user's settings and go's defaults.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from keyhole.host.netrc import login_for, user_logins
from keyhole.host.preset_draft import PresetDraft
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = "no go on this host says which proxy it uses; name your proxy under [egress] allow"

_PROXY = "go env GOPROXY"
_DATABASE = "go env GOSUMDB"
_ASIDE = ("GONOSUMDB", "GONOPROXY", "GOPRIVATE")
"""Modules that are fetched from neither; names of modules, never a credential."""

_KEPT = ("GOPROXY", "GOSUMDB", *_ASIDE, "GOENV", "GOROOT", "XDG_CONFIG_HOME")
# go must not fetch another toolchain to answer. GOFLAGS is not kept: it can name programs to run.
_FIXED = {"GOTOOLCHAIN": "local"}


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that go fetches modules from on this host."""
    draft = PresetDraft("go", surroundings)
    settings = _ask(surroundings)
    env = [
        ("GOPROXY", _proxies(draft, settings.get("GOPROXY", ""))),
        ("GOSUMDB", _database(draft, settings.get("GOSUMDB", ""))),
        *((name, settings.get(name, "")) for name in _ASIDE),
    ]
    return draft.finish(ADVICE, env=[(name, value) for name, value in env if value])


def _proxies(draft: PresetDraft, text: str) -> str:
    """The list for use inside: the same proxies without userinfo, in the same order."""
    known = user_logins(draft)

    def kept() -> Iterator[str]:
        # After ',' go tries the next proxy on a 404, after '|' on any error: both are kept.
        for word in re.split(r"([,|])", text):
            word = word.strip()
            if word == "direct":
                draft.note(
                    "go asks a module's own repository where its proxy has none ('direct'); "
                    "name those hosts as services"
                )
            if word in {"direct", "off", ",", "|"}:
                yield word
                continue
            at = draft.locate(word, _PROXY) if word else None
            if at:
                draft.grant(at, _PROXY, credential=at.credential or login_for(at, known))
                yield at.url

    # A proxy that was left out leaves its separator behind.
    return re.sub(r"[,|]+(?=[,|])", "", "".join(kept())).strip(",|")


def _database(draft: PresetDraft, text: str) -> str:
    """The setting for use inside: `NAME[+KEY] [URL]`, where without URL the name is the host."""
    name, *urls = text.split() or [""]
    if name == "off":
        draft.note("go checks modules against no checksum database (GOSUMDB=off)")
        return name
    if not name:
        return ""
    at = draft.locate(urls[0] if urls else f"https://{name.partition('+')[0]}", _DATABASE)
    if at is None:
        return ""
    draft.grant(at, _DATABASE)
    return f"{name} {at.url}" if urls else name


def _ask(surroundings: HostEnvironment) -> dict[str, str]:
    go = surroundings.program("go")
    if go is None:
        raise Refused(ADVICE)
    names = ("GOPROXY", "GOSUMDB", *_ASIDE)
    said = surroundings.ask(go, "env", "-json", *names, env=surroundings.pick(_KEPT) | _FIXED)
    try:
        tree = json.loads(said or "")
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise Refused("go does not tell its settings; see `go env -json GOPROXY`")
    return {key: value for key, value in tree.items() if isinstance(value, str)}
