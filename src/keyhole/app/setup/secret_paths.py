"""The files that a policy's secrets are read from, and that no sandbox may see (I1).

Called when a run is surveyed. A secret that is missing does not stop a run, so each place where one
could appear while the run lasts is judged before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.secret import SecretScheme
from keyhole.model.text import visible
from keyhole.sandbox.files.mount_plan import Bind, MountKind
from keyhole.vault.login_providers import locate_login
from keyhole.vault.source_paths import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.policy import Policy
    from keyhole.sandbox.files.mount_plan import MountPlan


def secret_files(
    policy: Policy, directory: Path, home: Path, env: Mapping[str, str]
) -> tuple[Path, ...]:
    """Files that secrets are read from: never visible inside, wherever they are.

    Raises Refused for one whose place is not known: it could not be masked.
    """
    found = list(_logins(policy, home, env))
    for service in policy.services:
        if service.secret and service.secret.source is SecretScheme.FILE:
            try:
                found.append(locate(service.secret.locator, directory, home, env))
            except ResourceUnusable as error:
                raise Refused(f"{service.rule}.secret: {error}") from None
    return tuple(found)


def refuse_shown_logins(
    policy: Policy, plan: MountPlan, home: Path, env: Mapping[str, str]
) -> None:
    """Refuse a policy that shows the directory of a login that it uses. A login file is replaced
    when it is renewed, by us or by its client; in a shown directory the new file, and the one that
    is being written, would not be masked (I1)."""
    shown = _shown(plan)
    for path in _logins(policy, home, env):
        directory = Path(os.path.realpath(path)).parent
        if any(directory.is_relative_to(tree) for tree in shown):
            raise Refused(
                f"{visible(str(directory))} is shown in the sandbox, and the login in it is "
                "replaced while a run lasts; list the files that are needed from there one by one"
            )


def refuse_unhidden(secrets: tuple[Path, ...], plan: MountPlan) -> None:
    """Refuse a secret that is not there yet and whose place the sandbox sees: what appears there
    while the run lasts would not be masked (I1)."""
    shown = _shown(plan)
    for path in secrets:
        real = Path(os.path.realpath(path))
        if not os.path.lexists(real) and any(real.is_relative_to(tree) for tree in shown):
            raise Refused(
                f"{visible(str(path))} is to hold a secret, lies where the sandbox sees it, and is "
                "not there: make it first, or keep it elsewhere"
            )


def _shown(plan: MountPlan) -> list[Path]:
    return [Path(e.source) for e in plan.entries if isinstance(e, Bind) and e.kind is MountKind.DIR]


def _logins(policy: Policy, home: Path, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Files of logins that the policy uses."""
    refs = [s.secret for s in policy.services if s.secret and s.secret.source is SecretScheme.LOGIN]
    return tuple(locate_login(ref, home, env) for ref in refs)
