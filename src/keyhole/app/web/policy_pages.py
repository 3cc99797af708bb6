"""The policies that sessions run under, and the catalogue, for the page: what each grants.

A policy's text holds no secret; secrets are named in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.web.policy_editing import policy_id
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.inject.catalogue import HostTemplate, ServiceTemplate

MAX_POLICIES = 32
"""Policies that are read for one page."""


def describe_policies(
    paths: HostPaths, search_path: str, policies: Iterable[str]
) -> list[dict[str, Any]]:
    """What each policy file grants as it is now, or why it cannot be used."""
    catalogue = FileCatalogue()
    named = [each for each in dict.fromkeys(policies) if each][:MAX_POLICIES]
    return [_describe(Path(each), paths, search_path, catalogue) for each in named]


def _describe(
    path: Path, paths: HostPaths, search_path: str, catalogue: FileCatalogue
) -> dict[str, Any]:
    shown: dict[str, Any] = {"path": visible(str(path)), "faults": [], "grants": [], "notes": []}
    shown["id"] = policy_id(str(path))
    try:
        file = open_policy(path, paths, catalogue)
        examined = examine_policy(file, paths.home, search_path)
    except PolicyFaults as error:
        return shown | {"faults": [fault.render() for fault in error.faults]}
    except KeyholeError as error:
        return shown | {"faults": [visible(str(error))]}
    accepted = AcceptanceStore(paths.trust).find(file.path)
    loaded = file.loaded
    return shown | {
        "digest": examined.digest,
        "accepted": accepted is not None and accepted.digest == examined.digest,
        "text": [visible(line) for line in file.data.decode("utf-8", "replace").split("\n")],
        "notes": [fault.render() for fault in loaded.notes],
        "grants": [
            {
                "subject": visible(line.subject),
                "text": visible(line.text),
                "alarm": visible(line.alarm or ""),
            }
            for line in summarise(loaded.policy, catalogue.near(loaded.policy))
        ],
    }


def describe_catalogue() -> list[dict[str, Any]]:
    """Every service of the catalogue."""
    catalogue = FileCatalogue()
    return [_entry(catalogue[name]) for name in catalogue]


def _entry(template: ServiceTemplate) -> dict[str, Any]:
    return {
        "name": template.name,
        "title": template.title,
        "kind": template.kind.value,
        "notes": list(template.notes),
        "hosts": [_host(entry) for entry in template.hosts],
    }


def _host(entry: HostTemplate) -> dict[str, Any]:
    return {
        "hosts": [str(host) for host in entry.hosts] or [f"yours, as {entry.example}"],
        "inject": [str(each) for each in entry.inject] or ["no credential"],
        "allow": [rule.text for rule in entry.allow],
        "deny": [rule.text for rule in entry.deny],
    }
