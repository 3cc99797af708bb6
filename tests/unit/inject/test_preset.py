"""A preset grants reads and nothing else, and its credential cannot be shown (I1, I3)."""

from __future__ import annotations

import pytest

from keyhole.inject.injection import BasicInjection
from keyhole.inject.preset import READS, Preset, PresetHost
from keyhole.model.host import HostPattern
from keyhole.model.rule import METHODS
from keyhole.model.secret import Secret


def test_a_preset_host_allows_reads_of_every_path_unless_told_otherwise() -> None:
    """I3."""
    host = PresetHost(HostPattern.parse("index.example"))
    assert host.allow == READS
    spoken = {m for m in METHODS for rule in READS if rule.speaks_of(m)}
    assert spoken == {"GET", "HEAD"}
    assert all(rule.path.matches(path) for rule in READS for path in ((), ("a",), ("a", "b")))


def test_a_preset_host_has_no_credential_unless_it_is_given_one() -> None:
    host = PresetHost(HostPattern.parse("index.example"))
    assert host.inject is None
    assert host.credential is None


def test_a_credential_is_held_and_never_shown() -> None:
    """I1."""
    host = PresetHost(
        HostPattern.parse("index.example"),
        inject=BasicInjection("u"),
        credential=Secret("hunter2-correct-horse"),
    )
    preset = Preset("python", (host,))
    assert host.credential is not None
    assert host.credential.reveal() == "hunter2-correct-horse"
    assert "hunter2" not in repr(preset)
    with pytest.raises(TypeError):
        hash(host)


def test_a_preset_brings_nothing_that_it_was_not_given() -> None:
    preset = Preset("python", ())
    assert (preset.env, preset.files, preset.sources, preset.notes) == ((), (), (), ())
