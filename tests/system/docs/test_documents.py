"""The documents say what is true: generated parts, commands, links, names of tests (I10)."""

from __future__ import annotations

import ast
import functools
import ipaddress
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from keyhole import __version__
from keyhole.app.run.run import TIMED_OUT
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.exit_codes import (
    EXIT_DENIED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_UNUSABLE,
)
from keyhole.gateway import refusal_messages
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.policy.build import PolicyContext
from keyhole.policy.disclose import disclose
from keyhole.policy.load import PolicyText, load
from keyhole.sandbox.empty_network import RULESET
from keyhole.sandbox.identity import UNPRIVILEGED
from keyhole.sandbox.launch import STEPS
from keyhole.sandbox.sandbox_init import NOT_EXECUTABLE, NOT_FOUND
from scripts import make_docs
from tests.rigs.cli.terminals import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = make_docs.ROOT
README = (ROOT / "README.md").read_text("utf-8")
THREATS = (ROOT / "docs" / "THREATS.md").read_text("utf-8")
PROMISES = (ROOT / "tests" / "PROMISES.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*\]\((?P<to>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
_TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)(?:::(?P<name>\w+))?")

_MODULE = re.compile(r"(?<![\w/.-])((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)")

MAX_README_WORDS = 900
"""Words of the README, counted as `wc -w` does: it is read before anything is installed."""

MAX_CHANGE = 140
"""Characters of a line in the changelog; the guides say more."""

MAX_TEXT = 1024 * 1024
"""Bytes of a file that is looked through; larger ones are not text of ours."""


# ── what is generated ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Renewed:
    """A document made anew, and how each command in it ended."""

    text: str
    codes: dict[str, int]


@pytest.fixture(scope="module")
def renew() -> Callable[[str], Renewed]:
    """Makes a document anew, once for all tests: its commands make sandboxes."""

    @functools.cache
    def renewed(name: str) -> Renewed:
        codes: dict[str, int] = {}

        class Noting(make_docs.Bench):
            def run(self, line: str) -> make_docs.Ran:
                ran = super().run(line)
                codes[line] = ran.code
                return ran

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(make_docs, "Bench", Noting)
            return Renewed(make_docs.renewed(name), codes)

    return renewed


@pytest.mark.outside
@pytest.mark.parametrize("name", make_docs.PARTS)
def test_generated_parts_and_the_output_of_commands_are_current(
    name: str, renew: Callable[[str], Renewed]
) -> None:
    assert renew(name).text == (ROOT / name).read_text("utf-8"), "run `make docs`"


