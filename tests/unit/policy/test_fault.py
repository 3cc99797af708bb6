"""Faults of a policy as one error: its message is the first, its details are all."""

from __future__ import annotations

from keyhole.policy.fault import PolicyFault, PolicyFaults, TextSpan


def test_the_message_is_the_first_fault_and_the_details_are_all() -> None:
    faults = tuple(PolicyFault("keyhole.toml", TextSpan(n, 1), f"wrong {n}") for n in (1, 2))
    error = PolicyFaults(faults)
    assert str(error) == "keyhole.toml:1:1: wrong 1; and 1 more: `keyhole check` shows all"
    assert error.details == ("keyhole.toml:1:1: wrong 1", "keyhole.toml:2:1: wrong 2")
    assert error.summary == "the policy is not valid"
    assert str(PolicyFaults(faults[:1])) == "keyhole.toml:1:1: wrong 1"


def test_the_right_spelling_of_the_first_fault_comes_before_the_number_of_others() -> None:
    """One line is all that `keyhole up` shows of a fault in config.toml."""
    first = PolicyFault("config.toml", TextSpan(1, 1), "no such key", "did you mean \x1b'limits'?")
    second = PolicyFault("config.toml", TextSpan(2, 1), "wrong", "another")
    said = "config.toml:1:1: no such key; did you mean \\x1b'limits'?"
    assert str(PolicyFaults((first,))) == said
    more = "and 1 more: `keyhole check` shows all"
    assert str(PolicyFaults((first, second))) == f"{said}; {more}"
