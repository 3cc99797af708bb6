"""The answers of a container engine as values; `engine.py` makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class EngineImage(Struct, frozen=True):
    """The engine's description of an image."""

    id: str
    environment: Mapping[str, str]
    volumes: tuple[str, ...]
    architecture: str


class PullProgress(Struct, frozen=True):
    """Progress of a pull: a layer, its state, and its share."""

    layer: str
    status: str
    done: int
    total: int
    """In bytes; 0 when the engine does not report it."""


class ContainerState(Struct, frozen=True):
    """The engine's description of a container."""

    id: str
    running: bool
    pid: int
    """The host's number of its first process; 0 when there is none."""
    labels: Mapping[str, str]


class ExecState(Struct, frozen=True):
    """The engine's description of a command that joined a container."""

    running: bool
    pid: int
    """The host's number of its process; 0 when it has not started, or has ended."""
    code: int | None
    """None until it has ended."""


class ListedContainer(Struct, frozen=True):
    """One of our containers, in a list."""

    id: str
    labels: Mapping[str, str]
    created: int
    """In seconds since 1970."""
    running: bool = False


class EngineInfo(Struct, frozen=True):
    """An engine's public description of itself."""

    version: str
    """The newest protocol version that it supports."""
    podman: bool


class JoinedNamespaces(Struct, frozen=True):
    """The containers whose namespaces a container shares."""

    id: str
    name: str
    others: tuple[str, ...]
    """Containers whose network or process namespace it shares, by the names in its request."""
