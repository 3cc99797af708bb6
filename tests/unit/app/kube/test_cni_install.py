"""The plugin's place behind others in the node's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.app.kube.cni_install import ChainState, CniPlaces, chain_plugin, chained
from keyhole.model.errors import ResourceUnusable

BRIDGE = {"type": "bridge", "bridge": "cni0"}
LIST = {"cniVersion": "1.0.0", "name": "pods", "plugins": [BRIDGE]}


@pytest.fixture
def places(tmp_path: Path) -> CniPlaces:
    """A node without a configuration."""
    return CniPlaces(tmp_path / "bin", tmp_path, tmp_path / "kit")


def test_it_comes_last_and_once() -> None:
    once = chained(LIST, "/run/cni.sock")
    assert [each["type"] for each in once["plugins"]] == ["bridge", "keyhole"]
    assert chained(once, "/run/cni.sock") == once


def test_a_single_plugin_becomes_a_list() -> None:
    single = {"cniVersion": "0.4.0", "name": "pods", **BRIDGE}
    made = chained(single, "/run/cni.sock")
    assert (made["cniVersion"], made["name"]) == ("0.4.0", "pods")
    assert made["plugins"][0] == BRIDGE


def test_the_configuration_that_the_runtime_uses_is_changed(
    places: CniPlaces, tmp_path: Path
) -> None:
    assert chain_plugin(places, Path("/run/cni.sock")) is ChainState.ABSENT
    (tmp_path / "10-pods.conf").write_text(json.dumps({"name": "pods", **BRIDGE}))
    (tmp_path / "20-other.conflist").write_text(json.dumps(LIST))
    assert chain_plugin(places, Path("/run/cni.sock")) is ChainState.WRITTEN
    assert chain_plugin(places, Path("/run/cni.sock")) is ChainState.KEPT
    changed = json.loads((tmp_path / "10-pods.conflist").read_text())
    assert changed["plugins"][-1]["type"] == "keyhole"
    assert not (tmp_path / "10-pods.conf").exists()
    assert json.loads((tmp_path / "20-other.conflist").read_text()) == LIST


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_configuration_is_said(places: CniPlaces, tmp_path: Path, text: str) -> None:
    (tmp_path / "10-pods.conflist").write_text(text)
    with pytest.raises(ResourceUnusable, match="not a configuration"):
        chain_plugin(places, Path("/run/cni.sock"))
