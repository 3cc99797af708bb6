"""The holder: makes an empty network with a door, hands the door out, and holds the rest.

The first process of a container of its own, whose network and process numbers the sandbox's
container shares. It runs before that exists, has given up everything by the time the door leaves
it, and ends with the connection over which the door went. Its end is the end of every process in
the sandbox: the kernel sees to that, so a run that is killed leaves nothing that goes on.
"""

from __future__ import annotations

# On the way of every start, as `inside.py` is: no `json`, and nothing that imports `typing`.
import os
import signal
import socket
import struct
import sys
import time

from keyhole.sandbox import emptynet, syscalls
from keyhole.sandbox.containers.guarded import Guarded

REGISTRATION = "/registration.sock"
"""Where the one socket of the host is mounted, in the holder alone. It answers once."""

UID = 60778
"""Who the holder is from then on: no user of the host, and never the sandbox's own, who could
else trace or end it."""

PATIENCE = 60.0
"""Seconds that it waits for a gateway that comes later, or still has the holder before this one;
then it ends, and whoever starts it again decides."""
_LOOK_SECONDS = 0.05


HELD = "--held"


@Guarded
def main() -> int:
    """Run the holder: `holder SOCKET NFT…`, where to register, and how nft is started.

    Or `holder --held`, which an engine asks in the same container: whether the first process is one
    that has given up everything.
    """
    if sys.argv[1:] == [HELD]:
        return 0 if _is_held() else 1
    try:
        control = _registered(sys.argv[1])
    except OSError as error:
        sys.stderr.write(f"keyhole: no gateway takes a door here: {error.strerror}\n")
        return 1
    try:
        # 1. Every address leads to the door. An interface is there when we look, or is told of.
        links = emptynet.watch_links()
        emptynet.raise_loopback()
        emptynet.make_everything_local()
        emptynet.capture(*sys.argv[2:])
        door = emptynet.listen()
        namespace = os.readlink("/proc/self/ns/net")
        # 2. Nothing is left that could change it.
        _give_up()
    except (OSError, RuntimeError) as error:
        control.sendall(_framed("error", str(error)))
        return 1
    # 3. The door goes out.
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
            # A run listens before its holder is started: who does not has been killed.
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
    """Until whoever has the door hangs up, or the engine asks us to end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of the sandbox come to us; none is kept
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while control.recv(1):
        pass
    return 0


def _framed(key: str, text: str) -> bytes:
    """A message of one member, as JSON has it (RFC 8259, section 7)."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else _escaped(c) for c in text)
    data = f'{{"{key}": "{plain}"}}'.encode("ascii")
    return struct.pack("=I", len(data)) + data


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", units))


if __name__ == "__main__":
    sys.exit(main())
