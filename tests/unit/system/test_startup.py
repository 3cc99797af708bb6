"""The functions among the start-up tricks."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.system.startup import LEAST_MS, TRICKS, import_without

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that uses another one if it is there, and one that needs it."""
    (tmp_path / "kh_large.py").write_text("")
    (tmp_path / "kh_wishing.py").write_text(
        "import gc\nCOLLECTS = gc.isenabled()\n"
        "try:\n    import kh_large\nexcept ImportError:\n    kh_large = None\n"
    )
    (tmp_path / "kh_needing.py").write_text("import kh_large\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("kh_large", "kh_wishing", "kh_needing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "kh_large"


def test_a_module_is_imported_without_what_it_only_wishes_for(package: str) -> None:
    found = import_without("kh_wishing", package)
    assert found.kh_large is None
    assert found.COLLECTS is False
    assert gc.isenabled()
    assert package not in sys.modules  # others may import it
    assert import_without("kh_wishing", package) is found


def test_a_module_gets_what_it_needs(package: str) -> None:
    assert import_without("kh_needing", package).kh_large is sys.modules[package]


def test_a_missing_module_is_missed(package: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        import_without("kh_nowhere", package)
    assert gc.isenabled()


def test_a_module_that_is_hidden_itself_is_missed(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kh_wishing", None)
    with pytest.raises(ModuleNotFoundError):
        import_without("kh_wishing", package)


def test_a_process_leaves_with_its_output_and_its_code() -> None:
    program = (
        "import atexit, sys\nfrom keyhole.system.startup import collect_rarely, leave\n"
        "collect_rarely()\natexit.register(lambda: sys.stderr.write('last'))\n"
        "class Late:\n    def __del__(self): print('taken apart')\nlate = Late()\n"
        "print('said', end='')\nleave(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "said", "last")


def test_every_trick_gains_enough() -> None:
    assert all(gain >= LEAST_MS for gain, _, _ in TRICKS)
