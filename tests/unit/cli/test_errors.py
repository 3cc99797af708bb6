"""From an error to words and an exit code, in one place for all verbs."""

from __future__ import annotations

import pytest

from keyhole.cli.errors import CliError, exit_code, message, report
from keyhole.control.client import ControlFailed, NoGateway, RequestDeclined
from keyhole.model.errors import SANDBOX_LOST, KeyholeError, Refused, ResourceUnusable, SetupFailed
from keyhole.policy.fault import PolicyFault, PolicyFaults, TextSpan


@pytest.mark.parametrize(
    ("error", "verb", "code"),
    [
        (Refused("no"), "check", 2),
        (Refused("no"), "run", 125),
        (Refused("no"), "exec", 125),
        (Refused("no"), "attach", 125),
        (CliError("which?"), "revoke", 2),
        (CliError("which?"), "run", 125),
        (CliError("a terminal"), "attach", 125),
        (CliError("a terminal", 2), "attach", 2),
        (CliError("is there already", 1), "init", 1),
        (RequestDeclined(409, "refused", "no"), "allow", 1),
        (RequestDeclined(404, "not-found", "none"), "allow", 2),
        (ControlFailed("it hung up"), "ps", 2),
        (NoGateway(), "status", 2),
    ],
)
def test_each_error_has_one_exit_code(error: KeyholeError, verb: str, code: int) -> None:
    assert exit_code(error, verb) == code


def test_the_line_says_what_did_not_happen_and_why_and_what_to_type() -> None:
    assert message(Refused("no policy", "`keyhole init` writes one"), "run") == (
        "nothing was run: no policy; `keyhole init` writes one"
    )
    assert message(SetupFailed("no namespace"), "run").endswith("; `keyhole doctor` says more")
    assert message(SetupFailed("the engine ended", reason=SANDBOX_LOST), "run").startswith(
        "the run was ended: the"
    )
    for error in (SetupFailed("no"), ResourceUnusable("no"), Refused("no")):
        assert message(error, "demo") == "no sandbox can be made here: no; see `keyhole doctor`"
    assert message(CliError("which?"), "run") == "which?"
    assert message(Refused("no"), "secret") == "no"


def test_a_policy_is_shown_with_all_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    faults = tuple(PolicyFault("keyhole.toml", TextSpan(n, 1), f"wrong {n}") for n in (1, 2))
    error = PolicyFaults(faults)
    assert report(error, "run") == 125
    assert capsys.readouterr().err == (
        "keyhole.toml:1:1: wrong 1\nkeyhole.toml:2:1: wrong 2\n"
        "keyhole: nothing was run: the policy is not valid\n"
    )
    assert str(error) == "keyhole.toml:1:1: wrong 1; and 1 more: `keyhole check` shows all"


@pytest.mark.parametrize(
    ("verb", "action", "line"),
    [
        ("why", None, "the policy is not valid; `keyhole check` says the same"),
        ("policy", "trust", "the policy is not valid, so it cannot be accepted"),
        ("secret", "test", "nothing was asked: the policy is not valid"),
        ("log", "verify", "the log cannot be read: the policy is not valid"),
        ("secret", "list", "the policy is not valid"),
    ],
)
def test_a_faulty_policy_ends_with_what_it_means_for_the_verb(
    verb: str, action: str | None, line: str
) -> None:
    error = PolicyFaults((PolicyFault("keyhole.toml", TextSpan(1, 1), "wrong"),))
    assert message(error, verb, action) == line


def test_nothing_in_an_error_moves_the_cursor() -> None:
    assert message(Refused("a\x1b[2J"), "run") == "nothing was run: a\\x1b[2J"
