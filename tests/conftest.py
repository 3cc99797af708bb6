"""Settings that every test shares, and who tries promises that do not depend on it."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import trustme

# A busy machine is no fault of the code: examples have no deadline, the suite has.
settings.register_profile("keyhole", deadline=None)
settings.load_profile("keyhole")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `by_turns` are there for root and for an ordinary user: their promise is the
    same for both, so `make test` tries each as one of them, and `make attack` as the other, too.

    The name of a test chooses. `by_turns("root")` names who tries it in `make test`, where it sees
    more as that person, and `by_turns("both")` keeps both in a file whose other tests have turns.
    """
    for item in items:
        mark = item.get_closest_marker("by_turns")
        if mark is None or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        case = item.callspec
        who = case.params.get("person")
        others = re.sub(rf"(^|-){who}(-|$)", "-", case.id, count=1)
        turn = mark.args[0] if mark.args else _turn(f"{item.originalname}[{others}]")
        if who is not None and turn not in (who, "both") and _tried_by_both():
            item.add_marker(pytest.mark.attack)


def _turn(name: str) -> str:
    return ("root", "user")[zlib.crc32(name.encode()) % 2]


def _tried_by_both() -> bool:
    from tests.rigs.sandbox.people import PEOPLE

    return len(PEOPLE) > 1


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """The certificate authority of the origins, which the gateway under test trusts."""
    import trustme  # most tests have no origin, and importing it takes a while

    return trustme.CA()
