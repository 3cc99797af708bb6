"""The command line: its verbs, and the parser that is made of them.

A verb's module has its flags and its code, and is imported only when that verb is typed. The parser
reads words into options and does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from keyhole import __version__
from keyhole.cli.errors import report
from keyhole.model.errors import KeyholeError
from keyhole.system.startup import import_msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

GROUPS: dict[str, dict[str, str]] = {
    "run": {
        "run": "run a command in a sandbox under this project's policy",
        "exec": "run another command in a running sandbox, as in a second terminal",
        "demo": "show what Keyhole does, in a minute, on this host only",
        "doctor": "test from inside a sandbox that nothing gets out, and which clients trust a "
        "session's CA",
        "findings": "list files that runs left and this host may execute, until you dismiss them",
        "home": "list or reset the homes and caches that Keyhole keeps for a project's sandboxes",
    },
    "changes held for review": {
        "changes": "show the changes that wait for your review, as a list and a diff",
        "apply": "apply changes to your files (exit 1 when some are held back)",
        "discard": "delete changes permanently",
        "undo": "revert the last apply; its changes wait for your review again",
    },
    "policy": {
        "init": "look at this host and project, ask, and write keyhole.toml",
        "check": "validate a policy and show what it grants (exit 2 when it is not valid)",
        "why": "explain whether a URL, a host or a push is allowed, and why",
        "learn": "propose the smallest policy that allows what sessions did, and write the "
        "rules that you pick",
        "replay": "judge the recorded decisions by another policy (exit 1 when it would deny "
        "something that was used)",
        "policy": "print the JSON Schema of a policy, or accept a policy",
        "agents": "list the agents that `keyhole run NAME` knows, and which are ready here",
        "services": "list the services catalogue, or show one entry",
        "tools": "list the tools that MCP servers offered to sandboxes, and accept changed ones",
    },
    "secrets": {
        "secret": "store, list, test, replace and remove secrets",
        "login": "log in to a service with OAuth, in your browser or by a code; or list the logins",
        "logout": "revoke a login at its issuer, if the issuer offers that, and remove it",
    },
    "what happens": {
        "log": "show every decision, by time; or verify that the log was not changed",
        "ps": "list sandboxes and sessions, with their use and remaining limits",
        "web": "serve a page for your browser: sessions, the log, policies and usage",
        "ports": "list ports that sandboxes publish, with their addresses, and ports of this host "
        "that they use",
        "watch": "show what sandboxes do and ask for, as it happens, and answer",
        "asks": "list the requests that wait for your answer",
        "approve": "allow a request that waits for your answer",
        "deny": "refuse a request that waits for your answer",
        "allow": "let a running session connect to one more host, for a while; with --save, write "
        "a rule into the policy",
        "resume": "resume sessions that were frozen because a decoy was sent",
        "revoke": "cut sessions off permanently; their sandboxes continue without a network",
        "stop": "end sandboxes, by name or by the id of their session",
    },
    "sandboxes that stay": {
        "new": "create a named sandbox and start it; it stays until you destroy it",
        "start": "start a stopped sandbox again, with its home",
        "attach": "connect this terminal to the command of a sandbox",
        "destroy": "end named sandboxes, and remove their homes",
        "prune": "remove containers that killed runs left in Docker or Podman",
    },
    "one gateway for many sandboxes": {
        "up": "start the gateway that sandboxes share; returns when it is ready",
        "down": "end the gateway and all its sessions; returns when it has ended",
        "status": "show whether a gateway is up, what it serves, and how it is hardened",
        "kube": "show Keyhole in a Kubernetes cluster, print its roles, or run one of its parts",
        "health": "check whether sandboxes can work now (exit 1 when they cannot)",
        "reload": "make the gateway read all policies in use again",
        "invite": "print a code that lets one sandbox of another machine use the gateway",
        "door": "run a command here, in a sandbox that uses a gateway on another machine",
    },
    "this command": {
        "help": "show this list, or the flags of one verb",
        "version": "print the version",
        "completion": "print a completion script for your shell",
    },
}
"""Every verb and what it does, in the groups of `keyhole --help`. `keyhole.cli.VERB` has its flags
(`add_arguments`) and its code (`run`), and is imported when the verb is typed."""

VERBS = {name: text for verbs in GROUPS.values() for name, text in verbs.items()}


class Verb(Protocol):
    """A verb's module."""

    def add_arguments(self, parser: Parser) -> None:
        """Add the verb's flags and words, and the actions below it."""

    def run(self, options: argparse.Namespace) -> int:
        """Run the verb, and return the exit code."""


class Parser(argparse.ArgumentParser):
    """Flags are typed in full, in every verb: none is found by its beginning.

    Otherwise `--u` would be `--unsafe-no-isolation`, and danger is spelled.
    """

    def __init__(self, *words: Any, **options: Any) -> None:  # noqa: ANN401 - as they come
        super().__init__(*words, **{"allow_abbrev": False, **options})
        self.verb: str | None = None
        """A verb whose flags this parser does not have yet."""
        self.split: Callable[[list[str], argparse.Namespace], list[str]] | None = None
        """Takes out of a verb's words what argparse would misread, and returns the others."""

    def add_flags(self) -> None:
        """Import the verb's module, and let it add its flags."""
        if self.verb is not None:
            verb, self.verb = self.verb, None
            _import_verb(verb).add_arguments(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, with the flags of the verb that was typed."""
        self.add_flags()
        words = list(sys.argv[1:] if args is None else args)
        options = argparse.Namespace() if namespace is None else namespace
        if self.split is not None:
            words = self.split(words, options)
        return super().parse_known_args(words, options)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """As argparse does; a verb or action that does not exist gets a suggestion."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from keyhole.cli.verb_help import suggest_verb

            self.error(suggest_verb(str(value), list(action.choices), self.prog))
        super()._check_value(action, value)


class TopParser(Parser):
    """`keyhole` itself: its help has the verbs in groups."""

    def format_help(self) -> str:
        """The help for this terminal."""
        from keyhole.cli.verb_help import describe_verbs

        return describe_verbs(GROUPS)


def build_parser() -> argparse.ArgumentParser:
    """Every verb with all its flags, for documents and completion scripts."""
    return _build(VERBS, whole=True)


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser that this command line needs: that of one verb alone, which is quicker, or every
    verb by name, for `--help` and for mistakes."""
    typed = arguments[:1]
    return _build(typed if typed and typed[0] in VERBS else VERBS, whole=False)


def _build(verbs: Iterable[str], *, whole: bool) -> argparse.ArgumentParser:
    parser = TopParser(prog="keyhole")
    parser.add_argument("-V", "--version", action="version", version=f"keyhole {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True, parser_class=Parser)
    for name in verbs:
        text = VERBS[name]
        each = parsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        each.set_defaults(verb=name)
        each.verb = name
        if whole:
            each.add_flags()
    return parser


def run_verb(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Parse the command line, and run its verb."""
    options = argparse.Namespace(json=False, unknown_words=None, action=None)
    options, unknown = parser.parse_known_args(arguments, options)
    if unknown:
        parser.error(options.unknown_words or f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return _import_verb(options.verb).run(options)
    except KeyholeError as error:
        return report(error, options.verb, options.action)


def _import_verb(name: str) -> Verb:
    import_msgspec()
    return cast("Verb", importlib.import_module(f"keyhole.cli.{name}"))
