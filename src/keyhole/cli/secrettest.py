"""`keyhole secret test NAME`: does the service accept it? Its answer's status is said, no more."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.policyfile import Unreadable
from keyhole.app.secrettrial import Tried, Untestable, Verdict, find_probes, try_secret
from keyhole.app.trust import TrustStore, examine
from keyhole.audit.directory import AuditUnusable
from keyhole.cli.consent import obtain
from keyhole.cli.main import EXIT_DENIED, EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.paint import columns, paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.secret import ask_passphrase, has_terminal
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.model.errors import Unparsable
from keyhole.model.rule import AccessRule
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    import argparse

_COLOURS = {Verdict.ACCEPTED: "green", Verdict.REFUSED: "red"}


def test(options: argparse.Namespace) -> int:
    """Ask each service of the policy that uses it."""
    try:
        tried = _try(options)
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid, so nothing was asked") from None
    except (Unreadable, Refused, Missing, AuditUnusable, Unavailable, SetupFailed) as error:
        raise CliError(f"nothing was asked: {visible(str(error))}") from None
    except Untestable as error:
        raise CliError(visible(str(error))) from None
    if options.json:
        print_json([_json(one) for one in tried])
    else:
        print("\n".join(columns([_row(one) for one in tried], indent="")))
    verdicts = {one.verdict for one in tried}
    if verdicts == {Verdict.ACCEPTED}:
        return EXIT_OK
    return EXIT_DENIED if Verdict.REFUSED in verdicts else EXIT_UNUSABLE


def _try(options: argparse.Namespace) -> list[Tried]:
    path = options.path or ""
    if path:
        _check_path(path)
    places, env = find_places(), environment()
    catalogue = FileCatalogue()
    file = read_policy(options.policy, places, catalogue)
    probes = find_probes(file.loaded.policy, catalogue, options.name, path)
    # The policy says where the secret goes and may name commands of this host (I11).
    dossier = examine(file, places.home, env.get("PATH", ""))
    if not obtain(dossier, TrustStore(places.trust), options.trust, sys.stderr):
        raise CliError("the policy is not accepted, so nothing was asked")
    ask = ask_passphrase if has_terminal() else None
    tried = []
    for probe in probes:
        with tempfile.TemporaryDirectory(prefix="keyhole-") as directory:
            tried.append(try_secret(probe, dossier, places, env, Path(directory), ask))
    return tried


def _check_path(path: str) -> None:
    try:
        AccessRule.parse(f"GET {path}")
    except Unparsable as error:
        raise CliError(f"--path: {error}") from None
    if set("*?#") & set(path):
        raise CliError("--path is one path, without '*', '?' and '#'")


def _row(one: Tried) -> tuple[str, ...]:
    verdict = one.verdict
    words = paint(verdict, _COLOURS[verdict]) if verdict in _COLOURS else verdict
    came = str(one.status) if one.status is not None else one.reason
    return words, one.probe.service.rule, visible(f"GET {one.probe.url}"), came


def _json(one: Tried) -> dict[str, object]:
    return {
        "id": one.probe.service.name,
        "reference": str(one.probe.service.secret),
        "url": one.probe.url,
        "verdict": one.verdict,
        "status": one.status,
        "reason": one.reason,
        "session": one.session,
    }
