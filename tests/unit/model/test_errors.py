"""Errors: one base, few classes, and each with a stable code."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

import keyhole
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import (
    KeyholeError,
    OverLimit,
    Refused,
    ResourceUnusable,
    Unparsable,
    UpstreamFailed,
)

ROOT = Path(keyhole.__file__).parent

MOST = 29
"""Classes of errors in the whole tree. A new one needs a caller that treats it in another way, as
the last two have: `_PluginError` carries a code of CNI's, which a container runtime is shown, and
`_NotClaimed` the record of a pod that is complete but waits for its claim."""

OWN_BASE = {
    "LinkInPath",  # an OSError, as the call that it stands for raises
    "Misuse",  # a fault of our own: a report, and no words for a person
}


def _bases() -> dict[str, set[str]]:
    """Every class, and the names of its bases."""
    trees = [ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")]
    return {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def _below(bases: dict[str, set[str]], *roots: str) -> set[str]:
    """The classes that derive from one of these, directly or not."""
    found = set(roots)
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found - set(roots)


def test_every_public_error_has_the_one_base() -> None:
    bases = _bases()
    builtin = [
        name
        for name, each in vars(builtins).items()
        if isinstance(each, type) and issubclass(each, BaseException)
    ]
    errors = _below(bases, *builtin)
    ours = _below(bases, "KeyholeError") | {"KeyholeError"}
    assert {"Refused", "Malformed", "EngineFailed", "SecretUnavailable"} <= ours
    assert {name for name in errors - ours if not name.startswith("_")} == OWN_BASE
    assert len(errors) <= MOST


def test_an_error_says_what_to_type() -> None:
    error = Refused("there is no policy", "`keyhole init` writes one")
    assert str(error) == "there is no policy; `keyhole init` writes one"
    assert (error.summary, error.details) == (str(error), ())
    assert str(Refused("no")) == "no"


def test_a_text_that_is_not_canonical_keeps_its_hint_apart() -> None:
    error = Unparsable("not a host", "example.org")
    assert (str(error), error.hint) == ("not a host", "example.org")
    with pytest.raises(ValueError, match="not a host"):
        raise error


def test_reasons_are_stable_words() -> None:
    assert (KeyholeError("x").reason, Refused("x").reason) == ("failed", "refused")
    assert ResourceUnusable("x").reason == "resource-unusable"
    assert KeyholeError("x", reason="lost").reason == "lost"
    assert KeyholeError.reason == "failed"


def test_an_error_by_a_decision_has_its_reason() -> None:
    over = Decision(reason=Reason.OVER_SHARE, rule="shares.lookups")
    error = OverLimit(over)
    assert (error.reason, str(error), error.decision) == ("over-share", "shares.lookups", over)
    assert str(OverLimit(over, "4 wait already")) == "4 wait already"
    failed = UpstreamFailed(Reason.NAME_UNRESOLVED, "no address")
    assert (failed.reason, str(failed), failed.decision) == ("name-unresolved", "no address", None)
