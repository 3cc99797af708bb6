"""A person's consent to a policy: what it grants, what changed, and a question.

Used by every verb that would act on a policy. Without a terminal there is no consent unless the
flag gave it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.trust import changes
from keyhole.cli.check import print_summary
from keyhole.cli.parser import TRUST_ANY, CliError
from keyhole.model.text import visible
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    from keyhole.app.trust import Dossier, TrustStore
    from keyhole.policy.summary import Line

MAX_CHANGED_LINES = 200
"""Lines of a diff that are shown; a person does not judge more at once."""


def obtain(
    dossier: Dossier,
    store: TrustStore,
    flag: str | None,
    stream: TextIO | None = None,
    *,
    asks: bool = True,
) -> bool:
    """Whether the policy is accepted: before, by the flag, or now by the person asked.

    `stream` is where the question goes: for a run, standard output is the command's.
    """
    stream = stream or sys.stdout
    before = store.find(dossier.file.path)
    if flag and flag != TRUST_ANY and flag != dossier.digest:
        raise CliError(f"the policy has {dossier.digest}, not {visible(flag)}: not accepted")
    if before and before.digest == dossier.digest:
        return True
    if flag:
        _accept(dossier, store)
        return True
    if not asks:
        return False
    print(f"{visible(str(dossier.file.path))} would grant:", file=stream)
    print_summary(grants(dossier), stream)
    if before:
        print("\nsince it was last accepted:", file=stream)
        lines = changes(dossier, before)
        print("\n".join(f"  {line}" for line in lines[:MAX_CHANGED_LINES]), file=stream)
        if len(lines) > MAX_CHANGED_LINES:
            print(f"  … and {len(lines) - MAX_CHANGED_LINES} lines more", file=stream)
    if not (sys.stdin.isatty() and stream.isatty()):
        print(
            "keyhole: no terminal to ask on; accept with --trust, or only this with "
            f"--trust={dossier.digest}",
            file=sys.stderr,
        )
        return False
    if not ask("\naccept this policy on this host?", stream=stream):
        return False
    _accept(dossier, store)
    return True


def _accept(dossier: Dossier, store: TrustStore) -> None:
    try:
        store.accept(dossier)
    except OSError as error:
        where = visible(str(error.filename or store.file(dossier.file.path)))
        why = error.strerror or "it cannot be written"
        raise CliError(f"that the policy is accepted cannot be kept: {where}: {why}") from None


def grants(dossier: Dossier) -> tuple[Line, ...]:
    """What the policy would grant, marked by all that the catalogue knows."""
    return summarise(dossier.file.loaded.policy, FileCatalogue().values())


def ask(question: str, *, default: bool = False, stream: TextIO | None = None) -> bool:
    """A yes-or-no question on the terminal; the end of input is a no."""
    choices = "[Y/n]" if default else "[y/N]"
    print(f"{question} {choices} ", end="", flush=True, file=stream)
    line = sys.stdin.readline()
    if not line:
        return False
    answer = line.strip().lower()
    return answer in {"y", "yes"} if answer else default
