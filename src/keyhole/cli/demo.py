"""`keyhole demo`: what Keyhole does, in a minute, on this host alone.

It prints an example policy, its grants, and the decisions on some requests that an agent might
send. Then it runs a real client in a real sandbox, prints the audit log, and checks every claim it
makes; the demo fails if one does not hold.
"""

from __future__ import annotations

import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.proofs.demo import DemoRun, new_key, run_client
from keyhole.app.proofs.demo_claims import check_claims
from keyhole.app.proofs.runtime_choice import choose_runtime
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_runtime_flags, check_image
from keyhole.cli.grants import print_grants
from keyhole.cli.log_entry import print_entry
from keyhole.cli.paint import paint
from keyhole.cli.verb_context import environment
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.model.event import EventKind
from keyhole.model.text import visible
from keyhole.policy.build import PolicyContext
from keyhole.policy.explain import explain
from keyhole.policy.load import PolicyText, load
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import parse_target

if TYPE_CHECKING:
    import argparse

    from keyhole.audit.log_reader import LogEntry

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

NO_GIT = "a clone and pushes by git: the image has no git, or this host has none to serve it"


_TELLING = (EventKind.REQUEST, EventKind.REF, EventKind.SESSION)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runtime_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Show the example."""
    check_image(options.image, contained=options.runtime != "bwrap")
    data = (resources.files("keyhole.app") / "example.toml").read_bytes()
    world = PolicyContext(FileCatalogue(), covered_suffix, presets.NAMES)
    loaded = load(PolicyText("example.toml", data), None, world)
    _title("1. A policy file: which hosts, with which secret, for which requests")
    for line in data.decode("utf-8").rstrip("\n").split("\n"):
        print(f"  {paint(line, 'dim') if line.startswith('#') else line}")
    _title("2. Its grants (! marks those that reach into this host)")
    print_grants(summarise(loaded.policy))
    _title("3. The decision on requests that an agent might send")
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
    _title("4. Now for real: a service on this host wants a key, and a client in a sandbox asks it")
    shown = _run_client(options.runtime, options.image or "")
    _show(shown)
    conclude(shown)
    print("\nNext: `keyhole init` writes a policy for your project, `keyhole run -- CMD` keeps it.")
    return EXIT_OK


def _run_client(runtime: str, image: str) -> DemoRun:
    with tempfile.TemporaryDirectory(prefix="keyhole-demo-") as directory:
        own = Path(directory).resolve()
        with choose_runtime(runtime, image, environment(), own / "state") as choice:
            return run_client(own, new_key(), choice)


def _show(shown: DemoRun) -> None:
    """Print what each side saw: the policy, the client, the person at the terminal, the log."""
    print(
        "  The policy of this run. The key was made for it, in a file that only its owner reads:\n"
    )
    for line in shown.policy.splitlines():
        print(f"    {line}".rstrip())
    print("\n  The client printed this, its whole environment first:\n")
    lines = [line.partition("\t") for line in shown.transcript.splitlines()]
    width = max((len(what) for what, tab, _ in lines if tab), default=0)
    for what, _, said in lines:
        print(f"    {visible(what).ljust(width)}  {visible(said)}".rstrip())
    print("\n  A person at the terminal would have read meanwhile:\n")
    for line in shown.reported:
        print(f"    {paint('keyhole:', 'yellow')} {visible(line)}")
    _title("5. The audit log of this run (without names and connections that were allowed)")
    for entry in shown.entries:
        if _is_telling(entry):
            print_entry(entry)


def _is_telling(entry: LogEntry) -> bool:
    record = entry.record
    return record is None or record.denied or record.kind in _TELLING


def conclude(shown: DemoRun) -> None:
    """Print each claim and whether it holds; raises CliError if one does not."""
    _title("6. The claims of this demo, checked against the records of each side")
    claims = check_claims(shown)
    for claim in claims:
        mark = paint("holds", "green") if claim.held else paint("FAILS", "red")
        print(f"  {mark}  {claim.text}")
    if shown.after is None:
        print(f"  {paint('left out', 'yellow')}  {NO_GIT}")
    failed = [claim.text for claim in claims if not claim.held]
    if failed:
        raise CliError(f"the demo did not show that {'; nor that '.join(failed)}", EXIT_DENIED)


def _title(text: str) -> None:
    print(f"\n{paint(text, 'bold')}\n", flush=True)
