"""The catalogue's files, each read when it is asked for: a policy that uses two reads two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import keyhole.inject
from keyhole.inject.catalogue import Template, parse_template

_SUFFIX = ".toml"


class FileCatalogue(Mapping[str, Template]):
    """The entries that ship with Keyhole, by name."""

    def __init__(self) -> None:
        self._directory = Path(keyhole.inject.__path__[0]) / "services"
        self._names: tuple[str, ...] = ()
        self._loaded: dict[str, Template] = {}

    def __getitem__(self, name: str) -> Template:
        if name not in self._loaded:
            if name not in self:
                raise KeyError(name)
            text = (self._directory / (name + _SUFFIX)).read_text("utf-8")
            self._loaded[name] = parse_template(name, text)
        return self._loaded[name]

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
