"""Installs the CNI plugin on the node, and adds it after the plugins that are configured there.

The agent calls this when it starts, and again while it runs, because the cluster's own network
plugin may write its configuration later or rewrite it. The plugin comes with its own Python
interpreter, so the node needs only a shell.
"""

from __future__ import annotations

import enum
import json
import os
import shlex
from pathlib import Path
from typing import Any

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.containers.program_volume import fill_program_volume
from keyhole.sandbox.pods.cni_plugin import ANNOTATIONS

NAME = "keyhole"
_MODULE = "keyhole.sandbox.pods.cni_plugin"
_ENDINGS = (".conf", ".conflist", ".json")
MAX_CONFIGURATION = 1 << 20


class CniPlaces(Struct, frozen=True):
    """The node's directories, as the agent sees them and as the node names them."""

    binaries: Path = Path("/opt/cni/bin")
    configurations: Path = Path("/etc/cni/net.d")
    kit: Path = Path("/opt/cni/keyhole")
    """The directory with the plugin and its interpreter. The node must see it at the same path."""


def install_plugin(places: CniPlaces, nft: str) -> None:
    """Write the plugin. Raises OSError, ResourceUnusable."""
    kit = places.kit
    kit.mkdir(mode=0o755, parents=True, exist_ok=True)
    fill_program_volume(kit, nft, (_MODULE,))
    code = (
        f"import sys; sys.path.insert(0, {str(kit / 'own')!r}); "
        f"from {_MODULE} import main; sys.exit(main())"
    )
    words = [
        str(kit / "loader"), "--library-path", str(kit / "lib"),
        str(kit / "python/bin/python"), "-I", "-S", "-c", code,
    ]  # fmt: skip
    script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
    _replace(places.binaries / NAME, script.encode("utf-8"), 0o755)


class ChainState(enum.Enum):
    """Whether the plugin was in the node's configuration. Only the last value is safe for a pod
    that starts now: a runtime reads a changed file a moment later."""

    ABSENT = enum.auto()
    """There is no configuration."""
    WRITTEN = enum.auto()
    """It was missing, and was added."""
    KEPT = enum.auto()


def chain_plugin(places: CniPlaces, socket: Path) -> ChainState:
    """Add the plugin at the end of the configuration that the node's runtime uses, which is the
    first file by name. Raises OSError, ResourceUnusable."""
    found = sorted(each for each in places.configurations.iterdir() if each.suffix in _ENDINGS)
    if not found:
        return ChainState.ABSENT
    path = found[0]
    data = path.read_bytes()
    try:
        given = json.loads(data) if len(data) <= MAX_CONFIGURATION else None
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ResourceUnusable(f"{path} is not a configuration of CNI")
    wanted = chained(given, str(socket))
    if wanted == given:
        return ChainState.KEPT
    target = path.with_suffix(".conflist")
    _replace(target, json.dumps(wanted, indent=2).encode("utf-8"), 0o600)
    if target != path:
        path.unlink()
    return ChainState.WRITTEN


def chained(configuration: dict[str, Any], socket: str) -> dict[str, Any]:
    """A configuration with our plugin at its end, exactly once."""
    if "plugins" in configuration:
        lists = dict(configuration)
        plugins = [each for each in lists["plugins"] if each.get("type") != NAME]
    else:
        single = dict(configuration)
        lists = {"cniVersion": single.pop("cniVersion", "1.0.0"), "name": single.pop("name", NAME)}
        plugins = [single]
    own = {"type": NAME, "capabilities": {ANNOTATIONS: True}, "socket": socket}
    return lists | {"plugins": [*plugins, own]}


def _replace(path: Path, data: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.chmod(mode)
    os.replace(beside, path)
