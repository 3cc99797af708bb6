"""Renews the certificate of admission while it serves, and tells the API server its CA.

Attack: wait until the certificate has ended. Then the API server reaches no webhook, and an
administrator in a hurry deletes the webhooks, which stamp pods. So the API server trusts the next
certificate before any process serves it, and the one before as long as that is valid: no request
fails in between, and connections go on.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.types import PatchType

from keyhole.app.kube.resources import AWAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightkube import AsyncClient

    from keyhole.app.kube.serving_certificate import CertificateSecret, ServingCertificate

CONFIGURATION = "keyhole"
"""The name of both webhook configurations."""

CHECK_SECONDS = 60.0
"""Pause between two looks at the certificate and at what the API server trusts."""

RETRY_SECONDS = 1.0
"""Pause after a failure."""

SETTLE_SECONDS = 5.0
"""How long the API servers of a cluster may take to see a changed webhook configuration."""

CHECKS_IN_A_LIFE = 30
"""Looks at a certificate of a short life, of which ten are left when it is renewed."""

_NOW = timedelta()


class WebhookTrust:
    """The certificate that is served now, and the API server's trust in it."""

    def __init__(
        self,
        client: AsyncClient,
        secret: CertificateSecret,
        say: Callable[[str], None],
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._client = client
        self._secret = secret
        self._say = say
        self._settle = settle
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        """With which connections are accepted; a renewal changes it."""
        self._served: bytes = b""

    async def begin(self) -> None:
        """Have a certificate that is valid, and the API server trust it."""
        certificate = await self._secret.valid(self._client, _NOW)
        await self._announce()
        await self._serve(certificate)

    async def keep(self) -> None:
        """Renew the certificate before it ends, or follow the process that has; never returns."""
        look = min(CHECK_SECONDS, self._secret.lifetime.total_seconds() / CHECKS_IN_A_LIFE)
        while True:
            pause = look
            try:
                await self._renew()
            except AWAY as error:
                # Another process may have been faster, whose certificate is read then.
                self._say(f"the certificate of admission stays as it is: {error!r}")
                pause = min(look, RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def _renew(self) -> None:
        certificate = await self._secret.valid(self._client, self._secret.renewed_with)
        # Each time: somebody may have made the webhooks anew, without a CA.
        await self._announce()
        if certificate.certificate != self._served:
            left = self._secret.renewed_with.total_seconds()
            await asyncio.sleep(min(self._settle, left / 2))
            await self._serve(certificate)
            self._say("a new certificate of admission is served")

    async def _announce(self) -> None:
        """Tell the API server which CAs sign for these webhooks."""
        for kind in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
            found: Any = await self._client.get(kind, CONFIGURATION)
            # Read after the configuration: a process that was slow must not write an older state
            # over a newer one, which the version refuses then.
            certificate = await self._secret.valid(self._client, _NOW)
            bundle = base64.b64encode(certificate.authorities).decode("ascii")
            hooks = enumerate(found.webhooks or ())
            stale = [index for index, each in hooks if each.clientConfig.caBundle != bundle]
            if stale:
                version = found.metadata.resourceVersion
                patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
                patch += [
                    {
                        "op": "add",
                        "path": f"/webhooks/{index}/clientConfig/caBundle",
                        "value": bundle,
                    }
                    for index in stale
                ]
                await self._client.patch(kind, CONFIGURATION, patch, patch_type=PatchType.JSON)

    async def _serve(self, certificate: ServingCertificate) -> None:
        """Accept connections with a certificate from now on; those that are open go on."""
        await asyncio.to_thread(_load, self.context, certificate)
        self._served = certificate.certificate


def _load(context: ssl.SSLContext, certificate: ServingCertificate) -> None:
    """OpenSSL reads a key from a file alone; it is gone when this returns."""
    with tempfile.TemporaryDirectory() as made:
        chain, key = Path(made, "tls.crt"), Path(made, "tls.key")
        chain.write_bytes(certificate.certificate)
        key.touch(0o600)
        key.write_bytes(certificate.key)
        context.load_cert_chain(chain, key)
