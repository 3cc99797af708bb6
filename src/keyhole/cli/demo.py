"""`keyhole demo`: the whole idea in a minute, on this host alone.

An example policy, what it grants, what would happen to a handful of things that an agent might
try; then a real client in a real sandbox, what the audit log says of it, and whether all that it
should show was so: if not, the demo fails.
"""

from __future__ import annotations

import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.demo import Shown, new_key, run_client
from keyhole.app.demoproof import judge
from keyhole.app.runtimes import choose
from keyhole.audit.directory import AuditUnusable
from keyhole.cli.check import print_summary
from keyhole.cli.log import print_entry
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.model.event import EventKind
from keyhole.model.text import visible
from keyhole.policy.build import World
from keyhole.policy.explain import explain
from keyhole.policy.load import File, load
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import parse_target
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    import argparse

    from keyhole.audit.read import Entry

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

NO_GIT = "a clone and pushes by git: there is none in the image, or on this host to serve it"


_TELLING = (EventKind.REQUEST, EventKind.REF, EventKind.SESSION)


def run(options: argparse.Namespace) -> int:
    """Show the example."""
    if options.image and options.runtime == "bwrap":
        raise CliError("--image is for containers: add --runtime docker")
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
    _title("4. Now for real: a service on this host wants a key, and a client in a sandbox asks it")
    shown = _run_client(options.runtime, options.image or "")
    _show(shown)
    conclude(shown)
    print("\nNext: `keyhole init` writes a policy for your project, `keyhole run -- CMD` keeps it.")
    return EXIT_OK


def _run_client(runtime: str, image: str) -> Shown:
    with tempfile.TemporaryDirectory(prefix="keyhole-demo-") as directory:
        own = Path(directory).resolve()
        try:
            with choose(runtime, image, environment(), own / "state") as choice:
                return run_client(own, new_key(), choice)
        except (Missing, Refused, SetupFailed, Unavailable, AuditUnusable) as error:
            message = f"no sandbox can be made here: {visible(str(error))}; see `keyhole doctor`"
            raise CliError(message) from None


def _show(shown: Shown) -> None:
    """What each side saw: the policy, the client, the person at the terminal, the log."""
    print(
        "  The policy of this run. The key was made for it, in a file that only its owner reads:\n"
    )
    for line in shown.policy.splitlines():
        print(f"    {line}".rstrip())
    print("\n  What the client printed, its whole environment first:\n")
    lines = [line.partition("\t") for line in shown.transcript.splitlines()]
    width = max((len(what) for what, tab, _ in lines if tab), default=0)
    for what, _, said in lines:
        print(f"    {visible(what).ljust(width)}  {visible(said)}".rstrip())
    print("\n  What a person at the terminal would have read meanwhile:\n")
    for line in shown.reported:
        print(f"    {paint('keyhole:', 'yellow')} {visible(line)}")
    _title("5. What the audit log has of it (names and connections that were allowed left out)")
    for entry in shown.entries:
        if _is_telling(entry):
            print_entry(entry)


def _is_telling(entry: Entry) -> bool:
    record = entry.record
    return record is None or record.denied or record.kind in _TELLING


def conclude(shown: Shown) -> None:
    """Say what was proven; raises CliError if anything was not."""
    _title("6. What this has shown, checked against what each side wrote down")
    claims = judge(shown)
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
