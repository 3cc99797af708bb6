"""The preset `cargo`: the registries that cargo uses on this host.

Called through `presets`. The user's settings come from `cargosettings`; cargo's built-in index, and
its cache of registries, from `cargocache`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from keyhole.host import cargo_cache, cargo_settings
from keyhole.host.preset_draft import PresetDraft

if TYPE_CHECKING:
    from keyhole.host.fetch_location import FetchLocation
    from keyhole.host.found_credential import FoundCredential
    from keyhole.host.host_environment import HostEnvironment
    from keyhole.inject.preset import Preset

ADVICE = (
    "cargo has not used its index on this host yet, so that the host of its crates is not known; "
    "run `cargo search anything` once outside, or name your registry under [egress] allow"
)

PLACEHOLDER = "keyhole"
"""The token inside: cargo sends nothing to a registry that wants one unless it has one. The gateway
removes it and writes the real one (I6)."""

_DEFAULT = "crates-io"
"""The name of the built-in registry in cargo's settings."""

_BUILTIN = "cargo's built-in default"
_SPARSE = "sparse+"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def learn(surroundings: HostEnvironment) -> Preset:
    """The hosts that cargo fetches from on this host."""
    return _Learner(surroundings).learn()


class _Learner:
    def __init__(self, surroundings: HostEnvironment) -> None:
        self.draft = PresetDraft("cargo", surroundings)
        self.tables: list[str] = []
        self.env: list[tuple[str, str]] = []

    def learn(self) -> Preset:
        registries, sources = cargo_settings.read(self.draft)
        for registry in registries:
            self._place_registry(registry)
        for source in sources:
            self._place_source(source)
        if not any(source.name == _DEFAULT and source.replace_with for source in sources):
            self._place_default()
        if self.env:
            # Without this line cargo refuses to send a token to a registry that asks for one.
            self.tables.append('[registry]\nglobal-credential-providers = ["cargo:token"]\n')
        files = [(".cargo/config.toml", "\n".join(self.tables))] if self.tables else []
        return self.draft.finish(ADVICE, env=self.env, files=files)

    def _place_registry(self, registry: cargo_settings.CargoRegistry) -> None:
        at = self._place(registry.url, registry.where, registry.credential)
        if at is None or not _NAME.fullmatch(registry.name):
            return
        self._give(f"registries.{registry.name}", index=_SPARSE + at.url)
        if registry.credential:
            variable = cargo_settings.variable(registry.name)
            self.env.append((f"CARGO_REGISTRIES_{variable}_TOKEN", PLACEHOLDER))

    def _place_source(self, source: cargo_settings.CargoSource) -> None:
        keys = {}
        if source.url:
            at = self._place(source.url, source.where)
            if at:
                keys["registry"] = _SPARSE + at.url
        if source.replace_with:
            keys["replace-with"] = source.replace_with
        if keys and _NAME.fullmatch(source.name):
            self._give(f"source.{source.name}", **keys)

    def _place_default(self) -> None:
        url = cargo_cache.default_index(self.draft.surroundings)
        at = self.draft.locate(url, _BUILTIN) if url else None
        # An index without a host for its crates is useless, and would hide the advice.
        if at and cargo_cache.downloads(self.draft, at):
            # No token: this registry wants one for publishing only.
            self._place(_SPARSE + at.url, _BUILTIN)
        else:
            self.draft.note(ADVICE)

    def _place(
        self, url: str, where: str, credential: FoundCredential | None = None
    ) -> FetchLocation | None:
        """Grant an index, and the hosts that it keeps its crates on."""
        if not url.startswith(_SPARSE):
            self.draft.note(f"{where}: an index kept in git is left out; only sparse ones are read")
            return None
        at = self.draft.locate(url.removeprefix(_SPARSE), where)
        if at is None:
            return None
        self.draft.grant(at, where, credential=credential)
        found = cargo_cache.downloads(self.draft, at)
        if found is None:
            self.draft.note(
                f"{at.pattern} may keep its crates on another host; that is known here once cargo "
                "has used the registry outside"
            )
        for text in found.urls if found else ():
            crates = self.draft.locate(text, cargo_cache.WHERE)
            if crates:
                # The registry names the hosts of its crates; its token goes to its own host alone.
                own = credential if crates.pattern == at.pattern else None
                self.draft.grant(crates, cargo_cache.WHERE, credential=own)
        return at

    def _give(self, table: str, **values: str) -> None:
        """Write a table of the config.toml inside. JSON's strings are TOML's."""
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        self.tables.append(f"[{table}]\n{keys}")
