"""A real grpcio client in the sandbox's namespace, and a real grpcio server behind the gateway."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.rigs.clients.program_origin import PYTHON, ProgramOrigin, running_program
from tests.rigs.clients.services import PROGRAMS
from tests.rigs.gateway.stage import SECRET, STAND_IN, Stage, service, set_up
from tests.rigs.lacking import give_up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trustme

    from tests.rigs.gateway.origins import Origin

POLICY = service(
    "own", "ok.example", allow="GRPC acme.v1.Echo/*", more='deny = ["GRPC acme.v1.Echo/Drop"]'
)


@contextlib.contextmanager
def grpc_server(authority: trustme.CA, directory: Path) -> Iterator[ProgramOrigin]:
    leaf = authority.issue_cert("ok.example")
    chain, private = directory / "chain.pem", directory / "key.pem"
    chain.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    private.write_bytes(leaf.private_key_pem.bytes())
    with running_program("grpc_server.py", chain, private) as server:
        yield server


@dataclass(frozen=True)
class Called:
    """What the client's calls came to, and the stage on which they were made."""

    found: dict[str, Any]
    stage: Stage
    printed: str


@pytest.fixture(scope="module")
def called(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    if not PYTHON.exists():
        give_up("the clients are not installed: scripts/setup")
    directory = tmp_path_factory.mktemp("grpc")
    directory.chmod(0o755)
    bundle = directory / "bundle.pem"
    with grpc_server(authority, directory) as server, set_up(authority) as stage:
        bundle.write_bytes(stage.services.authority.pem)
        stage.open(POLICY, ok_example=cast("Origin", server))
        done = stage.namespace.run(
            str(PYTHON), str(PROGRAMS / "grpc_client.py"), str(bundle), "ok.example", STAND_IN
        )
        assert done.returncode == 0, done.stderr
        yield Called(json.loads(done.stdout), stage, done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unary", "hi"),
        ("packed", "pack " * 400),
        ("metadata", ["yes", "trailer", "b'\\x00\\x01\\xff'"]),
        ("fail", ["NOT_FOUND", "no such thing: 100 % é"]),
        ("large", True),
        ("many", True),
        ("total", 499500),
        ("chat", ["ONE", "TWO", "THREE"]),
        ("deadline", [["DEADLINE_EXCEEDED", "Deadline Exceeded"], True]),
        ("cancelled", 1),
    ],
)
def test_calls_of_every_kind_pass(called: Called, name: str, expected: object) -> None:
    assert called.found[name] == expected


def test_a_status_without_a_message_passes(called: Called) -> None:
    """A response of fields alone, as servers send it for a method that they do not have."""
    assert called.found["unknown"][0] == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("drop", "PERMISSION_DENIED", "denied-by-rule"),
        ("elsewhere", "PERMISSION_DENIED", "path-malformed"),
    ],
)
def test_a_denied_call_says_why(called: Called, name: str, code: str, reason: str) -> None:
    """I3; every call above is the control."""
    found, said = called.found[name]
    assert found == code
    assert said.startswith("keyhole: ")
    assert f"({reason})" in said
    assert called.stage.watch.until(reason, method="GRPC")


def test_a_reflected_credential_is_not_seen(called: Called) -> None:
    """I1, I7: in a message, in trailers, and in a message that the server compressed."""
    given = f"Bearer {STAND_IN}"
    assert called.found["given"] == [f"\n{chr(len(given))}{given}", given]
    assert called.stage.watch.until("secret-scrubbed")
    assert called.found["given packed"][0] in ("INTERNAL", "UNAVAILABLE")
    assert called.stage.watch.until("secret-reflected")
    assert SECRET not in called.printed
