"""A sandbox's namespace, a gateway that inspects, and origins: what tests of requests play on."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyhole.certs.authority import Authority
from tests.gateway.namespace import Namespace
from tests.gateway.origins import Handler, Origin
from tests.gateway.rig import FakeResolver, Rig, Services
from tests.gateway.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

    from keyhole.gateway.handle import DoorHandle
    from tests.gateway.rig import Watch

SECRET = "sk-real-0123456789abcdefghij"
STAND_IN = "sk-fake-ABCDEFGHIJKLMNOPQRST"

AMPLE = "requests_per_second = 100000\nconnections_per_second = 100000\n"
ALL = "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS /**"
BEARER = '{ header = "Authorization", value = "Bearer {secret}" }'


def service(name: str, *hosts: str, inject: str = BEARER, allow: str = ALL, more: str = "") -> str:
    """A service of the user's own; without `inject` it has no credential."""
    listed = ", ".join(f'"{host}"' for host in hosts)
    secret = f'inject = {inject}\nsecret = "file:/nowhere"\n' if inject else ""
    return f'[services.{name}]\nhosts = [{listed}]\n{secret}allow = ["{allow}"]\n{more}\n'


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
        """Open the door; `connect` says which origin is behind a name, its dots as `_`."""
        lines = "".join(
            f'"{name.replace("_", ".")}:443" = "{origin.address}"\n'
            for name, origin in connect.items()
        )
        text = f"{policy}\n[limits]\n{limits}\n[upstream.connect]\n{lines}"
        self.handle, self.watch = self.rig.open(self.namespace.door, text, self.services)

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

    def close_talks(self) -> None:
        """Close all connections of the test."""
        for talk in self._talks:
            talk.close()
        self._talks.clear()


def make_services(authority: trustme.CA, **secrets: str) -> Services:
    """A session's secrets; the stand-in of each is made of its own."""
    stand_ins = {name: STAND_IN for name in secrets}
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


@contextlib.contextmanager
def serving(handler: Handler, context: ssl.SSLContext | None) -> Iterator[Origin]:
    """An origin for as long as it is needed."""
    made = Origin(handler, context)
    try:
        yield made
    finally:
        made.close()
