"""Whether a link leads out of its tree is judged by its names."""

from __future__ import annotations

import pytest

from keyhole.changes.entry import leads_out


@pytest.mark.parametrize(
    ("name", "target", "out"),
    [
        ("a", "b", False),
        ("a", "d/./b", False),
        ("d/a", "../b", False),
        ("d/a", "..", False),
        ("d/e/a", ".././../b/c", False),
        ("a", "/etc/passwd", True),
        ("a", "../b", True),
        ("d/a", "../../b", True),
        ("d/a", "x/../../../project/b", True),
        ("a", "..", True),
        # `x` may be a link to the top of the tree, whose parent is outside.
        ("a", "x/..", True),
        ("d/a", "../x/../b", True),
    ],
)
def test_a_link_leads_out_if_its_target_leaves_the_tree_on_the_way(
    name: str, target: str, *, out: bool
) -> None:
    assert leads_out(name, target) is out
