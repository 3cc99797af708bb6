"""The files of agent profiles, each read when it is asked for: a run reads one at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import keyhole.inject
from keyhole.inject.agent_profile import AgentProfile, parse_profile

_SUFFIX = ".toml"
_MAX_NAME = 32
"""Characters of a profile's name; a longer one may be no name that a file can have."""


class FileProfiles(Mapping[str, AgentProfile]):
    """The profiles that ship with Keyhole, by name."""

    def __init__(self) -> None:
        self._directory = Path(keyhole.inject.__path__[0]) / "agents"
        self._loaded: dict[str, AgentProfile] = {}

    def __getitem__(self, name: str) -> AgentProfile:
        if name not in self._loaded:
            if name not in self:
                raise KeyError(name)
            text = (self._directory / (name + _SUFFIX)).read_text("utf-8")
            self._loaded[name] = parse_profile(name, text)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        # Most commands are no agent's: one look, no list.
        plain = isinstance(name, str) and len(name) <= _MAX_NAME and name.replace("-", "").isalnum()
        return plain and (self._directory / f"{name}{_SUFFIX}").is_file()

    def __iter__(self) -> Iterator[str]:
        files = (entry.name for entry in self._directory.iterdir())
        return iter(sorted(f.removesuffix(_SUFFIX) for f in files if f.endswith(_SUFFIX)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
