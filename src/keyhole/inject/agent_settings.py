"""An agent's settings for the sandbox: the keys of a profile, out of the host's own file (I1).

Called by `app` with the text of the host's file, or without one. Only the keys that the profile
lists come along; a value that looks like a credential, or that is nested too deep or too large, is
left out. The result is written to a file of the sandbox's own and never goes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from keyhole.inject.agent_profile import FeatureSwitch, SettingsFormat
from keyhole.model.toml import parse_toml

MAX_DEPTH = 6
"""Tables in tables of a value that is copied; permissions and themes have three."""
MAX_VALUES = 2000
"""Values that are copied from one file: a long list of permissions has some hundred."""
MAX_TEXT = 8192
"""Characters of one text: instructions may be some paragraphs."""

Rejects: TypeAlias = Callable[[str, str], bool]
"""Whether a text under this name looks like a credential; the name may be empty."""


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_VALUES


_NOTHING = object()
"""Stands for a value that is left out."""


def read_settings(text: str, language: SettingsFormat) -> dict[str, Any]:
    """A settings file as a table; an empty one where it cannot be read."""
    try:
        found = _READERS[language](text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(without_comments(text))


def value_at(found: Mapping[str, Any], key: str, names: Mapping[str, str]) -> object:
    """The value of a dotted key; a part of it may be `{project}` or another one of `names`."""
    place: object = found
    for part in key.split("."):
        name = fill_in(part, names)
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def select_settings(
    found: Mapping[str, Any], keys: tuple[str, ...], rejects: Rejects
) -> dict[str, Any]:
    """The values of these dotted keys, without credentials."""
    chosen: dict[str, Any] = {}
    budget = _Budget()
    for key in keys:
        *tables, last = key.split(".")
        place: object = found
        for name in tables:
            place = place.get(name) if isinstance(place, Mapping) else None
        if not isinstance(place, Mapping) or last not in place:
            continue
        value = _plain(last, place[last], rejects, budget, MAX_DEPTH)
        if value is not _NOTHING:
            into = chosen
            for name in tables:
                into = into.setdefault(name, {})
            into[last] = value
    return chosen


def _plain(name: str, value: object, rejects: Rejects, budget: _Budget, depth: int) -> object:
    """The value without credentials, or _NOTHING."""
    budget.left -= 1
    if budget.left < 0 or depth < 0:
        return _NOTHING
    match value:
        case bool() | int() | float():
            return value
        case str():
            return value if _is_text(value) and not rejects(name, value) else _NOTHING
        case list():
            items = (_plain(name, item, rejects, budget, depth - 1) for item in value)
            return [item for item in items if item is not _NOTHING]
        case dict():
            # Attack: a name can be a text as well, as in opencode's rules about commands.
            named = ((str(k), v) for k, v in value.items())
            plain = ((k, v) for k, v in named if _is_text(k) and not rejects("", k))
            pairs = ((k, _plain(k, v, rejects, budget, depth - 1)) for k, v in plain)
            return {k: v for k, v in pairs if v is not _NOTHING}
    return _NOTHING


def _is_text(value: str) -> bool:
    """Whether a file can hold this. JSON's escapes can write half of a character, which it
    cannot."""
    return len(value) <= MAX_TEXT and value.encode("utf-8", "ignore").decode("utf-8") == value


def switch_settings(
    switches: tuple[FeatureSwitch, ...], open_features: frozenset[str]
) -> dict[str, Any]:
    """The settings that turn each feature on where it is open, and off where it is not."""
    made: dict[str, Any] = {}
    for each in switches:
        *tables, last = each.key.split(".")
        into = made
        for name in tables:
            into = into.setdefault(name, {})
        into[last] = each.on if each.feature in open_features else each.off
    return made


def merge_settings(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables as one; where both have a value, the second one's."""
    merged = dict(under)
    for key, value in over.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = merge_settings(before, value) if both else value  # type: ignore[arg-type]
    return merged


def fill_in(value: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - as TOML has it
    """The value with `{project}` and the like replaced, in names and in texts."""
    match value:
        case str():
            for name, text in names.items():
                value = value.replace(f"{{{name}}}", text)
            return value
        case list():
            return list(dict.fromkeys(fill_in(item, names) for item in value))
        case dict():
            return {fill_in(key, names): fill_in(item, names) for key, item in value.items()}
    return value


def write_settings(table: Mapping[str, Any], language: SettingsFormat) -> str:
    """The file's text."""
    if language is SettingsFormat.TOML:
        return "".join(_toml_lines(table, ()))
    # JSON is YAML as well.
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def without_comments(text: str) -> str:
    """JSON without `//` and `/* */` comments and without commas before a closing bracket.

    By hand, in one pass: a pattern would look for the end of a comment again after each beginning
    that has none.
    """
    kept: list[str] = []
    comma = -1
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            end = _end_of_text(text, at)
            kept.append(text[at:end])
            at, comma = end, -1
            continue
        if text.startswith("//", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
            continue
        if letter in "]}" and comma >= 0:
            kept[comma] = ""
        if letter == ",":
            comma = len(kept)
        elif not letter.isspace():
            comma = -1
        kept.append(letter)
        at += 1
    return "".join(kept)


def _end_of_text(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def _top_lines(text: str) -> dict[str, Any]:
    """`name: value` lines that are not indented. A value is a text, a number or a boolean."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name and name.isprintable() and name.strip(" -#'\"{[") == name:
            found[name] = _scalar(rest.partition(" #")[0].strip())
    return {name: value for name, value in found.items() if value is not None}


def _scalar(text: str) -> str | int | float | bool | None:
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    if text[:1] in ("'", '"'):
        return text[1:-1] if len(text) > 1 and text[-1] == text[0] and "\\" not in text else None
    if not text or text[0] in "|>&*!%@`[{#":
        return None  # a text of many lines, a reference, a list or a table
    try:
        return int(text)
    except ValueError:
        return text


_READERS: Mapping[SettingsFormat, Callable[[str], object]] = {
    SettingsFormat.JSON: _json,
    SettingsFormat.TOML: parse_toml,
    SettingsFormat.YAML: _top_lines,
}


def _toml_lines(table: Mapping[str, Any], place: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_name(key)} = {_toml_value(value)}\n" for key, value in plain.items()]
    if place and lines:
        lines.insert(0, f"\n[{'.'.join(map(_name, place))}]\n")
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _toml_lines(value, (*place, key))
    return lines


def _toml_value(value: object) -> str:
    match value:
        case str():
            return _quoted(value)
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case Mapping():
            pairs = (f"{_quoted(key)} = {_toml_value(item)}" for key, item in value.items())
            return f"{{ {', '.join(pairs)} }}"
    return str(value).lower()


def _name(key: str) -> str:
    return key if key.isascii() and key.replace("-", "").isidentifier() else _quoted(key)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, but for this one character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
