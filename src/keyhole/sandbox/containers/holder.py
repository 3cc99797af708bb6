"""The holder: makes an empty network with a door, hands over the door, and keeps the network.

It is the first process of a container whose network and process numbers the sandbox's container
shares. It runs before the sandbox exists, gives up every right before it hands over the door, and
ends when the connection closes over which the door went. The kernel then ends every process in the
sandbox, so a killed run leaves nothing running.
"""

from __future__ import annotations

# Runs at every start: no `json`, and nothing that imports `typing`, as in `sandbox_init.py`.
import os
import signal
import socket
import struct
import sys
import time

from keyhole.sandbox import empty_network
from keyhole.sandbox.containers.guarded_main import GuardedMain
from keyhole.system import syscalls
from keyhole.system.namespaces import own_network

REGISTRATION = "/registration.sock"
"""The mount point of one socket of the host, in the holder alone. It answers once."""

UID = 60778
"""The holder's uid after it gave up root: no user of the host, and not the sandbox's, which could
otherwise trace or kill it."""

PATIENCE = 60.0
"""Seconds to wait for a gateway that starts later, or that still has the previous holder. Then the
holder ends, and may be restarted."""
_LOOK_SECONDS = 0.05


HELD = "--held"
PORTS = "--ports="
"""The beginning of a word with the ports that are joined to the host's."""


@GuardedMain
def main() -> int:
    """Run as `holder SOCKET [--ports=…] NFT…`: where to register, the ports that are joined to the
    host's, and the command that starts nft.

    Or as `holder --held`, an engine's health check in the same container: whether the first process
    has given up every right.
    """
    if sys.argv[1:] == [HELD]:
        return 0 if _is_held() else 1
    try:
        place, *nft = sys.argv[1:]
        ports = nft.pop(0).removeprefix(PORTS) if nft[0].startswith(PORTS) else ""
        control = _registered(place)
    except OSError as error:
        sys.stderr.write(f"keyhole: no gateway takes a door here: {error.strerror}\n")
        return 1
    try:
        # 1. Every address leads to the door. An interface is found now, or is reported later.
        links = empty_network.watch_interfaces()
        empty_network.bring_up_loopback()
        empty_network.make_everything_local()
        empty_network.load_ruleset(*nft)
        door = [*empty_network.open_door_sockets(), *empty_network.open_port_sockets(ports)]
        namespace = own_network()
        # 2. Nothing is left that could change it.
        _give_up()
    except (OSError, RuntimeError) as error:
        control.sendall(_framed("error", str(error)))
        return 1
    # 3. The door is handed over.
    handed = [*door, links]
    socket.send_fds(control, [_framed("door", namespace)], [each.fileno() for each in handed])
    for each in handed:
        each.close()
    return _hold(control)


def _registered(path: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        control = socket.socket(socket.AF_UNIX)
        try:
            control.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            control.close()
            # A run listens before its holder is started: if it does not, it was killed.
            if path == REGISTRATION or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return control


def _give_up() -> None:
    if not syscalls.bound_capabilities():
        raise RuntimeError("the holder cannot bound its capabilities")
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    syscalls.lose_capabilities()
    syscalls.no_new_privileges()
    syscalls.not_traceable()


def _is_held() -> bool:
    with open("/proc/1/status", encoding="ascii", errors="replace") as file:
        rows = dict(line.split(":", 1) for line in file if ":" in line)
    users = {int(number) for number in rows["Uid"].split()}
    return users == {UID} and int(rows["CapPrm"], 16) == 0


def _hold(control: socket.socket) -> int:
    """Wait until the owner of the door closes the connection, or the engine ends us."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the sandbox's orphans are ours: reap them
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while control.recv(1):
        pass
    return 0


def _framed(key: str, text: str) -> bytes:
    """A JSON message with one member (RFC 8259, section 7)."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else _escaped(c) for c in text)
    data = f'{{"{key}": "{plain}"}}'.encode("ascii")
    return struct.pack("=I", len(data)) + data


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", units))


if __name__ == "__main__":
    sys.exit(main())
