"""Loads a Policy from the bytes of a policy file and of the user's defaults: the way into this
room.

The caller read the bytes once and hashed them for trust; these are the bytes that are parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.policy.budget import GatewayLimits
from keyhole.policy.build import PolicyBuilder, PolicyContext
from keyhole.policy.document import Path, TomlDocument, parse_document
from keyhole.policy.fault import PolicyFault, PolicyFaults
from keyhole.policy.reader import PolicySetting, read_settings
from keyhole.policy.schema import KEYS, USER_KEYS

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy


class PolicyText(Struct, frozen=True):
    """A file's name for messages, and its bytes."""

    name: str
    data: bytes


class LoadedPolicy(Struct, frozen=True):
    """A valid policy with its origins."""

    policy: Policy
    document: TomlDocument
    project: dict[Path, PolicySetting]
    user: dict[Path, PolicySetting]
    notes: tuple[PolicyFault, ...]

    def place(self, rule: str) -> str | None:
        """File and line of the rule with this id, where it stands in the policy file."""
        path: Path = ()
        for part in rule.split("."):
            name, _, index = part.partition("[")
            path = (*path, name, int(index[:-1])) if index else (*path, name)
        span = self.document.values.get(path) or self.document.keys.get(path)
        return f"{self.document.file}:{span.line}" if span else None

    def fault(self, path: Path, message: str, hint: str | None = None) -> PolicyFault:
        """A fault at the key with this path, or at the nearest table that was written."""
        document = self.document
        while path and path not in document.values and path not in document.keys:
            path = path[:-1]
        return document.fault(document.values.get(path) or document.keys.get(path), message, hint)


def load(policy: PolicyText, user: PolicyText | None, world: PolicyContext) -> LoadedPolicy:
    """Parse and validate, or raise PolicyFaults with every fault of both files."""
    faults: list[PolicyFault] = []
    defaults: dict[Path, PolicySetting] = {}
    if user:
        try:
            defaults, found = read_settings(parse_document(user.name, user.data), USER_KEYS)
            faults += found
        except PolicyFaults as error:
            faults += error.faults
    try:
        document = parse_document(policy.name, policy.data)
    except PolicyFaults as error:
        raise PolicyFaults((*faults, *error.faults)) from None
    settings, found = read_settings(document, KEYS)
    builder = PolicyBuilder(document, settings, defaults, world)
    built = builder.build()
    faults += [*found, *builder.faults]
    if faults:
        raise PolicyFaults(tuple(sorted(set(faults), key=lambda f: (f.file, f.span, f.message))))
    return LoadedPolicy(built, document, settings, defaults, tuple(builder.notes))


def load_gateway_limits(user: PolicyText | None) -> GatewayLimits:
    """The limits of all sandboxes together, from the user's own defaults. Raises PolicyFaults."""
    return GatewayLimits(**_read_table(user, "gateway"))


def load_desktop_wish(user: PolicyText | None) -> bool:
    """Whether the user wants questions on the desktop. Raises PolicyFaults."""
    wished: bool = _read_table(user, "desktop").get("notifications", True)
    return wished


def _read_table(user: PolicyText | None, table: str) -> dict[str, Any]:
    """What a table of the user's own defaults says; nothing without a file."""
    if user is None:
        return {}
    settings, faults = read_settings(parse_document(user.name, user.data), USER_KEYS)
    if faults:
        raise PolicyFaults(tuple(faults))
    return {str(path[1]): s.value for path, s in settings.items() if path[0] == table}
