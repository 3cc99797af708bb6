"""The catalogue's files, each read when it is asked for: a policy that uses two reads two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import keyhole.inject
from keyhole.inject.catalogue import ServiceTemplate, extended, parse_template
from keyhole.inject.model_api import ModelApi, parse_model_api

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy

_SUFFIX = ".toml"


class FileModelApis(Mapping[str, ModelApi]):
    """The APIs of models that ship with Keyhole, by name."""

    def __init__(self) -> None:
        self._directory = Path(keyhole.inject.__path__[0]) / "model_apis"
        self._loaded: dict[str, ModelApi] = {}

    def __getitem__(self, name: str) -> ModelApi:
        if name not in self._loaded:
            if name not in self:
                raise KeyError(name)
            text = (self._directory / (name + _SUFFIX)).read_text("utf-8")
            self._loaded[name] = parse_model_api(name, text, self)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return (self._directory / f"{name}{_SUFFIX}").is_file()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.stem for file in self._directory.glob(f"*{_SUFFIX}")))

    def __len__(self) -> int:
        return len(list(iter(self)))


class FileCatalogue(Mapping[str, ServiceTemplate]):
    """The entries that ship with Keyhole, by name."""

    def __init__(self) -> None:
        self._directory = Path(keyhole.inject.__path__[0]) / "services"
        self._apis = FileModelApis()
        self._names: tuple[str, ...] = ()
        self._loaded: dict[str, ServiceTemplate] = {}

    def __getitem__(self, name: str) -> ServiceTemplate:
        if name not in self._loaded:
            if name not in self:
                raise KeyError(name)
            text = self._text(name)
            base = self._text(other) if (other := extended(text)) else ""
            self._loaded[name] = parse_template(name, text, self._apis, base)
        return self._loaded[name]

    def near(self, policy: Policy) -> tuple[ServiceTemplate, ...]:
        """The entries that may have a host in common with a service of the policy.

        Patterns that overlap end with the same two labels, so an entry whose text has those of no
        service is not parsed: all of them take 50 ms, a third of `keyhole check`.
        """
        patterns = (p for service in policy.services for h in service.hosts for p in h.patterns)
        ends = {".".join(pattern.host.name.split(".")[-2:]) for pattern in patterns}
        texts = ((name, self._text(name)) for name in self._all())
        return tuple(self[name] for name, text in texts if any(end in text for end in ends))

    def _text(self, name: str) -> str:
        return (self._directory / (name + _SUFFIX)).read_text("utf-8")

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> tuple[str, ...]:
        if not self._names:
            files = (entry.name for entry in self._directory.iterdir())
            self._names = tuple(
                sorted(f.removesuffix(_SUFFIX) for f in files if f.endswith(_SUFFIX))
            )
        return self._names
