"""`keyhole check`: says whether a policy is valid, and prints its grants and values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import with_presets
from keyhole.cli.exit_codes import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.flags import add_json_flag, add_policy_argument, chosen_policy
from keyhole.cli.grants import grants_json, print_grants
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint, print_below, print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible
from keyhole.policy.effective_values import effective_values
from keyhole.policy.fault import PolicyFault, PolicyFaults
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_policy_argument(parser)
    parser.add_argument(
        "--show",
        action="store_true",
        help="show every value, and whether you set it or it is a default",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Validate one policy."""
    places = find_host_paths()
    catalogue = FileCatalogue()
    try:
        file = read_policy(chosen_policy(options), places, catalogue)
    except PolicyFaults as error:
        _report_faults(error.faults, as_json=options.json)
        return EXIT_UNUSABLE
    env = environment()
    examined = examine_policy(file, places.home, env.get("PATH", ""))
    accepted = AcceptanceStore(places.trust).find(file.path)
    trusted = accepted is not None and accepted.digest == examined.digest
    policy = file.loaded.policy
    notes: tuple[str, ...] = ()
    if options.show:
        joined = with_presets(file, env, places)
        policy, notes = joined.policy, joined.notes
    values = effective_values(file.loaded, policy) if options.show else ()
    lines = summarise(policy, catalogue.near(policy))
    if options.json:
        print_json(
            {
                "ok": True,
                "policy": str(file.path),
                "digest": examined.digest,
                "trusted": trusted,
                "faults": [],
                "grants": grants_json(lines),
                "notes": [_fault_json(f) for f in file.loaded.notes]
                + [{"message": n} for n in notes],
                "values": [{"id": v.key, "value": v.text, "source": v.source} for v in values],
            }
        )
        return EXIT_OK
    print(f"{visible(file.loaded.document.file)}: {paint('valid', 'green')}")
    print_grants(lines)
    for fault in file.loaded.notes:
        print(f"{paint('note', 'yellow')}: {fault.render()}")
    for note in notes:
        print(f"{paint('note', 'yellow')}: {visible(note)}")
    if values:
        print("\nvalues, and where each is from:")
        width = max(len(value.key) for value in values)
        for value in values:
            head = f"  {value.key.ljust(width)}  "
            print_below(head, visible(value.text), value.source, "dim")
    print(f"digest {examined.digest}")
    if not trusted:
        what = "has changed since it was accepted" if accepted else "is not accepted"
        print(f"this policy {what} on this host: `keyhole policy trust` shows it and asks")
    return EXIT_OK


def _report_faults(faults: tuple[PolicyFault, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "faults": [_fault_json(f) for f in faults]})
        return
    for fault in faults:
        print(fault.render(), file=sys.stderr)
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    print(f"keyhole: {count}; nothing was accepted", file=sys.stderr)


def _fault_json(fault: PolicyFault) -> dict[str, Any]:
    return {
        "id": f"{fault.file}:{fault.span.line}:{fault.span.column}",
        "file": fault.file,
        "line": fault.span.line,
        "column": fault.span.column,
        "message": fault.message,
        "hint": fault.hint,
    }
