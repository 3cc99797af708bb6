"""Settings that come along: the listed keys, without credentials, within bounds (I1, I9)."""

from __future__ import annotations

import json
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.agent_profile import FeatureSwitch, SettingsFormat
from keyhole.inject.agent_settings import (
    MAX_DEPTH,
    MAX_TEXT,
    MAX_VALUES,
    fill_in,
    merge_settings,
    read_settings,
    select_settings,
    switch_settings,
    value_at,
    without_comments,
    write_settings,
)

JSON, TOML, YAML = SettingsFormat.JSON, SettingsFormat.TOML, SettingsFormat.YAML


def chosen(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return select_settings(found, keys, lambda name, text: "key" in name or "sk-" in text)


@pytest.mark.parametrize(
    ("text", "language", "table"),
    [
        ('{"a": 1}', JSON, {"a": 1}),
        ('{"a": "//b", /* c */ "d": [1, 2, ], // e\n "f": {"g": ",}",},}', JSON,
         {"a": "//b", "d": [1, 2], "f": {"g": ",}"}}),
        ('{"a": "\\"//", "b": 2 /* open', JSON, {}),
        ('{"a": "open', JSON, {}),
        ("// all of it", JSON, {}),
        ("[1]", JSON, {}),
        ("a = 1\n[b]\nc = true", TOML, {"a": 1, "b": {"c": True}}),
        ("a = ", TOML, {}),
        ("model: x/y # why\nvim: true\nyes: False\nturns: 12\nname: 'a b'\nother: \"c\"", YAML,
         {"model": "x/y", "vim": True, "yes": False, "turns": 12, "name": "a b", "other": "c"}),
        ("- a: b\n  c: d\n# e: f\nlist: [1]\ntable: {a: b}\ntext: |\nopen: 'x\nempty: ",
         YAML, {}),
    ],
)  # fmt: skip
def test_a_settings_file_is_read_as_agents_write_it(
    text: str, language: SettingsFormat, table: dict[str, Any]
) -> None:
    assert read_settings(text, language) == table


def test_a_hostile_file_is_read_in_little_time_or_not_at_all() -> None:
    begun = time.process_time()
    assert read_settings("[" * 500_000, JSON) == {}
    assert read_settings("a = " + "[" * 100_000, TOML) == {}
    assert read_settings("/*" * 300_000, JSON) == {}
    assert read_settings('{"a": 1, ' + "//x\n" * 100_000 + "}", JSON) == {"a": 1}
    assert read_settings(": " * 300_000, YAML) == {}
    assert time.process_time() - begun < 5


def test_only_the_listed_keys_come_along() -> None:
    found = {"model": "m", "env": {"A": "b"}, "ui": {"theme": "dark", "other": 1}, "n": None}
    assert chosen(found, "model", "ui.theme", "gone", "gone.too", "model.x", "n") == {
        "model": "m",
        "ui": {"theme": "dark"},
    }


def test_values_that_look_like_credentials_are_left_out_at_any_depth() -> None:
    found = {
        "a": "sk-1",
        "b": ["plain", "sk-2", {"key": "x", "name": "y"}],
        "c": {"d": {"apikey": "z", "e": 1.5}, "f": True},
    }
    assert chosen(found, "a", "b", "c") == {
        "b": ["plain", {"name": "y"}],
        "c": {"d": {"e": 1.5}, "f": True},
    }


def test_names_that_look_like_credentials_are_left_out_with_their_values() -> None:
    """I1: opencode's rules about commands have the command as their name."""
    rules = {"git *": "ask", "curl -H sk-3 *": "allow", "x" * (MAX_TEXT + 1): "deny"}
    assert chosen({"permission": {"bash": rules}}, "permission") == {
        "permission": {"bash": {"git *": "ask"}}
    }


def test_depth_length_and_number_are_bounded() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 1):
        deep = {"a": deep}
    assert "x" not in json.dumps(chosen({"deep": deep}, "deep"))
    assert "x" in json.dumps(chosen({"deep": deep["a"]}, "deep"))
    assert chosen({"a": "x" * (MAX_TEXT + 1)}, "a") == {}
    many = chosen({"a": list(range(MAX_VALUES * 3))}, "a")["a"]
    assert len(many) == MAX_VALUES - 1


def test_half_a_character_is_left_out() -> None:
    found = read_settings(r'{"a": "\ud800x", "b": {"\ud800": 1, "c": "\ud83d\ude00"}}', JSON)
    assert chosen(found, "a", "b") == {"b": {"c": "\U0001f600"}}


def test_tables_are_merged_and_the_second_wins() -> None:
    under, over = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": {"e": 4}}
    assert merge_settings(under, over) == {"a": {"b": 9, "c": 2}, "d": {"e": 4}}


def test_a_setting_is_on_where_its_feature_is_open() -> None:
    switches = (
        FeatureSwitch("tools.search.on", "web-search", True, False),
        FeatureSwitch("tools.fetch", "web-fetch", "live", "cached"),
        FeatureSwitch("mcp", "remote-mcp", True, False),
    )
    made = switch_settings(switches, frozenset({"web-fetch"}))
    assert made == {"tools": {"search": {"on": False}, "fetch": "live"}, "mcp": False}


def test_directories_are_filled_in_once() -> None:
    names = {"project": "/p", "directory": "/p"}
    fixed = {"projects": {"{project}": {"ok": True}}, "trusted": ["{project}", "{directory}"]}
    assert fill_in(fixed, names) == {"projects": {"/p": {"ok": True}}, "trusted": ["/p"]}


texts = st.text()
values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def _without_empty(value: object) -> object:
    """A table without values is not written in TOML."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}
    return value


@given(st.dictionaries(texts, values, max_size=4))
def test_a_written_file_is_read_as_it_was_meant(table: dict[str, Any]) -> None:
    assert json.loads(write_settings(table, JSON)) == table
    assert write_settings(table, YAML) == write_settings(table, JSON)
    assert _without_empty(tomllib.loads(write_settings(table, TOML))) == _without_empty(table)


@given(st.dictionaries(texts, values, max_size=4))
def test_json_without_comments_stays_as_it_is(table: dict[str, Any]) -> None:
    assert json.loads(without_comments(json.dumps(table, indent=2))) == table


def test_settings_are_written_so_that_the_client_reads_the_same() -> None:
    table = {
        "model": 'a "b" \\ \x7f \u2028',
        "on": True,
        "depth": 3,
        "share": 0.5,
        "list": ["a", 1, {"x y": False}],
        "projects": {"/home/me/p": {"trust_level": "trusted"}, "bare-key": {}},
    }
    toml = write_settings(table, SettingsFormat.TOML)
    assert tomllib.loads(toml) == {**table, "projects": {"/home/me/p": {"trust_level": "trusted"}}}
    for language in (SettingsFormat.JSON, SettingsFormat.YAML):
        assert json.loads(write_settings(table, language)) == table


def test_a_value_is_found_by_its_dotted_name() -> None:
    table = {"projects": {"/srv/a.b": {"servers": 1}}}
    names = {"project": "/srv/a.b"}
    assert value_at(table, "projects.{project}.servers", names) == 1
    assert value_at(table, "projects.{project}.servers.more", names) is None
    assert value_at(table, "other.{project}", names) is None
