"""The steps of a login: who issues tokens, which client asks, what the person agrees to.

Called by `keyhole login` for one service, in its own event loop. Every request goes through the
dialler, which judges addresses by the policy that the person accepted (I4); only the person's own
browser opens links. Of a server's text, only host names and scopes are shown. No redirect is
followed.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.policy.address import has_exception, public_alone
from keyhole.system.https import HttpsRequest
from keyhole.vault.kept_login import KeptLoginFacts, new_document
from keyhole.vault.oauth.client import (
    OAuthClient,
    configured_client,
    registered_client,
    registration,
)
from keyhole.vault.oauth.discovery import (
    AuthorizationServer,
    Challenge,
    ProtectedResource,
    read_challenge,
    read_resource,
    read_server,
    resource_documents,
    server_documents,
)
from keyhole.vault.oauth.grants import (
    FORM,
    Pledge,
    WantedGrant,
    authorization_link,
    code_fields,
    device_fields,
    device_poll_fields,
    encoded,
    read_device_code,
    read_return,
    read_tokens,
    refusal,
)
from keyhole.vault.token_endpoint import ask_endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keyhole.model.https_url import HttpsUrl
    from keyhole.model.secret import Secret
    from keyhole.vault.callback_listener import CallbackListener
    from keyhole.vault.json_document import Document
    from keyhole.vault.login_provider import EndpointAccess
    from keyhole.vault.oauth.browser_login import BrowserLogin
    from keyhole.vault.oauth.grants import DeviceCode, GrantedTokens, Returned
    from keyhole.vault.token_endpoint import EndpointAnswer

LOGIN_SECONDS = 600.0
"""Seconds to wait for the browser's redirect."""

PATIENCE = 20.0
"""Seconds for each answer of a server during a login."""

MAX_ISSUERS = 4
"""Issuers of a service that are tried at most."""

SLOWER = 5.0
"""Seconds by which `slow_down` lengthens the interval (RFC 8628 §3.5)."""

_JSON = "application/json"
_ENDPOINTS = ("", "/mcp", "/sse")
"""Usual paths of MCP servers, tried if the policy names no URL."""


class LoginWish(Struct, frozen=True):
    """The service that a person logs in to, as the policy describes it."""

    service: str
    hosts: tuple[str, ...]
    url: HttpsUrl
    """The service itself."""
    exact: bool = False
    """Whether the policy names the URL, not only its host."""
    issuer: HttpsUrl | None = None
    client_id: str = ""
    client_secret: Secret | None = None
    scopes: tuple[str, ...] | None = None
    """None: those that the service asks for."""


class LoginScreen(Protocol):
    """The person's terminal: shows the steps, and reads what they type."""

    def show_issuer(self, issuer: str, wanted: WantedGrant) -> None:
        """Show which issuer will ask the person, and for which scopes."""

    def show_link(self, link: str) -> None:
        """Show the link for the person's browser."""

    def show_code(self, code: DeviceCode) -> None:
        """Show the code to type on any device."""

    def typed(self) -> Awaitable[str] | None:
        """The address to which a browser on another machine was redirected, if the person pastes
        it; None: there is no terminal."""


class Discovered(Struct, frozen=True):
    """The issuer of a service's tokens, and the scopes."""

    server: AuthorizationServer
    wanted: WantedGrant


