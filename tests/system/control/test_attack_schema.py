"""schemathesis against the published document, over the Unix socket: `make attack`.

It speaks HTTP by urllib3, which is given a connection to the socket here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.rigs.control.publish import DOCUMENT
from tests.rigs.control.rig import KNOWN, Rig

if TYPE_CHECKING:
    import socket

pytestmark = pytest.mark.attack

NOT_FOR_HERE = {
    "positive_data_acceptance",  # ids that do not exist, and doors whose sockets cannot be sent
    "unsupported_method",
    "missing_required_header",
}


def test_what_schemathesis_makes_of_the_document_is_answered_as_published(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemathesis: Any = importlib.import_module("schemathesis")
    connection: Any = importlib.import_module("urllib3.util.connection")
    requests: Any = importlib.import_module("requests")

    def connect(*_: object, **__: object) -> socket.socket:
        return rig.connect()

    monkeypatch.setattr(connection, "create_connection", connect)
    session = requests.Session()
    session.trust_env = False
    checks = schemathesis.checks.CHECKS  # filled when a document is read
    asked = 0
    for found in schemathesis.openapi.from_path(str(DOCUMENT)).get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            if mode.name == "NEGATIVE" and not _takes_anything(operation):
                continue

            @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:  # noqa: ANN401 - schemathesis has no stubs here
                nonlocal asked
                asked += 1
                if case.path_parameters and "id" in case.path_parameters and asked % 2:
                    case.path_parameters["id"] = KNOWN
                answer = case.call(base_url="http://keyhole", session=session)
                excluded = [c for c in checks.get_all() if c.__name__ in NOT_FOR_HERE]
                case.validate_response(answer, excluded_checks=excluded)

            ask()
            rig.gateway.close()
    assert asked > 3000
    assert not rig.faults


def _takes_anything(operation: Any) -> bool:  # noqa: ANN401
    return any(operation.definition.raw.get(key) for key in ("parameters", "requestBody"))
