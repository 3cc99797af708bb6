"""Two sandboxes at once are strangers to each other (I2, I5)."""

from __future__ import annotations

import json
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.projects import line_of, rest_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import trustme

    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

# Serves on every kind of address it can, says so, then tries what it is told to on each line.
CITIZEN = """
import json, os, socket, ssl, sys, threading
mark = sys.argv[1]
tcp = socket.create_server(("0.0.0.0", 0))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0keyhole-neighbour-" + mark)
abstract.listen()
def greet(server):
    while True:
        with server.accept()[0] as client:
            client.sendall(mark.encode())
for server in (tcp, abstract):
    threading.Thread(target=greet, args=(server,), daemon=True).start()
def fetch(name):
    context = ssl.create_default_context(cafile="ca.pem")
    with socket.create_connection((name, 443), 20) as plain:
        with context.wrap_socket(plain, server_hostname=name) as client:
            client.sendall(b"GET /x HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n")
            return client.makefile("rb").read().rpartition(b"\\r\\n")[2].decode()
def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(20)
        client.connect(address)
        return client.recv(100).decode()
def attempt(work, *words):
    try:
        return work(*words)
    except OSError as error:
        return type(error).__name__
print(json.dumps({"port": tcp.getsockname()[1], "net": os.readlink("/proc/self/ns/net")}))
sys.stdout.flush()
for line in sys.stdin:
    tried = json.loads(line)
    print(json.dumps({
        "names": {name: attempt(fetch, name) for name in tried["names"]},
        "tcp": attempt(connect, socket.AF_INET, ("127.0.0.1", tried["port"])),
        "abstract": attempt(connect, socket.AF_UNIX, "\\0keyhole-neighbour-" + tried["mark"]),
    }), flush=True)
"""


def test_neighbours_see_neither_each_others_names_nor_servers(
    new_project: Callable[..., Project], origin: GitAndWeb, authority: trustme.CA
) -> None:
    """I5: who asks is which door it came by. Control: each reaches its own name and servers."""
    names = {"one": "origin.example", "two": "second.example"}
    projects = {mark: new_project(origin.policy(name)) for mark, name in names.items()}
    for project in projects.values():
        project.write("ca.pem", authority.cert_pem.bytes().decode())

    def citizen(mark: str) -> AbstractContextManager[Popen[bytes]]:
        return projects[mark].running("python3", "-I", "-S", "-c", CITIZEN, mark, stdin=PIPE)

    with citizen("one") as one, citizen("two") as two:
        said = {"one": json.loads(line_of(one.stdout)), "two": json.loads(line_of(two.stdout))}
        assert said["one"]["net"] != said["two"]["net"]
        for mark, other, process in (("one", "two", one), ("two", "one", two)):
            seen = {names[mark]: "hello /x", names[other]: "gaierror"}
            own = _ask(process, names=[*seen], mark=mark, port=said[mark]["port"])
            assert own == {"names": seen, "tcp": mark, "abstract": mark}
            if said[mark]["port"] != said[other]["port"]:
                foreign = _ask(process, names=[*seen], mark=other, port=said[other]["port"])
                refused = "ConnectionRefusedError"
                assert foreign == {"names": seen, "tcp": refused, "abstract": refused}
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
            assert b"denied" in rest_of(process.stderr)
    sessions = [{e["session"] for e in p.events() if e["session"]} for p in projects.values()]
    assert [len(each) for each in sessions] == [1, 1]
    assert sessions[0] != sessions[1]


def _ask(process: Popen[bytes], **task: object) -> object:
    assert process.stdin is not None
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.flush()
    return json.loads(line_of(process.stdout))
