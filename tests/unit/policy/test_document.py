"""TOML with positions: tomllib's values, and a place for each of them."""

from __future__ import annotations

import contextlib
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.policy.document import MAX_DOCUMENT_SIZE, Path, parse_document
from keyhole.policy.fault import PolicyFaults

SAMPLE = '''\
# a comment with [brackets] and = signs
top = 1
"quoted key" = 'literal # not a comment'
dotted.inner."deep key" = """
multi " line \\""" text"""
long = \'\'\'it's "fine"\'\'\'
when = 1979-05-27 07:32:00Z
[table.sub]   # after a header
list = [ 1, "two", # why
  [3.5, true], { a = "x", "b.c" = [1] },
]
[[rows]]
name = "first"
[rows.child]
x = 1
[[rows]]
name = "second"
[rows.child]
x = 2
empty = []
none = {}
'''


def paths(value: object, prefix: Path = ()) -> list[Path]:
    """Every path of a value, tables and arrays included."""
    found = [prefix] if prefix else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, (*prefix, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += paths(item, (*prefix, index))
    return found


def text_at(text: str, line: int, column: int, length: int) -> str:
    return text.split("\n")[line - 1][column - 1 : column - 1 + length]


def test_every_path_of_a_document_has_a_place() -> None:
    document = parse_document("p", SAMPLE.encode())
    assert document.tree == tomllib.loads(SAMPLE)
    missing = [
        p for p in paths(document.tree) if p not in document.keys and p not in document.values
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("top",), "1"),
        (("quoted key",), "'literal # not a comment'"),
        (("when",), "1979-05-27 07:32:00Z"),
        (("long",), "'''it's \"fine\"'''"),
        (("table", "sub", "list", 1), '"two"'),
        (("table", "sub", "list", 3, "b.c", 0), "1"),
        (("rows", 1, "child", "x"), "2"),
        (("rows", 0, "name"), '"first"'),
        (("dotted", "inner", "deep key"), '"""'),
    ],
)
def test_a_place_is_where_the_value_stands(path: Path, text: str) -> None:
    document = parse_document("p", SAMPLE.encode())
    span = document.values[path]
    assert text_at(SAMPLE, span.line, span.column, span.length) == text


def test_a_keys_place_is_its_own() -> None:
    document = parse_document("p", SAMPLE.encode())
    for path, text in {
        ("quoted key",): '"quoted key"',
        ("table", "sub"): "sub",
        ("rows", 1): "rows",
        ("rows", 1, "child"): "child",
    }.items():
        span = document.keys[path]
        assert text_at(SAMPLE, span.line, span.column, span.length) == text


KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6),
)
SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


def quoted(text: str) -> str:
    return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in text) + '"'


def written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[ " + ", # a ] comment\n  ".join(map(written, value)) + " ]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{quoted(k)} = {written(v)}" for k, v in value.items()) + " }"
    return quoted(str(value))


@settings(max_examples=150)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_whatever_tomllib_reads_is_placed(tables: dict[str, dict[str, object]]) -> None:
    lines = []
    for name, table in tables.items():
        lines.append(f"[{quoted(name)}]")
        lines += [f"  {quoted(key)}={written(value)}  # note" for key, value in table.items()]
    text = "\n".join(lines)
    document = parse_document("p", text.encode())
    assert document.tree == tables
    for path in paths(tables):
        assert path in document.keys or path in document.values, path


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_faults(data: bytes) -> None:
    with contextlib.suppress(PolicyFaults):
        parse_document("p", data)


@pytest.mark.parametrize(
    ("data", "place", "said"),
    [
        (b"a = 1\nb = \n", (2, 5), "not TOML"),
        (b"a = [1,", (1, 8), "not TOML"),
        (b"a = 1\na = 2\n", (2, 6), "not TOML"),
        (b"a = 1\n\xff = 2", (2, 1), "not UTF-8"),
        (b"a = " + b"[" * 5000, (1, 1), "nested too deeply"),
        (b"a = " + b"9" * 5000, (1, 1), "not TOML"),
        (b"a" + b".a" * 32 + b" = 1", (1, 65), "a key has more than 32 parts"),
        (b"#" * (MAX_DOCUMENT_SIZE + 1), (1, 1), "larger than"),
    ],
)
def test_what_is_not_toml_says_where(data: bytes, place: tuple[int, int], said: str) -> None:
    with pytest.raises(PolicyFaults) as caught:
        parse_document("keyhole.toml", data)
    fault = caught.value.faults[0]
    assert (fault.span.line, fault.span.column) == place
    assert said in fault.message
    assert "Traceback" not in fault.render()


def test_a_fault_shows_its_line_with_a_caret_and_hides_nothing() -> None:
    """I8: a bidi override in the policy is shown as an escape, and the caret stays under it."""
    text = 'x = "\u202eevil"\r\n'
    document = parse_document("k\x1b[2J.toml", text.encode())
    rendered = document.fault(document.values[("x",)], "bad\nvalue", "try\x07this").render()
    assert rendered.split("\n") == [
        r"k\x1b[2J.toml:1:5: bad\x0avalue",
        r'  1 | x = "\u202eevil"',
        "    |     " + "^" * len(r'"\u202eevil"'),
        r"  hint: try\x07this",
    ]


def test_of_a_very_long_line_the_part_around_the_place_is_shown() -> None:
    document = parse_document("p", b"x = [" + b"1," * 5000 + b"2222" + b",1" * 5000 + b"]")
    lines = document.fault(document.values[("x", 5000)], "bad").render().split("\n")
    assert max(map(len, lines)) < 500
    caret = lines[2].index("^^^^")
    assert lines[1][caret : caret + 4] == "2222"


def test_a_fault_without_a_place_is_at_the_start() -> None:
    document = parse_document("p", b"")
    assert document.fault(None, "empty").render() == "p:1:1: empty"
