"""`keyhole kube reports`: serves the agent's metrics and ships the audit log.

A container beside the agent, without a capability, a token or a way to the control socket. It reads
the audit log and the file with metrics, and nothing else of the node.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from keyhole.app.kube.audit_shipping import AuditReceiver, AuditShipper, RotatedFile, StandardOutput
from keyhole.control.prometheus import CONTENT_TYPE
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

    from keyhole.app.kube.audit_shipping import TextWriter

STALE_SECONDS = 45.0
"""Age of the metrics after which the agent counts as down; it writes them every ten seconds."""
MAX_CONNECTIONS = 32
"""Connections at a time; a reader of metrics needs one."""


class ReportSettings(Struct, frozen=True):
    """The files that are read, and the receivers of the audit log."""

    node: str
    audit: Path
    """The directory of the audit log."""
    place: Path
    """The directory of the receivers' positions in the log."""
    metrics: Path
    port: int
    stdout: TextWriter | None = None
    file: Path | None = None
    otlp: str = ""


def serve_reports(settings: ReportSettings, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it. Raises ResourceUnusable."""
    settings.place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for receiver in _receivers(settings):
        shipper = AuditShipper(settings.audit, settings.place, settings.node, receiver, say)
        threading.Thread(target=shipper.run, name=receiver.name, daemon=True).start()
    uvicorn.run(
        metrics_application(settings.metrics),
        host="0.0.0.0",  # noqa: S104 - Prometheus and the kubelet connect to the pod's address
        port=settings.port,
        log_level="warning",
        server_header=False,
        access_log=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=30,
    )


def _receivers(settings: ReportSettings) -> list[AuditReceiver]:
    found: list[AuditReceiver] = []
    if settings.stdout is not None:
        found.append(StandardOutput(settings.stdout))
    if settings.file is not None:
        found.append(RotatedFile(settings.file))
    if settings.otlp:
        try:
            from keyhole.app.kube.otlp_export import OtlpReceiver
        except ImportError:
            raise ResourceUnusable(
                "--otlp needs Python packages that are not installed here:"
                " pip install 'keyhole[kube,otlp]'"
            ) from None
        found.append(OtlpReceiver(settings.otlp, settings.node))
    return found


def metrics_application(file: Path) -> Starlette:
    """The two paths that are served."""

    def read() -> bytes | None:
        try:
            if time.time() - file.stat().st_mtime > STALE_SECONDS:
                return None
            return file.read_bytes()
        except OSError:
            return None

    async def metrics(request: Request) -> PlainTextResponse:
        text = await run_in_threadpool(read)
        if text is None:
            return PlainTextResponse("the agent is away\n", 503)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def ready(request: Request) -> PlainTextResponse:
        away = await run_in_threadpool(read) is None
        return PlainTextResponse("the agent is away\n" if away else "ready\n", 503 if away else 200)

    return Starlette(routes=[Route("/metrics", metrics), Route("/ready", ready)])
