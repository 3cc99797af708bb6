"""A sandbox's namespace, a gateway that inspects, and origins: what tests of requests play on."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trustme

from keyhole.certs.authority import Authority
from keyhole.gateway.door.handle import DoorHandle
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import Handler, Origin, Service
from tests.rigs.gateway.rig import FakeResolver, Rig, Services, Watch
from tests.rigs.gateway.talk import Talk, get

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

SECRET = "sk-real-0123456789abcdefghij"
STAND_IN = "sk-fake-ABCDEFGHIJKLMNOPQRST"

AMPLE = "requests_per_second = 100000\nconnections_per_second = 100000\n"
ALL = "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS /**"
Serve = Callable[..., Origin]
"""Opens a door with this behind it."""

BEARER = '{ header = "Authorization", value = "Bearer {secret}" }'


def service(name: str, *hosts: str, inject: str = BEARER, allow: str = ALL, more: str = "") -> str:
    """A service of the user's own; without `inject` it has no credential."""
    listed = ", ".join(f'"{host}"' for host in hosts)
    secret = f'inject = {inject}\nsecret = "file:/nowhere"\n' if inject else ""
    return f'[services.{name}]\nhosts = [{listed}]\n{secret}allow = ["{allow}"]\n{more}\n'


def forge(name: str, host: str, more: str = "") -> str:
    """A git service with the repository acme/w."""
    return (
        f'[services.{name}]\nhosts = ["{host}"]\nforge = "generic"\nrepos = ["acme/w"]\n'
        f'secret = "file:/nowhere"\ninject = {BEARER}\n{more}\n'
    )


@dataclass
class Stage:
    """One door, open under a policy."""

    namespace: Namespace
    rig: Rig
    authority: trustme.CA
    services: Services
    handle: DoorHandle | None = None
    watch: Watch = field(init=False)
    _talks: list[Talk] = field(default_factory=list)

    def open(self, policy: str, limits: str = AMPLE, **connect: Origin) -> None:
        """Open the door; `connect` has the origin behind a name, as `ok_example` or with `__80`."""
        text = self._text(policy, limits, connect)
        self.handle, self.watch = self.rig.open(self.namespace.door, text, self.services)

    def change(
        self,
        policy: str,
        limits: str = AMPLE,
        secrets: dict[str, str] | None = None,
        **connect: Origin,
    ) -> None:
        """Go on by another policy, or with other secrets."""
        services = replace(self.services, secrets=secrets) if secrets else self.services
        text = self._text(policy, limits, connect)
        session = self.rig.session(self.watch, text, services)
        handle = self.handle
        assert handle is not None
        self.rig.call(lambda: handle.change(session))

    @staticmethod
    def _text(policy: str, limits: str, connect: dict[str, Origin]) -> str:
        lines = ""
        for key, origin in connect.items():
            name, _, port = key.partition("__")
            lines += f'"{name.replace("_", ".")}:{port or 443}" = "{origin.address}"\n'
        return f"{policy}\n[limits]\n{limits}\n[upstream.connect]\n{lines}"

    def client_context(self) -> ssl.SSLContext:
        """A client's, that trusts the session's CA."""
        return ssl.create_default_context(cadata=self.services.authority.pem.decode())

    def visit(self, name: str = "ok.example", *, port: int = 443, sni: str | None = None) -> Talk:
        """A TLS connection from inside; every byte in it is the test's."""
        plain = self.namespace.connect(name, port)
        context = self.client_context()
        context.check_hostname = sni is None
        try:
            secure = context.wrap_socket(
                plain, server_hostname=sni or name, suppress_ragged_eofs=False
            )
        except OSError:
            plain.close()
            raise
        self._talks.append(Talk(secure))
        return self._talks[-1]

    def ask(self, *requests: bytes, name: str = "ok.example") -> Talk:
        """Send requests on a connection of their own."""
        talk = self.visit(name)
        talk.send(b"".join(requests))
        return talk

    def drop_kept(self) -> None:
        """Close the connections that were kept to origins."""

        def drop() -> None:
            for each in self.handle._hosts.values() if self.handle else ():
                for idle in each.pool._idle.values():
                    for origin in idle:
                        origin.close()
                each.pool._idle.clear()

        self.rig.call(drop)

    def close_talks(self) -> None:
        """Close all connections of the test."""
        for talk in self._talks:
            talk.close()
        self._talks.clear()


def make_services(authority: trustme.CA, **secrets: str) -> Services:
    """A session's secrets, all with one stand-in."""
    stand_ins = dict.fromkeys(secrets, STAND_IN)
    return Services(secrets, stand_ins, Authority.create("t"), authority.cert_pem.bytes())


@contextlib.contextmanager
def set_up(authority: trustme.CA, services: Services | None = None) -> Iterator[Stage]:
    """A stage whose door is still to be opened."""
    namespace = Namespace.make()
    rig = Rig(FakeResolver())
    stage = Stage(namespace, rig, authority, services or make_services(authority, own=SECRET))
    try:
        yield stage
    finally:
        stage.close_talks()
        try:
            rig.close()
        finally:
            namespace.close()


class Play:
    """One open door for many tests; what is behind it is each test's own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.handler: Handler | None = None

    def __call__(self, sock: socket.socket) -> None:
        """A connection to the origin."""
        if self.handler is not None:
            self.handler(sock)

    def serve(self, handler: Handler) -> None:
        """What the next connection to the origin meets; what was kept is closed."""
        self.handler = handler
        self.stage.drop_kept()

    def answer(self, reply: bytes) -> Talk:
        """Ask for `/a`; the origin replies with these bytes."""
        self.serve(Service(lambda _: reply))
        return self.stage.ask(get("/a"))


@contextlib.contextmanager
def serving(handler: Handler, context: ssl.SSLContext | None) -> Iterator[Origin]:
    """An origin for as long as it is needed."""
    made = Origin(handler, context)
    try:
        yield made
    finally:
        made.close()
