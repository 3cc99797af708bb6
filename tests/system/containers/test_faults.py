"""Any one part is killed, or somebody does something to a sandbox by its engine: what is left is
closed or works, and is never open."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import docker
import pytest

from keyhole.sandbox.containers.container_start import HOLDER_ENDED
from keyhole.sandbox.containers.engine_client import NotInEngine
from tests.rigs.sandbox.projects import line_of, rest_of, until_nobody_is_in
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.containers.billing import Billing
    from tests.rigs.containers.engines import OwnEngine
    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.people import Person
    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

Api: TypeAlias = Any
"""A client of the engine, of a package without types."""

NAMESPACE = "ls -l /proc/self/ns/net"
BUSY = f"""
{NAMESPACE}
curl -sk https://origin.example/endless >/dev/null &
while :; do curl -sk -m 5 https://origin.example/x && echo || echo closed; sleep 0.05; done
"""
"""A stream that never ends, and a request after another."""


class Busy:
    """A sandbox that streams and asks all the time, and what is known of it outside."""

    def __init__(self, process: subprocess.Popen[bytes], dockerd: OwnEngine) -> None:
        self.process = process
        self.namespace = namespace_of(process)
        self.until_served()
        found = containers_in(self.namespace, dockerd)
        self.holder, self.sandbox = found["holder"], found["sandbox"]
        self.pids = {each: dockerd.engine.state(each).pid for each in (self.holder, self.sandbox)}
        # Open, it keeps the network that it tells of, also when nobody is left in it.
        self._devices = Path(f"/proc/{self.pids[self.holder]}/net/dev").open()  # noqa: SIM115

    def until_served(self) -> None:
        """Until the origin answers it."""
        while line_of(self.process.stdout) != "hello /x":
            pass

    def until_closed(self) -> None:
        """Until it is answered no longer."""
        while line_of(self.process.stdout) != "closed":
            pass

    def assert_no_interface(self) -> None:
        """But `lo`."""
        self._devices.seek(0)
        names = [line.partition(":")[0].strip() for line in self._devices.readlines()[2:]]
        assert names == ["lo"]

    def __enter__(self) -> Busy:
        self.assert_no_interface()
        return self

    def __exit__(self, *_: object) -> None:
        self._devices.close()


@pytest.fixture(scope="module")
def project(new_project: Callable[..., Boxed], origin: GitAndWeb) -> Boxed:
    """One that may ask the origin."""
    return new_project(origin.policy("origin.example"))


@pytest.fixture
def busy(project: Boxed, dockerd: OwnEngine, origin: GitAndWeb) -> Iterator[Busy]:
    """One with a gateway of its own; whatever a test does, everything of it ends."""
    with (
        project.running("sh", "-c", f'trap "" TERM HUP; {BUSY}') as process,
        Busy(process, dockerd) as made,
    ):
        yield made
        until_nobody_is_in(made.namespace)
    origin.until_idle()
    project("prune")
    until(lambda: dockerd.left() == [])
    assert not [each for each in (project.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


def kill_run(busy: Busy, client: Api) -> None:
    busy.process.send_signal(signal.SIGKILL)


def kill_holder(busy: Busy, client: Api) -> None:
    client.kill(busy.holder)


def kill_sandbox(busy: Busy, client: Api) -> None:
    client.kill(busy.sandbox)


def kill_holders_shim(busy: Busy, client: Api) -> None:
    os.kill(parent_of(busy.pids[busy.holder]), signal.SIGKILL)


def kill_sandboxs_shim(busy: Busy, client: Api) -> None:
    os.kill(parent_of(busy.pids[busy.sandbox]), signal.SIGKILL)


def restart_holder(busy: Busy, client: Api) -> None:
    """It has nobody to register with, so it makes no second door."""
    with contextlib.suppress(docker.errors.APIError):  # it removes itself when it has ended
        client.restart(busy.holder, timeout=1)


@pytest.fixture(scope="module")
def client(dockerd: OwnEngine) -> Iterator[Api]:
    """The engine as whoever else may use it has it."""
    made = docker.APIClient(f"unix://{dockerd.socket}")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("kill", "code", "told"),
    [
        (kill_run, -signal.SIGKILL, False),
        (kill_holder, 137, True),
        (kill_sandbox, 137, False),
        (kill_holders_shim, 137, True),
        (kill_sandboxs_shim, 137, False),
        (restart_holder, 137, True),
    ],
)
def test_whichever_part_is_killed_nobody_is_left_and_nothing_is_asked(
    busy: Busy,
    client: Api,
    dockerd: OwnEngine,
    origin: GitAndWeb,
    kill: Callable[[Busy, Api], None],
    code: int,
    told: bool,
) -> None:
    """I2. The control: it was served until then."""
    kill(busy, client)
    until_nobody_is_in(busy.namespace)
    busy.assert_no_interface()
    origin.until_idle()
    asked = origin.connections
    assert busy.process.wait(PATIENCE) == code
    assert told == (HOLDER_ENDED in rest_of(busy.process.stderr).decode())
    until(lambda: not dockerd.engine.running())
    until(lambda: dockerd.left() == (["sandbox"] if kill is kill_run else []))
    # What is left of the sandbox can be started again by nobody: its network is gone.
    with pytest.raises(docker.errors.APIError):
        client.start(busy.sandbox)
    assert origin.connections == asked


def test_an_engine_that_is_killed_ends_its_runs_and_the_next_one_has_no_way_in(
    project: Boxed, dockerd: OwnEngine, origin: GitAndWeb
) -> None:
    """I2: also where it would leave its containers alone, since the streams went with it. The
    control: the next run is served as the one before."""
    for next_flags in (("--live-restore",), ()):
        with project.running("sh", "-c", BUSY) as process, Busy(process, dockerd) as busy:
            dockerd.kill()
            until_nobody_is_in(busy.namespace)
            busy.assert_no_interface()
            origin.until_idle()
            asked = origin.connections
            said = rest_of(process.stderr).decode()
            assert process.wait(PATIENCE) == 125
        assert said.count("the run was ended: the engine lost the sandbox") == 1, said
        assert said.count("the engine is not heard any more") <= 1, said
        dockerd.restart(*next_flags)
        assert project("prune").code == 0
        until(lambda: dockerd.left() == [])
        assert origin.connections == asked


def test_a_gateway_that_is_killed_leaves_a_container_closed_and_the_next_one_ends_it(
    project: Boxed, dockerd: OwnEngine, origin: GitAndWeb
) -> None:
    """I2: it lives, and reaches nothing. The control: it did."""
    shared = {"XDG_RUNTIME_DIR": str(project.home)}
    assert project("up", env=shared).code == 0
    gateway = json.loads(project("status", "--json", env=shared).out)["pid"]
    with project.running("sh", "-c", BUSY, env=shared) as process, Busy(process, dockerd) as busy:
        os.kill(gateway, signal.SIGKILL)
        busy.until_closed()
        origin.until_idle()
        asked = origin.connections
        busy.until_closed()
        assert process.poll() is None
        assert origin.connections == asked
        assert project("up", env=shared).code == 0
        until_nobody_is_in(busy.namespace)
        busy.assert_no_interface()
        process.wait(PATIENCE)
    assert project("down", env=shared).code == 0
    until(lambda: dockerd.left() == [])


# ── while it is made ──────────────────────────────────────────────────────────────────────────────


class Between:
    """Sits between a run and its engine, and kills the run at one of its questions, or does
    something else to it (`act`), after which the question goes its way."""

    def __init__(self, at: Path, engine: OwnEngine, person: Person) -> None:
        self._engine = str(engine.socket)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(at))
        os.chown(at, 0, person.gid)
        os.chmod(at, 0o660)
        self._listener.listen(16)
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = threading.Event()
        self.act: Callable[[], None] | None = None
        self._question, self._nth, self._answered = b"", 0, False
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def kill_at(self, question: str, nth: int, *, answered: bool) -> None:
        """Kill it before a question reaches the engine, or when the engine has answered."""
        self._question, self._nth, self._answered = question.encode(), nth, answered

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._engine)
            threading.Thread(target=self._relay, args=(near, far), daemon=True).start()

    def _is_it(self, line: bytes) -> bool:
        found = re.search(self._question, line) is not None
        self._nth -= found
        return found and self._nth == 0

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        """To the end of both."""
        waits, ends = False, [near, far]
        with near, far, contextlib.suppress(OSError):
            while ends:
                for ready in select.select(ends, [], [])[0]:
                    data = ready.recv(65536)
                    hit = ready is near and self._is_it(data.partition(b"\r\n")[0])
                    if (hit and not self._answered) or (waits and ready is far):
                        if self.act is None:
                            assert self.process is not None
                            self.process.kill()
                            self.killed.set()
                            return
                        self.act()
                        self.killed.set()
                        hit = waits = False
                    waits = waits or hit
                    other = far if ready is near else near
                    if data:
                        other.sendall(data)
                    else:
                        ends.remove(ready)
                        other.shutdown(socket.SHUT_WR)


_CREATE = "POST .*/containers/create.name=keyhole-[0-9a-f]{12}"
_HOLDER_STARTS = "POST .*/containers/keyhole-[0-9a-f]{12}-holder/start "
_SANDBOX_STARTS = "POST .*/containers/[0-9a-f]{64}/start "


@pytest.mark.parametrize(
    ("question", "nth", "answered"),
    [
        (f"{_CREATE}-holder ", 1, True),
        (_HOLDER_STARTS, 1, True),
        # The second: in the first one the walls are tried.
        (f"{_CREATE} ", 2, True),
        (_SANDBOX_STARTS, 2, False),
    ],
    ids=["holder made", "holder started", "sandbox made", "door handed over"],
)
def test_a_run_that_is_killed_while_its_sandbox_is_made_leaves_nothing_that_runs(
    project: Boxed,
    dockerd: OwnEngine,
    person: Person,
    ground: Path,
    question: str,
    nth: int,
    answered: bool,
    request: pytest.FixtureRequest,
) -> None:
    """I2: whatever of it exists by then, the engine runs none of it, and `prune` removes it."""
    # Of its own, so that the walls are tried each time: that makes the first holder and sandbox.
    at = ground / f"{request.node.callspec.id.replace(' ', '-')}.sock"
    between = Between(at, dockerd, person)
    between.kill_at(question, nth, answered=answered)
    try:
        between.process = project.start(
            "run", "--trust", "--", "sleep", "300", env={"DOCKER_HOST": f"unix://{at}"}
        )
        assert between.killed.wait(PATIENCE)
        rest_of(between.process.stderr)
        between.process.wait(PATIENCE)
    finally:
        between.close()
        at.unlink()
        for pipe in (between.process.stdout, between.process.stderr) if between.process else ():
            assert pipe is not None
            pipe.close()
    until(lambda: not set(dockerd.engine.running()))
    assert project("prune").code == 0
    assert dockerd.left() == []
    assert not [each for each in (project.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


_STEPS = {
    "holder": (f"{_CREATE}-holder ", 1),
    "home": ("POST .*/volumes/create", 1),
    # Its walls are tried by another holder and another sandbox, which no record names.
    "trial-holder": (f"{_CREATE}-holder ", 2),
    "trial": (f"{_CREATE} ", 1),
    "trial-starts": (_SANDBOX_STARTS, 2),
    "sandbox": (f"{_CREATE} ", 2),
    "starts": (_SANDBOX_STARTS, 3),
}


def _moments() -> Iterator[Any]:
    """Each step when the engine is asked for it, and when it has answered; `make test` tries one of
    the two, in turn."""
    for number, (name, step) in enumerate(_STEPS.items()):
        for answered, moment in enumerate(("asked", "answered")):
            marks = [] if answered == number % 2 else [pytest.mark.attack]
            yield pytest.param(*step, bool(answered), id=f"{name}-{moment}", marks=marks)


@pytest.mark.parametrize(("question", "nth", "answered"), [*_moments()])
def test_a_supervisor_that_is_terminated_at_any_step_removes_all_that_it_made(
    project: Boxed,
    dockerd: OwnEngine,
    person: Person,
    ground: Path,
    question: str,
    nth: int,
    answered: bool,
    request: pytest.FixtureRequest,
) -> None:
    """I2: `keyhole new` terminates it when it is interrupted, and nothing is left when it returns:
    also of what the engine was still busy with."""
    at = ground / f"{request.node.callspec.id}.sock"
    sandboxes = project.home / "state/keyhole/sandboxes"

    def terminate() -> None:
        life = json.loads((sandboxes / "given-up/life").read_text("utf-8"))
        os.kill(life["pid"], signal.SIGTERM)

    between = Between(at, dockerd, person)
    between.act = terminate
    between.kill_at(question, nth, answered=answered)
    try:
        said = project("new", "given-up", "--trust", env={"DOCKER_HOST": f"unix://{at}"})
    finally:
        between.close()
        at.unlink()
    assert between.killed.is_set()
    assert said.code == 2, said
    assert dockerd.left() == []
    assert not list(sandboxes.iterdir())
    assert not [each for each in (project.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


# ── what others do by the engine ──────────────────────────────────────────────────────────────────


def test_a_container_that_somebody_attaches_is_told_of_and_written_down(
    project: Boxed, dockerd: OwnEngine, client: Api, image: str
) -> None:
    """I5: to the holder, to the sandbox by name, among its processes, by way of another, and for a
    moment only. The control: one that is attached to nobody is not told of."""
    shared = {"XDG_RUNTIME_DIR": str(project.home)}
    assert project("up", env=shared).code == 0
    with (
        project.running("sh", "-c", f"{NAMESPACE}; exec sleep 300", env=shared) as process,
        contextlib.ExitStack() as stack,
    ):
        found = containers_in(namespace_of(process), dockerd)
        name = f"keyhole-{dockerd.engine.state(found['sandbox']).labels['keyhole.session']}"

        def attach(who: str, *command: str, **modes: str | bool) -> str:
            host = {"NetworkMode": "none"} | modes
            config = {"Image": image, "Cmd": list(command), "HostConfig": host}
            made = str(client.create_container_from_config(config, who)["Id"])
            stack.callback(dockerd.engine.remove, made)
            client.start(made)
            return made

        attach("stranger", "sleep", "300")
        expected = [
            (attach("one", "sleep", "300", NetworkMode=f"container:{found['holder'][:12]}"), "one"),
            (attach("two", "sleep", "300", NetworkMode=f"container:{name}"), "two"),
            (
                attach("three", "id", PidMode=f"container:{found['holder']}", AutoRemove=True),
                "three",
            ),
            (attach("four", "id", NetworkMode="container:one", AutoRemove=True), "four"),
        ]
        for container, who in expected:
            said = line_of(process.stderr)
            assert f"the container {who} ({container[:12]}) was attached to this sandbox" in said
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert project("down", env=shared).code == 0
    written = [e["details"] for e in project.events() if e["reason"] == "foreign-container"]
    assert [(each["container"], each["name"]) for each in written] == expected


def test_an_interface_that_somebody_puts_into_its_network_ends_a_run_at_once(
    busy: Busy, client: Api, project: Boxed
) -> None:
    """I2: an engine refuses it, or does nothing to that network, which is no engine's own; root can
    do it. The control: until then it is served."""
    network = client.create_network("keyhole-test", driver="bridge")["Id"]
    for container in (busy.holder, busy.sandbox):
        with contextlib.suppress(docker.errors.APIError):
            client.connect_container_to_network(container, network)
    busy.assert_no_interface()
    busy.until_served()
    with contextlib.suppress(docker.errors.APIError):
        client.disconnect_container_from_network(busy.holder, network, force=True)
    client.remove_network(network)
    with Path(f"/proc/{busy.pids[busy.holder]}/ns/net").open() as place:
        put_interface(place.fileno())
    said = rest_of(busy.process.stderr).decode()
    assert "was put into the sandbox's network: the run is ended" in said
    assert busy.process.wait(PATIENCE) == 125
    until_nobody_is_in(busy.namespace)
    assert "interface-added" in [event["reason"] for event in project.events()]


def put_interface(network: int) -> None:
    """A pair of interfaces in a network, as root can make it; whose end takes both along."""
    code = (
        "import ctypes, socket, struct, sys\n"
        "assert ctypes.CDLL(None, use_errno=True).setns(int(sys.argv[1]), 0) == 0\n"
        "def attribute(kind, data):\n"
        "    return struct.pack('=HH', 4 + len(data), kind) + data + bytes(-len(data) % 4)\n"
        "info = attribute(1, b'veth\\0')\n"  # IFLA_INFO_KIND of rtnetlink(7)
        "body = struct.pack('=BxHiII', 0, 0, 0, 0, 0) + attribute(18, info)\n"  # IFLA_LINKINFO
        "link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
        "link.send(struct.pack('=IHHII', 16 + len(body), 16, 0x605, 1, 0) + body)\n"
        "assert struct.unpack_from('=i', link.recv(4096), 16)[0] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code, str(network)], check=True, pass_fds=[network])


# ── two at once ───────────────────────────────────────────────────────────────────────────────────

KEY = "s3cr3t-of-number-{}-of-two"
ASK = ("curl", "-sS", "-m", "20", "https://origin.example/x")


def test_two_containers_have_each_their_own_secret_and_what_is_executed_in_one_has_its(
    new_project: Callable[..., Boxed],
    project: Boxed,
    dockerd: OwnEngine,
    authority: trustme.CA,
    service: Billing,
    client: Api,
) -> None:
    """I1, I5: under one gateway, for the same host; the door is the identity. One is restarted by
    its engine, which is its end; the other works on."""
    projects = [new_project(service.policy.replace("~/key", f"~/key{n}")) for n in (0, 1)]
    for number, each in enumerate(projects):
        path = projects[0].home / f"key{number}"  # the gateway's home is the first one's
        path.write_text(KEY.format(number))
        path.chmod(0o600)
        each.person.own(path)
        each.write("../home/ca.pem", authority.cert_pem.bytes().decode())
    first = projects[0]
    # The state is one in which this image was tried already.
    shared = {"XDG_RUNTIME_DIR": str(first.home), "XDG_STATE_HOME": project.env["XDG_STATE_HOME"]}
    assert first("up", env=shared).code == 0
    script = NAMESPACE + '; while read line; do "$@"; echo; done'
    try:
        with contextlib.ExitStack() as stack:
            runs, ids = [], []
            for each in projects:
                run = each.running(
                    "sh", "-c", script, "sh", *ASK, env=shared, stdin=subprocess.PIPE
                )
                runs.append(stack.enter_context(run))
                ids.append(containers_in(namespace_of(runs[-1]), dockerd)["sandbox"])

            def ask(number: int) -> str:
                pipe = runs[number].stdin
                assert pipe is not None
                pipe.write(b"\n")
                pipe.flush()
                assert line_of(runs[number].stdout) == "hello /x"
                return service.seen[-1]

            def execute(number: int) -> str:
                made = client.exec_create(ids[number], list(ASK))["Id"]
                assert client.exec_start(made) == b"hello /x"
                return service.seen[-1]

            for number in (0, 1, 0):
                assert ask(number) == f"Bearer {KEY.format(number)}"
                assert execute(number) == f"Bearer {KEY.format(number)}"
            gone = os.readlink(f"/proc/{dockerd.engine.state(ids[0]).pid}/ns/net")
            with contextlib.suppress(docker.errors.APIError):
                client.restart(ids[0], timeout=0)
            assert runs[0].wait(PATIENCE) in (137, 143)
            until_nobody_is_in(gone)
            assert ask(1) == f"Bearer {KEY.format(1)}"
    finally:
        assert first("down", env=shared).code == 0
        assert first("prune", env=shared).code == 0
    until(lambda: dockerd.left() == [])


def namespace_of(process: subprocess.Popen[bytes]) -> str:
    """The network that a command says it is in."""
    return line_of(process.stdout).split()[-1]


def containers_in(namespace: str, dockerd: OwnEngine) -> dict[str, str]:
    """The holder and the sandbox of a network, by id; those of a trial may still be ending."""
    found = {}
    for each in dockerd.engine.containers():
        with contextlib.suppress(NotInEngine, OSError):
            pid = dockerd.engine.state(each.id).pid
            if os.readlink(f"/proc/{pid}/ns/net") == namespace:
                found[each.labels["keyhole"]] = each.id
    return found


def parent_of(pid: int) -> int:
    """The process that started it: an engine's shim for a container's first process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])