class LoginFlow(Struct, frozen=True):
    """One login of one service."""

    wish: LoginWish
    reach: EndpointAccess
    screen: LoginScreen

    async def by_browser(self, listener: CallbackListener) -> Document:
        """Log in with a browser of this host. Returns the new file; raises Refused."""
        found = await self._discover()
        server = found.server
        if server.authorization is None:
            raise Refused(f"{server.issuer.host} has no login by browser; try --device")
        self.screen.show_issuer(server.issuer.text, found.wanted)
        client = await self._client(found, listener.redirect, device=False)
        pledge = Pledge.make()
        self.screen.show_link(
            authorization_link(
                server.authorization, client, found.wanted, listener.redirect, pledge
            )
        )
        back = await await_return(
            listener, lambda query: read_return(query, pledge, server), self.screen.typed()
        )
        fields = code_fields(client, found.wanted, listener.redirect, back.code, pledge)
        answer = await self._post(server.token, encoded(fields), client)
        return self._document(found, client, answer)

    async def by_device(self) -> Document:
        """Log in with a code that the person types anywhere. Returns the new file; raises
        Refused."""
        found = await self._discover()
        server = found.server
        if server.device is None:
            raise Refused(f"{server.issuer.host} offers no login by code; leave --device out")
        self.screen.show_issuer(server.issuer.text, found.wanted)
        client = await self._client(found, "", device=True)
        asked = encoded(device_fields(client, found.wanted))
        answer = await self._post(server.device, asked, client)
        host = server.issuer.host.name
        code = read_device_code(_granted(answer, host), host)
        self.screen.show_code(code)
        try:
            async with asyncio.timeout(code.life):
                polled = await self._poll(found, client, code)
        except TimeoutError:
            raise Refused("the code was not used in time") from None
        return self._document(found, client, polled)

    async def _poll(
        self, found: Discovered, client: OAuthClient, code: DeviceCode
    ) -> EndpointAnswer:
        asked, interval = (
            encoded(device_poll_fields(client, found.wanted, code.code)),
            code.interval,
        )
        while True:
            await asyncio.sleep(interval)
            answer = await self._post(found.server.token, asked, client)
            match answer.error:
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += SLOWER
                case _:
                    return answer

    # ── who issues tokens ─────────────────────────────────────────────────────────────────────────

    async def _discover(self) -> Discovered:
        wish = self.wish
        challenge, resource = Challenge(), None
        if wish.issuer is None:
            challenge, resource = await self._describe()
        if resource is not None:
            issuers, identifier = resource.issuers[:MAX_ISSUERS], resource.url.text
        else:
            # Without metadata, the service's own host issues its tokens (the first version of MCP).
            issuers = (wish.issuer or wish.url.beside("/"),)
            identifier = wish.url.identity
        described = resource.scopes if resource else ()
        scopes = wish.scopes if wish.scopes is not None else challenge.scopes or described
        server = await self._server(issuers)
        return Discovered(server, WantedGrant(identifier, scopes))

    async def _describe(self) -> tuple[Challenge, ProtectedResource | None]:
        """Ask the service itself who issues its tokens."""
        wish = self.wish
        paths = ("",) if wish.exact else _ENDPOINTS
        tried: set[str] = set()
        for path in paths:
            url = wish.url if not path else wish.url.beside(path)
            challenge = await self._challenge(url)
            places = resource_documents(url)
            for place in (challenge.metadata, *places) if challenge.metadata else places:
                if place is None or place.text in tried:
                    continue
                tried.add(place.text)
                document = await self._fetch(place)
                if document is not None:
                    return challenge, read_resource(document, url, exact=wish.exact)
        return Challenge(), None

    async def _challenge(self, url: HttpsUrl) -> Challenge:
        accept = "application/json, text/event-stream"
        request = HttpsRequest(
            url.authority, url.target, method="GET", accept=accept, head_alone=True
        )
        answer = await ask_endpoint(url, request, self._reach())
        if not answer.status:
            raise Refused(answer.why)
        return read_challenge(answer.challenges, url)

    async def _server(self, issuers: tuple[HttpsUrl, ...]) -> AuthorizationServer:
        why = ""
        for issuer in issuers:
            for place in server_documents(issuer):
                try:
                    document = await self._fetch(place)
                    if document is not None:
                        return read_server(document, issuer)
                except Refused as error:
                    why = why or str(error)
        if why:
            raise Refused(why)
        raise Refused(
            f"{issuers[0].host} does not say how tokens are issued; if the service has no OAuth, "
            f"`keyhole secret set {self.wish.service}` keeps a token of yours"
        )

    async def _fetch(self, place: HttpsUrl) -> Document | None:
        """Fetch a metadata document; None if there is none at this URL. Raises Refused if the host
        cannot be reached."""
        request = HttpsRequest(place.authority, place.target, method="GET")
        answer = await ask_endpoint(place, request, self._reach())
        if not answer.status:
            raise Refused(answer.why)
        return answer.document if answer.status == 200 else None

    # ── the client, and what it asks for ──────────────────────────────────────────────────────────

    async def _client(self, found: Discovered, redirect: str, *, device: bool) -> OAuthClient:
        wish, server = self.wish, found.server
        if wish.client_id:
            secret = wish.client_secret.reveal() if wish.client_secret else ""
            return configured_client(wish.client_id, secret, server.methods)
        host = server.issuer.host.name
        if server.registration is None:
            raise Refused(
                f"{host} registers no clients by itself: register one there, with the callback "
                f'http://127.0.0.1/callback, and write services.{wish.service}.login.client = "ID"'
            )
        document = registration(redirect, found.wanted.scopes, device=device)
        where = server.registration
        request = HttpsRequest(
            where.authority, where.target, _JSON, json.dumps(document).encode("ascii")
        )
        answer = await ask_endpoint(where, request, self._reach())
        return registered_client(_granted(answer, host, "register a client"), host)

    async def _post(self, where: HttpsUrl, body: bytes, client: OAuthClient) -> EndpointAnswer:
        request = HttpsRequest(
            where.authority, where.target, FORM, body, authorization=client.authorization
        )
        return await ask_endpoint(where, request, self._reach())

    def _document(self, found: Discovered, client: OAuthClient, answer: EndpointAnswer) -> Document:
        host, wanted = found.server.issuer.host.name, found.wanted
        tokens = _tokens(answer, host)
        facts = KeptLoginFacts(
            self.wish.service, self.wish.hosts, wanted.resource, wanted.scopes, 0
        )
        return new_document(facts, found.server, client, tokens, time.time())

    def _reach(self) -> EndpointAccess:
        """How to reach servers that the service names.

        Attack: a public service names an endpoint in the private network, which the policy opens
        for another service. So the policy's exceptions for private addresses apply only if the
        service itself, or an issuer that the policy names, has a private address (I4).
        """
        book = self.reach.book()
        named = (self.wish.url, *((self.wish.issuer,) if self.wish.issuer else ()))
        patience = min(PATIENCE, self.reach.patience)
        if any(has_exception(book, url.host, url.port) for url in named):
            return replace(self.reach, patience=patience)
        public = public_alone(book)
        return replace(self.reach, book=lambda: public, patience=patience)