@pytest.mark.outside
@pytest.mark.parametrize("name", make_docs.PARTS)
def test_every_documented_command_ends_the_same_way_on_a_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader types these on a terminal, where Keyhole asks, paints and makes it raw."""
    ran: list[str] = []

    class OnTerminal(make_docs.Bench):
        def run(self, line: str) -> make_docs.Ran:
            words = ["/bin/sh", "-c", line]
            # A question is answered with Enter, which accepts nothing.
            code, said = on_terminal(words, self.env, self.project, whenever=("[y/N] ", "\r"))
            assert "Traceback" not in said, said
            assert "error in Keyhole itself" not in said, said
            assert code == make_docs.expected_exit(line), f"{line}: {said}"
            ran.append(line)
            return make_docs.Ran(code, "")

    monkeypatch.setattr(make_docs, "Bench", OnTerminal)
    monkeypatch.setattr(make_docs, "missing_line", lambda *_: None)
    make_docs.renewed(name)
    assert ran == _commands((ROOT / name).read_text("utf-8"))


@pytest.mark.outside
def test_a_stale_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (
        "a\n<!-- p:begin -->\nold\n<!-- p:end -->\n\n```sh\nkeyhole -V\n```\n\n```text\nold\n```\n"
    )
    (tmp_path / "page.md").write_text(page, "utf-8")
    monkeypatch.setattr(make_docs, "ROOT", tmp_path)
    monkeypatch.setitem(make_docs.PARTS, "page.md", {"p": lambda: "new"})
    renewed = make_docs.renewed("page.md")
    assert "old" not in renewed
    assert "<!-- p:begin -->\nnew\n<!-- p:end -->" in renewed
    assert "```text\nkeyhole 0." in renewed


@pytest.mark.outside
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("<!-- p:begin -->\nno end\n", "wants one"),
        ("<!-- p:begin -->\n<!-- p:end -->\n```sh\nkeyhole check x.toml\n```\n", "ended with 2"),
        ("<!-- p:begin -->\n<!-- p:end -->\n```sh\nkeyhole -V   # exit 3\n```\n", "ended with 0"),
        (
            "<!-- p:begin -->\n<!-- p:end -->\n```sh\nkeyhole -V\n```\n```text excerpt\nno\n```\n",
            "was not printed",
        ),
        ("<!-- p:begin -->\n<!-- p:end -->\n```text excerpt\nx\n```\n", "an excerpt of nothing"),
    ],
)
def test_a_document_that_cannot_be_renewed_says_why(
    page: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(page, "utf-8")
    monkeypatch.setattr(make_docs, "ROOT", tmp_path)
    monkeypatch.setitem(make_docs.PARTS, "page.md", {"p": lambda: "new"})
    with pytest.raises(make_docs.Stale, match=said):
        make_docs.renewed("page.md")


@pytest.mark.parametrize("excerpt", ["one\nthree\n", "…\ntwo\n…\n", "o…\nth…e\n", "three\n"])
def test_an_excerpt_has_lines_that_were_printed_in_their_order(excerpt: str) -> None:
    assert make_docs.missing_line(excerpt, "one\ntwo  \nthree\n") is None


@pytest.mark.parametrize(
    ("excerpt", "line"), [("three\none\n", "one"), ("four\n", "four"), ("t…x\n", "t…x")]
)
def test_a_line_that_was_not_printed_is_no_excerpt(excerpt: str, line: str) -> None:
    assert make_docs.missing_line(excerpt, "one\ntwo\nthree\n") == line


def test_what_differs_from_run_to_run_has_a_stand_in_and_nothing_else_does() -> None:
    head, other = "a" * 64, "b" * 64
    row = "2026-11-15 23:12:52  {}  deny   dns       evil.example                      no-rule"
    assert make_docs.steady(row.format("abafb5e9")) == make_docs.steady(row.format("0123abcd"))
    assert make_docs.steady(f"{head} {other} {head}") == f"{'01' * 32} {'02' * 32} {'01' * 32}"
    kept = f"digest sha256:{head} 198.18.0.1 exit 7 2026-07 uid 1000"
    assert make_docs.steady(kept) == kept


def test_every_verb_has_its_help_in_the_reference() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for line in make_docs.verbs().splitlines():
        assert line in page


def test_the_readme_is_short() -> None:
    """One screen of benefit, the installation, one example, links."""
    assert len(README.split()) <= MAX_README_WORDS


def test_the_readme_has_the_example_byte_for_byte() -> None:
    example = make_docs.EXAMPLE.read_text("utf-8")
    policies = [b["body"] for b in _BLOCK.finditer(README) if b["info"] == "toml"]
    assert policies == [example]


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def _commands(page: str) -> list[str]:
    blocks = (b for b in _BLOCK.finditer(page) if make_docs.is_command(b["info"], b["body"]))
    return [line for block in blocks for line in block["body"].splitlines()]


@pytest.mark.outside
def test_every_command_of_the_readme_and_the_tour_ends_as_it_says(
    renew: Callable[[str], Renewed],
) -> None:
    shown = {"README.md": {"run", "secret", "log", "check", "why"}}
    shown["docs/tour.md"] = {"run", "secret", "doctor", "demo", "check", "why", "services"}
    for name, verbs in shown.items():
        commands = _commands((ROOT / name).read_text("utf-8"))
        assert {make_docs.verb(command) for command in commands} >= verbs
        codes = renew(name).codes
        assert codes == {command: make_docs.expected_exit(command) for command in commands}


@pytest.mark.outside
def test_the_example_of_the_readme_is_valid(tmp_path: Path) -> None:
    ran = make_docs.Bench(tmp_path).run("keyhole check")
    assert (ran.code, ran.output.splitlines()[0]) == (0, "keyhole.toml: valid")


def test_every_exit_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    codes = re.findall(r"^\| ([0-9]+) \|", page, re.MULTILINE)
    expected = [EXIT_OK, EXIT_DENIED, EXIT_UNUSABLE, EXIT_INTERRUPTED]
    of_a_run = [TIMED_OUT, EXIT_REFUSED, NOT_EXECUTABLE, NOT_FOUND]
    assert list(map(int, codes)) == expected + of_a_run


def test_what_setup_installs_is_named() -> None:
    setup = (ROOT / "scripts" / "setup").read_text("utf-8")
    needed = re.findall(r'missing="\$missing (\S+)"', setup)
    needed += re.findall(r"apt_install (python3 [\w -]+?) &&", setup)[0].split()
    tested = re.findall(r'(?:served|used)="\$(?:served|used) (\S+)"', setup)
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for packages, page in ((needed, README), (tested, contributing)):
        assert len(packages) >= 4
        for package in packages:
            assert f"`{package}`" in page, package


# ── what documents point to ─────────────────────────────────────────────────────────────────────


def _anchors(page: Path) -> set[str]:
    """The anchors that a forge gives to headings."""
    text = _BLOCK.sub("", page.read_text("utf-8"))
    plain = (re.sub(r"[`*]", "", found["text"]).lower() for found in _HEADING.finditer(text))
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_resolve(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text("utf-8"))
    for link in _LINK.finditer(text):
        if "://" in link["to"]:
            continue
        file, _, anchor = link["to"].partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_file(), f"{page.name}: {link['to']}"
        assert not anchor or anchor in _anchors(target), f"{page.name}: {link['to']}"


@functools.cache
def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("text", [THREATS, PROMISES], ids=["THREATS.md", "PROMISES.md"])
def test_every_test_that_is_named_exists(text: str) -> None:
    for found in _TEST.finditer(text):
        file = ROOT / found["file"]
        assert file.is_file(), found[0]
        assert found["name"] is None or found["name"] in _functions(file), found[0]


def test_every_promise_has_tests_and_a_section_of_the_threats() -> None:
    sections = re.split(r"^## (I[0-9]+ .+)$", PROMISES, flags=re.MULTILINE)[1:]
    tests = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(tests) == re.findall(r"^### (I[0-9]+ .+)$", THREATS, re.MULTILINE)
    assert [name.split()[0] for name in tests] == [f"I{number}" for number in range(1, 13)]
    for promise, text in tests.items():
        assert len(_TEST.findall(text)) >= 3, promise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_is_named_exists(page: Path) -> None:
    places = (ROOT, ROOT / "src" / "keyhole")
    for name in _MODULE.findall(page.read_text("utf-8")):
        assert any((place / name).is_file() for place in places), f"{page.name}: {name}"


def _members() -> dict[str, set[str]]:
    """The methods and fields of each class in the source; every function under an empty name."""
    found: dict[str, set[str]] = {"": set()}
    for path in (ROOT / "src" / "keyhole").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[""].add(node.name)
            elif isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                for part in node.body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        names.add(part.name)
                    elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        names.add(part.target.id)
    return found


def test_the_calls_that_the_architecture_draws_exist() -> None:
    """A newcomer follows the drawings through the code (I10)."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    drawn = "\n".join(block["body"] for block in _BLOCK.finditer(page) if block["info"] == "text")
    methods = re.findall(r"\b([A-Z][a-z0-9]+[A-Za-z0-9]*)\.([a-z_]+)", drawn)
    calls = re.findall(r"^ +([a-z]+(?:_[a-z]+)+)\(", drawn, re.MULTILINE)
    assert len(methods) > 20
    assert len(calls) > 3
    members = _members()
    gone = [f"{name}.{way}" for name, way in methods if way not in members.get(name, ())]
    assert gone == []
    assert sorted(set(calls) - members[""]) == []


