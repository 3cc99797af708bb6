"""Runs in a fresh network namespace: makes a door, hands it over, and keeps the namespace alive.

Started by `namespace.py` under `unshare`; it is what the sandbox's helper does, without a sandbox.
"""

from __future__ import annotations

import array
import os
import socket
import sys

TPROXY_PORT = 15001
IP_TRANSPARENT = 19
IPV6_TRANSPARENT = 75
IP_PKTINFO = 8
BACKLOG = 512

RULES = f"""
table inet keyhole {{
  chain pre {{ type filter hook prerouting priority mangle; policy accept;
    iif != "lo" drop
    ip daddr 127.0.0.0/8 return
    ip6 daddr ::1 return
    meta nfproto ipv4 meta l4proto tcp tproxy ip to :{TPROXY_PORT} accept
    meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :{TPROXY_PORT} accept
  }}
  chain out {{ type filter hook output priority 0; policy accept;
    oif != "lo" drop
  }}
}}
"""


def start(*command: str, text: str) -> int:
    """Start a program that reads this text; hundreds are, so `subprocess` is not even imported."""
    read_end, write_end = os.pipe()
    os.write(write_end, text.encode())  # far less than a pipe holds
    os.close(write_end)
    actions = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
    try:
        return os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
    finally:
        os.close(read_end)


def main() -> None:
    interfaces = [name for _, name in socket.if_nameindex()]
    if interfaces != ["lo"]:
        raise SystemExit(f"not an empty namespace: {interfaces}")
    has_ipv6 = socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")
    links = ["link set lo up", "route add local 0.0.0.0/0 dev lo src 127.0.0.1"]
    if has_ipv6:
        links.append("route add local ::/0 dev lo src ::1")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    lines = "".join(f"{line}\n" for line in links)
    started = [start("ip", "-batch", "-", text=lines), start("nft", "-f", "-", text=RULES)]
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    tcp.bind(("0.0.0.0", TPROXY_PORT))  # noqa: S104
    tcp.listen(BACKLOG)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    udp.bind(("0.0.0.0", 53))  # noqa: S104
    made = [tcp, udp]
    if has_ipv6:
        tcp6 = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        tcp6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tcp6.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        tcp6.bind(("::", TPROXY_PORT))
        tcp6.listen(BACKLOG)
        made.append(tcp6)
    for pid in started:
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("the namespace's routes or rules could not be set")
    control = socket.socket(fileno=int(sys.argv[1]))
    descriptors = array.array("i", [each.fileno() for each in made])
    control.sendmsg([b"door"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    for each in made:
        each.close()
    while wanted := control.recv(512):  # until the test closes its end
        connect(control, wanted.decode())


def connect(control: socket.socket, wanted: str) -> None:
    """Hand out a connection that was made here, to `name port`."""
    name, port = wanted.split()
    try:
        made = socket.create_connection((name, int(port)), timeout=20)
    except OSError as error:
        control.send(type(error).__name__.encode())
        return
    with made:
        made.setblocking(True)
        descriptors = array.array("i", [made.fileno()])
        control.sendmsg([b"made"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


if __name__ == "__main__":
    main()
