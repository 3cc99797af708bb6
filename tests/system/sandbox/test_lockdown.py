"""The gateway's own walls: what it needs works behind them, what it does not need is gone (I1, I2).

`locked.py` is the program that stands behind them. Nearly all of this holds for a process for good,
so it is tried in processes of its own, each thing free for a control and locked down.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.confine import landlock, lockdown
from keyhole.confine.gateway_filter import ALLOWED, KILLED, REFUSED, can_pin_peers
from keyhole.confine.lockdown import lock_down
from keyhole.model.errors import SetupFailed
from keyhole.system import syscalls
from tests.rigs.gateway.namespace import Namespace
from tests.rigs.gateway.origins import Origin, Service, echo, tls_for
from tests.rigs.gateway.talk import Talk, get, ok
from tests.rigs.sandbox.locked import ATTEMPTS, NEEDS, resolves_names, threads_are_held_too
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import trustme

    from tests.rigs.sandbox.people import Person

REPOSITORY = Path(__file__).parents[3]
PROGRAM = (REPOSITORY / "tests" / "rigs" / "sandbox" / "locked.py").read_text()

OTHERWISE = {
    "become a program in memory": ("ENOEXEC",),
    "make another kind of socket": ("ok", "EAFNOSUPPORT"),
    "attach a filter": ("ok", "EPERM"),
}
"""What comes of these when we do not hold them back; some kernels do."""

SINCE = {"connect to an abstract socket": 6, "listen on TCP": 4, "truncate a file outside": 3}
"""The Landlock ABI that holds them."""


def locked_down(
    person: Person, directory: Path, *names: str, within: Sequence[str] = ()
) -> dict[str, list[str]]:
    """What came of each, free and locked down."""
    directory.mkdir()
    person.own(directory)
    python = person.program.with_name("python")
    done = subprocess.run(
        [*within, python, "-I", "-c", PROGRAM, directory, *names],
        cwd="/", env={}, capture_output=True, text=True, check=False, timeout=PATIENCE,
        **person.become(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def found(person: Person) -> dict[str, list[str]]:
    return locked_down(person, person.directory / "locked")


@pytest.mark.parametrize("need", [n.__name__ for n in NEEDS if n is not resolves_names])
def test_what_a_gateway_needs_works_behind_its_walls(
    found: dict[str, list[str]], need: str
) -> None:
    assert found[need] == ["ok", "ok"]


def test_names_are_resolved_behind_the_walls(person: Person) -> None:
    """By the hosts file and by a name server, in a network of its own."""
    unshare = shutil.which("unshare")
    assert unshare
    within = [unshare, "--mount", "--net", *([] if person.is_root else ["--user", "-r"])]
    told = locked_down(person, person.directory / "names", resolves_names.__name__, within=within)
    assert told == {resolves_names.__name__: ["ok", "ok"]}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_a_gateway_does_not_need_is_gone(found: dict[str, list[str]], name: str) -> None:
    """Control: the same works in the same process when it is not locked down."""
    expected, step = ATTEMPTS[name]
    if "call(" in (step.__doc__ or "") and platform.machine() != "x86_64":
        pytest.skip("its number is another on this machine")
    if landlock.find_abi() < SINCE.get(name, 1):
        pytest.skip("this kernel cannot hold it")
    free, locked = found[name]
    assert locked == expected
    assert free in OTHERWISE.get(name, ("ok",))


def test_threads_that_start_later_are_held_too(found: dict[str, list[str]]) -> None:
    assert found[threads_are_held_too.__name__] == ["ok", "EACCES"]


GATEWAY = """
import json, os, socket, sys
from pathlib import Path
from keyhole.audit.log import AuditLog
from keyhole.certs.authority import Authority
from keyhole.gateway.door.door import Door
from keyhole.confine.lockdown import lock_down
sys.path.insert(0, sys.argv[1])
from tests.rigs.gateway.rig import Rig, Services
told = json.loads(sys.stdin.readline())
door = Door.of([socket.socket(fileno=number) for number in told["door"]], {})
lock_down([], [Path(told["state"])])
services = Services(
    {"own": told["secret"]}, {"own": "stand-in-0123456789"}, Authority.create("t"),
    told["roots"].encode(),
)
with AuditLog(Path(told["state"]) / "audit") as log:
    rig = Rig()
    handle, watch = rig.open(door, told["policy"], services)
    print(json.dumps(services.authority.pem.decode()), flush=True)
    sys.stdin.read()
    rig.close()
    for event in watch.events:
        log.record("s1", event)
