"""Programs that run inside on a bare interpreter; each prints JSON of what it met."""

from __future__ import annotations

import json
from typing import Any

# All descriptors of all processes that can be seen, as {pid: {number: what}}.
DESCRIPTORS = """
import json, os
seen = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        continue
    for number in numbers:
        try:
            seen.setdefault(pid, {})[number] = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            pass
own = seen.pop(str(os.getpid()))
own = {n: w for n, w in own.items() if not w.endswith("/fd")}
print(json.dumps({"own": own, "others": seen}))
"""

# The ways of "Dead from inside" that probe.py has no row for, as {way: what was met}.
WAYS = """
import ctypes, errno, json, os, socket, struct, sys
targets = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
met = {}

def name(number):
    return errno.errorcode.get(number, str(number))

def attempt(way, work):
    try:
        met[way] = work() or "done"
    except OSError as error:
        met[way] = name(error.errno)

def called(result):
    return name(ctypes.get_errno()) if result < 0 else "done"

def netlink(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as talk:
        talk.settimeout(5)
        talk.send(struct.pack("=IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
        answer = talk.recv(65536)
        code = -struct.unpack_from("=i", answer, 16)[0]
        return name(code) if code else "done"

def attribute(kind, data):
    padded = data + bytes(-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + padded

lo = socket.if_nametoindex("lo")
new = 0x600  # NLM_F_CREATE | NLM_F_EXCL
route = struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 254, 3, 0, 1, 0)
route += attribute(1, socket.inet_aton("192.0.2.0")) + attribute(4, struct.pack("=I", lo))
attempt("route", lambda: netlink(24, new, route))
link = struct.pack("=BxHiII", 0, 0, lo, 0, 1)  # lo down
attempt("link", lambda: netlink(16, 0, link))
veth = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, b"way0\\0")
veth += attribute(18, attribute(1, b"veth"))
attempt("veth", lambda: netlink(16, new, veth))
address = struct.pack("=BBBBI", 2, 24, 0, 0, lo) + attribute(2, socket.inet_aton("192.0.2.9"))
attempt("address", lambda: netlink(20, new, address))
attempt("netfilter", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close())

def mptcp():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as talk:
        talk.settimeout(5)
        talk.connect(("192.0.2.1", 443))
        talk.send(b"x")
        return "answered" if talk.recv(1) else "closed"

attempt("mptcp", mptcp)

def interface_option():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as talk:
        talk.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT

attempt("transparent", interface_option)

def mark():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as talk:
        talk.setsockopt(socket.SOL_SOCKET, 36, 1)  # SO_MARK

attempt("mark", mark)
pid = targets["pid"]
attempt("kill", lambda: os.kill(pid, 0))
attempt("ptrace", lambda: called(libc.ptrace(16, pid, 0, 0)))  # PTRACE_ATTACH
attempt("pidfd", lambda: os.close(os.pidfd_open(pid)))
attempt("setuid", lambda: os.setuid(0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("mknod", lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))
attempt("connect-path", lambda: socket.socket(socket.AF_UNIX).connect(targets["path"]))

commands = []
for each in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{each}/cmdline", "rb") as file:
        commands.append(file.read().replace(b"\\0", b" ").decode())
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "met": met,
    "commands": commands,
    "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
    "capabilities": [status[k].strip() for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "interfaces": [n for _, n in socket.if_nameindex()],
    "home": os.listdir(os.path.expanduser("~")),
    "etc": os.listdir("/etc"),
    "apt": os.listdir("/etc/apt") if os.path.isdir("/etc/apt") else [],
    "top": os.listdir("/"),
    "run": os.listdir("/run"),
    "roots": os.listdir("/root") if os.path.isdir("/root") else [],
    "environment": dict(os.environ),
}))
"""

