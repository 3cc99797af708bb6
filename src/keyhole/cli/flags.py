"""Flags that several verbs have. All others are in the module of the verb that has them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.cli.errors import CliError
from keyhole.model.errors import Unparsable
from keyhole.model.quantity import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

TRUST_ANY = "any"


def add_trust_flag(parser: argparse._ActionsContainer) -> None:
    """`--trust` accepts any policy; `--trust=sha256:…` only the one that has that digest."""
    parser.add_argument(
        "--trust",
        nargs="?",
        const=TRUST_ANY,
        type=_digest,
        metavar="sha256:…",
        help="accept without asking; with a digest, only that policy",
    )


def _digest(text: str) -> str:
    if text != TRUST_ANY and not text.startswith("sha256:"):
        raise argparse.ArgumentTypeError("a digest is 'sha256:…'; a FILE goes before --trust")
    return text


def accept_any(words: list[str], with_values: frozenset[str]) -> list[str]:
    """The words of a verb that runs a command, with `--trust` alone written as `--trust=any`.

    Otherwise argparse would take the command for the digest: `keyhole run --trust claude`.
    `with_values` are the verb's flags that have a value.
    """
    given, at = list(words), 0
    while at < len(given) and given[at].startswith("-") and given[at] != "--":
        if given[at] == "--trust" and not "".join(given[at + 1 : at + 2]).startswith("sha256:"):
            given[at] = f"--trust={TRUST_ANY}"
        at += 2 if given[at] in (*with_values, "--trust") else 1
    return given


def add_policy_argument(parser: argparse.ArgumentParser) -> None:
    """The policy as an argument, `keyhole check FILE`, or by the flag that other verbs have."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", type=Path, help="default: keyhole.toml here or above"
    )
    add_policy_flag(parser)


def chosen_policy(options: argparse.Namespace) -> Path | None:
    """The policy that was named in either way; None for the one that is found."""
    if options.file and options.policy:
        raise CliError("name one policy: FILE, or --policy FILE")
    path: Path | None = options.file or options.policy
    return path


def add_policy_flag(parser: argparse.ArgumentParser) -> None:
    """The policy as a flag, for verbs whose words mean something else."""
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="default: keyhole.toml here or above"
    )


def add_command_argument(parser: argparse.ArgumentParser) -> None:
    """The command and its arguments, after the flags of the verb."""
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- CMD …",
        help="the command and its arguments",
    )


def command_words(options: argparse.Namespace) -> tuple[str, ...]:
    """The command without the `--` before it, which some Pythons leave in."""
    words: list[str] = options.command
    return tuple(words[1:] if words[:1] == ["--"] else words)


def add_quiet_flag(parser: argparse.ArgumentParser) -> None:
    """For verbs that run a command in the foreground."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing but the command's own output"
    )


def add_name_argument(parser: argparse.ArgumentParser, text: str | None = None) -> None:
    """The name of a sandbox."""
    parser.add_argument("name", metavar="NAME", help=text)


def add_runtime_flags(parser: argparse.ArgumentParser) -> None:
    """For verbs that make a sandbox without a project."""
    parser.add_argument(
        "--runtime",
        choices=("bwrap", "docker", "podman"),
        default="bwrap",
        help="runtime that makes the sandbox (default: bwrap)",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="for containers; without it, an image is built from this host's programs and removed",
    )


def add_changes_flag(parser: argparse.ArgumentParser) -> None:
    """For verbs that make a sandbox of a project."""
    parser.add_argument(
        "--changes",
        choices=("direct", "review"),
        help="whether changes go to your files, or wait for `keyhole apply`; instead of the "
        "policy's",
    )


def check_image(image: str | None, *, contained: bool) -> None:
    """Refuse --image for a sandbox that is no container."""
    if image and not contained:
        raise CliError("--image is for containers: add --runtime docker")


def add_watch_flag(parser: argparse.ArgumentParser) -> None:
    """For listings that change."""
    parser.add_argument("--watch", action="store_true", help="keep showing it as it changes")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """For every listing."""
    # SUPPRESS: an action below a verb must not reset what was given before it.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable output"
    )


def duration_between(least: float, most: float) -> Callable[[str], float]:
    """Returns a reader of an argument such as `90s` or `1h30m`, into seconds."""

    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except Unparsable as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not least <= seconds <= most:
            bounds = f"{format_duration(least)} to {format_duration(most)}"
            raise argparse.ArgumentTypeError(f"it is from {bounds}")
        return seconds

    return read
