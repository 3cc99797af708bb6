"""What `keyhole login NAME` logs in to, by the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.model.errors import Refused
from keyhole.model.https_url import HttpsUrl
from keyhole.model.secret import LOGINS, SecretScheme
from keyhole.model.text import visible
from keyhole.vault.login_flow import LoginWish

if TYPE_CHECKING:
    from keyhole.model.secret import Secret
    from keyhole.policy.policy import Policy, Service


def find_service(policy: Policy, name: str) -> Service:
    """The service of this name, or the one whose login has it. Raises Refused with what to
    write."""
    named = [s for s in policy.services if s.name == name]
    using = [s for s in policy.services if s.secret and str(s.secret) == f"login:{name}"]
    found = next(iter((*named, *using)), None)
    if found is None:
        own = ", ".join(s.name for s in policy.services if _has_login(s))
        more = f"; it has logins for {own}" if own else ""
        raise Refused(
            f"this policy has no service '{visible(name)}'{more}. A service that you log in to has "
            f'secret = "login:{visible(name)}"'
        )
    if not _has_login(found):
        has = f'secret = "{visible(str(found.secret))}"' if found.secret else "no secret"
        raise Refused(
            f'{found.rule} has {has}; to log in to it, write secret = "login:{found.name}"'
        )
    return found


def client_login(policy: Policy, name: str) -> str:
    """The client whose own login NAME means, by itself or by a service; empty if it is none."""
    for service in policy.services:
        if service.name == name and _has_login(service) and service.secret is not None:
            return service.secret.locator if service.secret.locator in LOGINS else ""
    return name if name in LOGINS and name not in (s.name for s in policy.services) else ""


def login_wish(service: Service, client_secret: Secret | None) -> LoginWish:
    """What a person logs in to. Raises Refused."""
    login = service.login
    ours = [p for host in service.hosts for p in host.patterns if host.inject]
    exact = [p for p in ours if not p.subdomains]
    if login.url is None and not exact:
        raise Refused(
            f'which host of {service.rule} is asked? Write login.url = "https://HOST/…" there'
        )
    url = login.url or _known_endpoint(service) or HttpsUrl.parse(f"https://{exact[0]}/")
    return LoginWish(
        service.name,
        service.credential_hosts,
        url,
        exact=login.url is not None,
        issuer=login.issuer,
        client_id=login.client or "",
        client_secret=client_secret,
        scopes=login.scopes,
    )


def _known_endpoint(service: Service) -> HttpsUrl | None:
    """Where the catalogue says that the server is, unless the policy has hosts of its own."""
    if service.template is None or service.chose_hosts:
        return None
    server = FileCatalogue()[service.template].mcp
    return server.endpoint if server else None


def _has_login(service: Service) -> bool:
    return service.secret is not None and service.secret.source is SecretScheme.LOGIN
