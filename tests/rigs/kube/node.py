"""A real Kubernetes on one machine, in namespaces of its own: the first process of them.

Started by `cluster.py` in a new network, mount and process namespace; when it ends, the kernel ends
every process below it. The node has no interface to the host: pods reach one another, the node and
the API server, and nothing else.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

RUNTIME_SERVES = "Start streaming server"
"""In the log of containerd: it answers a kubelet from now on."""

NODE = "192.0.2.10"
"""The node's address, on an interface that leads nowhere (a documentation range)."""
PODS = ipaddress.ip_network("198.51.100.0/24")
SERVICES = "203.0.113.0/24"
API = "203.0.113.1"
"""The first service address: the API server, as pods know it."""
PORT = 6443
NAME = "node"


PLACES = (
    "/etc/cni", "/opt/cni", "/run/containerd", "/run/keyhole", "/run/netns", "/var/lib/keyhole",
    "/var/lib/keyhole-reports", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods",
)  # fmt: skip
"""The places of a node, which manifests name."""


class Node:
    """The processes of one node, which is control plane and worker at once."""

    def __init__(self, directory: Path, binaries: Path) -> None:
        self.directory = directory
        self.binaries = binaries
        self.keys = directory / "keys"
        self._logs = directory / "logs"

    def start(self) -> None:
        """Start everything, in the order in which it is needed."""
        self._logs.mkdir(exist_ok=True)
        self._make_network()
        self._bind_places()
        self._start_etcd()
        self._start_api()
        self._start_controllers()
        self._start_containerd()
        self._start_kubelet()

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    def _make_network(self) -> None:
        for words in (
            "link set lo up",
            "link add node0 type bridge",
            f"addr add {NODE}/24 dev node0",
            "link set node0 up",
            "route add default dev node0",
        ):
            _run("/sbin/ip", *words.split())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        # There is no kube-proxy: the API server alone is reached by a service address.
        rules = f"""
        table ip cluster {{
          chain pre {{ type nat hook prerouting priority dstnat;
            ip daddr {API} tcp dport 443 dnat to {NODE}:{PORT}
          }}
          chain out {{ type nat hook output priority -100;
            ip daddr {API} tcp dport 443 dnat to {NODE}:{PORT}
          }}
          chain post {{ type nat hook postrouting priority srcnat;
            ip saddr {PODS} ip daddr != {PODS} masquerade
          }}
        }}
        """
        subprocess.run(["/usr/sbin/nft", "-f", "-"], input=rules.encode(), check=True)

    def _bind_places(self) -> None:
        """Give this node its own standard places, which manifests name; the host keeps its own."""
        _run("/bin/mount", "--make-rprivate", "/")
        for place in PLACES:
            own = self.directory / "root" / place[1:]
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o700 if "keyhole" in place else 0o755)
            Path(place).mkdir(parents=True, exist_ok=True)
            _run("/bin/mount", "--bind", str(own), place)
        _run("/bin/mount", "--make-rshared", "/")
        Path("/etc/cni/net.d").mkdir(exist_ok=True)
        Path("/opt/cni/bin").mkdir(exist_ok=True)
        for plugin in ("bridge", "host-local", "loopback"):
            target = Path("/opt/cni/bin") / plugin
            if not target.exists():
                target.write_bytes((Path("/usr/lib/cni") / plugin).read_bytes())
                target.chmod(0o755)
        bridge = {
            "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.directory / "ipam"),
                "ranges": [[{"subnet": str(PODS)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }  # fmt: skip
        conf = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
        Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(conf, indent=1))

    # ── the control plane ─────────────────────────────────────────────────────────────────────────

    def _start_etcd(self) -> None:
        self._spawn(
            "etcd", str(self.binaries / "etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip

    def _start_api(self) -> None:
        keys = self.keys
        self._spawn(
            "kube-apiserver", str(self.binaries / "kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={NODE}", f"--secure-port={PORT}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--tls-cert-file={keys / 'api.pem'}", f"--tls-private-key-file={keys / 'api.key'}",
            f"--client-ca-file={keys / 'ca.pem'}",
            f"--service-account-key-file={keys / 'accounts.pem'}",
            f"--service-account-signing-key-file={keys / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={keys / 'admin.pem'}",
            f"--kubelet-client-key={keys / 'admin.key'}",
            "--authorization-mode=Node,RBAC",
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={keys / 'ca.pem'}",
            f"--proxy-client-cert-file={keys / 'admin.pem'}",
            f"--proxy-client-key-file={keys / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            f"--audit-policy-file={self._write_audit_policy()}",
            f"--audit-log-path={self.directory / 'audit.log'}",
            "--v=1",
        )  # fmt: skip
        self._await_ready("the API server", f"https://127.0.0.1:{PORT}/readyz")

    def _write_audit_policy(self) -> Path:
        """Log what service accounts of Keyhole's namespace ask for, and nothing else."""
        policy = self.directory / "audit-policy.yaml"
        accounts = ["system:serviceaccounts:keyhole-system"]
        rules = [{"level": "Metadata", "userGroups": accounts}, {"level": "None"}]
        policy.write_text(
            json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
        )
        return policy

    def _start_controllers(self) -> None:
        kubeconfig = self.directory / "admin.conf"
        self._spawn(
            "kube-controller-manager", str(self.binaries / "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}", "--leader-elect=false",
            f"--service-account-private-key-file={self.keys / 'accounts.key'}",
            f"--root-ca-file={self.keys / 'ca.pem'}", "--use-service-account-credentials=true",
            "--controllers=*,-bootstrapsigner,-tokencleaner,-cloud-node-lifecycle-controller",
        )  # fmt: skip
        self._spawn(
            "kube-scheduler", str(self.binaries / "kube-scheduler"),
            f"--kubeconfig={kubeconfig}", "--leader-elect=false",
        )  # fmt: skip

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def _start_containerd(self) -> None:
        config = self.directory / "containerd.toml"
        gvisor = self.directory / "runsc-door.toml"
        config.write_text(f"""
version = 2
root = "{self.directory / "containerd"}"
state = "/run/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "keyhole.test/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["keyhole.dev/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc-door]
runtime_type = "io.containerd.runsc.v1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc-door.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{gvisor}"
""")
        gvisor.write_text(f"""
binary_name = "{self.binaries / "runsc"}"
[runsc_config]
network = "host"
ignore-cgroups = "true"
""")
        self._spawn("containerd", "/usr/bin/containerd", "--config", str(config))
        deadline = time.monotonic() + 60
        # A kubelet ends when the runtime does not answer yet, and nothing starts it again here.
        while RUNTIME_SERVES not in (self._logs / "containerd.log").read_text("utf-8", "replace"):
            if time.monotonic() > deadline:
                raise TimeoutError("containerd did not start")
            time.sleep(0.05)

    def _make_control_groups(self) -> None:
        """The kubelet wants its root to exist, in each hierarchy of version 1."""
        for controller in Path("/sys/fs/cgroup").iterdir():
            if not (controller / "cgroup.procs").exists():
                continue
            made = controller / self.directory.name
            made.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (controller / name).exists():
                    (made / name).write_text((controller / name).read_text())

    def _start_kubelet(self) -> None:
        self._make_control_groups()
        config = self.directory / "kubelet.yaml"
        config.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.keys / "ca.pem")},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.directory.name}",
            "cgroupsPerQOS": True, "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failCgroupV1": False, "failSwapOn": False, "makeIPTablesUtilChains": False,
            "registerNode": True, "maxPods": 200, "serializeImagePulls": False,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%",
                             "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "clusterDNS": ["203.0.113.10"], "clusterDomain": "cluster.local",
            "syncFrequency": "10s", "nodeStatusUpdateFrequency": "5s",
            "tlsCertFile": str(self.keys / "api.pem"),
            "tlsPrivateKeyFile": str(self.keys / "api.key"),
        }))  # fmt: skip
        self._spawn(
            "kubelet", str(self.binaries / "kubelet"),
            f"--config={config}", f"--kubeconfig={self.directory / 'kubelet.conf'}",
            f"--hostname-override={NAME}", f"--node-ip={NODE}", "--v=2",
        )  # fmt: skip

    # ── shared ────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, name: str, *words: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": f"/usr/sbin:/usr/bin:/sbin:/bin:{self.binaries}", "HOME": "/root"},
            )  # fmt: skip

    def _await_ready(self, what: str, url: str) -> None:
        context = ssl.create_default_context(cafile=str(self.keys / "ca.pem"))
        context.load_cert_chain(self.keys / "admin.pem", self.keys / "admin.key")
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(  # noqa: S310 - our own server
                    url, context=context, timeout=5
                ) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise TimeoutError(f"{what} was not ready in time; its log is in {self._logs}")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Run as `python -m tests.rigs.kube.node DIRECTORY BINARIES`, as process 1."""
    directory, binaries = map(Path, sys.argv[1:3])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    node = Node(directory, binaries)
    try:
        node.start()
        (directory / "ready").write_text("")
    except BaseException as error:
        (directory / "failed").write_text(repr(error))
        raise
    while True:  # reap what is left to process 1
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


if __name__ == "__main__":
    main()