# What is met at the door, as {what was tried: what was met}. Foreign addresses are documentation's.
AT_THE_DOOR = """
import json, os, socket, ssl, struct, sys, threading
host_port, ca = int(sys.argv[1]), sys.argv[2]
assert [n for _, n in socket.if_nameindex()] == ["lo"]
met = {}

def attempt(what, work):
    try:
        met[what] = work()
    except Exception as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
        met[what] = f"{type(error).__name__} {reason}"

def resolve(name):
    return socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0]

def converse(address, port, data=b"GET / HTTP/1.1\\r\\n\\r\\n", family=socket.AF_INET):
    with socket.socket(family) as client:
        client.settimeout(20)
        client.connect((address, port))
        client.sendall(data)
        return client.recv(100).decode("latin-1")

def tls(name, sni, port=443):
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = bool(sni)
    with socket.create_connection((name, port), 20) as plain:
        with context.wrap_socket(plain, server_hostname=sni) as client:
            client.sendall(b"GET /here HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
            return client.makefile("rb").read().rpartition(b"\\r\\n")[2].decode()

def question(name, kind):
    labels = b"".join(bytes([len(x)]) + x for x in name.split(b"."))
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!2H", kind, 1)

def told(reply):
    code, answers = reply[3] & 15, struct.unpack("!H", reply[6:8])[0]
    if code:
        return f"code {code}"
    return socket.inet_ntoa(reply[-4:]) if answers else "no data"

def ask(server, name, kind=1):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect((server, 53))
        client.send(question(name, kind))
        return told(client.recv(4096))

def ask_by_tcp(server, name):
    message = question(name, 1)
    with socket.create_connection((server, 53), 20) as client:
        client.sendall(len(message).to_bytes(2, "big") + message)
        stream = client.makefile("rb")
        return told(stream.read(int.from_bytes(stream.read(2), "big")))

def udp(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect((address, port))
        client.send(b"x")
        return client.recv(10).decode()

def own_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        def greet():
            with server.accept()[0] as client:
                client.sendall(b"own")
        thread = threading.Thread(target=greet)
        thread.start()
        answer = converse("127.0.0.1", server.getsockname()[1])
        thread.join()
        return answer

attempt("allowed", lambda: tls("origin.example", "origin.example"))
attempt("allowed address", lambda: resolve("origin.example"))
attempt("second", lambda: tls("second.example", "second.example"))
for _ in range(3):
    attempt("evil name", lambda: resolve("evil.example"))
attempt("subdomain", lambda: resolve("sub.origin.example"))
attempt("literal", lambda: converse("192.0.2.1", 443))
attempt("literal other port", lambda: converse("198.51.100.7", 22))
attempt("literal 6", lambda: converse("2001:db8::1", 443, family=socket.AF_INET6))
attempt("not handed out", lambda: converse("198.18.200.200", 443))
attempt("mapped 6", lambda: converse("::ffff:192.0.2.1", 443, family=socket.AF_INET6))
attempt("other sni", lambda: tls("origin.example", "second.example"))
attempt("evil sni", lambda: tls("origin.example", "evil.example"))
attempt("no sni", lambda: tls("origin.example", None))
attempt("not tls", lambda: converse("origin.example", 443))
attempt("other port", lambda: tls("origin.example", "origin.example", 8443))
attempt("plain http", lambda: converse("origin.example", 80))
attempt("host loopback", lambda: converse("127.0.0.1", host_port))
attempt("host loopback 6", lambda: converse("::1", host_port, family=socket.AF_INET6))
attempt("own loopback", own_server)
attempt("udp", lambda: udp("192.0.2.1", 443))
attempt("udp to allowed", lambda: udp(resolve("origin.example"), 443))
for server in ("192.0.2.53", "203.0.113.53", "127.0.0.1"):
    attempt(f"allowed by {server}", lambda: ask(server, b"origin.example"))
    attempt(f"evil by {server}", lambda: ask(server, b"evil.example"))
attempt("allowed by tcp", lambda: ask_by_tcp("203.0.113.53", b"origin.example"))
attempt("evil by tcp", lambda: ask_by_tcp("203.0.113.53", b"evil.example"))
attempt("aaaa", lambda: ask("192.0.2.53", b"origin.example", 28))
attempt("https record", lambda: ask("192.0.2.53", b"origin.example", 65))
attempt("txt", lambda: ask("192.0.2.53", b"origin.example", 16))
attempt("wild", lambda: ask("192.0.2.53", b"a.wild.example"))
attempt("wild itself", lambda: ask("192.0.2.53", b"wild.example"))
attempt("wild with nul", lambda: ask("192.0.2.53", b"evil\\0.wild.example"))
attempt("wild with newline", lambda: ask("192.0.2.53", b"a\\nb.wild.example"))
attempt("suffix", lambda: ask("192.0.2.53", b"evilorigin.example"))
print(json.dumps(met))
"""

_REFUSED, _ABSENT = frozenset({"EPERM", "EACCES"}), frozenset({"ESRCH"})
_DEAD: dict[str, frozenset[str] | set[str]] = {
    **dict.fromkeys("route link veth address transparent mark".split(), _REFUSED),
    **dict.fromkeys("setgroups chroot mknod".split(), _REFUSED),
    "netfilter": {"EAFNOSUPPORT"}, "kill": _ABSENT, "ptrace": _ABSENT | _REFUSED, "pidfd": _ABSENT,
    "mptcp": {"ECONNREFUSED", "ECONNRESET", "closed", "EPROTONOSUPPORT", "ENOPROTOOPT"},
    "setuid": _REFUSED | {"EINVAL"},
    "connect-path": {"ECONNREFUSED", "ENOTSOCK", "EACCES", "ENOENT"},
}  # fmt: skip


def check_no_way_lives(found: dict[str, Any], secret: str) -> None:
    """Every way that WAYS tries is dead, and nothing of the host is seen.

    The gateway, and everything else of the host, is no process that can be named from inside.
    """
    met: dict[str, str] = found["met"]
    assert met.keys() == _DEAD.keys()
    assert {way: seen for way, seen in met.items() if seen not in _DEAD[way]} == {}
    assert set(found["capabilities"]) == {"0" * 16}
    assert found["interfaces"] == ["lo"]
    assert 0 not in found["ids"]
    assert not [line for line in found["commands"] if "keyhole run" in line or "pytest" in line]
    assert found["home"] == []
    assert secret not in json.dumps(found)
