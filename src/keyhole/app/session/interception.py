"""Makes the values with which the gateway inspects a session's services.

Called when a session is made, and again when its policy or a secret changes. Every credential is
rendered before the gateway has it, so that a secret which cannot be written stops a run, or leaves
the old one in force, and never breaks a request.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.app.session.session_trust import SessionTrust as SessionTrust  # noqa: TC001 - what signs is loaded with this
from keyhole.app.setup.root_reader import origin_context
from keyhole.gateway.session import Interception
from keyhole.gateway.upstream.minting import Minting
from keyhole.inject.credential import Credential, make_credential
from keyhole.inject.injection import GoogleInjection
from keyhole.inject.service_account import read_account
from keyhole.model.errors import CredentialUnusable, Refused, Unparsable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.gateway.session import Judge
    from keyhole.model.host import HostPattern
    from keyhole.model.secret import Secret
    from keyhole.policy.policy import ServiceHost
    from keyhole.policy.rulebook import HostRules, Rulebook

NO_PLACEHOLDER = ("keyhole-found-on-this-host",)
"""The replacement for a preset's credential in responses: no client has a placeholder for it."""


def build_interception(
    book: Rulebook,
    secrets: Mapping[str, Secret],
    stand_ins: Mapping[str, tuple[str, ...]],
    trust: SessionTrust,
    judge: Judge | None = None,
    quarantine: Path | None = None,
    hidden: Mapping[str, tuple[Secret, ...]] = MappingProxyType({}),
) -> Interception:
    """Render each service's secret for each of its hosts; raises Refused.

    `stand_ins` are the placeholders of each service, the usual one first. Pushes wait in
    `quarantine` while `judge` reads them. Secrets in `hidden` belong to a service's login:
    responses are searched for them, and no request gets them.
    """
    rendered: dict[tuple[str, tuple[HostPattern, ...], bool], Credential | Minting] = {}
    alike: dict[tuple[object, ...], Credential | Minting] = {}
    for service in book.policy.services:
        for host in service.hosts:
            secret = host.credential or secrets.get(service.name)
            if secret is None or not host.inject:
                continue
            placeholder = "\n".join(stand_ins.get(service.name, NO_PLACEHOLDER))
            for git, ways in ((False, host.inject), (True, host.git_inject)):
                # A forge has a dozen hosts with the same credential, and all spellings of a secret
                # take a while.
                way = (service.name, id(secret), ways, host.merge, host.names)
                made = alike.get(way)
                if made is None or isinstance(made, Minting):
                    one = replace(host, inject=ways)
                    concealed = hidden.get(service.name, ())
                    try:
                        made = _render(book, one, secret, placeholder, concealed)
                    except (CredentialUnusable, Unparsable) as error:
                        why = f"the secret of {service.rule} cannot be used: {error}"
                        raise Refused(why) from None
                rendered[service.name, host.patterns, git] = alike[way] = made

    def credential_of(rules: HostRules, *, git: bool = False) -> Credential | Minting | None:
        return rendered.get((rules.service.name, rules.host.patterns, git))

    return Interception(
        trust.authority.leaf,
        origin_context(trust.roots),
        credential_of,
        {name: tuple(text.encode() for text in texts) for name, texts in stand_ins.items()},
        judge,
        quarantine,
    )


def _render(
    book: Rulebook,
    host: ServiceHost,
    secret: Secret,
    placeholder: str,
    hidden: tuple[Secret, ...],
) -> Credential | Minting:
    for way in host.inject:
        if isinstance(way, GoogleInjection):
            return Minting(read_account(secret, way), host, placeholder, book)
    return make_credential(secret, host.inject, host.merge, placeholder, hidden, host.names)
