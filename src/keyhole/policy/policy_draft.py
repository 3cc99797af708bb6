"""Writes the text of a first policy, from facts about the host. Used by `keyhole init`."""

from __future__ import annotations

import json

from msgspec import Struct

EMPTY_POLICY = b'version = 1\n\n[sandbox]\nwritable = ["."]\n'
"""A policy that grants nothing: the one that a learning run begins with, where there is none."""


class DraftService(Struct, frozen=True):
    """A service to propose: its name, secret reference, and repository if it is the remote's."""

    name: str
    secret: str
    repository: str | None = None
    host: str | None = None
    forge: str | None = None
    title: str = ""
    """A line of comment above it."""
    fix: str = ""
    """The command that makes its secret available; empty: it can be read now."""
    advice: str = ""
    """A line about a better secret, for the person and as a comment."""


class DraftServer(Struct, frozen=True):
    """A remote MCP server to propose."""

    name: str
    title: str
    """A line of comment above it."""
    secret: str = ""
    """Its reference; empty: the server wants none."""
    host: str = ""
    """Empty: the catalogue has an entry of this name."""
    login_url: str = ""
    """Where a login asks, if that is at no usual path."""
    tools: tuple[str, ...] = ()
    fix: str = ""
    """The command that makes its secret available; empty: it can be read now."""
    narrowed: bool = False
    """Whether the setting's own URL says more than the policy does."""
    agreed: bool = True
    """Whether a person wants it; otherwise the lines are comments."""


AGENT_KEY = "~/.ssh/agent_ed25519"
"""The key that signs commits of agents, by the name that is recommended for it."""
MAKE_KEY = f'ssh-keygen -t ed25519 -f {AGENT_KEY} -C "agents"'


class DraftSigning(Struct, frozen=True):
    """Signed commits, for a policy that grants a push."""

    person: str
    """The committer, as `Name <mail>`."""
    ready: bool = False
    """Whether the key exists and the person agreed; otherwise the lines are comments."""


class PolicyDraft(Struct, frozen=True):
    """The parts of the policy that the person agreed to."""

    presets: tuple[str, ...] = ()
    services: tuple[DraftService, ...] = ()
    signing: DraftSigning | None = None
    schema: str = ""
    """Where editors find the schema, a relative path or a URL; empty: none is named."""
    servers: tuple[DraftServer, ...] = ()


_HEAD = """\
# What code in the sandbox may do. No secret stands here, so this file can be committed.
# `keyhole check` validates it, `keyhole why URL` explains it.
version = 1

[sandbox]
writable = ["."]
"""


def write_policy(draft: PolicyDraft) -> str:
    """The policy's text."""
    head = f"{schema_line(draft.schema)}\n{_HEAD}" if draft.schema else _HEAD
    head += _signing(draft.signing) if draft.signing else ""
    sections = [head, _egress(draft.presets)]
    sections += [_service(service) for service in draft.services]
    sections += [_server(server) for server in draft.servers]
    return "\n".join(sections)


def schema_line(url: str) -> str:
    """The first line of a policy, by which editors (Taplo and those that use it) find its keys."""
    return f"#:schema {url}"


def _signing(signing: DraftSigning) -> str:
    mark = "" if signing.ready else "# "
    why = "Commits are signed by a key made for agents, which stays outside."
    if mark:
        why = f"To have commits signed by a key made for agents: `{MAKE_KEY}`, and then:"
    return (
        f"# {why}\n"
        f"{mark}git_user = {_quoted(signing.person)}\n"
        f"{mark}sign     = {_quoted(f'ssh:{AGENT_KEY}.pub')}\n"
    )


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
    secret = f"secret = {_quoted(service.secret)}"
    if service.repository:
        # Without a secret a public repository can be read all the same.
        lines.append(f"# {secret}   # when `{service.fix}` has made it" if service.fix else secret)
        lines.append(f"repos  = [{_quoted(service.repository)}]")
        lines.append('push   = ["agent/*"]   # the branches it may push; [] for none')
    else:
        lines.append(secret)
    if service.fix and not service.repository:
        lines = [f"# {line}" for line in lines]
        lines.insert(0, f"# When `{service.fix}` has made the secret, take these marks away:")
    lines[:0] = [f"# {line}" for line in (service.title, service.advice) if line]
    return "\n".join(lines) + "\n"


def _server(server: DraftServer) -> str:
    lines = [f"[services.{server.name}]"]
    if server.host:
        lines += ['use    = "mcp"', f"hosts  = [{_quoted(server.host)}]"]
    if server.secret:
        # Written all the same: a login is made for a service that the policy has.
        remark = f"   # `{server.fix}` makes it" if server.fix else ""
        lines.append(f"secret = {_quoted(server.secret)}{remark}")
    if server.login_url:
        lines.append(f"login  = {{ url = {_quoted(server.login_url)} }}")
    names = ", ".join(map(_quoted, server.tools))
    lines.append(f"tools  = [{names}]   # those that read; add what else may be called")
    if server.narrowed:
        more = "# The URL there has more, which may be a token, so it is not copied. If the server"
        lines += [more, '# needs it and it is no secret, write it: endpoints = ["/mcp?…"]']
    if not server.agreed:
        lines = [f"# {line}" for line in lines]
        lines.insert(0, "# The project itself names it. If you want it, take these marks away:")
    return "\n".join([f"# {server.title}", *lines]) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
