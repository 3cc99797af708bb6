"""Sends audit events to an OpenTelemetry collector; needs the extra `keyhole[otlp]`.

This module calls the SDK's exporter with each batch. It does not use the SDK's queue, which drops
events while the collector is unreachable; the audit log already is a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from keyhole import __version__

if TYPE_CHECKING:
    from keyhole.app.kube.audit_shipping import ShippedEvent

EXPORT_SECONDS = 10
"""Seconds that one batch may take."""

EVENT = "keyhole.audit"

_POD = {
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "uid": "k8s.pod.uid",
    "account": "k8s.serviceaccount.name",
}
"""OpenTelemetry's attribute names for the identity of a pod."""


class OtlpReceiver:
    """A collector, over gRPC."""

    name = "otlp"

    def __init__(self, endpoint: str, node: str) -> None:
        insecure = urlsplit(endpoint).scheme == "http"
        self._exporter = OTLPLogExporter(endpoint, insecure=insecure, timeout=EXPORT_SECONDS)
        self._resource = Resource.create({"service.name": "keyhole", "k8s.node.name": node})
        self._scope = InstrumentationScope("keyhole", __version__)

    def take(self, events: list[ShippedEvent]) -> None:
        """Send them. Raises OSError when the collector did not take them."""
        records = [ReadableLogRecord(_log_record(each), self._resource, self._scope)
                   for each in events]  # fmt: skip
        if self._exporter.export(records) is not LogRecordExportResult.SUCCESS:
            raise OSError("the collector did not take the events")


def _log_record(event: ShippedEvent) -> LogRecord:
    record = event.record
    severity = SeverityNumber.WARN if record.denied else SeverityNumber.INFO
    attributes: dict[str, str | int | float] = {
        f"keyhole.{name}": getattr(record, name)
        for name in ("session", "kind", "verdict", "reason", "rule", "host")
    }
    attributes |= {f"keyhole.details.{name}": value for name, value in record.details.items()}
    attributes |= {_POD[name]: text for name, text in event.pod.items()}
    return LogRecord(
        timestamp=int(record.at * 1e9),
        severity_number=severity,
        severity_text=severity.name,
        body=event.line.decode("ascii"),
        event_name=EVENT,
        attributes=attributes,
    )
