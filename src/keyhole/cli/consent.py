"""Asks a person to accept a policy: shows its grants and its changes, then the question.

Every verb that acts on a policy calls this. Without a terminal a policy is accepted only by
`--trust`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import (
    AcceptanceStore,
    describe_changes,
    examine_policy,
)
from keyhole.cli.errors import CliError
from keyhole.cli.flags import TRUST_ANY
from keyhole.cli.grants import print_grants
from keyhole.cli.verb_context import environment
from keyhole.model.text import visible
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_file import PolicyFile
    from keyhole.policy.summary import GrantLine

MAX_CHANGED_LINES = 200
"""Lines of a diff that are shown; a person cannot judge more at once."""


def obtain(
    examined: ExaminedPolicy,
    store: AcceptanceStore,
    flag: str | None,
    stream: TextIO | None = None,
    *,
    asks: bool = True,
) -> bool:
    """Whether the policy is accepted: earlier, by the flag, or now by the person.

    `stream` receives the question; `keyhole run` passes standard error, because standard output
    belongs to the command.
    """
    stream = stream or sys.stdout
    before = store.find(examined.file.path)
    if flag and flag != TRUST_ANY and flag != examined.digest:
        raise CliError(f"the policy has {examined.digest}, not {visible(flag)}: not accepted")
    if before and before.digest == examined.digest:
        return True
    if flag:
        _accept(examined, store)
        return True
    if not asks:
        return False
    print(f"{visible(str(examined.file.path))} would grant:", file=stream)
    print_grants(grants(examined), stream)
    if before:
        print("\nsince it was last accepted:", file=stream)
        lines = describe_changes(examined, before)
        print("\n".join(f"  {line}" for line in lines[:MAX_CHANGED_LINES]), file=stream)
        if len(lines) > MAX_CHANGED_LINES:
            print(f"  … and {len(lines) - MAX_CHANGED_LINES} lines more", file=stream)
    if not (sys.stdin.isatty() and stream.isatty()):
        print(
            "keyhole: no terminal to ask on; accept with --trust, or only this with "
            f"--trust={examined.digest}",
            file=sys.stderr,
        )
        return False
    if not ask("\naccept this policy on this host?", stream=stream):
        return False
    _accept(examined, store)
    return True


def require_accepted(
    file: PolicyFile, places: HostPaths, flag: str | None, outcome: str
) -> ExaminedPolicy:
    """Examine a policy, and have it accepted unless it is already (I11).

    Raises CliError, which says "so {outcome}", if the person does not accept it.
    """
    examined = examine_policy(file, places.home, environment().get("PATH", ""))
    if not obtain(examined, AcceptanceStore(places.trust), flag, sys.stderr):
        raise CliError(f"the policy is not accepted, so {outcome}")
    return examined


def _accept(examined: ExaminedPolicy, store: AcceptanceStore) -> None:
    try:
        store.accept(examined)
    except OSError as error:
        where = visible(str(error.filename or store.file(examined.file.path)))
        why = error.strerror or "it cannot be written"
        raise CliError(f"the acceptance of the policy cannot be stored: {where}: {why}") from None


def grants(examined: ExaminedPolicy) -> tuple[GrantLine, ...]:
    """The grants of the policy, marked with the catalogue's warnings."""
    policy = examined.file.loaded.policy
    return summarise(policy, FileCatalogue().near(policy))


def ask(question: str, *, default: bool = False, stream: TextIO | None = None) -> bool:
    """Ask a yes-or-no question on the terminal; the end of input means no."""
    choices = "[Y/n]" if default else "[y/N]"
    print(f"{question} {choices} ", end="", flush=True, file=stream)
    line = sys.stdin.readline()
    if not line:
        return False
    answer = line.strip().lower()
    return answer in {"y", "yes"} if answer else default
