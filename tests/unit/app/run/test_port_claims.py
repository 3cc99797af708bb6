"""The register of Keyhole's own ports: what a killed run leaves counts for nothing."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from keyhole.app.run.port_claims import PortClaim, is_claimed, make_register
from keyhole.app.run.published_listeners import PublishedListeners
from keyhole.model.errors import Refused
from keyhole.policy.ports import PublishedPort

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def register(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    path = tmp_path / "keyhole" / "ports"
    make_register(path)
    return path


def test_a_port_is_claimed_while_its_claim_is_held(register: Path) -> None:
    assert not is_claimed(register, 8123)
    claim = PortClaim.take(register, 8123)
    assert claim is not None
    assert is_claimed(register, 8123)
    assert not is_claimed(register, 8124)
    assert PortClaim.take(register, 8123) is None
    claim.release()
    claim.release()
    assert not is_claimed(register, 8123)
    assert not list(register.iterdir())


def test_a_file_that_no_process_has_locked_is_no_claim(register: Path) -> None:
    (register / "8123.lock").touch()
    assert not is_claimed(register, 8123)
    claim = PortClaim.take(register, 8123)
    assert claim is not None
    claim.release()


def test_what_cannot_be_read_counts_as_claimed(register: Path) -> None:
    os.symlink("8124.lock", register / "8123.lock")
    assert is_claimed(register, 8123)


def test_a_port_is_claimed_before_it_is_listened_on_i2(register: Path) -> None:
    """A sandbox that connects all the time gets in at no moment at which there is no claim."""
    claimed: list[bool] = []

    class Watched(socket.socket):
        def listen(self, *backlog: int) -> None:
            claimed.append(is_claimed(register, self.getsockname()[1]))
            super().listen(*backlog)

    with Watched() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        claim = PortClaim.listen(register, sock, 1)
        assert claimed == [True]
        socket.create_connection(("127.0.0.1", port)).close()
        with Watched() as second:
            second.bind(("127.0.0.2", port))
            with pytest.raises(OSError, match="another sandbox publishes it"):
                PortClaim.listen(register, second, 1)
        claim.release()
    assert not is_claimed(register, port)


def test_a_published_port_is_claimed_and_taken_on_both_addresses(register: Path) -> None:
    made = PublishedListeners.open((PublishedPort(0, 3000), PublishedPort(0, 3001)), register)
    first, second = (each.outer for each in made.ports)
    assert made.inner_ports == {first: 3000, second: 3001}
    assert is_claimed(register, first)
    for each in made.sockets:
        socket.create_connection(each.getsockname()[:2]).close()
    with pytest.raises(Refused, match="another sandbox publishes it"):
        PublishedListeners.open((PublishedPort(first, 3000),), register)
    made.close()
    assert not list(register.iterdir())


def test_a_port_of_another_program_is_refused_on_either_address(register: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        wanted = (PublishedPort(0, 3000), PublishedPort(port, 3001))
        with pytest.raises(Refused, match=r"another program has it; `--publish 0:3001`"):
            PublishedListeners.open(wanted, register)
    assert not list(register.iterdir())
