"""`keyhole demo`: the whole idea in a minute, on this host alone.

This version shows the first part: an example policy, what it grants, and what would happen to a
handful of things that an agent might try.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.cli.check import print_summary
from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import paint
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.policy.build import World
from keyhole.policy.explain import explain
from keyhole.policy.load import File, load
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import parse_target

if TYPE_CHECKING:
    import argparse

QUESTIONS = (
    ("GET", "https://example.org/page"),
    ("GET", "https://evil.example/collect"),
    ("POST", "https://api.anthropic.com/v1/messages"),
    ("POST", "https://api.anthropic.com/v1/files"),
    ("GET", "https://billing.corp.example/v1/invoices/7"),
    ("DELETE", "https://billing.corp.example/v1/invoices/7"),
    ("GET", "https://billing.corp.example/v1/%2e%2e/admin"),
    ("", "git push https://github.com/acme/widgets agent/fix-1"),
    ("", "git push https://github.com/acme/widgets main"),
    ("", "git push --force https://github.com/acme/widgets agent/fix-1"),
    ("", "git push https://github.com/acme/secrets agent/fix-1"),
)

LATER = (
    "run a client in a sandbox that has no network interface, and let it reach an allowed host",
    "show that the client holds only a placeholder while the service receives the real key",
    "let an echo service try to hand the key back, and show what the client sees",
    "push with an unmodified git: an allowed branch, and a refusal in git's own words",
    "read all of it again in the audit log",
)


def run(options: argparse.Namespace) -> int:
    """Show the example."""
    del options
    data = (resources.files("keyhole.app") / "example.toml").read_bytes()
    world = World(FileCatalogue(), covered_suffix, presets.NAMES)
    loaded = load(File("example.toml", data), None, world)
    _title("1. A policy file: who may be talked to, with whose secret, for what")
    for line in data.decode("utf-8").rstrip("\n").split("\n"):
        print(f"  {paint(line, 'dim') if line.startswith('#') else line}")
    _title("2. What it grants (! marks what reaches into this host)")
    print_summary(summarise(loaded.policy))
    _title("3. What would happen to what an agent tries")
    book = Rulebook(loaded.policy)
    for method, text in QUESTIONS:
        found = explain(book, parse_target((text,), method or "GET"))
        allowed = found.decision.allowed
        verdict = paint("allowed", "green") if allowed else paint("denied ", "red")
        print(f"  {verdict}  {f'{method} {text}'.strip()}")
        place = loaded.place(found.decision.rule)
        print(f"           {found.said}{f' ({place})' if place else ''}")
        for written in found.injected:
            print(f"           the gateway writes {written}")
    _title("4. Later versions of this demo will")
    for line in LATER:
        print(f"  - {line}")
    print("\nNext: `keyhole init` writes a policy for your project, `keyhole check` reads it.")
    return EXIT_OK


def _title(text: str) -> None:
    print(f"\n{paint(text, 'bold')}\n")
