"""Who commits, read from `Name <mail>`."""

from __future__ import annotations

import pytest

from keyhole.model.commit_identity import MAX_PART, CommitIdentity, is_plain
from keyhole.model.errors import Unparsable


@pytest.mark.parametrize("text", ["Ada King <ada@corp.example>", "  Ada King<ada@corp.example> "])
def test_a_person_is_a_name_and_an_address(text: str) -> None:
    found = CommitIdentity.parse(text)
    assert found == CommitIdentity("Ada King", "ada@corp.example")
    assert str(found) == "Ada King <ada@corp.example>"


@pytest.mark.parametrize(
    "text",
    ["Ada", "<ada@corp.example>", "Ada <>", "Ada <a b@c>", "Ada <a@b> x", "A <b> <c@d>", " <a@b>",
     "Ada\n[core] <a@b>", f"{'a' * (MAX_PART + 1)} <a@b>", f"Ada <{'a' * (MAX_PART + 1)}>", ""],
)  # fmt: skip
def test_anything_else_is_refused_with_the_right_spelling(text: str) -> None:
    with pytest.raises(Unparsable) as caught:
        CommitIdentity.parse(text)
    assert caught.value.hint == "as in 'Ada <ada@corp.example>'"


def test_git_drops_punctuation_at_the_ends_of_a_name() -> None:
    """Control: within a name it stays."""
    assert CommitIdentity("Ada Jr.", "a@b").spellings() == {("Ada Jr.", "a@b"), ("Ada Jr", "a@b")}
    assert CommitIdentity("'Ada'", "a@b").spellings() == {("Ada", "a@b")}
    assert CommitIdentity("A. O'Neil", "a@b").spellings() == {("A. O'Neil", "a@b")}


def test_a_part_that_git_would_not_write_as_it_is_is_not_plain() -> None:
    """Control: names of people."""
    assert is_plain("Ågot O'Neil")
    assert not any(map(is_plain, ("", "a\nb", "a<b", "a>b", "\udc80", "a" * (MAX_PART + 1))))
