"""The long part of the cluster's tests, in `make attack`: an agent that is killed 200 times, a full
node, and the price of a door at a pod's start."""

from __future__ import annotations

import contextlib
import enum
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lightkube import codecs

from tests.rigs.kube.node import NODE, PORT
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.kube.estate import Estate

pytestmark = pytest.mark.attack

KILLS = int(os.environ.get("KILLS") or 200)
SEED = int(os.environ.get("SEED") or 20)
ROUND = 10
"""Kills from one agent that is left alone to the next."""

PODS = int(os.environ.get("PODS") or 110)
"""Pods on one node: as many as a kubelet runs unless it is told otherwise."""

PAIRS = 15
MOST_RATIO = 1.3
"""A pod's start with a door, against one without."""

MOST_ADD_MS = 150
"""The plugin, from the start of its process to its end: of which the agent has about a half."""

MOST_MIB_PER_POD = 12
"""Memory of the agent and its gateway for each pod on a full node."""

ASK = ("curl", "-sS", "--max-time", "20", "--cacert", "/etc/keyhole/bundle.pem")

PROBE = f"""
import os, socket, time
count = 0
def links():
    with open("/proc/net/dev") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]]
def talks():
    try:
        with socket.create_connection(("{NODE}", {PORT}), 1) as sock:
            sock.settimeout(1)
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return bool(sock.recv(1))
    except OSError:
        return False
while True:
    found = [each for each in links() if each != "lo"]
    if found or talks():
        with open("/tmp/open", "a") as file:
            print(time.time(), found, file=file)
    count += 1
    with open("/tmp/count.new", "w") as file:
        file.write(str(count))
    os.replace("/tmp/count.new", "/tmp/count")
    time.sleep(0.01)
"""
"""From a pod's first instruction on: looks for an interface, and talks to the API server."""


class MarkedPod:
    """A pod that runs a Python program, whose files are read from the node: a command in a pod
    takes longer than the start of an agent on a busy machine."""

    def __init__(
        self, estate: Estate, name: str, program: str, *, selected: bool, tokens: bool = False
    ) -> None:
        self._mark = f"{name}-{os.getpid()}".encode()
        self._process: Path | None = None
        pod = estate.pod(name, selected=selected)
        command = ["python3", "-c", program, self._mark.decode()]
        pod["spec"]["containers"][0]["command"] = command
        pod["spec"]["automountServiceAccountToken"] = tokens
        self.created = time.time()
        estate.create(pod)

    def read(self, name: str) -> str:
        """The content of a file in its /tmp; empty if there is none."""
        if self._process is None:
            self._process = self._find()
        try:
            return (self._process / "root/tmp" / name).read_text() if self._process else ""
        except FileNotFoundError:
            return ""

    def _find(self) -> Path | None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == b"python3" and words[-2:] == [self._mark, b""]:
                return path.parent
        return None


class Probe:
    """A pod with the probe, and its findings."""

    def __init__(self, estate: Estate, name: str, *, selected: bool) -> None:
        self.name = name
        self._estate = estate
        self._files = MarkedPod(estate, name, PROBE, selected=selected)

    @property
    def looks(self) -> int:
        """How often it has looked."""
        return int(self._files.read("count") or 0)

    @property
    def found(self) -> str:
        """What was open."""
        return self._files.read("open")

    def wait(self, looks: int = 1) -> None:
        """Wait until it has looked so often."""
        until(lambda: self.looks >= looks, pause=0.05, told=lambda: self._estate.said[-3000:])

    def assert_closed(self) -> None:
        """It has found nothing, and looks again after this moment."""
        self.wait(self.looks + 2)
        assert not self.found, self.found

    def remove(self) -> None:
        """Delete the pod."""
        self._estate.remove(self.name)


def test_an_agent_that_is_killed_at_any_moment_leaves_no_pod_open_i2(estate: Estate) -> None:
    """Before it serves and after; every tenth time in the start of a new pod, whose door the next
    agents are killed over. An unselected pod with the same probe is the control."""
    dice = random.Random(SEED)  # noqa: S311 - moments to kill at
    control = Probe(estate, "control", selected=False)
    watched = Probe(estate, "watched", selected=True)
    for each in (control, watched):
        each.wait()
    begun = time.monotonic()
    estate.kill_agent()
    estate.start_agent()
    serves_after = time.monotonic() - begun
    starts_after = estate.run("measured", selected=True)
    estate.remove("measured")
    begun = time.monotonic()
    for count in range(KILLS):
        if count % ROUND == 0:
            newer = Probe(estate, f"newer-{count}", selected=True)
            time.sleep(dice.uniform(0, starts_after))
        else:
            estate.launch_agent()
            time.sleep(dice.uniform(0, 1.3 * serves_after))
        estate.kill_agent()
        watched.assert_closed()
        if count % ROUND == ROUND - 1 or count == KILLS - 1:
            estate.start_agent()
            newer.wait()
            newer.assert_closed()
            newer.remove()
    seconds = time.monotonic() - begun
    sys.stderr.write(
        f"\n{KILLS} kills in {seconds:.0f} s; an agent serves after {serves_after:.1f} s\n"
    )
    until(lambda: estate.inside("watched", *ASK, "https://one.example/v1/k")[0] == 0, pause=0.3)
    watched.assert_closed()
    assert control.found, "the control: the probe finds what is open"
    for each in (control, watched):
        each.remove()


