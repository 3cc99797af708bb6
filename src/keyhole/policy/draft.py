"""The text of a first policy, from what was found on the host. Used by `keyhole init`."""

from __future__ import annotations

import json

from keyhole.model.value import dataclass


@dataclass(frozen=True, slots=True)
class DraftService:
    """A service to propose: its name, secret reference, and repository if it is the remote's."""

    name: str
    secret: str
    repository: str | None = None
    host: str | None = None
    forge: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What the person agreed to have in the policy."""

    presets: tuple[str, ...] = ()
    services: tuple[DraftService, ...] = ()


_HEAD = """\
# What code in the sandbox may do. No secret stands here, so this file can be committed.
# `keyhole check` validates it, `keyhole why URL` explains it.
version = 1

[sandbox]
writable = ["."]
"""


def write(draft: Draft) -> str:
    """The policy's text."""
    sections = [_HEAD, _egress(draft.presets)]
    sections += [_service(service) for service in draft.services]
    return "\n".join(sections)


def _egress(presets: tuple[str, ...]) -> str:
    lines = ["[egress]", 'allow   = []   # hosts to tunnel to, as in "example.org"']
    names = ", ".join(map(_quoted, presets))
    lines.append(f"presets = [{names}]   # package indexes, as this host's package managers say")
    return "\n".join(lines) + "\n"


def _service(service: DraftService) -> str:
    lines = [f"[services.{service.name}]"]
    if service.host:
        lines.append(f"hosts  = [{_quoted(service.host)}]")
    if service.forge:
        lines.append(f"forge  = {_quoted(service.forge)}")
    lines.append(f"secret = {_quoted(service.secret)}")
    if service.repository:
        lines.append(f"repos  = [{_quoted(service.repository)}]")
        lines.append('push   = ["agent/*"]   # the branches it may push; [] for none')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
