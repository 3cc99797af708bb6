"""`keyhole secret list`: names, how each secret is kept, its age and its uses; never a value."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import find_policy
from keyhole.app.setup.secret_use import known_secrets, uses_of_defaults, uses_of_policy
from keyhole.cli.amounts import moment
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import paint, print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.app.setup.secret_use import KnownSecret
    from keyhole.vault.store import Store


def list_secrets(store: Store, policy: Path | None, *, as_json: bool) -> int:
    """Print all of the store, and secrets that the policy or your defaults name."""
    places, uses = find_host_paths(), []
    directory = Path.cwd()
    named = policy is not None
    policy = policy or find_policy(directory, places.home)
    if named or policy.exists():
        try:
            file = read_policy(policy, places, FileCatalogue())
            directory, uses = file.directory, uses_of_policy(file, str(places.user_defaults))
        except KeyholeError:
            shown = visible(str(policy))
            note = f"{shown} is not valid, so its secrets are left out; see `keyhole check`"
            print(f"{paint('note', 'yellow', stream=sys.stderr)}: {note}", file=sys.stderr)
    uses += uses_of_defaults(places)
    known = known_secrets(store.entries(), uses, places, directory, environment())
    if as_json:
        print_json([_known_json(one) for one in known])
    elif not known:
        print("nothing is stored yet; `keyhole secret set NAME` keeps a secret")
    else:
        now = time.time()
        rows = [tuple(map(cell, (one.ref, one.kept, _age(one, now), _used(one)))) for one in known]
        show([Grid(_COLUMNS, tuple(rows))])
    return EXIT_OK


_COLUMNS = (
    Column("SECRET", Fit.WRAPPED),
    Column("KEPT"),
    Column("AGE", needs=60),
    Column("USED BY", Fit.WRAPPED),
)


def _known_json(known: KnownSecret) -> dict[str, object]:
    since = known.since
    return {
        "id": known.id,
        "reference": str(known.ref),
        "source": known.ref.source,
        "kept": known.kept,
        "since": since and moment(since),
        "used": [{"service": use.service, "file": use.file} for use in known.used],
    }


def _age(known: KnownSecret, now: float) -> str:
    if known.since is None:
        return "–"
    seconds = max(now - known.since, 0.0)
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "new"


def _used(known: KnownSecret) -> str:
    found = [f"services.{use.service} ({visible(Path(use.file).name)})" for use in known.used]
    return ", ".join(found) or "nothing here"
