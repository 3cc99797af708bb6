"""The table of presets, and what holds for all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.host import cargo_cache, presets
from keyhole.host.fetch_location import FetchLocation
from keyhole.model.errors import Refused
from tests.rigs.host.building import host, this_host

TREES = (Path(presets.__file__).parent, Path(__file__).parent)


def test_every_preset_has_a_learner() -> None:
    assert presets.NAMES == ("python", "node", "debian", "cargo", "go", "maven")


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="known: python, node, debian"):
        presets.learn("pyhton", host(tmp_path))


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_preset_that_cannot_be_filled_says_what_to_do(name: str, tmp_path: Path) -> None:
    env = {"PIP_INDEX_URL": "https://192.0.2.7/"}
    with pytest.raises(Refused, match=r"under \[egress\] allow"):
        presets.learn(name, host(tmp_path, env=env))


def test_names_are_known_without_loading_the_learners() -> None:
    """They are needed to judge any policy; the learners only where a preset is named."""
    heavy = "{'configparser', 'http.client', 'tomllib', 'xml.etree', 'zipfile'}"
    run = f"import sys; from keyhole.host import presets; sys.exit(str({heavy} & {{*sys.modules}}))"
    env = {"PYTHONPATH": str(TREES[0].parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, env=env
    )
    assert found.stderr == "set()\n"


def test_no_registry_is_written_down(tmp_path: Path) -> None:
    """The hosts that this machine's tools use are in neither code nor tests."""
    here = this_host(tmp_path)
    names: set[str] = set()
    for preset in presets.NAMES:
        try:
            names |= {h.pattern.host.name for h in presets.learn(preset, here).hosts}
        except Refused:
            continue
    index = cargo_cache.default_index(here)
    if index:
        names.add(FetchLocation.parse(index).pattern.host.name)
    names = {name for name in names if "." in name}  # a mirror on localhost is no secret
    if not names:
        pytest.skip("no package manager here")
    for path in (path for tree in TREES for path in tree.rglob("*.py")):
        text = path.read_text()
        assert not [name for name in names if name in text], path
