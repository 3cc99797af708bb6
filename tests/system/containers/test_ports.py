"""Ports of a container, as of a sandbox by bubblewrap."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.ports import Publishing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

ASKS_HOST = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1])), 20) as made:
    print(made.recv(9).decode())
"""


def test_a_container_publishes_a_port_and_uses_one_of_the_host(
    new_project: Callable[..., Boxed],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as client:
                client.sendall(b"from host")

        thread = threading.Thread(target=greet)
        thread.start()
        port = server.getsockname()[1]
        project = new_project(more=f"host_ports = [{port}]")
        done = project.run("python3", "-I", "-S", "-c", ASKS_HOST, str(port))
        assert done.lines == ["from host"], done.err
        thread.join()
    made = Publishing.start(project)
    try:
        assert made.ask() == "200 inside /"
        assert made.ask("rebound.example").startswith("421 ")
        assert made.project("revoke", made.session).code == 0
        with pytest.raises(ConnectionRefusedError):
            made.connect()
    finally:
        made.end()