print(json.dumps([event.reason for event in watch.events]))
"""


def test_a_real_gateway_serves_its_door_behind_its_walls(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """An inspected request gets its credential, another is denied, a tunnel carries bytes, and what
    happened is written down; all of it by a process that is locked down."""
    secret, service = "sk-real-0123456789abcdef", Service(lambda _: ok(b"hello"))
    context = tls_for(authority, "ok.example")
    namespace = Namespace.make()
    with contextlib.ExitStack() as stack:
        stack.callback(namespace.close)
        inspected, tunnelled = Origin(service, context), Origin(echo)
        stack.callback(inspected.close)
        stack.callback(tunnelled.close)
        policy = (
            '[egress]\nallow = ["raw.example:7"]\n'
            '[services.own]\nhosts = ["ok.example"]\nallow = ["GET /a"]\n'
            'inject = { header = "Authorization", value = "Bearer {secret}" }\n'
            'secret = "file:/nowhere"\n'
            f'[upstream.connect]\n"ok.example:443" = "{inspected.address}"\n'
            f'"raw.example:7" = "{tunnelled.address}"\n'
        )
        numbers = [each.fileno() for each in (*namespace.door.listeners, namespace.door.udp)]
        numbers.insert(1, numbers.pop())
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", GATEWAY, str(REPOSITORY)],
                pass_fds=numbers, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        told = {"door": numbers, "state": str(tmp_path), "secret": secret, "policy": policy}
        told["roots"] = authority.cert_pem.bytes().decode()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        trusting = ssl.create_default_context(cadata=json.loads(process.stdout.readline()))
        plain = namespace.connect("ok.example")
        with trusting.wrap_socket(plain, server_hostname="ok.example") as sock:
            talk = Talk(sock)
            talk.send(get("/a"))
            assert talk.answer().body == b"hello"
            talk.send(get("/b"))
            assert talk.answer().status == 403
        with namespace.connect("raw.example", 7) as raw:
            raw.sendall(b"x" * 100_000)
            raw.shutdown(socket.SHUT_WR)
            assert len(b"".join(iter(lambda: raw.recv(1 << 16), b""))) == 100_000
        reasons, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert [message.one("authorization") for message in service.seen] == [f"Bearer {secret}"]
    assert {"rule", "no-rule", "closed"} <= set(json.loads(reasons))
    (log,) = (tmp_path / "audit").iterdir()
    assert "ok.example" in log.read_text()


REPORT = """
import json, os, sys
from pathlib import Path
from keyhole.confine.lockdown import lock_down
held = lock_down([Path("/nonexistent")], [Path(sys.argv[1])])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([[p.name, p.on, p.note] for p in held]))
print(json.dumps({k: v.strip() for k, v in status.items()}))
"""


def test_what_stands_is_said_and_is_so(person: Person) -> None:
    done = subprocess.run(
        [person.program.with_name("python"), "-I", "-c", REPORT, person.directory],
        cwd="/", env={}, capture_output=True, text=True, check=True, timeout=PATIENCE,
        **person.become(),
    )  # fmt: skip
    held, status = map(json.loads, done.stdout.splitlines())
    assert [(name, on) for name, on, _ in held] == [
        ("no-new-privileges", True), ("capabilities", True),
        ("files", landlock.find_abi() > 0), ("system-calls", True),
    ]  # fmt: skip
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    sets = ["CapInh", "CapPrm", "CapEff", "CapAmb", *(["CapBnd"] if person.is_root else [])]
    assert {int(status[name], 16) for name in sets} == {0}
    notes = {name: note for name, _, note in held}
    assert ("bounding" in notes["capabilities"]) is not person.is_root
    assert notes["files"].startswith(f"Landlock ABI {landlock.find_abi()}")
    assert ("signalled" in notes["system-calls"]) is not can_pin_peers()


def test_with_another_thread_nothing_is_locked_down(tmp_path: Path) -> None:
    """Half a lock-down would be called one: the other thread would stay free."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(SetupFailed, match="other threads"):
            lock_down([], [tmp_path])
    finally:
        done.set()
        thread.join()
    status = Path("/proc/self/status").read_text()
    assert "NoNewPrivs:\t0" in status
    assert "Seccomp:\t0" in status


