"""Runs in a fresh network namespace: makes a door, hands it over, and keeps the namespace alive.

Started by `namespace.py` under `unshare`; it is what the sandbox's helper does, without a sandbox.
"""

from __future__ import annotations

import array
import os
import shutil
import socket
import subprocess
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


def run(*command: str, text: str | None = None) -> None:
    program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        raise FileNotFoundError(command[0])
    subprocess.run([program, *command[1:]], input=text, text=True, check=True)


def main() -> None:
    interfaces = [name for _, name in socket.if_nameindex()]
    if interfaces != ["lo"]:
        raise SystemExit(f"not an empty namespace: {interfaces}")
    run("ip", "link", "set", "lo", "up")
    run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "src", "127.0.0.1")
    run("nft", "-f", "-", text=RULES)
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    tcp.bind(("0.0.0.0", TPROXY_PORT))  # noqa: S104
    tcp.listen(BACKLOG)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    udp.bind(("0.0.0.0", 53))  # noqa: S104
    made = [tcp, udp]
    if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
        run("ip", "-6", "route", "add", "local", "::/0", "dev", "lo", "src", "::1")
        tcp6 = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        tcp6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tcp6.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        tcp6.bind(("::", TPROXY_PORT))
        tcp6.listen(BACKLOG)
        made.append(tcp6)
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