TIMER = """#!/bin/sh
begun=$(date +%s%N)
/opt/cni/bin/keyhole.timed
code=$?
echo "$CNI_COMMAND $CNI_ARGS; $((($(date +%s%N) - begun) / 1000))" >>/run/keyhole/timed
exit $code
"""
"""In the plugin's place: runs it, and writes how many microseconds it took."""


@contextlib.contextmanager
def timed_plugin(estate: Estate) -> Iterator[Callable[[str], float]]:
    """Gives the seconds that the plugin took for the ADD of a pod."""
    place = Path(f"/proc/{estate.pid}/root/opt/cni/bin/keyhole")
    place.rename(place.with_name("keyhole.timed"))
    place.write_text(TIMER)
    place.chmod(0o755)

    def of(pod: str) -> float:
        lines = estate.on_node("/bin/cat", "/run/keyhole/timed").splitlines()
        (found,) = [each for each in lines if each.startswith("ADD") and f"NAME={pod};" in each]
        return int(found.rpartition("; ")[2]) / 1e6

    try:
        yield of
    finally:
        place.with_name("keyhole.timed").rename(place)


BORN = """
import os, time
with open("/tmp/born.new", "w") as file:
    file.write(str(time.time()))
os.replace("/tmp/born.new", "/tmp/born")
time.sleep(1e6)
"""


class PodKind(enum.Enum):
    """The pods whose starts are compared."""

    BARE = enum.auto()
    """No door, and no volume: its kubelet has nothing to mount."""
    PLAIN = enum.auto()
    """No door, and the volume with a token that Kubernetes gives a pod by default. A kubelet looks
    three times a second whether volumes are mounted."""
    BOXED = enum.auto()
    """The same with a door."""


def start_time(estate: Estate, name: str, kind: PodKind) -> float:
    """Seconds from a pod's creation to its first instruction. The phase of a pod would not do: a
    kubelet looks for changes once a second."""
    boxed, tokens = kind is PodKind.BOXED, kind is not PodKind.BARE
    pod = MarkedPod(estate, name, BORN, selected=boxed, tokens=tokens)
    until(lambda: pod.read("born"), pause=0.05, told=lambda: estate.said[-3000:])
    return float(pod.read("born")) - pod.created


def test_a_pods_start_takes_hardly_longer_with_a_door(estate: Estate) -> None:
    took: dict[PodKind, list[float]] = {each: [] for each in PodKind}
    added: dict[PodKind, list[float]] = {each: [] for each in PodKind}
    with timed_plugin(estate) as seconds_of:
        for count in range(PAIRS):
            for kind in list(PodKind) if count % 2 else reversed(PodKind):
                name = f"timed-{count}-{kind.name}".lower()
                took[kind].append(start_time(estate, name, kind))
                added[kind].append(seconds_of(name))
                estate.remove(name)
    pairs = zip(took[PodKind.PLAIN], took[PodKind.BOXED], strict=True)
    ratio = statistics.median(with_door / plain for plain, with_door in pairs)
    for kind in PodKind:
        start, add = (statistics.median(each[kind]) for each in (took, added))
        said = f"{kind.name.lower()}: start {start:.2f} s, the plugin's ADD {add * 1000:.0f} ms"
        sys.stderr.write(f"\n{said}")
    sys.stderr.write(f"\nwith a door, against plain: {ratio:.2f}\n")
    assert ratio <= MOST_RATIO
    assert statistics.median(added[PodKind.BOXED]) * 1000 <= MOST_ADD_MS


def test_a_full_node_has_a_door_for_each_pod_i12(estate: Estate) -> None:
    before, begun = _memory(estate), time.monotonic()
    names = [f"full-{number}" for number in range(PODS)]
    for name in names:
        estate.client.create(codecs.from_dict(estate.pod(name, selected=True)))
    until(
        lambda: all(estate.phase(each) == "Running" for each in names),
        seconds=1800, pause=2, told=lambda: estate.said[-3000:],
    )  # fmt: skip
    seconds = time.monotonic() - begun
    for name in names[::10]:
        assert estate.inside(name, *ASK, f"https://one.example/v1/{name}")[0] == 0, name
        assert len(estate.inside(name, "ip", "-o", "link")[1].strip().splitlines()) == 1
    each = (_memory(estate) - before) / PODS
    sys.stderr.write(f"\n{PODS} pods: {seconds:.0f} s, {each:.1f} MiB of the agent for each\n")
    assert each <= MOST_MIB_PER_POD
    for name in names:
        estate.remove(name)


def _memory(estate: Estate) -> float:
    """MiB of the agent, its gateway and all their processes, shared pages by their parts."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/smaps_rollup"):
        try:
            if b"keyhole" not in (status.parent / "cmdline").read_bytes():
                continue
            if os.readlink(status.parent / "ns/pid") != os.readlink(f"/proc/{estate.pid}/ns/pid"):
                continue
            lines = status.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
