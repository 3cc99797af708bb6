"""`keyhole completion SHELL`: prints a completion script made from the parser.

Names that change (secrets, sessions and so on) are not in the script: it asks
`keyhole completion --list KIND` for them when a person presses Tab.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import shtab

from keyhole.cli.completion_names import NAMES, list_names
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.parser import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish", "tcsh")

COMMAND = "command"
"""A program of the host and its arguments."""

WORDS = {
    "keyhole run command": COMMAND,
    "keyhole exec command": COMMAND,
    "keyhole init agent": "agents",
    "keyhole doctor agents": "agents",
    "keyhole exec name": "running",
    "keyhole attach name": "sandboxes",
    "keyhole start name": "sandboxes",
    "keyhole destroy names": "sandboxes",
    "keyhole stop ids": "running",
    "keyhole allow id": "sessions",
    "keyhole approve id": "asks",
    "keyhole deny id": "asks",
    "keyhole resume ids": "sessions",
    "keyhole revoke ids": "sessions",
    "keyhole log session": "sessions",
    "keyhole learn session": "sessions",
    "keyhole replay session": "sessions",
    "keyhole findings dismiss ids": "findings",
    "keyhole home reset path": "homes",
    "keyhole door command": COMMAND,
    "keyhole tools accept service": "services",
    "keyhole services show name": "services",
    "keyhole secret set name": "services",
    "keyhole secret test name": "secrets",
    "keyhole secret rotate name": "secrets",
    "keyhole secret rm name": "secrets",
    "keyhole login name": "login-targets",
    "keyhole logout name": "logins",
    "keyhole help words": "verbs",
}
"""The kind of names that complete an argument, by its verb and name."""

_METAVARS = {"FILE": shtab.FILE, "PATH": shtab.FILE, "DIR": shtab.DIRECTORY}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS)
    parser.add_argument(
        "--list",
        metavar="KIND",
        choices=sorted(NAMES),
        help="print the names that a completion script offers",
    )


def run(options: argparse.Namespace) -> int:
    """Print the script, or names for it."""
    if options.list:
        for name in list_names(options.list):
            print(name)
        return EXIT_OK
    if options.shell is None:
        raise CliError(
            "name a shell, as `keyhole completion bash`; "
            'in ~/.bashrc: eval "$(keyhole completion bash)"'
        )
    parser = build_parser()
    for each in _parsers(parser):
        for action in each._actions:
            completes = _completes(f"{each.prog} {action.dest}", action)
            if completes:
                action.complete = completes  # type: ignore[attr-defined] # shtab's own attribute
    print(shtab.complete(parser, shell=options.shell))
    return EXIT_OK


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


def _completes(name: str, action: argparse.Action) -> dict[str, Any] | None:
    """The completion of an argument for shtab; None for one that only the person knows."""
    kind = WORDS.get(name)
    if kind == COMMAND:
        return _COMMANDS
    if kind is not None:
        return _names(kind)
    return _METAVARS.get(str(action.metavar))


def _names(kind: str) -> dict[str, Any]:
    """A function of each shell that asks for the names when they are needed."""
    ask, function = f"keyhole completion --list {kind} 2>/dev/null", f"_keyhole_{kind}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({ask})",
        "tcsh": f"`{ask.partition(' 2>')[0]}`",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({ask})" -- "$1"; }}\n',
            "zsh": f'{function}() {{ compadd -- ${{(f)"$({ask})"}} }}\n',
        },
    }


_COMMANDS: dict[str, Any] = {
    "bash": "_keyhole_command",
    "zsh": "_keyhole_command",
    "fish": "(_keyhole_command)",
    "tcsh": "c",
    # The first word is a program, after it come files.
    "preamble": {
        "bash": """\
_keyhole_command() {
  case ${COMP_WORDS[COMP_CWORD-1]} in
    --|run) compgen -c -W "$(keyhole completion --list agents 2>/dev/null)" -- "$1" ;;
  esac
  compgen -f -- "$1"
}
""",
        "zsh": """\
_keyhole_command() {
  case ${words[CURRENT-1]} in
    (--|run|)
      compadd -- ${(f)"$(keyhole completion --list agents 2>/dev/null)"}
      _command_names -e ;;
  esac
  _files
}
""",
        "fish": """\
function _keyhole_command
  set -l words (commandline -opc)
  if contains -- $words[-1] -- run
    keyhole completion --list agents 2>/dev/null
    __fish_complete_command
  end
  __fish_complete_path (commandline -ct)
end
""",
    },
}