WITH_A_RING = """
import os, sys
from pathlib import Path
import uvloop
from keyhole.confine import lockdown
from keyhole.model.errors import SetupFailed

loop = uvloop.new_event_loop()
links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
print("a ring" if any(os.readlink(each) == lockdown._RING for each in links) else "none")
try:
    lockdown.lock_down([], [Path(sys.argv[1])])
except SetupFailed as error:
    print(error)
print("NoNewPrivs:\\t0" in Path("/proc/self/status").read_text())
"""


def test_with_a_ring_nothing_is_locked_down(tmp_path: Path) -> None:
    """libuv would end the process with its first turn, and nobody would know why. In a process of
    its own, since other tests may have left a thread in this one."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_RING, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    ring, *said = done.stdout.splitlines()
    if ring == "none":
        pytest.skip("libuv makes no ring here")
    assert "io_uring" in said[0]
    assert said[1] == "True"


def test_what_an_older_kernel_cannot_hold_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules of each ABI, as they are handed to the kernel, and words for the rest."""
    calls: list[tuple[object, ...]] = []

    def call(number: int, *words: object) -> int:
        calls.append((number, *words))
        return os.open("/dev/null", os.O_RDONLY) if number == 444 else 0

    monkeypatch.setattr(landlock, "_call", call)
    sizes, rights, lacking = [], [], []
    for abi in range(1, 8):
        monkeypatch.setattr(landlock, "find_abi", lambda abi=abi: abi)
        calls.clear()
        held = landlock.restrict([Path("/etc"), tmp_path / "missing"], [Path("/usr")])
        (_, attributes, size, _), _read, written, (number, *_) = calls
        assert isinstance(attributes, bytes)
        assert isinstance(written[3], bytes)
        assert (len(attributes), number) == (size, 446)
        sizes.append(size)
        handled = int.from_bytes(attributes[:8], "little")
        rights.append(handled)
        granted = int.from_bytes(written[3][:8], "little")
        assert granted & ~handled == 0, "more than is handled is refused by the kernel"
        assert granted & 1 == 0, "nothing is executed"
        lacking.append(len(held.lacking))
    assert sizes == [8, 8, 8, 16, 16, 24, 24]
    assert [bin(each).count("1") for each in rights] == [13, 14, 15, 15, 16, 16, 16]
    assert lacking == [5, 4, 3, 2, 1, 0, 0]


def test_without_landlock_it_is_said_and_the_rest_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "find_abi", lambda: 0)
    (files,) = lockdown._restrict([], [])
    assert (files.name, files.on) == ("files", False)
    assert "Landlock" in files.note


