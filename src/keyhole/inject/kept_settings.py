"""A settings file in a kept home: Keyhole's values, and what the agent itself changed since (I1).

Called by `app` with the text that an earlier sandbox left, which may be anything. Values that
Keyhole fixes win; other values stay as they were left; values that come from the host's settings
are used where the file has none. A text that cannot be read is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyhole.inject.agent_profile import SettingsFormat
from keyhole.inject.agent_settings import merge_settings, read_settings, write_settings

if TYPE_CHECKING:
    from keyhole.inject.stub_files import StubFile

MAX_KEPT = 4 << 20
"""Bytes of a settings file that is read again; the largest that agents write have some hundred
KiB."""
MAX_TOML = 256 << 10
"""Bytes of a TOML file: Python's own reader of it is slow."""
MAX_ITEMS = 32
"""Items of a list that stay when Keyhole adds its own: projects, approved keys."""


def keep_changes(file: StubFile, left: bytes | None) -> str:
    """The text to write for this file, where an earlier sandbox left `left`."""
    if file.fixed is None or left is None or file.format is SettingsFormat.YAML:
        return file.content  # of YAML, only single lines can be read
    try:
        text = left.decode("utf-8")
        if file.format is SettingsFormat.TOML and len(text) > MAX_TOML:
            return file.content
        kept = read_settings(text, file.format)
        if not kept:
            return file.content
        given = read_settings(file.content, file.format)
        table = merge_settings(merge_settings(given, kept), _with_lists(kept, file.fixed))
        if table == kept and _is_plain(text, file.format):
            return text
        made = _written(table, file.format)
        made.encode("utf-8")  # half a character cannot be written
        return made if read_settings(made, file.format) == table else file.content
    except (ValueError, RecursionError):
        return file.content


def _is_plain(text: str, language: SettingsFormat) -> bool:
    """Whether it has no comment that only some readers of JSON accept."""
    if language is not SettingsFormat.JSON:
        return True
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _with_lists(kept: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The fixed values. A list has the items that were left, too: another sandbox that runs now
    may need them."""
    found: dict[str, Any] = {}
    for key, value in fixed.items():
        before = kept.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            found[key] = _with_lists(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            others = [item for item in before if item not in value]
            found[key] = [*others[-MAX_ITEMS:], *value]
        else:
            found[key] = value
    return found


def _written(table: Mapping[str, Any], language: SettingsFormat) -> str:
    if language is SettingsFormat.JSON:
        # Without indentation, which would take a second for a large file.
        return json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n"
    return write_settings(table, language)
