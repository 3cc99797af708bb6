"""`keyhole check`: is the policy valid, what does it grant, and where does each value come from?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.policyfile import with_presets
from keyhole.app.trust import TrustStore, examine
from keyhole.cli.main import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.paint import columns, paint, print_json
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.model.text import visible
from keyhole.policy.effective import effective_values
from keyhole.policy.fault import Fault, PolicyFaults
from keyhole.policy.summary import Line, summarise

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Validate one policy."""
    places = find_places()
    catalogue = FileCatalogue()
    try:
        file = read_policy(options.policy, places, catalogue)
    except PolicyFaults as error:
        _report_faults(error.faults, as_json=options.json)
        return EXIT_UNUSABLE
    env = environment()
    dossier = examine(file, places.home, env.get("PATH", ""))
    accepted = TrustStore(places.trust).find(file.path)
    trusted = accepted is not None and accepted.digest == dossier.digest
    policy = file.loaded.policy
    notes: tuple[str, ...] = ()
    if options.show:
        joined = with_presets(file, env, places.home)
        policy, notes = joined.policy, joined.notes
    values = effective_values(file.loaded, policy) if options.show else ()
    lines = summarise(policy, catalogue.values())
    if options.json:
        print_json(
            {
                "ok": True,
                "policy": str(file.path),
                "digest": dossier.digest,
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
    print_summary(lines)
    for fault in file.loaded.notes:
        print(f"{paint('note', 'yellow')}: {fault.render()}")
    for note in notes:
        print(f"{paint('note', 'yellow')}: {visible(note)}")
    if values:
        print("\nvalues, and where each is from:")
        rows = [(v.key, visible(v.text), v.source) for v in values]
        print("\n".join(columns([(k, f"{t}  {paint(s, 'dim')}") for k, t, s in rows])))
    print(f"digest {dossier.digest}")
    if not trusted:
        what = "has changed since it was accepted" if accepted else "is not accepted"
        print(f"this policy {what} on this host: `keyhole policy trust` shows it and asks")
    return EXIT_OK


def print_summary(lines: tuple[Line, ...], stream: TextIO | None = None) -> None:
    """The grants, one subject a paragraph; what reaches into the host is marked."""
    width = max(len(line.subject) for line in lines)
    last = None
    for line in lines:
        subject = "" if line.subject == last else line.subject
        alarm = f"  {paint(f'! {line.alarm}', 'yellow', stream=stream)}" if line.alarm else ""
        print(f"  {visible(subject).ljust(width)}  {visible(line.text)}{alarm}", file=stream)
        last = line.subject


def grants_json(lines: tuple[Line, ...]) -> list[dict[str, Any]]:
    """The same as values."""
    return [
        {"id": f"{line.subject}: {line.text}", "subject": line.subject, "text": line.text,
         "alarm": line.alarm}
        for line in lines
    ]  # fmt: skip


def _report_faults(faults: tuple[Fault, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "faults": [_fault_json(f) for f in faults]})
        return
    for fault in faults:
        print(fault.render(), file=sys.stderr)
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    print(f"keyhole: {count}; nothing was accepted", file=sys.stderr)


def _fault_json(fault: Fault) -> dict[str, Any]:
    return {
        "id": f"{fault.file}:{fault.span.line}:{fault.span.column}",
        "file": fault.file,
        "line": fault.span.line,
        "column": fault.span.column,
        "message": fault.message,
        "hint": fault.hint,
    }
