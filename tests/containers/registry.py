"""A registry on loopback with one image, which engines take without TLS."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.containers.engines import make_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                body, kind = served.get(self.path, (b"{}", ""))
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("Docker-Content-Digest", _digest(body))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _part(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": _digest(content)}
