"""`make site` has every document, with links that work and nothing from elsewhere (I10)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from scripts import make_site
from tests.rigs.lacking import give_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT = make_site.ROOT
PYTHON = ROOT / ".venv-site" / "bin" / "python"
PATIENCE = 300
"""Seconds that installing or building may take on a busy machine."""


def test_the_navigation_has_every_document_and_begins_with_the_guides() -> None:
    listed = make_site.pages()
    written = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert written <= set(listed)
    assert len(listed) == len(set(listed))
    assert list(make_site.NAVIGATION) == ["Guides", "Reference", "Design"]
    guides = {path for path in written if path.startswith("docs/guides/")}
    assert guides <= set(make_site.NAVIGATION["Guides"])


def test_the_pages_are_staged_in_their_places_with_what_they_link_to(tmp_path: Path) -> None:
    make_site.stage(tmp_path)
    front = (tmp_path / "index.md").read_text("utf-8")
    assert front.count("```{toctree}") == len(make_site.NAVIGATION)
    assert (tmp_path / "docs" / "picture.svg").is_file()
    assert not (tmp_path / "README.md").exists()
    for page in tmp_path.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for to in re.findall(r"\]\(([^)\s#]+)[)#]", text):
            assert "://" in to or (page.parent / to).is_file(), (page, to)


def test_a_link_to_the_readme_leads_to_the_front_page(tmp_path: Path) -> None:
    make_site.stage(tmp_path)
    assert "](../index.md)" in (tmp_path / "docs" / "tour.md").read_text("utf-8")
    # The control: the page of examples is a README, too, and stays where it is.
    assert "](examples/README.md)" in (tmp_path / "index.md").read_text("utf-8")


def test_a_block_that_is_a_file_shows_its_name_and_an_excerpt_is_no_json(tmp_path: Path) -> None:
    make_site.stage(tmp_path)
    tour = (tmp_path / "docs" / "tour.md").read_text("utf-8")
    assert "```{code-block} toml\n:caption: inside.toml\n\nversion = 1\n" in tour
    assert "json excerpt" in (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert "json excerpt" not in (tmp_path / "docs" / "cli.md").read_text("utf-8")


# ── built by the generator, read by a browser ───────────────────────────────────────────────────


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    setup = [str(ROOT / "scripts" / "setup"), "site"]
    made = subprocess.run(setup, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if made.returncode:
        give_up(f"the generator cannot be installed: {made.stderr}")
    into = tmp_path_factory.mktemp("site") / "site"
    command = [str(PYTHON), str(ROOT / "scripts" / "make_site.py"), str(into)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert built.returncode == 0, built.stderr
    return into


@pytest.fixture
def shown(tmp_path: Path) -> Callable[[str], str]:
    """Reads an address with a browser, scripts included, and gives the page as it then is."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        give_up("there is no Chromium here")

    def read(address: str) -> str:
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path}", address]
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return done.stdout

    return read


@pytest.mark.attack
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(make_site.pages())
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*? src=\"([^\"]+)\"", text)
        loaded += re.findall(r"<link[^>]*? href=\"([^\"]+)\"", text)
        assert loaded
        assert [to for to in loaded if re.match(r"(?:[a-z]+:)?//", to)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", sheet.read_text("utf-8"))


@pytest.mark.attack
def test_the_site_has_the_schema(site: Path) -> None:
    assert json.loads((site / make_site.SCHEMA).read_text("utf-8"))["properties"]["version"]


@pytest.mark.attack
def test_the_search_finds_pages_offline(site: Path, shown: Callable[[str], str]) -> None:
    found = shown(f"{(site / 'search.html').as_uri()}?q=branch")
    assert "docs/git.html" in found.partition('id="search-results"')[2]
    # The control: a word that no page has.
    found = shown(f"{(site / 'search.html').as_uri()}?q=xyzzyplugh")
    assert "docs/git.html" not in found.partition('id="search-results"')[2]


@pytest.mark.attack
def test_the_front_page_shows_the_picture_and_the_navigation(
    site: Path, shown: Callable[[str], str]
) -> None:
    page = shown((site / "index.html").as_uri())
    picture = re.search(r"<img[^>]*? src=\"([^\"]+\.svg)\"", page)
    assert picture
    assert (site / picture[1]).is_file()
    assert [part for part in make_site.NAVIGATION if f">{part}<" in page] == list(
        make_site.NAVIGATION
    )


@pytest.mark.attack
def test_a_link_that_leads_nowhere_fails_the_build(site: Path, tmp_path: Path) -> None:
    """Beside `site`, which is the control: the same pages without that link are built."""
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); from scripts import make_site as m\n"
        "whole = m.stage\n"
        "def stage(into):\n"
        "    whole(into)\n"
        "    with (into / 'docs/git.md').open('a') as page:\n"
        "        page.write('\\n[x](tour.md#nowhere)\\n')\n"
        "m.stage = stage\n"
        "sys.exit(m.build(pathlib.Path(sys.argv[2])))\n"
    )
    command = [str(PYTHON), "-c", program, str(ROOT), str(tmp_path / "site")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert site.is_dir()
    assert built.returncode != 0
    assert "nowhere" in built.stderr
    assert not (tmp_path / "site").exists()
