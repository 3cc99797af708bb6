"""A cluster with Keyhole on its node: the agent, an origin that wants a credential, pods.

The test's own process enters the node's network, so that the API server and the origin are on its
loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import trustme
from lightkube import Client, KubeConfig, codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from keyhole.app.kube.resources import ClusterKeyholePolicy, KeyholePolicy
from keyhole.system import syscalls
from tests.rigs.containers.engines import ROOTS, WORKBENCH, HostTree
from tests.rigs.daemon.origin import Origin
from tests.rigs.kube.cluster import ROOT, Cluster
from tests.rigs.kube.images import docker_archive, load
from tests.rigs.kube.node import NODE
from tests.rigs.waiting import until

MANIFESTS = ROOT / "packaging/kubernetes"
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
        self.client = Client(
            KubeConfig.from_file(self.cluster.kubeconfig), field_manager="tests", trust_env=False
        )
        self._load_images()
        self.authority = trustme.CA()
        self.origin = Origin(self.authority)
        self._log = self.cluster.directory / "agent.log"
        self._agent: subprocess.Popen[bytes] | None = None
        self._admission: subprocess.Popen[bytes] | None = None
        self._prepare()

    # ── the agent ─────────────────────────────────────────────────────────────────────────────────

    def start_agent(self) -> None:
        """Start it as the node's, and wait until it serves the kubelet."""
        began = self.said.count(_SERVED)
        with self._log.open("ab") as log:
            words = self._words("kube", "agent", "--node", "node")
            self._agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self.said.count(_SERVED) > began, told=lambda: self.said[-3000:])

    def kill_agent(self) -> None:
        """As the kernel does it: nothing of it can clean up."""
        if self._agent is not None:
            children = Path(f"/proc/{self._agent.pid}/task/{self._agent.pid}/children")
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
            self._agent.kill()
            self._agent.wait()
            self._agent = None

    @property
    def said(self) -> str:
        """What the agent has said."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def _start_admission(self) -> None:
        """Start it on the node, where the API server finds it by an address."""
        port = 8443
        for name in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for file in MANIFESTS.glob("admission.yaml"):
                for each in codecs.load_all_yaml(file.read_text("utf-8")):
                    if each.kind != name:
                        continue
                    found: Any = each
                    for hook in found.webhooks:
                        service, hook.clientConfig.service = hook.clientConfig.service, None
                        hook.clientConfig.url = f"https://{NODE}:{port}{service.path}"
                    self.client.apply(found, force=True)
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keyhole-system"}}
        )
        words = self._words("kube", "admission", "--name", NODE, "--port", str(port))
        with self._log.open("ab") as log:
            self._admission = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _words(self, *words: str) -> list[str]:
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

    def run(self, name: str, *, selected: bool, namespace: str = "default") -> float:
        """Start a pod, and wait until it runs; the seconds that it took."""
        self.client.create(codecs.from_dict(self.pod(name, selected=selected, namespace=namespace)))
        return until(
            lambda: self.phase(name, namespace) == "Running", told=lambda: self.said[-3000:]
        )

    def phase(self, name: str, namespace: str = "default") -> str:
        """The phase of a pod."""
        found = self.client.get(Pod, name, namespace=namespace)
        return (found.status.phase if found.status else None) or ""

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

    def end_sandbox(self, name: str) -> None:
        """Kill the process that holds a pod's network, as the kernel does when memory is short."""
        command = f"ctr -n k8s.io containers ls -q labels.io.kubernetes.pod.name=={name}"
        within = ["/usr/bin/nsenter", "--target", str(self.pid), "--mount", "--pid", "--net"]
        listed = subprocess.run(
            [*within, *command.split()], check=True, capture_output=True, text=True
        ).stdout
        for container in listed.split():
            subprocess.run(
                [*within, *f"ctr -n k8s.io tasks kill -s SIGKILL {container}".split()],
                check=False, capture_output=True,
            )  # fmt: skip

    def inside(self, name: str, *command: str, namespace: str = "default") -> tuple[int, str]:
        """Run a command in a pod; its exit code, and what it printed."""
        done = self.client.exec(
            name, namespace=namespace, command=command, stdout=True, stderr=True, timeout=60
        )
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

    def _prepare(self) -> None:
        for file in (MANIFESTS / "crds.yaml", MANIFESTS / "driver.yaml"):
            for each in codecs.load_all_yaml(file.read_text("utf-8")):
                self.client.apply(each, force=True)
        state = self.cluster.directory / "root/var/lib/keyhole"
        state.mkdir(parents=True, exist_ok=True)
        (state / "origin-ca.pem").write_text(self.origin.ca)
        until(self._knows_policies)
        self._start_admission()
        until(self._is_admitted, pause=0.1, told=lambda: self.said[-3000:])
        self.apply(
            {
                "apiVersion": "keyhole.dev/v1alpha1", "kind": "ClusterKeyholePolicy",
                "metadata": {"name": "cluster"}, "spec": {"policy": self.origin.policy},
            },
            _secret("one", SECRET),
            self.policy("agents", POLICY),
        )  # fmt: skip

    def _is_admitted(self) -> bool:
        """Whether the API server reaches admission: a policy without a selector is refused."""
        try:
            self.apply(
                self.policy("none", POLICY) | {"spec": {"podSelector": {}, "policy": POLICY}}
            )
        except ApiError as error:
            return "selects no pod" in str(error)
        return False

    def _knows_policies(self) -> bool:
        try:
            list(self.client.list(KeyholePolicy, namespace="default"))
            list(self.client.list(ClusterKeyholePolicy))
        except ApiError:
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
        self.apply(_secret("one", value))

    def close(self) -> None:
        """End everything."""
        if self._agent is not None:
            self.kill_agent()
        if self._admission is not None:
            self._admission.kill()
            self._admission.wait()
        self.origin.close()
        self.client.close()
        self.cluster.stop()


_SERVED = "pods of this node are served"


def _secret(name: str, value: str, namespace: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace}, "stringData": {"token": value},
    }  # fmt: skip
