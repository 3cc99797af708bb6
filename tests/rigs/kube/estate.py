"""A cluster with Keyhole on its node: the agent, an origin that wants a credential, pods.

The test's own process enters the node's network, so that the API server and the origin are on its
loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trustme
from httpx2 import HTTPTransport
from lightkube import Client, KubeConfig, codecs
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod, ServiceAccount

from keyhole.app.kube.resources import AWAY, ClusterKeyholePolicy, KeyholePolicy
from keyhole.system import syscalls
from tests.rigs.containers.engines import ROOTS, WORKBENCH, HostTree
from tests.rigs.daemon.origin import Origin
from tests.rigs.kube.binaries import cache
from tests.rigs.kube.cluster import ROOT, Cluster
from tests.rigs.kube.images import docker_archive, load
from tests.rigs.kube.node import NODE, RUNTIME_SERVES
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_IP = "/sbin/ip"
_CTR = ("/usr/bin/ctr", "--namespace", "k8s.io")

KUBERNETES = ROOT / "packaging/kubernetes"
CRDS = KUBERNETES / "chart/files/crds.yaml"
READER_SECONDS = 5.0
"""How long a thread that reads from a closed WebSocket may take to end."""
_ADMISSION = 8443
"""The port of admission, on the node."""
_NETWORK = 0x40000000
"""CLONE_NEWNET."""

SECRET = "made-up-for-this-cluster-0123456789"

POLICY = """\
version = 1
[services.one]
hosts  = ["one.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "kube:one/token"
env    = ["ONE_KEY"]
allow  = ["GET /v1/**"]
"""


class Estate:
    """One cluster, for all tests of a run."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory / f"keyhole-cluster-{os.getpid()}")
        self.cluster.start()
        self.pid = self.cluster.pid
        with open(f"/proc/{self.pid}/ns/net", "rb") as network:
            syscalls.enter_namespace(network.fileno(), _NETWORK)
        config = KubeConfig.from_file(self.cluster.kubeconfig)
        self.client = Client(
            config, field_manager="tests", trust_env=False, transport=_connecting_again(config)
        )
        self.authority = trustme.CA()
        # Where the node and its pods can reach it.
        self.origin = Origin(self.authority, NODE)
        self._log = self.cluster.directory / "agent.log"
        self._agent: subprocess.Popen[bytes] | None = None
        self._admission: subprocess.Popen[bytes] | None = None
        self._started_again: list[subprocess.Popen[bytes]] = []
        try:
            self._load_images()
            self._prepare()
        except BaseException:
            self.close()
            raise

    # ── the agent ─────────────────────────────────────────────────────────────────────────────────

    def start_agent(self) -> None:
        """Start it as the node's, and wait until it serves the kubelet."""
        began = self.said.count(SERVED)
        self.launch_agent()
        until(lambda: self.said.count(SERVED) > began, told=lambda: self.said[-3000:])

    def launch_agent(self) -> None:
        """Start it, and do not wait."""
        with self._log.open("ab") as log:
            words = self.words("kube", "agent", "--node", "node")
            self._agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def agent_runs(self) -> bool:
        """Whether the agent has not ended."""
        return self._agent is not None and self._agent.poll() is None

    def kill_agent(self) -> None:
        """As the kernel does it: nothing of it can clean up."""
        if self._agent is not None:
            kill_entered(self._agent)
            self._agent = None

    @property
    def said(self) -> str:
        """What the agent has said."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def _introduce_admission(self) -> None:
        """Tell the API server by which address it finds admission on the node."""
        for found in _manifests("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for hook in found.webhooks:
                service, hook.clientConfig.service = hook.clientConfig.service, None
                hook.clientConfig.url = f"https://{NODE}:{_ADMISSION}{service.path}"
            self.client.apply(found, force=True)
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keyhole-system"}}
        )

    def start_admission(self, *flags: str) -> None:
        """Start it on the node, and do not wait."""
        words = self.words("kube", "admission", "--name", NODE, "--port", str(_ADMISSION), *flags)
        with self._log.open("ab") as log:
            self._admission = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill_admission(self) -> None:
        """As the kernel does it."""
        if self._admission is not None:
            kill_entered(self._admission)
            self._admission = None

    def words(self, *words: str) -> list[str]:
        """The words that start `keyhole` on the node."""
        return [
            "/usr/bin/nsenter", "--target", str(self.pid), "--mount", "--pid", "--net",
            "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
            "HOME=/var/lib/keyhole", "XDG_STATE_HOME=/var/lib", "XDG_RUNTIME_DIR=/run",
            "XDG_CONFIG_HOME=/var/lib/keyhole/config", f"KUBECONFIG={self.cluster.kubeconfig}",
            str(Path(sys.executable).parent / "keyhole"), *words,
        ]  # fmt: skip

    # ── objects ───────────────────────────────────────────────────────────────────────────────────

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects."""
        for each in objects:
            self.client.apply(codecs.from_dict(each), force=True)

    def pod(self, name: str, *, selected: bool, namespace: str = "default") -> dict[str, Any]:
        """A pod with tools, under the strictest of the Pod Security Standards."""
        spec: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main", "image": "keyhole.test/tools:1", "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "infinity"],
                "securityContext": {
                    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                },
            }],
        }  # fmt: skip
        metadata: dict[str, Any] = {"name": name, "namespace": namespace}
        if selected:
            metadata["labels"] = {"role": "agent"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def create(self, thing: dict[str, Any]) -> None:
        """Create an object."""
        self.client.create(codecs.from_dict(thing))

    def run(self, name: str, *, selected: bool, namespace: str = "default") -> float:
        """Start a pod, and wait until it runs; the seconds that it took."""
        self.create(self.pod(name, selected=selected, namespace=namespace))
        return until(
            lambda: self.phase(name, namespace) == "Running", told=lambda: self.said[-3000:]
        )

    def phase(self, name: str, namespace: str = "default") -> str:
        """The phase of a pod."""
        found = self.client.get(Pod, name, namespace=namespace)
        return (found.status.phase if found.status else None) or ""

    def is_there(self, name: str) -> bool:
        """Whether a pod runs, and is not being deleted."""
        try:
            found: Any = self.client.get(Pod, name, namespace="default")
        except ApiError:
            return False
        return found.status.phase == "Running" and found.metadata.deletionTimestamp is None

    def audited(self, pod: str, what: str) -> list[dict[str, Any]]:
        """The details of the events of one kind in the audit log of a pod."""
        written = self.on_node("/bin/sh", "-c", "cat /var/lib/keyhole/audit/*.jsonl")
        events = [json.loads(line) for line in written.splitlines()]
        own = {each["session"] for each in events if each.get("details", {}).get("pod") == pod}
        found = [each for each in events if each["session"] in own and each["reason"] == what]
        return [each["details"] for each in found]

    def remove(self, name: str, namespace: str = "default") -> None:
        """Delete a pod, and wait until it is gone."""
        try:
            self.client.delete(Pod, name, namespace=namespace)
        except ApiError:
            return

        def gone() -> bool:
            try:
                self.client.get(Pod, name, namespace=namespace)
            except ApiError:
                return True
            return False

        until(gone)

    def on_node(self, *words: str) -> str:
        """Run a program on the node; what it printed."""
        within = ("--mount", "--pid", "--net")
        return subprocess.run(
            ["/usr/bin/nsenter", "--target", str(self.pid), *within, *words],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    def end_sandbox(self, name: str) -> None:
        """Kill what holds a pod's network, as the kernel does when memory is short."""
        chosen = f"labels.io.kubernetes.pod.name=={name}"
        for container in self.on_node(*_CTR, "containers", "ls", "-q", chosen).split():
            with contextlib.suppress(subprocess.CalledProcessError):  # it has ended already
                self.on_node(*_CTR, "tasks", "kill", "-s", "SIGKILL", container)

    def reboot(self) -> None:
        """Do to the node what a reboot does to it, and to the control plane nothing: each process
        of pods, of the runtime, of the kubelet and of the agent ends at once, and all that was in
        memory is gone. The kubelet comes back; the agent does not, until a test starts it."""
        lost = ("containerd", "kubelet")
        started = {name: self._words_of(name) for name in lost}
        log = self.cluster.directory / "logs" / "containerd.log"
        began = log.read_text("utf-8", "replace").count(RUNTIME_SERVES)
        self.kill_agent()
        for name in lost:
            self.on_node("/usr/bin/pkill", "-9", "-x", name)
        with contextlib.suppress(subprocess.CalledProcessError):
            self.on_node("/usr/bin/pkill", "-9", "-f", "^/usr/bin/containerd-shim")
        for below in Path("/sys/fs/cgroup/pids", self.cluster.directory.name).rglob("cgroup.procs"):
            for pid in below.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        self.on_node("/bin/sh", "-c", _LOSE_MEMORY)
        path = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin:{cache()}"
        for name, words in started.items():
            with (self.cluster.directory / "logs" / f"{name}.log").open("ab") as written:
                again = subprocess.Popen(
                    ["/usr/bin/nsenter", "--target", str(self.pid), "--mount", "--pid", "--net",
                     "/usr/bin/env", "-i", path, "HOME=/root", *words],
                    stdin=subprocess.DEVNULL, stdout=written, stderr=written,
                )  # fmt: skip
            self._started_again.append(again)
            # A kubelet ends when its runtime does not answer yet, and nothing starts it again here.
            until(lambda: log.read_text("utf-8", "replace").count(RUNTIME_SERVES) > began)

    def _words_of(self, name: str) -> list[str]:
        """The command line of a program of the node."""
        [pid] = self.on_node("/usr/bin/pgrep", "-x", name).split()
        return self.on_node("/bin/cat", f"/proc/{pid}/cmdline").rstrip("\0").split("\0")

    def logged(self, program: str) -> str:
        """The end of the log of a program of the node."""
        log = self.cluster.directory / "logs" / f"{program}.log"
        return log.read_text("utf-8", "replace")[-3000:]

    @contextlib.contextmanager
    def spare_network(self) -> Iterator[str]:
        """A network with an interface, as a runtime makes one; its name."""
        name = f"spare-{uuid.uuid4().hex[:12]}"  # a runtime never names two alike
        self.on_node(_IP, "netns", "add", name)
        self.on_node(_IP, "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        try:
            yield name
        finally:
            self.on_node(_IP, "netns", "delete", name)

    def links(self, network: str) -> set[str]:
        """The interfaces of a network."""
        lines = self.on_node(_IP, "-n", network, "-o", "link").strip().splitlines()
        return {line.split(":")[1].strip().partition("@")[0] for line in lines}

    def processes(self, pattern: str) -> list[str]:
        """The processes of the node with this in their command line, as the node numbers them."""
        return self.on_node("/usr/bin/pgrep", "-f", pattern).split()

    @contextlib.contextmanager
    def stopped(self, pattern: str) -> Iterator[None]:
        """Processes of the node stand still."""
        found = self.processes(pattern)
        self.on_node("/bin/kill", "-STOP", *found)
        try:
            yield
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # some have ended
                self.on_node("/bin/kill", "-CONT", *found)

    def add(self, name: str, network: str, uid: str = "") -> dict[str, Any]:
        """Ask the agent for a door in a network of a pod, as the plugin does; its answer. The API
        server says which pod it is, unless `uid` does."""
        return self._call_agent("ADD", name, network, uid)

    def delete(self, name: str, network: str) -> dict[str, Any]:
        """Tell the agent that this network of a pod is gone, as the plugin does; its answer."""
        return self._call_agent("DEL", name, network)

    def _call_agent(self, command: str, name: str, network: str, uid: str = "") -> dict[str, Any]:
        if not uid:
            found = self.client.get(Pod, name, namespace="default")
            uid = (found.metadata.uid if found.metadata else None) or ""
        asked = {
            "command": command, "uid": uid, "namespace": "default", "name": name,
            "network": f"/run/netns/{network}", "container": network,
        }  # fmt: skip
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(f"/proc/{self.pid}/root/run/keyhole/cni.sock")
            agent.sendall(json.dumps(asked).encode() + b"\n")
            answer: dict[str, Any] = json.loads(agent.makefile("rb").read())
        return answer

    def inside(self, name: str, *command: str, namespace: str = "default") -> tuple[int, str]:
        """Run a command in a pod; its exit code, and what it printed."""
        asked: dict[str, Any] = {"namespace": namespace, "command": command, "timeout": 60}
        before = set(threading.enumerate())
        try:
            done = self.client.exec(name, stdout=True, stderr=True, **asked)
        finally:
            # The library closes a WebSocket while a thread of its own reads from it. That thread
            # would go on with the descriptor's number, which the next connection may have.
            for each in set(threading.enumerate()) - before:
                if each.name.startswith("ThreadPoolExecutor"):
                    each.join(READER_SECONDS)
        return done.exit_code, f"{done.stdout!s}{done.stderr!s}"

    # ── preparation ───────────────────────────────────────────────────────────────────────────────

    def _load_images(self) -> None:
        beside = self.cluster.directory / "image.tar"
        tools, pause = HostTree(), HostTree()
        for program in (*WORKBENCH, "/usr/bin/getent", "/sbin/ip"):
            tools.program(program)
        tools.tree(Path("/usr/lib/python3.11"))
        tools.put("/etc/passwd", b"user:x:1000:1000::/tmp:/bin/sh\n", 0o644)
        tools.put("/etc/nsswitch.conf", b"hosts: files dns\n", 0o644)
        tools.put(ROOTS, Path(ROOTS).read_bytes(), 0o644)
        tools.directory("/tmp", 0o1777)  # noqa: S108 - of the image
        pause.program("/bin/sleep")
        forever = ("/bin/sleep", "infinity")
        load(self.pid, docker_archive("keyhole.test/tools:1", tools.content(), forever), beside)
        load(self.pid, docker_archive("keyhole.test/pause:1", pause.content(), forever), beside)

    def _install(self) -> None:
        """Start Keyhole's parts as processes of the node, which tests can kill and start."""
        for each in codecs.load_all_yaml(CRDS.read_text("utf-8")):
            self.client.apply(each, force=True)
        for each in _manifests("CSIDriver"):
            self.client.apply(each, force=True)
        until(self.knows_policies)
        self._introduce_admission()
        self.start_admission()

    def _prepare(self) -> None:
        state = self.cluster.directory / "root/var/lib/keyhole"
        state.mkdir(parents=True, exist_ok=True)
        (state / "origin-ca.pem").write_text(self.origin.ca)
        self._install()
        until(self.is_admitted, pause=0.1, told=lambda: self.said[-3000:])
        until(self.has_account)
        self.apply(
            {
                "apiVersion": "keyhole.dev/v1alpha1", "kind": "ClusterKeyholePolicy",
                "metadata": {"name": "cluster"}, "spec": {"policy": self.origin.policy},
            },
            secret("one", SECRET),
            self.policy("agents", POLICY),
        )  # fmt: skip

    def is_admitted(self) -> bool:
        """Whether the API server reaches admission: a policy without a selector is refused."""
        try:
            self.apply(
                self.policy("none", POLICY) | {"spec": {"podSelector": {}, "policy": POLICY}}
            )
        except ApiError as error:
            return "selects nothing" in str(error)
        return False

    def has_account(self) -> bool:
        """Whether the account of pods is there, which the controller makes; without it the API
        server refuses every pod."""
        try:
            self.client.get(ServiceAccount, "default", namespace="default")
        except ApiError:
            return False
        return True

    def knows_policies(self) -> bool:
        """Whether the API server serves Keyhole's resources now."""
        try:
            list(self.client.list(KeyholePolicy, namespace="default"))
            list(self.client.list(ClusterKeyholePolicy))
        except AWAY:
            return False
        return True

    def policy(
        self, name: str, text: str, role: str = "agent", namespace: str = "default"
    ) -> dict[str, Any]:
        """A KeyholePolicy for pods with a role."""
        return {
            "apiVersion": "keyhole.dev/v1alpha1", "kind": "KeyholePolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"podSelector": {"matchLabels": {"role": role}}, "policy": text},
        }  # fmt: skip

    def set_secret(self, value: str) -> None:
        """Another value of the credential."""
        self.apply(secret("one", value))

    def close(self) -> None:
        """End everything."""
        if self._agent is not None:
            self.kill_agent()
        self.kill_admission()
        self.origin.close()
        self.client.close()
        self.cluster.stop()
        for each in self._started_again:
            each.wait()


_LOSE_MEMORY = """
lost='/run/netns /run/containerd /run/keyhole'
awk '{print $2}' /proc/mounts | sort -r | while read place; do
  for each in $lost /var/lib/kubelet/pods; do
    case $place in $each/*) umount -l "$place" ;; esac
  done
done
for each in $lost; do rm -rf $each/*; done
"""
"""Unmounts and empties what a node has in memory."""

SERVED = "pods of this node are served"


def kill_entered(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that nsenter started as its child: it outlives nsenter."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split():
        os.kill(int(child), signal.SIGKILL)
    process.kill()
    process.wait()


def _connecting_again(config: KubeConfig) -> HTTPTransport:
    """Connects once more when a handshake with the API server fails: nothing was asked yet."""
    chosen: Any = config.get()
    trusted = verify_cluster(chosen.cluster, chosen.user, chosen.abs_file, trust_env=False)
    return HTTPTransport(verify=trusted, retries=1)


def _manifests(*kinds: str) -> list[Any]:
    """Objects of these kinds, of the plain manifests."""
    text = (KUBERNETES / "keyhole.yaml").read_text("utf-8")
    return [each for each in codecs.load_all_yaml(text) if each.kind in kinds]


def secret(name: str, value: str, namespace: str = "default") -> dict[str, Any]:
    """A Secret with a token."""
    return {
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace}, "stringData": {"token": value},
    }  # fmt: skip
