"""`keyhole secret test NAME`: tries a secret at its service, and prints the status alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.proofs.secret_check import ProbeResult, SecretVerdict, check_secret, find_probes
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli.consent import require_accepted
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import print_json
from keyhole.cli.passphrase import passphrase_prompt
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.errors import Unparsable
from keyhole.model.rule import AccessRule

if TYPE_CHECKING:
    import argparse

    from keyhole.cli.tables import Cell

_COLOURS = {SecretVerdict.ACCEPTED: "green", SecretVerdict.REFUSED: "red"}


def check(options: argparse.Namespace) -> int:
    """Ask each service of the policy that uses it."""
    tried = _try(options)
    if options.json:
        print_json([_json(one) for one in tried])
    else:
        show([Grid(_COLUMNS, tuple(map(_row, tried)))])
    verdicts = {one.verdict for one in tried}
    if verdicts == {SecretVerdict.ACCEPTED}:
        return EXIT_OK
    return EXIT_DENIED if SecretVerdict.REFUSED in verdicts else EXIT_UNUSABLE


def _try(options: argparse.Namespace) -> list[ProbeResult]:
    path = options.path or ""
    if path:
        _check_path(path)
    places, env = find_host_paths(), environment()
    catalogue = FileCatalogue()
    file = read_policy(options.policy, places, catalogue)
    probes = find_probes(file.loaded.policy, catalogue, options.name, path)
    # The policy says where the secret goes and may name commands of this host (I11).
    examined = require_accepted(file, places, options.trust, "nothing was asked")
    ask = passphrase_prompt()
    tried = []
    for probe in probes:
        with tempfile.TemporaryDirectory(prefix="keyhole-") as directory:
            tried.append(check_secret(probe, examined, places, env, Path(directory), ask))
    return tried


def _check_path(path: str) -> None:
    try:
        AccessRule.parse(f"GET {path}")
    except Unparsable as error:
        raise CliError(f"--path: {error}") from None
    if set("*?#") & set(path):
        raise CliError("--path is one path, without '*', '?' and '#'")


_COLUMNS = (Column(""), Column("", Fit.WRAPPED), Column("", Fit.WRAPPED), Column("", Fit.WRAPPED))


def _row(one: ProbeResult) -> tuple[Cell, ...]:
    came = str(one.status) if one.status is not None else one.reason
    return (
        cell(one.verdict, _COLOURS.get(one.verdict, "")),
        cell(one.probe.service.rule),
        cell(f"GET {one.probe.url}"),
        cell(came),
    )


def _json(one: ProbeResult) -> dict[str, object]:
    return {
        "id": one.probe.service.name,
        "reference": str(one.probe.service.secret),
        "url": one.probe.url,
        "verdict": one.verdict,
        "status": one.status,
        "reason": one.reason,
        "session": one.session,
    }
