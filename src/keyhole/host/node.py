"""The preset `node`: npm's registries on this host.

Called through `presets`. npm prints its registries; its files hold the credentials.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.host import npmrc
from keyhole.host.kept_answers import KeptAnswers
from keyhole.host.preset_draft import PresetDraft
from keyhole.model.errors import Refused
from keyhole.model.rule import AccessRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = "no npm on this host; name your registry under [egress] allow"

_BUILTIN = "npm's built-in default"
_REGISTRY = re.compile(r"(?:(@[^\s:/]+):)?registry")
_FILES = ("globalconfig", "userconfig")
"""npm's keys for the settings files of the system and the user."""
_PREFIX = "npm_config_"
_QUIET = {
    "npm_config_update_notifier": "false",  # it would ask the registry for a newer npm
    "npm_config_logs_max": "0",  # it would write a log into the home
}


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that npm fetches from on this host."""
    draft = PresetDraft("node", surroundings)
    settings = _ask(surroundings)
    files = _files(draft, settings)
    env: list[tuple[str, str]] = []
    scopes: list[str] = []
    for key in sorted(settings, key=lambda key: (key != "registry", key)):
        found = _REGISTRY.fullmatch(key)
        if found is None:
            continue
        scope = found[1]
        where = _where(surroundings, files, key)
        at = draft.locate(settings[key], where)
        if at is None:
            continue
        _grant(draft, at, where, files)
        if scope:
            scopes.append(f"{scope}:registry={at.url}\n")
        else:
            # Yarn's own default may not be granted, so both generations of Yarn get npm's registry.
            env += [("npm_config_registry", at.url), ("YARN_NPM_REGISTRY_SERVER", at.url)]
    return draft.finish(ADVICE, env=env, files=[(".npmrc", "".join(scopes))] if scopes else [])


def _grant(
    draft: PresetDraft, at: FetchLocation, where: str, files: Mapping[str, dict[str, str]]
) -> None:
    credential, scope = npmrc.credential(files, at) or (None, None)
    draft.grant(at, where, scope=scope, rules=[_audit(at)], credential=credential)
    keys = [key for settings in files.values() for key in settings]
    if any(key.startswith(f"//{at.netloc}") and key.endswith(":certfile") for key in keys):
        draft.note(f"{at.pattern}: npm's client certificate is not used")


def _audit(at: FetchLocation) -> AccessRule:
    """`npm audit` posts the tree of dependencies and reads known vulnerabilities."""
    return AccessRule.parse("POST /" + "/".join((*at.segments, "-/npm/v1/security/**")))


def _ask(surroundings: HostEnvironment) -> dict[str, str]:
    """npm's settings as npm merges them, run in `/` so that no project's .npmrc has an effect."""
    npm = surroundings.program("npm")
    if npm is None:
        raise Refused(ADVICE)
    words, env = ("config", "list", "--json"), _variables(surroundings) | _QUIET
    invocation = surroundings.invocation(npm, *words, env=env)
    answers = KeptAnswers(surroundings.answers)
    if invocation is not None and (kept := answers.find("npm", invocation)):
        return kept
    said = surroundings.ask(npm, *words, env=env)
    try:
        tree = json.loads(said or "")
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise Refused("npm does not tell its settings; see `npm config list --json`")
    settings = {k: v for k, v in tree.items() if isinstance(v, str) and _is_used(k)}
    # An address may hold a password, which is not kept.
    plain = not any("@" in settings[key] for key in settings if key not in _FILES)
    if invocation is not None and plain:
        answers.keep("npm", invocation, settings, _read_by(npm, settings))
    return settings


def _is_used(key: str) -> bool:
    return key in _FILES or _REGISTRY.fullmatch(key) is not None


def _read_by(npm: Path, settings: Mapping[str, str]) -> list[Path]:
    """The files on which npm's answer depends, those that are missing included."""
    own = npm.resolve().parent.parent
    named = [Path(settings[kind]) for kind in _FILES if kind in settings]
    return [*named, own / "npmrc", own / "package.json", Path("/.npmrc")]


def _variables(surroundings: HostEnvironment) -> dict[str, str]:
    """The user's own `npm_config_…`; the case of the prefix makes no difference to npm."""
    if "npm_lifecycle_event" in surroundings.env or "npm_command" in surroundings.env:
        # Started by a script of package.json: npm has put the settings of the project's .npmrc
        # into the environment, and a cloned repository's .npmrc is hostile.
        return {}
    return {
        name: value for name, value in surroundings.env.items() if name.lower().startswith(_PREFIX)
    }


def _files(draft: PresetDraft, settings: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings files that npm read, by name; later ones win."""
    found = {}
    for kind in _FILES:
        path = Path(settings.get(kind, ""))
        if not path.is_file():
            continue
        if not draft.surroundings.trusts(path):
            # npm has read it, so nothing that npm printed can be trusted.
            shown = draft.surroundings.shown(path)
            raise Refused(f"npm reads {shown}, which lies in a tree that the sandbox can write")
        text = draft.read(path)
        if text is not None:
            found[draft.surroundings.shown(path)] = npmrc.parse(text, draft.surroundings.env)
    return found


def _where(surroundings: HostEnvironment, files: Mapping[str, dict[str, str]], key: str) -> str:
    """The source of a setting; the first wins."""
    variable = next((n for n in _variables(surroundings) if n.lower() == _PREFIX + key), None)
    return variable or next((n for n in reversed(list(files)) if key in files[n]), _BUILTIN)
