"""A registry on loopback with one image, which engines take without TLS."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
from typing import TYPE_CHECKING, Any

from tests.rigs.containers.engines import make_image
from tests.rigs.gateway.origins import Origin, Service
from tests.rigs.gateway.talk import ok

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.rigs.gateway.talk import Message

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Archive:
    """Stands for an engine that is given an image, and keeps it."""

    content = b""

    def import_image(self, archive: bytes, name: str, labels: Mapping[str, str]) -> None:
        self.content = archive


class Registry:
    """Serves `made:1`, of these programs, until it is closed."""

    def __init__(self, programs: Iterable[str]) -> None:
        made = _Archive()
        make_image(made, "made", programs, {})  # type: ignore[arg-type]
        layer = gzip.compress(made.content, 1)
        machine = platform.machine()
        config = json.dumps(
            {
                "architecture": _ARCHITECTURES.get(machine, machine),
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(made.content)]},
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _part(config, "application/vnd.docker.container.image.v1+json"),
                "layers": [_part(layer, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
            }
        ).encode()
        served = {
            "/v2/": (b"{}", "application/json"),
            "/v2/made/manifests/1": (manifest, _MANIFEST),
            f"/v2/made/manifests/{_digest(manifest)}": (manifest, _MANIFEST),
            f"/v2/made/blobs/{_digest(config)}": (config, "application/octet-stream"),
            f"/v2/made/blobs/{_digest(layer)}": (layer, "application/octet-stream"),
        }

        def answer(message: Message) -> bytes:
            body, kind = served.get(message.target, (b"{}", ""))
            fields = (f"Content-Type: {kind or 'application/json'}",
                      f"Docker-Content-Digest: {_digest(body)}")  # fmt: skip
            status = b"200 OK" if kind else b"404 Not Found"
            said = ok(body, *(line.encode() for line in fields), status=status)
            return said.removesuffix(body) if message.method == "HEAD" else said

        self._origin = Origin(Service(answer))
        self.address, self.close = self._origin.address, self._origin.close


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _part(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": _digest(content)}
