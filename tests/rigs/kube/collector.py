"""A collector of OpenTelemetry's logs: a gRPC server with the official service, on loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


class Collector(LogsServiceServicer):
    """Keeps what it gets; refuses while it is `away`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.away = False
        self.refused = 0
        self.records: list[tuple[dict[str, str], Any]] = []
        """The resource's attributes, and the record."""
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_LogsServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(f"{host}:0")
        self.url = f"http://{host}:{port}"
        self._server.start()

    def Export(
        self, request: ExportLogsServiceRequest, context: grpc.ServicerContext
    ) -> ExportLogsServiceResponse:
        """Take a batch."""
        if self.away:
            self.refused += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not now")
        for resource in request.resource_logs:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_logs:
                self.records += [(about, each) for each in scope.log_records]
        return ExportLogsServiceResponse()

    def close(self) -> None:
        """End it."""
        self._server.stop(None).wait()
