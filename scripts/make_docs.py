"""Writes the generated parts of the documents; with `--check`, only says which are stale.

Two kinds of parts are generated. Between `<!-- NAME:begin -->` and `<!-- NAME:end -->` stands what
`PARTS` makes from the code. And a `sh` block that begins with `keyhole ` is run with the installed
command, line by line; a `text` or `json` block right below it is replaced by what was printed. So
commands are written by hand and their output never is. `# exit 1` says how a line ends if not by 0.

Called by `make docs` and by tests/docs, which holds that nothing is stale (I10).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.cli.parser import build_parser
from keyhole.model.decision import Reason
from keyhole.policy.explain import SAID
from keyhole.policy.reference import key_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyhole.inject.catalogue import Template

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "src" / "keyhole" / "app" / "example.toml"

WIDTH = 80
"""Columns of a usage line, whatever the terminal is."""

MAX_LINE = 120
"""Columns of a line that a command printed; the rest is cut and marked."""

MAX_HOSTS_SHOWN = 3
"""Hosts of a catalogue entry in the table; `keyhole services show` has them all."""

COMMAND_SECONDS = 60
"""No documented command waits for anything; one that does is a mistake."""


class Stale(Exception):
    """A document that cannot be renewed: a marker is missing, a command ended as it should not."""


# ── parts made from the code ────────────────────────────────────────────────────────────────────

_FURTHER_MEANINGS = {
    "rule": "a rule names it",
    "unsafe-passthrough": "a host of a service that `unsafe_passthrough` tunnels",
    "public-address": "the name resolved to a public address",
    "connect-override": "`[upstream.connect]` names the address to dial",
    "private-granted": "a private address, and `upstream.private` names the host",
    "within-limit": "the limit is not reached",
    "type-not-answered": "only A questions have an answer",
    "class-not-answered": "only the Internet class exists",
    "name-malformed": "the question is not about a host name",
    "address-private": "a private address that no rule opens",
    "address-loopback": "this host itself",
    "address-link-local": "a link-local address",
    "address-multicast": "a multicast address",
    "address-metadata": "a cloud's metadata service",
    "address-embedded-ipv4": "an IPv6 address that carries an IPv4 one",
    "address-reserved": "a reserved address",
    "ref-symbolic": "the ref is an alias of another",
    "default-branch-unknown": "the remote's default branch was not learnt",
    "create-not-granted": "new branches are not granted",
    "ancestry-unknown": "it was not proven that the branch moves forward",
    "over-limit": "a limit is reached; the rule names it",
}
"""Reasons that `keyhole why` never has to put in words, by code."""

_ALLOWING = frozenset(
    "rule unsafe-passthrough public-address connect-override private-granted within-limit".split()
)


def example_policy() -> str:
    """The example that ships with Keyhole, byte for byte."""
    return f"```toml\n{EXAMPLE.read_text('utf-8')}```"


def reason_table() -> str:
    """Every reason code of a decision, in the order of the code."""
    rows = ["| code | verdict | meaning |", "|---|---|---|"]
    for reason in Reason:
        meaning = SAID.get(reason) or _FURTHER_MEANINGS.get(reason)
        if meaning is None:
            raise Stale(f"scripts/make_docs.py has no meaning for the reason '{reason}'")
        verdict = "allow" if reason in _ALLOWING else "deny"
        rows.append(f"| `{reason}` | {verdict} | {meaning} |")
    return "\n".join(rows)


def service_table() -> str:
    """The catalogue, one row an entry."""
    catalogue = FileCatalogue()
    rows = ["| name | what it is | kind | hosts | facts |", "|---|---|---|---|---|"]
    for name in catalogue:
        entry = catalogue[name]
        facts = f"{entry.sure} {entry.since}"
        rows.append(f"| `{name}` | {entry.title} | {entry.kind} | {_hosts(entry)} | {facts} |")
    return "\n".join(rows)


def _hosts(entry: Template) -> str:
    if entry.needs_hosts:
        return f"yours, as `{entry.hosts[0].example}`"
    names = [str(pattern) for part in entry.hosts for pattern in part.hosts]
    shown = ", ".join(f"`{name}`" for name in names[:MAX_HOSTS_SHOWN])
    more = len(names) - MAX_HOSTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


# ── the command line: argparse's own layout differs between Python 3.11, 3.12 and 3.13 ──────────


def verbs() -> str:
    """The help of every verb, in one layout for every Python."""
    return "\n\n".join(
        f"### {parser.prog}\n\n```text\n{_help(parser)}\n```" for parser in _parsers(build_parser())
    )


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in _subparsers(parser):
        for child in action.choices.values():
            yield from _parsers(child)


def _subparsers(
    parser: argparse.ArgumentParser,
) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]


def _help(parser: argparse.ArgumentParser) -> str:
    flags = [a for a in parser._actions if a.option_strings]
    words = [a for a in parser._actions if not a.option_strings]
    usage = [f"[{_flag(a, a.option_strings[:1])}]" for a in flags] + [_word(a) for a in words]
    paragraphs = [_wrapped(f"usage: {parser.prog}", usage)]
    if parser.description:
        paragraphs.append(parser.description.strip())
    groups: list[list[tuple[str, str | None]]] = [
        [(_metavar(a), a.help) for a in words if a.help],
        [(c.dest, c.help) for a in _subparsers(parser) for c in a._choices_actions],
        [(_flag(a, a.option_strings), a.help) for a in flags],
    ]
    paragraphs += [_columns(group) for group in groups if group]
    if parser.epilog:
        paragraphs.append(parser.epilog.strip("\n"))
    return "\n\n".join(paragraphs)


def _flag(action: argparse.Action, names: Sequence[str]) -> str:
    text = ", ".join(names)
    if action.nargs == 0:
        return text
    value = _metavar(action)
    return f"{text} [{value}]" if action.nargs == argparse.OPTIONAL else f"{text} {value}"


def _word(action: argparse.Action) -> str:
    name = _metavar(action)
    if isinstance(action, argparse._SubParsersAction):
        return f"{name} ..." if action.required else f"[{name} ...]"
    if action.nargs == argparse.OPTIONAL:
        return f"[{name}]"
    return f"{name} [{name} ...]" if action.nargs == argparse.ONE_OR_MORE else name


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices and not isinstance(action, argparse._SubParsersAction):
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _wrapped(start: str, words: list[str]) -> str:
    lines, line = [], start
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = " " * len(start)
        line += f" {word}"
    return "\n".join([*lines, line])


def _columns(rows: list[tuple[str, str | None]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}  {text or ''}".rstrip() for name, text in rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"example": example_policy},
    "docs/ARCHITECTURE.md": {},
    "docs/THREATS.md": {},
    "docs/policy.md": {"keys": key_table, "reasons": reason_table},
    "docs/cli.md": {"verbs": verbs},
    "docs/services.md": {"services": service_table},
}
"""The documents, and what stands between their markers."""


# ── commands and what they print ────────────────────────────────────────────────────────────────

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"# exit ([0-9]+)$")
_OUTPUTS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    output: str


class Bench:
    """A directory where documented commands are run: the example as policy, an empty home."""

    def __init__(self, directory: Path) -> None:
        self._place = directory.resolve()
        self._project = self._place / "project"
        for name in ("project", "home", "bin"):
            (self._place / name).mkdir()
        # PATH has this one program, so that what is installed here changes no output.
        (self._place / "bin" / "keyhole").symlink_to(Path(sys.executable).with_name("keyhole"))
        self.write("keyhole.toml", EXAMPLE.read_text("utf-8"))

    def write(self, name: str, text: str) -> None:
        """Place a file beside the policy."""
        (self._project / name).write_text(text, "utf-8")

    def run(self, line: str) -> Ran:
        """Run one line of a document, with both streams in one output."""
        env = {
            "PATH": str(self._place / "bin"),
            "HOME": str(self._place / "home"),
            "LANG": "C.UTF-8",
            "COLUMNS": str(WIDTH),
        }
        done = subprocess.run(  # noqa: S603 - the commands of our own documents
            ["/bin/sh", "-c", line],
            cwd=self._project,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        output = done.stdout.decode("utf-8")
        output = output.replace(str(self._project), "/home/you/widgets")
        return Ran(done.returncode, output.replace(str(self._place / "home"), "/home/you"))


def is_command(info: str, body: str) -> bool:
    """Whether a block is to be run."""
    return info == "sh" and body.startswith("keyhole ")


def expected_exit(line: str) -> int:
    """The code that a command's line says it ends with."""
    found = _EXIT.search(line)
    return int(found[1]) if found else 0