async def log_in_to_client(
    login: BrowserLogin, reach: EndpointAccess, listener: CallbackListener, screen: LoginScreen
) -> Document:
    """Log in as a well-known client does. Returns the server's answer; raises Refused."""
    wanted, pledge = WantedGrant("", login.scopes), Pledge.make()
    screen.show_issuer(login.authorization.origin, wanted)
    link = authorization_link(
        login.authorization, login.client, wanted, listener.redirect, pledge, login.more
    )
    screen.show_link(link)
    back = await await_return(
        listener, lambda query: read_return(query, pledge, None), screen.typed()
    )
    fields = code_fields(login.client, wanted, listener.redirect, back.code, pledge)
    kind, body = FORM, encoded(fields)
    if login.as_json:
        kind, body = _JSON, json.dumps(fields | {"state": pledge.state}).encode("ascii")
    where = login.token
    request = HttpsRequest(where.authority, where.target, kind, body, login.agent)
    answer = await ask_endpoint(where, request, reach)
    return _granted(answer, where.host.name)


async def await_return(
    listener: CallbackListener,
    read: Callable[[str], Returned],
    typed: Awaitable[str] | None,
) -> Returned:
    """Wait for the browser's redirect, or the address that the person pastes. Raises Refused."""
    waits = [asyncio.ensure_future(listener.wait(read))]
    if typed is not None:
        waits.append(asyncio.ensure_future(_pasted(typed, read)))
    try:
        done, _ = await asyncio.wait(
            waits, timeout=LOGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    if not done:
        minutes = int(LOGIN_SECONDS // 60)
        raise Refused(f"no browser came back within {minutes} minutes")
    back = done.pop().result()
    if not back.code:
        raise Refused(f"the issuer says: {back.why}")
    return back


async def _pasted(typed: Awaitable[str], read: Callable[[str], Returned]) -> Returned:
    text = (await typed).strip()
    back = read(text.partition("?")[2])
    if not back.ours:
        raise Refused("what was pasted is not the address that this login ends at")
    return back


def _granted(answer: EndpointAnswer, host: str, what: str = "give a token") -> Document:
    """The document of a successful answer. Otherwise raises Refused, without text of the answer."""
    if not answer.status:
        raise Refused(answer.why)
    if answer.status not in (200, 201) or answer.document is None:
        raise Refused(f"{host} does not {what}: {refusal(answer.error, answer.status)}")
    return answer.document


def _tokens(answer: EndpointAnswer, host: str) -> GrantedTokens:
    tokens = read_tokens(_granted(answer, host))
    if isinstance(tokens, str):
        raise Refused(f"{host}: {tokens}")
    return tokens
