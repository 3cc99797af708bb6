"""Writes rules that a person agreed to into the policy file, and accepts the new file.

Called by `keyhole allow --save`, `keyhole learn --save` and where an approval is answered with
"always". The file must be the accepted one: a change that nobody looked at would be accepted along
with the rule (I11).
"""

from __future__ import annotations

import difflib
import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.policy_acceptance import ExaminedPolicy, examine_policy
from keyhole.app.setup.policy_file import parse_policy
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.text import visible
from keyhole.policy.edit import add_rules
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyhole.app.setup.catalogue import FileCatalogue
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import AcceptanceStore
    from keyhole.policy.edit import RuleAddition
    from keyhole.policy.summary import GrantLine


class PolicyChange(Struct, frozen=True):
    """A policy as it was accepted, and as it is after the change: both examined, neither
    written."""

    before: ExaminedPolicy
    after: ExaminedPolicy

    def diff(self) -> list[str]:
        """The changed lines, safe to show."""
        old, new = (each.file.data.decode("utf-8") for each in (self.before, self.after))
        name = self.before.file.path.name
        lines = difflib.unified_diff(
            old.split("\n"), new.split("\n"), name, f"{name} (new)", lineterm="", n=2
        )
        return [visible(line.removesuffix("\r")) for line in lines]

    def new_alarms(self, catalogue: FileCatalogue) -> tuple[GrantLine, ...]:
        """The grants to look at twice that the policy did not have before: a diff does not tell
        that an endpoint is guarded."""
        policies = [each.file.loaded.policy for each in (self.before, self.after)]
        before, after = (summarise(policy, catalogue.near(policy)) for policy in policies)
        return tuple(line for line in after if line.alarm and line not in before)

    @property
    def is_empty(self) -> bool:
        """Whether the policy has the rules already."""
        return self.before.file.data == self.after.file.data


def plan_change(
    before: ExaminedPolicy,
    additions: Iterable[RuleAddition],
    store: AcceptanceStore,
    places: HostPaths,
    catalogue: FileCatalogue,
    search_path: str,
) -> PolicyChange:
    """The policy with these rules, validated as any policy.

    Raises Refused if the present file is not the accepted one or cannot be edited, and PolicyFaults
    if the rules do not fit into it.
    """
    accepted = store.find(before.file.path)
    if accepted is None or accepted.digest != before.digest:
        raise Refused(
            f"{visible(str(before.file.path))} is not accepted as it is now, so nothing is written "
            "into it",
            "`keyhole policy trust` shows it and asks",
        )
    change = plan_policy(before, additions, places, catalogue, search_path)
    for each in change.after.referred:
        if accepted.referred.get(each.role, each.digest) != each.digest:
            raise Refused(f"{visible(str(each.path))} has changed since the policy was accepted")
    return change


def plan_policy(
    before: ExaminedPolicy,
    additions: Iterable[RuleAddition],
    places: HostPaths,
    catalogue: FileCatalogue,
    search_path: str,
) -> PolicyChange:
    """The same for a policy that no file has yet."""
    data = add_rules(before.file.data.decode("utf-8"), additions).encode("utf-8")
    file = parse_policy(before.file.path, data, places, catalogue)
    return PolicyChange(before, examine_policy(file, places.home, search_path))


def save_change(change: PolicyChange, store: AcceptanceStore) -> None:
    """Write the file and accept it. Raises Refused if it has changed since it was read."""
    with store.alone():
        write_policy(change.before.file.data, change.after, store)


def write_policy(before: bytes, after: ExaminedPolicy, store: AcceptanceStore) -> None:
    """Write a policy over these bytes and accept it. The caller has the store alone. Raises Refused
    if the file has others by now."""
    path = after.file.path
    try:
        _rewrite(path, before, after.file.data)
        store.accept(after)
    except OSError as error:
        why = error.strerror or "it cannot be written"
        raise ResourceUnusable(f"{visible(str(error.filename or path))}: {why}") from None


def create_policy(change: PolicyChange, store: AcceptanceStore) -> None:
    """Write a policy that no file had, and accept it. Raises ResourceUnusable if one is there."""
    path = change.after.file.path
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
        try:
            _write(descriptor, change.after.file.data)
        finally:
            os.close(descriptor)
        store.accept(change.after)
    except OSError as error:
        raise ResourceUnusable(f"{visible(str(path))}: {error.strerror}") from None


def _rewrite(path: Path, before: bytes, after: bytes) -> None:
    """Write the file in place. A new file under its name would take along the mount that keeps a
    running sandbox from writing it, which ends the run (`sandbox/bwrap/mount_watch.py`)."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"{path}: not a regular file")
        if os.pread(descriptor, len(before) + 1, 0) != before:
            raise Refused(f"{visible(str(path))} has changed meanwhile; nothing is written into it")
        try:
            _write(descriptor, after)
        except OSError:
            _write(descriptor, before)  # a full disk: what was there still has its blocks
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], written)
    os.ftruncate(descriptor, len(data))