def _renew_outputs(name: str, text: str, bench: Bench) -> str:
    pieces, at = [], 0
    printed: str | None = None
    for block in _FENCE.finditer(text):
        between = text[at : block.start()]
        info, body = block["info"].strip(), block["body"]
        kind, _, file = info.partition(" ")
        if kind == "toml" and file:
            bench.write(file, body)
        if is_command(info, body):
            printed = "".join(_printed(name, line, bench) for line in body.splitlines())
        elif kind in _OUTPUTS and printed is not None and not between.strip():
            body, printed = _cut(printed) if kind == "text" else printed, None
        else:
            printed = None
        pieces.append(f"{between}```{block['info']}\n{body}```")
        at = block.end()
    return "".join(pieces) + text[at:]


def _printed(name: str, line: str, bench: Bench) -> str:
    ran = bench.run(line)
    if ran.code != expected_exit(line):
        raise Stale(f"{name}: `{line}` ended with {ran.code}:\n{ran.output}")
    return ran.output


def _cut(output: str) -> str:
    lines = (
        line if len(line) <= MAX_LINE else line[: MAX_LINE - 1].rstrip() + "…"
        for line in output.splitlines()
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


# ── documents ───────────────────────────────────────────────────────────────────────────────────


def renewed(name: str) -> str:
    """A document's text with every generated part made anew."""
    text = (ROOT / name).read_text("utf-8")
    for part, make in PARTS[name].items():
        begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise Stale(f"{name}: wants one {begin} and one {end}")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{make()}\n{end}{rest.split(end)[1]}"
    with tempfile.TemporaryDirectory() as directory:
        return _renew_outputs(name, text, Bench(Path(directory)))


def main() -> int:
    """Write, or with `--check` compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    options = parser.parse_args()
    code = 0
    for name in PARTS:
        try:
            text = renewed(name)
        except Stale as error:
            print(error, file=sys.stderr)
            code = 1
            continue
        file = ROOT / name
        if text == file.read_text("utf-8"):
            continue
        if options.check:
            print(f"{name} is stale: `make docs` renews it", file=sys.stderr)
            code = 1
        else:
            _replace(file, text)
            print(f"wrote {name}")
    return code


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    os.replace(new, file)


if __name__ == "__main__":
    sys.exit(main())