def test_the_floor_plan_has_every_room() -> None:
    plan = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    rooms = re.findall(r"^ │ (\w+)/ .*│$", plan, re.MULTILINE)
    # A room counts from the day it is added to the repository, not while it is being built.
    tracked = {path.relative_to(ROOT).parts for path in _our_files("--cached")}
    built = {p[2] for p in tracked if p[:2] == ("src", "keyhole") and len(p) > 3}
    assert sorted(rooms) == sorted(built)
    assert len(rooms) == len(set(rooms)) > 10


def test_the_steps_and_the_identities_are_drawn_as_they_are() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    drawing = page.partition("## A run, from the outside in")[2].partition("## The door")[0]
    places = [drawing.find(f" {step} ") for step in STEPS]
    assert -1 not in places
    assert places == sorted(places)
    assert f"uid {UNPRIVILEGED}" in page


def test_every_line_of_the_ruleset_has_its_reason() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    reasons = page.partition("Why each line of the ruleset is there")[2].partition("\n\nThe")[0]
    rules = [line.strip() for line in RULESET.splitlines()]
    rules = [rule for rule in rules if rule.endswith((" drop", " return", " accept"))]
    assert len(rules) == 6
    for rule in rules:
        wanted = re.sub(r"^meta .* (?=tproxy)", "", rule)
        assert f"`{wanted}`" in reasons or "ip6 to" in wanted, rule


def _said_by_the_code() -> str:
    files = (ROOT / "src" / "keyhole").rglob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in files)
    # Texts are broken over lines and filled in: compare what stands between.
    return re.sub(r"\"\s+f?\"", "", text)


