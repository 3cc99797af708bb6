"""The certificate of admission is renewed while it serves. A table stands for the API server, so
that processes can be made to race; tests/cluster has a real one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret

from keyhole.app.kube.serving_certificate import CertificateSecret, make_certificate
from keyhole.app.kube.webhook_trust import WebhookTrust
from tests.rigs.waiting import until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

NAME = "127.0.0.1"
LIFETIME = timedelta(minutes=5)
HOOKS = 3


def declined(code: int) -> ApiError:
    class Answer:
        def json(self) -> dict[str, Any]:
            return {"kind": "Status", "apiVersion": "v1", "code": code, "message": "declined"}

    return ApiError(None, Answer())  # type: ignore[arg-type]


class Objects:
    """One Secret and two webhook configurations, each with a version that every change raises."""

    def __init__(self) -> None:
        self.secret: Any = None
        self.written = 0
        self.bundles: dict[object, list[str | None]] = {}
        self._version = 0
        self._versions: dict[object, str] = {}
        self.before_patch: Callable[[], Awaitable[None]] | None = None

    def _changed(self, thing: object) -> None:
        self._version += 1
        self._versions[thing] = str(self._version)

    async def get(self, kind: object, name: str, namespace: str = "") -> Any:  # noqa: ANN401
        answer = self._read(kind)
        await asyncio.sleep(0)  # others may change it before it is seen
        return answer

    def _read(self, kind: object) -> SimpleNamespace:
        if kind is Secret:
            if self.secret is None:
                raise declined(404)
            metadata = SimpleNamespace(resourceVersion=self._versions[Secret])
            return SimpleNamespace(metadata=metadata, data=dict(self.secret))
        bundles = self.bundles.setdefault(kind, [None] * HOOKS)
        metadata = SimpleNamespace(resourceVersion=self._versions.get(kind, "0"))
        hooks = [SimpleNamespace(clientConfig=SimpleNamespace(caBundle=each)) for each in bundles]
        return SimpleNamespace(metadata=metadata, webhooks=hooks)

    async def create(self, secret: Any) -> None:  # noqa: ANN401
        if self.secret is not None:
            raise declined(409)
        self.put(dict(secret.data))

    async def replace(self, secret: Any) -> None:  # noqa: ANN401
        if secret.metadata.resourceVersion != self._versions[Secret]:
            raise declined(409)
        self.put(dict(secret.data))

    def put(self, data: dict[str, str]) -> None:
        self.written += 1
        self.secret = data
        self._changed(Secret)

    async def patch(self, kind: object, name: str, patch: Any, patch_type: object) -> None:  # noqa: ANN401
        if self.before_patch is not None:
            other, self.before_patch = self.before_patch, None
            await other()
        first, *rest = patch
        assert first["op"] == "test"
        if first["value"] != self._versions.get(kind, "0"):
            raise declined(422)
        for each in rest:
            self.bundles[kind][int(each["path"].split("/")[2])] = each["value"]
        self._changed(kind)

    def trusted(self) -> bytes:
        """The CAs in every webhook, which are the same everywhere."""
        [bundle] = {each for bundles in self.bundles.values() for each in bundles}
        return base64.b64decode(bundle or "")


def _data(lifetime: timedelta) -> dict[str, str]:
    made = make_certificate((NAME,), lifetime)
    parts = {"ca.crt": made.authorities, "tls.crt": made.certificate, "tls.key": made.key}
    return {key: base64.b64encode(value).decode() for key, value in parts.items()}


def _trust(objects: Objects) -> WebhookTrust:
    secret = CertificateSecret("keyhole-system", "certificate", (NAME,), LIFETIME)
    return WebhookTrust(objects, secret, lambda _: None, settle=0.05)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _kept(trust: WebhookTrust) -> AsyncIterator[None]:
    task = asyncio.create_task(trust.keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            writer.write(line)
        writer.close()


class Caller:
    """Connects as the API server does: it trusts what the webhooks say, and nothing else."""

    def __init__(self, objects: Objects, port: int) -> None:
        self._objects = objects
        self._port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cadata=self._objects.trusted().decode())
        return await asyncio.open_connection(NAME, self._port, ssl=context)

    async def certificate(self) -> bytes:
        """The one that a new connection is given, if it is trusted."""
        _, writer = await self.connect()
        given = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        assert isinstance(given, bytes)
        return given


def test_a_certificate_is_renewed_without_a_refused_or_broken_connection() -> None:
    async def main() -> None:
        objects = Objects()
        objects.put(_data(LIFETIME / 4))
        trust = _trust(objects)
        await trust.begin()
        server = await asyncio.start_server(_echo, NAME, 0, ssl=trust.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            caller = Caller(objects, port)
            first = await caller.certificate()
            reader, writer = await caller.connect()
            async with _kept(trust):
                tries = 0
                while await caller.certificate() == first:
                    tries += 1
            assert tries > 0, "it was served while the next one was announced"
            writer.write(b"still there\n")
            assert await reader.readline() == b"still there\n"
            writer.close()
            await writer.wait_closed()
            stranger = ssl.create_default_context(
                cadata=make_certificate((NAME,)).authorities.decode()
            )
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(NAME, port, ssl=stranger)

    asyncio.run(main())


def test_the_ca_of_the_certificate_before_stays_trusted_and_no_older_one_does() -> None:
    first = make_certificate((NAME,), LIFETIME)
    second = make_certificate((NAME,), LIFETIME, first)
    third = make_certificate((NAME,), LIFETIME, second)
    assert second.authorities.endswith(first.authorities)
    assert third.authorities.count(b"BEGIN") == 2
    assert first.authorities not in third.authorities
    ended = make_certificate((NAME,), timedelta(seconds=-1))
    assert make_certificate((NAME,), LIFETIME, ended).authorities.count(b"BEGIN") == 1


def test_two_processes_that_renew_at_once_serve_one_certificate_that_is_trusted() -> None:
    async def main() -> None:
        objects = Objects()
        objects.put(_data(LIFETIME / 4))
        old = objects.secret["tls.crt"]
        both = [_trust(objects), _trust(objects)]
        for each in both:
            await each.begin()
        async with _kept(both[0]), _kept(both[1]):
            await until_in_loop(lambda: both[0]._served == both[1]._served != base64.b64decode(old))
        assert objects.written == 2, "the one at the start, and one renewal"
        assert both[0]._served == base64.b64decode(objects.secret["tls.crt"])
        assert objects.trusted() == base64.b64decode(objects.secret["ca.crt"])

    asyncio.run(main())


def test_a_slow_process_does_not_write_an_older_ca_over_a_newer_one() -> None:
    async def main() -> None:
        objects = Objects()
        objects.put(_data(LIFETIME))
        slow, fast = _trust(objects), _trust(objects)

        async def overtake() -> None:
            objects.put(_data(LIFETIME))
            await fast._announce()

        objects.before_patch = overtake
        with pytest.raises(ApiError):
            await slow._announce()
        bundles = objects.bundles[MutatingWebhookConfiguration]
        assert bundles == [objects.secret["ca.crt"]] * HOOKS, "the newer one"
        await slow._announce()
        assert objects.trusted() == base64.b64decode(objects.secret["ca.crt"])

    asyncio.run(main())


def test_webhooks_that_are_made_anew_are_told_the_ca_again() -> None:
    async def main() -> None:
        objects = Objects()
        trust = _trust(objects)
        await trust.begin()
        told = objects.trusted()
        objects.bundles[MutatingWebhookConfiguration] = [None] * HOOKS
        async with _kept(trust):
            await until_in_loop(lambda: None not in objects.bundles[MutatingWebhookConfiguration])
        assert objects.trusted() == told

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"ca.crt": "*", "tls.crt": "", "tls.key": ""},
        _data(LIFETIME) | {"tls.key": "bm90IGEga2V5"},
        _data(LIFETIME) | {"ca.crt": ""},
        _data(timedelta(seconds=-1)),
    ],
    ids=["empty", "no base64", "no key", "no CA", "ended"],
)
def test_a_certificate_that_cannot_serve_is_replaced_at_the_start(data: dict[str, str]) -> None:
    async def main() -> None:
        objects = Objects()
        objects.put(data)
        await _trust(objects).begin()
        assert objects.secret["tls.crt"] != data.get("tls.crt")

    asyncio.run(main())
