"""`keyhole start NAME`: a sandbox that was stopped, in the background again.

It starts itself once more with `--line`, in a session of its own, which is the sandbox's
supervisor; so does `keyhole new`. Whatever a person must be asked is asked before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.named import NotPossible, find
from keyhole.app.policyfile import Unreadable
from keyhole.app.trust import TrustStore, examine
from keyhole.audit.directory import AuditUnusable
from keyhole.cli.consent import obtain
from keyhole.cli.gatewaylog import LogUnusable, LogWriter, last_lines, open_log
from keyhole.cli.main import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.cli.pulling import shown
from keyhole.cli.setting import environment, find_places, read_policy
from keyhole.cli.starting import NotStarted, Person, Starter, start
from keyhole.cli.up import LAST_WORDS, PROGRAM, person_asked
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.sandbox.files.fileplan import Refused
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import Missing
from keyhole.vault.interface import Unavailable

if TYPE_CHECKING:
    import argparse

    from keyhole.app.named import Named, Record
    from keyhole.app.places import Places
    from keyhole.app.policyfile import PolicyFile


def run(options: argparse.Namespace) -> int:
    """Start it, or be its supervisor."""
    places = find_places()
    try:
        named = find(places.sandboxes, options.name)
        if options.line is not None:
            return _supervise(named, places, options.line)
        record = named.record()
        if named.is_held():
            raise CliError(f"{named.name} runs already; `keyhole ps` says more")
    except NotPossible as error:
        raise CliError(str(error)) from None
    accepted(Path(record.policy), places, options.trust)
    _have_image(record)
    begin(named, places)
    print(f"{named.name} runs")
    return EXIT_OK


def accepted(path: Path | None, places: Places, flag: str | None) -> PolicyFile:
    """A policy that this person has accepted, now or before (I11)."""
    try:
        file = read_policy(path, places, FileCatalogue())
        dossier = examine(file, places.home, environment().get("PATH", ""))
    except PolicyFaults as error:
        for fault in error.faults:
            print(fault.render(), file=sys.stderr)
        raise CliError("the policy is not valid, so nothing was started") from None
    except Unreadable as error:
        raise CliError(f"nothing was started: {visible(str(error))}") from None
    if not obtain(dossier, TrustStore(places.trust), flag, sys.stderr):
        raise CliError("the policy is not accepted, so nothing was started")
    return file


def _have_image(record: Record) -> None:
    """As it was made with, pulled if it was removed meanwhile; the supervisor shows nobody how."""
    from keyhole.app.containers import have_image

    try:
        have_image(record.runtime, record.engine, record.image, shown())
    except Refused as error:
        raise CliError(f"{record.name} was not started: {visible(str(error))}") from None


def begin(named: Named, places: Places) -> None:
    """Leave a supervisor behind that runs the sandbox; CliError with its words when it does not."""

    def tell(line: str) -> None:
        print(f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {visible(line)}", file=sys.stderr)

    try:
        log = open_log(named.log)
    except LogUnusable as error:
        raise CliError(f"{named.name} was not started: {visible(str(error))}") from None
    written = os.fstat(log).st_size
    try:
        start((*PROGRAM, "start", named.name), environment(), log, Person(tell, person_asked()))
    except NotStarted as error:
        words = visible(str(error))
        if not words:
            for line in last_lines(log, written, LAST_WORDS):
                print(f"  {line}", file=sys.stderr)
            words = "its supervisor ended before it ran"
        raise CliError(f"{named.name} was not started: {words}") from None
    finally:
        os.close(log)


def _supervise(named: Named, places: Places, line: int) -> int:
    """Be the supervisor until the sandbox ends; `line` leads to the verb that waits."""
    from keyhole.app.supervise import Watched, supervise

    try:
        starter = Starter(line)
    except OSError:
        raise CliError("--line is for `keyhole start` itself; type `keyhole start NAME`") from None
    log = LogWriter(os.dup(2))
    sys.stdout = sys.stderr = cast("TextIO", log)
    log.report(f"process {os.getpid()} starts")

    def ready() -> None:
        log.report("it runs")
        starter.ready()

    def say(text: str) -> None:
        log.report(text)
        starter.say(text)

    try:
        supervise(named, places, environment(), Watched(ready, say, log.report, starter.ask))
    except PolicyFaults as error:
        words = "; ".join(fault.render() for fault in error.faults[:1])
    except (
        NotPossible, Unreadable, Refused, Missing, AuditUnusable, Unavailable, SetupFailed, OSError,
    ) as error:  # fmt: skip
        words = str(error)
    else:
        return EXIT_OK
    log.report(f"not started, or ended: {words}")
    starter.failed(words)
    return EXIT_UNUSABLE
