"""The man pages say what the parser says, and man(1) prints them (I10)."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from keyhole.cli.parser import VERBS
from keyhole.policy.schema import KEYS
from scripts import make_man
from tests.rigs.lacking import give_up

PAGES = make_man.pages()


def test_every_page_is_current() -> None:
    place = make_man.PLACE
    present = {str(f.relative_to(place)): f.read_text("utf-8") for f in place.glob("man?/*")}
    assert present == PAGES, "run `make docs`"


def test_every_verb_and_key_has_its_place() -> None:
    assert {f"man1/keyhole-{verb}.1" for verb in VERBS} < set(PAGES)
    policy = PAGES["man5/keyhole.toml.5"]
    for key in KEYS:
        assert f".B {make_man.escape(key.dotted)}\n" in policy
    assert "XDG_STATE_HOME" in PAGES["man1/keyhole.1"]
    assert ".B 125\n" in PAGES["man1/keyhole.1"]


@pytest.mark.parametrize("name", ["man1/keyhole.1", "man1/keyhole-run.1", "man5/keyhole.toml.5"])
def test_groff_prints_a_page_without_a_warning(name: str) -> None:
    groff = shutil.which("groff")
    if groff is None:
        give_up("groff is not installed")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-P-cbou"],
        input=PAGES[name], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "\nNAME\n" in done.stdout, done.stdout[:300]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (".not a request", "\\&.not a request"),
        ("a\\b", "a\\eb"),
        ("--flag", "\\-\\-flag"),
        ("it's", "it\\(aqs"),
    ],
)
def test_no_text_is_a_request_to_troff(text: str, shown: str) -> None:
    assert make_man.escape(text) == shown
