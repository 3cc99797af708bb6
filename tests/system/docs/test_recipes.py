"""The recipes of docs/policy.md are references, and their scripts print what they should (I10)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from keyhole.model.secret import SecretScheme
from keyhole.vault.printed_secret import read_printed
from tests.rigs.vault.rig import VALUE, ref

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text("utf-8")
RECIPES = PAGE.partition("### Recipes for commands")[2].partition("\n## ")[0]


def script(name: str) -> str:
    found = re.search(rf"```sh {name}\n(.*?)```", RECIPES, re.DOTALL)
    assert found
    return found[1]


def run(tmp_path: Path, name: str, program: str, body: str, *words: str) -> tuple[int, bytes]:
    """The script as it stands on the page, with a stand-in for the program it calls."""
    for path, text in ((tmp_path / name, script(name)), (tmp_path / program, body)):
        path.write_text(text)
        path.chmod(0o700)
    done = subprocess.run(
        [str(tmp_path / name), *words],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_every_recipe_is_a_reference() -> None:
    found = re.findall(r"`(exec:[^`]*)`", RECIPES)
    assert len(found) == 6
    assert all(ref(text).source is SecretScheme.EXEC for text in found)


def test_bitwarden_s_script_prints_the_secret(tmp_path: Path) -> None:
    (tmp_path / ".config" / "keyhole").mkdir(parents=True)
    (tmp_path / ".config" / "keyhole" / "bw-session").write_text(VALUE + "\n")
    body = '#!/bin/sh\necho "$BW_SESSION $*"\n'
    code, printed = run(tmp_path, "bitwarden", "bw", body, "anthropic")
    assert (code, printed.decode()) == (0, f"{VALUE} get password anthropic --nointeraction\n")


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 3)])
def test_google_s_script_prints_the_form_with_a_life_or_fails(
    tmp_path: Path, status: int, code: int
) -> None:
    body = f"#!/bin/sh\necho {VALUE}\nexit {status}\n"
    ended, printed = run(tmp_path, "google", "gcloud", body)
    assert ended == code
    reading = read_printed(printed, 0.0)
    assert (reading.life is not None) is (status == 0)
    assert bool(printed) is (status == 0)
