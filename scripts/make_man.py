"""Writes the man pages in docs/man; with `--check`, only says which are stale.

They are made from the parser, from the table of policy keys, and from the tables of docs/cli.md, so
that nothing is written twice. Called by `make docs` and by tests/system/docs (I10).
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from keyhole import __version__
from keyhole.cli.parser import GROUPS, VERBS, build_parser
from keyhole.policy.schema import KEYS
from scripts.make_docs import EXAMPLE, ROOT, flag_text, subparsers_of, word_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLACE = ROOT / "docs" / "man"
PROGRAM = "keyhole"
_HEADS = ("code", "variable")


def escape(text: str) -> str:
    """Text as troff prints it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^(?=\.)", r"\\&", text, flags=re.MULTILINE)


def markdown(text: str) -> str:
    """A cell of a table: code is bold, links are their words."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("\\|", "|")
    pieces = re.split(r"`([^`]+)`", text)
    return "".join(
        f"\\fB{escape(piece)}\\fR" if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    )


def _head(name: str, section: int, text: str) -> list[str]:
    return [
        f'.TH "{escape(name.upper())}" {section} "" "keyhole {__version__}" "Keyhole"',
        ".SH NAME",
        f"{escape(name)} \\- {escape(text)}",
    ]


def _entry(term: str, text: str) -> list[str]:
    return [".TP", f".B {escape(term)}", markdown(text) or "\\&"]


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The arguments and flags of one verb or action."""
    for action in parser._actions:
        left_out = (argparse._SubParsersAction, argparse._HelpAction)
        if isinstance(action, left_out) or action.help == argparse.SUPPRESS:
            continue
        term = flag_text(action, action.option_strings) if action.option_strings else ""
        yield from _entry(term or word_text(action), action.help or "")


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    words = [word_text(action) for action in parser._actions if not action.option_strings]
    return [f".B {escape(parser.prog)}", escape(" ".join(["[OPTION…]", *words]))]


def verb_page(name: str, parser: argparse.ArgumentParser) -> str:
    """keyhole-VERB(1)."""
    lines = [*_head(f"{PROGRAM}-{name}", 1, VERBS[name]), ".SH SYNOPSIS", *_usage(parser)]
    lines += [".SH DESCRIPTION", escape(parser.description or "")]
    options = list(_options(parser))
    lines += [".SH OPTIONS", *options] if options else []
    for each in subparsers_of(parser):
        texts = {choice.dest: choice.help or "" for choice in each._choices_actions}
        for action, inner in each.choices.items():
            lines += [f'.SH "{escape(inner.prog).upper()}"', escape(texts[action]), ".PP"]
            lines += [*_usage(inner), *_options(inner)]
    lines += [".SH SEE ALSO", ".BR keyhole (1),", ".BR keyhole.toml (5)"]
    return _joined(lines)


def main_page() -> str:
    """keyhole(1)."""
    lines = _head(PROGRAM, 1, "run untrusted code without giving it a credential")
    lines += [".SH SYNOPSIS", ".B keyhole", "VERB [OPTION…]", ".SH DESCRIPTION"]
    lines += [escape("Each verb has a page of its own, keyhole-VERB(1).")]
    for title, verbs in GROUPS.items():
        lines.append(f'.SS "{escape(title)}"')
        for name, text in verbs.items():
            lines += _entry(name, text)
    lines += [".SH EXIT STATUS"]
    for code, text in _table("Exit codes"):
        lines += _entry(code.strip("`"), text)
    lines += [".SH ENVIRONMENT"]
    for names, text in _table("Environment"):
        lines += _entry(names.replace("`", ""), text)
    lines += [".SH SEE ALSO", ".BR keyhole\\-run (1),", ".BR keyhole.toml (5)"]
    return _joined(lines)


def policy_page() -> str:
    """keyhole.toml(5)."""
    lines = _head("keyhole.toml", 5, "the policy of a Keyhole sandbox")
    lines += [".SH DESCRIPTION"]
    lines += [escape("A TOML file that holds no secret. A request that no rule allows is denied.")]
    lines += [".SH EXAMPLE", ".nf", escape(EXAMPLE.read_text("utf-8").rstrip()), ".fi", ".SH KEYS"]
    for key in KEYS:
        lines += _entry(key.dotted, f"{key.meaning}. {key.kind.name}; default: {key.shown}.")
    lines += [".SH SEE ALSO", ".BR keyhole\\-check (1),", ".BR keyhole\\-why (1)"]
    return _joined(lines)


def _table(heading: str) -> Iterator[tuple[str, str]]:
    """The rows of all tables below a heading of docs/cli.md."""
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in part.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 2 and not cells[0].startswith("-") and cells[0] not in _HEADS:
            yield cells[0], cells[1]


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Every page by its place, as `man` looks for it."""
    found = {"man1/keyhole.1": main_page(), "man5/keyhole.toml.5": policy_page()}
    for each in subparsers_of(build_parser()):
        for name, parser in each.choices.items():
            found[f"man1/keyhole-{name}.1"] = verb_page(name, parser)
    return found


def main() -> int:
    """Write, or with `--check` compare."""
    check = sys.argv[1:] == ["--check"]
    wanted = pages()
    present = {
        str(file.relative_to(PLACE)): file.read_text("utf-8") for file in PLACE.glob("man?/*")
    }
    stale = sorted(name for name in wanted | present if wanted.get(name) != present.get(name))
    for name in stale:
        if check:
            print(f"docs/man/{name} is stale: `make docs` renews it", file=sys.stderr)
        elif name in wanted:
            (PLACE / name).parent.mkdir(parents=True, exist_ok=True)
            (PLACE / name).write_text(wanted[name], "utf-8")
        else:
            (PLACE / name).unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