def test_messages_that_are_explained_are_ones_that_exist() -> None:
    """The first column of a table of messages holds words of the code, or of a known program."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    code = _said_by_the_code()
    foreign = {"Read-only file system", "Permission denied", "No space left on device"}
    foreign |= {"Operation not permitted", "not a git repository"}
    messages = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (`[^|]+?) \|", page, re.M)))
    assert len(messages) > 40
    for message in messages:
        if message in foreign or message.startswith((".", "/proc", "uid_map", "chmod", "g+s")):
            continue
        # `denied HOST:443 (no rule names it)`: what is in parentheses is the reason, or its code.
        found = re.fullmatch(r"(?:denied|failed) .*\((.+)\)", message)
        parts = [found[1]] if found else re.split(r"…|[A-Z]{4,}", message)
        for part in parts:
            wanted = part.strip(" ,:()").partition("apt-get install")[0]
            assert wanted in code or wanted.replace(", ", "") in code, message


def test_what_a_client_reads_has_the_status_that_is_documented() -> None:
    page = (ROOT / "docs" / "reasons.md").read_text("utf-8")
    pairs = re.findall(
        r"^\| `([a-z0-9-]+)` \| [a-z]+ ([45][0-9]{2})(?:, [A-Z_]+)? \|", page, re.MULTILINE
    )
    assert len(pairs) > 80
    for code, status in pairs:
        reply = refusal_messages.http_reply(code, "default")
        assert reply.status == int(status), code


def test_every_key_of_the_sandboxs_policy_is_in_the_guide() -> None:
    page = (ROOT / "docs" / "policy.md").read_text("utf-8")
    table = page.partition("| key of `policy.json` |")[2].partition("\n\n")[0]
    world = PolicyContext(FileCatalogue(), covered_suffix, presets.NAMES)
    policy = load(PolicyText("keyhole.toml", make_docs.EXAMPLE.read_bytes()), None, world).policy
    told = json.loads(disclose(policy))
    service = told["services"][0]
    for key in (*told, *service, *service["hosts"][0]):
        assert f"`{key}`" in table


def test_the_changelog_has_this_version_dated_and_short_lines() -> None:
    """Keep a Changelog: the newest first, kinds of changes, one line for each."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", versions[1])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds
    body = text.partition("## [Unreleased]")[2]
    for line in body.splitlines():
        assert line.startswith(("- ", "#")) or not line, line
        assert len(line) <= MAX_CHANGE, line


# ── what must stand nowhere ─────────────────────────────────────────────────────────────────────


def _our_files(*which: str) -> list[Path]:
    """Every file that is or would be committed; with `--cached`, that is in git already."""
    git = shutil.which("git")
    which = which or ("--cached", "--others", "--exclude-standard")
    command = [git or "git", "ls-files", "-z", *which]
    listed = b""
    if git:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    if listed:
        names = (ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name)
    else:  # not a clone: a source archive, or a checkout of another user
        parts = (
            "*",
            ".ci/*",
            ".github/**/*",
            "docs/**/*",
            "requirements/*",
            "scripts/*",
            "src/**/*",
            "tests/**/*",
        )
        names = (path for part in parts for path in ROOT.glob(part))
    return sorted({p for p in names if p.is_file() and p.stat().st_size <= MAX_TEXT})


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _python_hosts() -> set[str]:
    from pip._internal.models.index import PyPI, TestPyPI

    return {
        host for index in (PyPI, TestPyPI) for host in (index.netloc, index.file_storage_domain)
    }


def _node_hosts() -> set[str]:
    npm = shutil.which("npm")
    if npm is None:
        return set()
    # Settings of this host aside: the default that is built into npm.
    flags = ["--userconfig=/dev/null", "--globalconfig=/dev/null", "--update-notifier=false"]
    env = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"}
    command = [npm, "config", "get", "registry", *flags]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, check=False, text=True)
    host = urlsplit(done.stdout.strip()).hostname
    return {host} if host else set()


def _debian_hosts() -> set[str]:
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    text = "\n".join(_text(path) for path in files if path.is_file())
    # The distributions' own archives, not what else a person added.
    found = re.findall(r"https?://([^/\s]+)/(?:debian|ubuntu)[\w-]*", text)
    return {host.rpartition("@")[2] for host in found}


def _is_public_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition(":")[0])
    except ValueError:
        return "." in host and not host.endswith((".localhost", ".local", ".internal"))
    return False


def test_no_package_registry_is_named_anywhere() -> None:
    hosts = {
        h.lower() for h in _python_hosts() | _node_hosts() | _debian_hosts() if _is_public_name(h)
    }
    assert len(hosts) >= 2  # pip is always beside us
    named = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in _our_files()
        for host in hosts
        if host in _text(path).lower()
    ]
    assert named == []


def _leaks_place(text: str, place: Path) -> bool:
    return re.search(rf"(?<![\w.~-]){re.escape(str(place))}(?![\w-])", text) is not None


def test_no_path_of_the_machine_it_was_written_on_stands_anywhere() -> None:
    places = {ROOT}
    # A parent such as /tmp or /home is a word of its own.
    if ROOT.parent.name not in {"", "tmp", "home", "root", "src", "opt", "usr", "var", "build"}:
        places.add(ROOT.parent)
    assert _leaks_place(f"see {ROOT}/x", ROOT)
    found = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in _our_files()
        for place in places
        if _leaks_place(_text(path), place)
    ]
    assert found == []
