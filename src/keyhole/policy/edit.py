"""Adds rules to the text of a policy, and leaves every other byte as it is.

Called where a person says yes to a rule: `keyhole allow --save`, `keyhole learn --save` and an
answer to an approval. A rule is inserted at one place that the scanner found. tomllib reads the
result again, and it must hold exactly the rule more than before; otherwise nothing is changed and
the person gets the lines to write. So a slip here can misplace a line, and never change what a
policy means.

Not tomlkit: it reads 110 KiB of tables in 3.3 s where tomllib takes 0.1 s, and the text that it
writes is its own, not the file's bytes.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.model.toml import parse_toml, toml_string
from keyhole.policy.layout import TomlLayout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.document import Path
    from keyhole.policy.layout import TomlPair

_INDENT = "  "
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*+)*")
_is_bare = re.compile(r"[A-Za-z0-9_-]+").fullmatch


class RuleAddition(Struct, frozen=True):
    """One rule to add: an item for the list of a key, or the value of a key."""

    table: tuple[str, ...]
    key: str
    value: str | int | bool
    listed: bool = True
    """Whether the key has a list, to which the value is added."""
    remark: str = ""
    """A comment to write beside it."""

    @property
    def written(self) -> str:
        """The value as TOML."""
        if isinstance(self.value, str):
            return toml_string(self.value)
        return str(self.value).lower()

    @property
    def line(self) -> str:
        """The key with this value alone."""
        return f"{self.key} = " + (f"[{self.written}]" if self.listed else self.written)

    def __str__(self) -> str:
        return f"[{_dotted(self.table)}]\n{self.line}"


def add_rules(text: str, additions: Iterable[RuleAddition]) -> str:
    """The policy's text with these rules; those that it has are left out.

    Raises Refused for a text that it cannot change, with the lines to write by hand, and ValueError
    or RecursionError for one that is not TOML.
    """
    for addition in additions:
        text = _add(text, addition)
    return text


def has_rule(tree: dict[str, Any], addition: RuleAddition) -> bool:
    """Whether a parsed policy has the rule."""
    found: Any = tree
    for name in (*addition.table, addition.key):
        found = found.get(name) if isinstance(found, dict) else None
    if addition.listed:
        return isinstance(found, list) and addition.value in found
    return type(found) is type(addition.value) and bool(found == addition.value)


def _add(text: str, addition: RuleAddition) -> str:
    tree = parse_toml(text)
    if has_rule(tree, addition):
        return text
    wanted = _with_rule(tree, addition)
    for changed in _candidates(text, addition):
        if wanted is not None and _means(changed, wanted):
            return changed
    raise Refused(
        f"the policy is written in a way that Keyhole does not change; add to it:\n{addition}"
    )


def _means(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return parse_toml(text) == wanted
    except (ValueError, RecursionError):
        return False


def _with_rule(tree: dict[str, Any], addition: RuleAddition) -> dict[str, Any] | None:
    """The parsed policy with the rule; None if something else is in its place."""
    wanted = copy.deepcopy(tree)
    table: Any = wanted
    for name in addition.table:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return None
    if not addition.listed:
        table[addition.key] = addition.value
        return wanted
    listed = table.setdefault(addition.key, [])
    if not isinstance(listed, list):
        return None
    listed.append(addition.value)
    return wanted


def _candidates(text: str, addition: RuleAddition) -> Iterable[str]:
    """Texts that may have the rule, the one that fits the file's style best first."""
    layout = TomlLayout(text)
    path = (*addition.table, addition.key)
    if path in layout.extents:
        yield _replaced(text, layout, path, addition)
    elif addition.table in layout.extents:
        yield _in_inline_table(text, layout, addition)
    else:
        yield from _below(text, layout, addition)
    yield _at_end(text, addition)


def _replaced(text: str, layout: TomlLayout, path: Path, addition: RuleAddition) -> str:
    """The key is there: a longer list, or another value."""
    start, end = layout.extents[path]
    if addition.listed and text[start] == "[":
        return _in_list(text, layout, path, addition)
    return text[:start] + addition.written + text[end:]


def _in_list(text: str, layout: TomlLayout, path: Path, addition: RuleAddition) -> str:
    start, end = layout.extents[path]
    close = end - 1
    count = 0
    while (*path, count) in layout.extents:
        count += 1
    item_end = layout.extents[(*path, count - 1)][1] if count else start + 1
    if "\n" not in text[start:end]:
        changed = _in_row(text, item_end, close, addition, first=not count)
        return changed if not addition.remark else _remarked_above(changed, start, addition)
    return _on_line_of_its_own(text, item_end, close, addition, first=not count)


def _in_row(text: str, at: int, close: int, addition: RuleAddition, *, first: bool) -> str:
    """One more item in `[ … ]` on one line."""
    if first:
        return text[:at] + addition.written + text[at:]
    comma = text.find(",", at, close)
    if comma >= 0:
        return f"{text[: comma + 1]} {addition.written},{text[comma + 1 :]}"
    return f"{text[:at]}, {addition.written}{text[at:]}"


