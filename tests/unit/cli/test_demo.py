"""How the demo ends: it fails, and says of what, when a claim does not hold (I10)."""

from __future__ import annotations

import msgspec
import pytest

from keyhole.app.proofs.demo import DemoRun
from keyhole.app.proofs.demo_claims import DemoClaim
from keyhole.app.proofs.demo_repository import RepositoryState
from keyhole.cli import demo
from keyhole.cli.errors import CliError

NOTHING = DemoRun("", "k" * 38, "p" * 38, 0, "", (), (), (), log_whole=False)


def test_what_does_not_hold_is_named_and_ends_the_demo_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [
        DemoClaim("one is so", True),
        DemoClaim("two is so", False),
        DemoClaim("three is so", False),
    ]
    monkeypatch.setattr(demo, "check_claims", lambda shown: tuple(claims))
    with pytest.raises(CliError) as caught:
        demo.conclude(NOTHING)
    assert caught.value.exit_code == 1
    assert str(caught.value) == "the demo did not show that two is so; nor that three is so"
    printed = capsys.readouterr().out
    assert "holds  one is so\n  FAILS  two is so\n" in printed
    claims[:] = [msgspec.structs.replace(claim, held=True) for claim in claims]
    demo.conclude(NOTHING)
    assert "FAILS" not in capsys.readouterr().out


def test_what_was_not_tried_is_said_to_be_left_out_and_not_to_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "check_claims", lambda shown: (DemoClaim("one is so", True),))
    demo.conclude(NOTHING)
    assert capsys.readouterr().out.endswith(f"holds  one is so\n  left out  {demo.NO_GIT}\n")
    nothing = RepositoryState({}, frozenset())
    demo.conclude(msgspec.structs.replace(NOTHING, before=nothing, after=nothing))
    assert "left out" not in capsys.readouterr().out


def test_a_key_that_the_client_printed_ends_the_demo_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """I1: with the demo's own judge. A run that holds everything is in test_outside.py."""
    seen = msgspec.structs.replace(NOTHING, transcript=f"env HELLO_API_KEY\t{NOTHING.key}\n")
    with pytest.raises(CliError, match="nothing that the client printed holds the key") as caught:
        demo.conclude(seen)
    assert caught.value.exit_code == 1
    assert "FAILS  nothing that the client printed holds the key" in capsys.readouterr().out
