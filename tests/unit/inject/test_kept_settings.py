"""A settings file that an earlier sandbox left: its changes stay, Keyhole's values win (I1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyhole.inject.agent_profile import SettingsFormat
from keyhole.inject.kept_settings import MAX_ITEMS, keep_changes
from keyhole.inject.stub_files import StubFile

FIXED = {"autoUpdates": False, "projects": {"/p": {"trusted": True}}, "approved": ["new"]}
OURS = json.dumps({"theme": "dark", **FIXED})


def kept(left: object, *, fixed: dict[str, Any] | None = FIXED) -> Any:  # noqa: ANN401 - JSON
    data = left if isinstance(left, bytes) else json.dumps(left).encode()
    return json.loads(keep_changes(StubFile(".a.json", OURS, fixed=fixed), data))


def test_changes_stay_and_fixed_values_win() -> None:
    left = {
        "theme": "light",
        "history": ["a"],
        "autoUpdates": True,
        "projects": {"/p": {"trusted": False, "seen": 3}, "/q": {}},
    }
    assert kept(left) == {
        "theme": "light",
        "history": ["a"],
        "autoUpdates": False,
        "projects": {"/p": {"trusted": True, "seen": 3}, "/q": {}},
        "approved": ["new"],
    }


def test_a_value_of_the_host_comes_where_the_file_has_none() -> None:
    assert kept({"history": []})["theme"] == "dark"


def test_items_that_another_sandbox_needs_stay_in_a_list_up_to_a_bound() -> None:
    before = [f"old{number}" for number in range(MAX_ITEMS + 5)]
    assert kept({"approved": [*before, "new"]})["approved"] == [*before[5:], "new"]


def test_nothing_is_written_anew_where_nothing_changes() -> None:
    file = StubFile(".a.json", OURS, fixed=FIXED)
    left = json.dumps({"theme": "x", **FIXED}, indent=7)
    assert keep_changes(file, left.encode()) == left
    # A comment would stop a reader that is strict.
    assert json.loads(keep_changes(file, f"{left}// mine".encode())) == json.loads(left)


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"not json",
        b"[1]",
        b"\xff\xfe",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)
def test_a_text_that_cannot_be_kept_is_replaced(left: bytes) -> None:
    assert kept(left) == json.loads(OURS)


def test_a_login_is_written_whole_each_time() -> None:
    assert kept({"tokens": "of an earlier run"}, fixed=None) == json.loads(OURS)
    assert keep_changes(StubFile(".a", "text", fixed={}), None) == "text"


def test_toml_is_kept_and_yaml_is_not() -> None:
    ours = 'model = "a"\nmode = "full"\n'
    toml = StubFile(".c.toml", ours, fixed={"mode": "full"}, format=SettingsFormat.TOML)
    assert keep_changes(toml, b'model = "b"\nmode = "full"\n# mine\n').endswith("# mine\n")
    made = keep_changes(toml, b'model = "b"\nmode = "none"\n[[rules]]\nname = "x"\n')
    assert 'model = "b"' in made
    assert 'mode = "full"' in made
    assert "name" in made
    for slow in (b"a." * 65 + b"a = 1\n", b"# comment\n" * 30_000):
        assert keep_changes(toml, slow) == ours
    yaml = StubFile(".c.yml", "a: 1\n", fixed={"a": 1}, format=SettingsFormat.YAML)
    assert keep_changes(yaml, b"a: 2\nb: 3\n") == "a: 1\n"
