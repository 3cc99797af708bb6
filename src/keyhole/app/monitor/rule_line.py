"""Finds the line of a policy file at which the rule of a decision stands.

Used for the details of a decision, on a page or a screen. Rules are texts of the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.monitor.session_list import short_path
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_file import open_policy
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.monitor.session_list import WatchedSession
    from keyhole.app.setup.host_paths import HostPaths


def find_rule_line(
    sessions: Iterable[WatchedSession], session: str, rule: str, paths: HostPaths
) -> str:
    """`~/project/keyhole.toml:12`, in the policy of an open session as it is now. Empty if that
    session is over, or if the rule stands in no file, as one of the catalogue."""
    policy = next((each.view.policy for each in sessions if each.view.id == session), "")
    if not policy or not rule:
        return ""
    try:
        place = open_policy(Path(policy), paths, FileCatalogue()).loaded.place(rule)
    except (KeyholeError, ValueError):
        return ""
    return visible(short_path(place, paths.home)) if place else ""
