"""Only the dialler opens connections to other hosts, and only its resolver resolves (I4).

A second dialler is how a check gets lost: the vault once had one that did not know this host's own
addresses. The tree is read as Python reads it, so that no spelling of an import hides a call.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import keyhole

SOURCES = Path(keyhole.__file__).parent

ALLOWED = {
    "system/dialler.py": {"connect", "sock_connect", "aiohappyeyeballs"},
    "system/resolver.py": {"getaddrinfo"},
    # Loopback by number: this host's own, which a policy names, and a sandbox's.
    "system/loopback.py": {"sock_connect"},
    "gateway/door/inner_sockets.py": {"sock_connect"},
    # To no address: it ends a connection.
    "system/syscalls.py": {"connect"},
    # A socket of the file system, never the network.
    "control/client.py": {"connect"},
    "control/exec_socket.py": {"connect"},
    "cli/notify.py": {"connect"},
    "sandbox/containers/holder.py": {"connect"},
    "sandbox/pods/cni_plugin.py": {"connect"},
    # A remote door, to the one gateway that its person named, by mutual TLS; the gateway's side of
    # it connects within an empty network, where every address is the door; and it listens.
    "app/remote/carrier.py": {"create_connection"},
    "app/remote/remote_run.py": {"create_connection"},
    "app/remote/relay.py": {"connect", "sock_connect"},
    "app/remote/receiver_client.py": {"getaddrinfo"},
    # A server of a pod, on loopback of the pod's own network.
    "app/kube/inbound_door.py": {"sock_connect"},
    # Run in a sandbox, to show that nothing can be reached from there.
    "sandbox/probe.py": {"connect", "getaddrinfo"},
    # Starts a server of its own and sees that it answers, on loopback by number.
    "app/selftest/selftest.py": {"connect", "create_connection"},
    # Connects to a listening socket of its own on loopback, to see whether the kernel names peers.
    "system/tcp_peer.py": {"create_connection"},
    # The container engine's own client, on the engine's socket; the engine fetches images itself.
    "sandbox/containers/engine_client.py": {"docker", "requests"},
    # A method of a terminal's own.
    "sandbox/containers/container_start.py": {"connect"},
    "sandbox/containers/container_exec.py": {"connect"},
    "cli/attach.py": {"connect"},
}
"""Which modules may do what, each for a reason."""

PURE = frozenset({"policy", "inject", "wire", "http", "model"})
"""Rooms that may not import sockets at all, which the import contracts hold."""

CALLS = frozenset(
    "connect connect_ex create_connection open_connection sock_connect getaddrinfo gethostbyname "
    "gethostbyname_ex gethostbyaddr getnameinfo getfqdn create_datagram_endpoint sendto urlopen "
    "HTTPConnection HTTPSConnection start_tls_connection".split()
)
IMPORTS = frozenset(
    "http.client urllib.request ftplib smtplib poplib imaplib telnetlib xmlrpc.client requests "
    "urllib3 httpx aiohttp docker dns.query dns.resolver websockets paramiko socks "
    "aiohappyeyeballs".split()
)


def found_in(text: str) -> set[str]:
    """The calls and imports in a module that reach for another host."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _is_client(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            found |= {node.module for name in names if _is_client(name)}
            # `from socket import create_connection as c` would be called by another name.
            found |= {alias.name for alias in node.names if alias.name in CALLS and _io(node)}
        elif isinstance(node, ast.Attribute) and node.attr in CALLS and not _is_given(node):
            found.add(node.attr)
        elif isinstance(node, ast.Call):
            found |= {name for name in _imported_by_call(node) if _is_client(name)}
            if _joins_a_socket(node):
                _give(node.func)
    return found


def _imported_by_call(node: ast.Call) -> set[str]:
    """`importlib.import_module("docker")`, `__import__("docker")`, and `import_without("docker")`,
    which is our own."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if name not in ("import_module", "__import__", "import_without"):
        return set()
    return {str(each.value) for each in node.args if isinstance(each, ast.Constant)}


def _is_client(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in IMPORTS)


def _io(node: ast.ImportFrom) -> bool:
    return (node.module or "").partition(".")[0] in {"socket", "asyncio", "ssl", "_socket"}


def _joins_a_socket(node: ast.Call) -> bool:
    """`create_connection(…, sock=…)`: it is connected already."""
    return any(word.arg == "sock" for word in node.keywords)


def _give(function: ast.expr) -> None:
    function.given = True  # type: ignore[attr-defined]


def _is_given(node: ast.Attribute) -> bool:
    return getattr(node, "given", False)


def modules() -> list[str]:
    names = (path.relative_to(SOURCES) for path in SOURCES.rglob("*.py"))
    return sorted(str(name) for name in names if name.parts[0] not in PURE)


def test_no_other_module_dials_or_resolves() -> None:
    """Each that does is in the table above, and does no more than it says there."""
    found = {name: found_in((SOURCES / name).read_text("utf-8")) for name in modules()}
    assert {name: what for name, what in found.items() if what - ALLOWED.get(name, set())} == {}
    # Nothing stands in the table that is no longer needed.
    assert {name: what - found[name] for name, what in ALLOWED.items() if what - found[name]} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import socket\nsocket.create_connection(('a', 1))",
        "import socket as s\ns.getaddrinfo('a', 1)",
        "from socket import create_connection as c\nc(('a', 1))",
        "async def f(loop, s):\n    await loop.sock_connect(s, ('a', 1))",
        "import asyncio\nasync def f():\n    await asyncio.open_connection('a', 1)",
        "async def f(loop):\n    await loop.create_connection(object, 'a', 1)",
        "def f(s):\n    dial = s.connect\n    dial(('a', 1))",
        "import http.client",
        "from urllib import request",
        "from urllib.request import urlopen",
        "def f():\n    import requests.adapters",
        "import importlib\nimportlib.import_module('docker')",
        "__import__('requests')",
    ],
)
def test_the_walk_finds_each_way_to_dial(text: str) -> None:
    """The control: without it, a walk that finds nothing would pass."""
    assert found_in(text)


def test_a_socket_that_the_dialler_connected_may_be_used() -> None:
    assert not found_in("async def f(loop, s):\n    await loop.create_connection(object, sock=s)")
    assert not found_in("from urllib.parse import urlsplit")