def _remarked_above(text: str, at: int, addition: RuleAddition) -> str:
    """The remark as a line above the line that has this place."""
    begin = text.rfind("\n", 0, at) + 1
    indent = _indent_at(text, begin)
    said = f"# {addition.value}: {addition.remark}"
    return text[:begin] + indent + visible(said) + _newline(text) + text[begin:]


def _on_line_of_its_own(
    text: str, at: int, close: int, addition: RuleAddition, *, first: bool
) -> str:
    """One more item in a list of several lines, below the last one and its comment."""
    newline = _newline(text)
    remark = f"  # {visible(addition.remark)}" if addition.remark else ""
    begin = text.rfind("\n", 0, at) + 1
    if first:
        begin = text.rfind("\n", 0, close) + 1
        indent = _indent_at(text, begin) + _INDENT
        return f"{text[:begin]}{indent}{addition.written},{remark}{newline}{text[begin:]}"
    indent = _indent_at(text, begin)
    after = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
    trails = text[after] == ","
    if not trails:
        text = f"{text[:at]},{text[at:]}"
        close += 1
    place = _line_end(text, after + 1 if trails else at + 1)
    if place > close:  # the bracket is on the last item's line
        place = after + 1 if trails else at + 1
    comma = "," if trails or remark else ""
    tail = newline if remark and "\n" not in text[place:close] else ""
    return f"{text[:place]}{newline}{indent}{addition.written}{comma}{remark}{tail}{text[place:]}"


def _in_inline_table(text: str, layout: TomlLayout, addition: RuleAddition) -> str:
    """The table is `{ … }`: one more pair in it."""
    start, end = layout.extents[addition.table]
    inside = [
        extent
        for path, extent in layout.extents.items()
        if path[: len(addition.table)] == addition.table and path != addition.table
    ]
    if not inside:
        return f"{text[:start]}{{ {addition.line} }}{text[end:]}"
    at = max(last for _, last in inside)
    return f"{text[:at]}, {addition.line}{text[at:]}"


def _below(text: str, layout: TomlLayout, addition: RuleAddition) -> Iterable[str]:
    """The table is there: a pair below its last one, or below its heading."""
    table = addition.table
    pair = next((each for each in reversed(layout.pairs) if _is_of(each, table)), None)
    if pair is not None:
        names = (*table[len(pair.section) :], addition.key)
        yield _new_line(text, pair, _pair_text(names, addition, text, layout, pair))
    elif table in layout.headings:
        at = _line_end(text, layout.headings[table])
        yield text[:at] + _newline(text) + _with_remark(addition, addition.line, text) + text[at:]


def _is_of(pair: TomlPair, table: Path) -> bool:
    """Whether a pair is one of a table's own, under its heading or one above it."""
    own = pair.path[: len(table)] == table and pair.section == table[: len(pair.section)]
    return own and len(pair.path) > len(table)


def _new_line(text: str, pair: TomlPair, line: str) -> str:
    at = _line_end(text, pair.end)
    indent = _indent_at(text, text.rfind("\n", 0, pair.start) + 1)
    newline = _newline(text)
    lines = newline.join(indent + each for each in line.split(newline))
    return text[:at] + newline + lines + text[at:]


def _pair_text(
    names: tuple[str, ...], addition: RuleAddition, text: str, layout: TomlLayout, pair: TomlPair
) -> str:
    """The pair, with its sign in the column of the pairs above if those are aligned."""
    key = _dotted(names)
    above = [
        text[each.start : layout.extents[each.path][0]]
        for each in layout.pairs
        if each.section == pair.section
    ]
    columns = {written.index("=") for written in above}
    aligned = any("  =" in written for written in above) and len(columns) == 1
    width = columns.pop() - 1 if aligned else 0
    value = addition.line.partition(" = ")[2]
    return _with_remark(addition, f"{key.ljust(width)} = {value}", text)


def _with_remark(addition: RuleAddition, line: str, text: str) -> str:
    if not addition.remark:
        return line
    newline, remark = _newline(text), visible(addition.remark)
    if not addition.listed:
        return f"{line}  # {remark}"
    head = line.removesuffix(f"[{addition.written}]")
    return f"{head}[{newline}{_INDENT}{addition.written},  # {remark}{newline}]"


def _at_end(text: str, addition: RuleAddition) -> str:
    """A table of its own at the end of the file."""
    newline = _newline(text)
    if text and not text.endswith("\n"):
        text += newline
    between = newline if text.strip() else ""
    heading = f"[{_dotted(addition.table)}]"
    return (
        text + between + heading + newline + _with_remark(addition, addition.line, text) + newline
    )


def _dotted(names: tuple[str, ...]) -> str:
    return ".".join(name if _is_bare(name) else toml_string(name) for name in names)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_end(text: str, at: int) -> int:
    """Where the line of this place ends, before its line break."""
    end = text.find("\n", at)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def _indent_at(text: str, begin: int) -> str:
    end = begin
    while end < len(text) and text[end] in " \t":
        end += 1
    return text[begin:end]
