"""`make lint` compares imports inside functions with the table of start-up tricks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.system.startup import POSTPONED
from scripts.check_startup import ROOT, postponed_imports, problems

if TYPE_CHECKING:
    from pathlib import Path

CODE = """\
import os
from keyhole.app import other

def quick() -> None:
    import asyncio
    from keyhole.app import other as again
    from keyhole.app.other import VALUE
    from json import loads
"""


def test_the_table_is_true_of_the_code() -> None:
    assert problems(postponed_imports(ROOT), POSTPONED) == []


def test_imports_inside_functions_are_found_and_others_are_not(tmp_path: Path) -> None:
    package = tmp_path / "src/keyhole/app"
    package.mkdir(parents=True)
    (package / "some.py").write_text(CODE)
    (package / "other.py").write_text("VALUE = 1\n")
    importer = {"keyhole.app.some"}
    found = postponed_imports(tmp_path)
    assert found == {"asyncio": importer, "keyhole.app.other": importer, "json": importer}


def test_an_import_is_named_with_what_it_gains() -> None:
    found = {"asyncio": {"keyhole.app.some"}}
    assert problems(found, {"asyncio": (3, "brings much")}) == []
    assert problems(found, {"asyncio": (0, "not for time: it comes with an extra")}) == []
    (missing,) = problems(found, {})
    assert missing.startswith("keyhole.app.some: asyncio is imported inside a function")
    (small,) = problems(found, {"asyncio": (2.5, "brings little")})
    assert small == "POSTPONED: asyncio gains 2.5 ms, under 3"
    (unused,) = problems({}, {"asyncio": (3, "brings much")})
    assert unused == "POSTPONED: no function imports asyncio"
