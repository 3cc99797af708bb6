"""`keyhole demo`: the whole idea in a minute, on this host alone.

An example policy, what it grants, what would happen to a handful of things that an agent might
try; then a real client in a real sandbox, and what the audit log says of it.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.demo import run_client
from keyhole.cli.check import print_summary
from keyhole.cli.log import print_entry
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.policy.build import World
from keyhole.policy.explain import explain
from keyhole.policy.load import File, load
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import parse_target
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing

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
    "show that the client holds only a placeholder while the service receives the real key",
    "let an echo service try to hand the key back, and show what the client sees",
    "push with an unmodified git: an allowed branch, and a refusal in git's own words",
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
    code = _sandbox()
    _title("6. Later versions of this demo will")
    for line in LATER:
        print(f"  - {line}")
    print("\nNext: `keyhole init` writes a policy for your project, `keyhole run -- CMD` keeps it.")
    return code


def _sandbox() -> int:
    """A client in a sandbox, and what was written down of it."""
    _title("4. Now for real: a client in a sandbox without a network, and a service on this host")
    sys.stdout.flush()  # the client writes to the same place, past our buffer
    with tempfile.TemporaryDirectory(prefix="keyhole-demo-") as directory:
        try:
            shown = run_client(Path(directory).resolve(), _report)
        except (Missing, Refused, SetupFailed) as error:
            raise CliError(f"no sandbox can be made here: {error}; see `keyhole doctor`") from None
    _title("5. What the audit log has of it")
    for entry in shown.entries:
        print_entry(entry)
    return shown.outcome.code


def _report(line: str) -> None:
    print(f"  {paint(f'keyhole: {line}', 'yellow')}", flush=True)


def _title(text: str) -> None:
    print(f"\n{paint(text, 'bold')}\n")
