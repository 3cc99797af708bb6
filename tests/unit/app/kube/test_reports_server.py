"""Metrics of the agent, served by another process."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.kube.reports_server import STALE_SECONDS, metrics_application

if TYPE_CHECKING:
    from pathlib import Path


def _get(file: Path, path: str) -> tuple[int, bytes]:
    """One request, as a server hands it to an application (ASGI)."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:  # noqa: ANN401
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [],
        "query_string": b"", "root_path": "",
    }  # fmt: skip
    asyncio.run(metrics_application(file)(scope, receive, send))
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


def test_what_the_agent_wrote_is_served(tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    file.write_text("keyhole_pods 1\n")
    assert _get(file, "/metrics") == (200, b"keyhole_pods 1\n")
    assert _get(file, "/ready")[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/ready"])
def test_an_agent_that_is_away_has_no_metrics_and_is_not_ready(tmp_path: Path, path: str) -> None:
    file = tmp_path / "metrics.prom"
    assert _get(file, path)[0] == 503
    file.write_text("keyhole_pods 1\n")
    old = time.time() - STALE_SECONDS - 1
    os.utime(file, (old, old))
    assert _get(file, path)[0] == 503


def test_nothing_else_is_served(tmp_path: Path) -> None:
    assert _get(tmp_path, "/../../etc/passwd")[0] == 404
