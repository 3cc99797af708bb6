"""Where the parts of a TOML text begin and end."""

from __future__ import annotations

from keyhole.policy.layout import TomlLayout

TEXT = '''\
top = 1 # first
[egress]
allow = ["a", # "b"
  "c"]
inline = { x = { y = [1] }, z = 2 }
[[rows]]
dotted.key = """
long"""
'''


def test_values_headings_and_pairs_have_their_extent() -> None:
    layout = TomlLayout(TEXT)
    shown = {path: TEXT[start:end] for path, (start, end) in layout.extents.items()}
    assert shown[("top",)] == "1"
    assert shown[("egress", "allow")] == '["a", # "b"\n  "c"]'
    assert shown[("egress", "allow", 1)] == '"c"'
    assert shown[("egress", "inline", "x", "y")] == "[1]"
    assert TEXT[: layout.headings[("egress",)]].endswith("[egress]")
    assert [(p.path, p.section, TEXT[p.start : p.end]) for p in layout.pairs] == [
        (("top",), (), "top = 1"),
        (("egress", "allow"), ("egress",), 'allow = ["a", # "b"\n  "c"]'),
        (("egress", "inline"), ("egress",), "inline = { x = { y = [1] }, z = 2 }"),
        (("rows", 0, "dotted", "key"), ("rows", 0), 'dotted.key = """\nlong"""'),
    ]