def test_a_tree_to_write_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not would be made by somebody else, and is not ours then. The kernel is not
    called: a test that fails would lock down all that come after it."""
    calls: list[int] = []

    def call(number: int, *_: object) -> int:
        calls.append(number)
        return os.open("/dev/null", os.O_RDONLY) if number == landlock._SYS_CREATE_RULESET else 0

    monkeypatch.setattr(landlock, "_call", call)
    with pytest.raises(FileNotFoundError):
        landlock.restrict([], [tmp_path / "missing"])
    assert calls == [landlock._SYS_CREATE_RULESET], "nothing was restricted"
    landlock.restrict([], [tmp_path])
    assert calls[-1] == landlock._SYS_RESTRICT_SELF


def test_packages_that_are_links_are_read_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landlock goes by where a file is, and some installers link packages into an environment."""
    for name in ("kept/linked_package", "environment", "unused"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "kept/linked_package/__init__.py").touch()
    (tmp_path / "environment/linked_package").symlink_to(tmp_path / "kept/linked_package")
    monkeypatch.setattr("sys.path", [str(tmp_path / "unused"), str(tmp_path / "environment")])
    importlib.import_module("linked_package")
    found = lockdown._modules()
    assert {tmp_path / "environment", tmp_path / "kept/linked_package"} <= set(found)
    assert not {tmp_path / "unused", tmp_path, tmp_path / "kept"} & set(found)


def test_memory_that_cannot_stay_locked_is_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next page would be refused as soon as the capability is gone."""
    monkeypatch.setattr(syscalls, "unlock_memory", lambda: True)
    monkeypatch.setattr(resource, "setrlimit", _no)
    assert not lockdown._may_keep_memory_locked()
    monkeypatch.setattr(syscalls, "unlock_memory", lambda: False)
    assert lockdown._may_keep_memory_locked()


def _no(*_: object) -> None:
    raise ValueError("not allowed to raise maximum limit")


def test_a_call_is_on_one_list() -> None:
    everywhere = [*ALLOWED, *KILLED, *REFUSED]
    assert len(everywhere) == len(set(everywhere))


# ── the control process ───────────────────────────────────────────────────────────────────────────

CONTROL = """
import ctypes, errno, json, os, subprocess, sys
from pathlib import Path
from keyhole.confine.lockdown import lock_down_control
state, secret, elsewhere = map(Path, sys.argv[1:4])
def tried(work):
    try:
        return str(work()).strip() or "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
def start(*words):
    return subprocess.run(words, capture_output=True, text=True, env={}).stdout
def python(text):
    return start(sys.executable, "-I", "-c", text)
def ptrace():
    pid = os.fork()
    if not pid:
        os._exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit"
deeds = {
    "its own": lambda: (state / "file").write_text("x"),
    "a secret": secret.read_text,
    "elsewhere": lambda: (elsewhere / "file").write_text("x"),
    "a data plane": lambda: python("import uvloop, keyhole.app.daemon.data_plane; print('here')"),
    "a shell": lambda: start("/bin/sh", "-c", "echo here"),
    "a data plane's secret": lambda: python(f"print(open({str(secret)!r}).read())"),
    "ptrace": ptrace,
}
free = {name: tried(deed) for name, deed in deeds.items()}
held = lock_down_control([], [state])
locked = {name: tried(deed) for name, deed in deeds.items()}
print(json.dumps([free, locked, [[p.name, p.on] for p in held]]))
"""


@pytest.mark.skipif(not landlock.find_abi(), reason="this kernel has no Landlock")
def test_a_control_process_can_start_a_data_plane_and_little_else(tmp_path: Path) -> None:
    """I1, I11: what it starts is held by the same walls. The control is the same deed before."""
    places = [tmp_path / name for name in ("state", "secret", "elsewhere")]
    for place in (places[0], places[2]):
        place.mkdir()
    places[1].write_text("tok-0123456789")
    done = subprocess.run(
        [sys.executable, "-I", "-c", CONTROL, *map(str, places)],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    free, locked, held = json.loads(done.stdout)
    assert free == {
        "its own": "1", "a secret": "tok-0123456789", "elsewhere": "1", "a data plane": "here",
        "a shell": "here", "a data plane's secret": "tok-0123456789", "ptrace": "exit",
    }  # fmt: skip
    assert locked == {
        "its own": "1", "a secret": "EACCES", "elsewhere": "EACCES", "a data plane": "here",
        "a shell": "EACCES", "a data plane's secret": "ok", "ptrace": str(int(signal.SIGSYS)),
    }  # fmt: skip
    assert held == [["control-files", True], ["control-system-calls", True]]
