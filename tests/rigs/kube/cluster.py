"""Starts a real Kubernetes for tests: makes its keys, and starts its node."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.rigs.kube.binaries import build
from tests.rigs.kube.node import API, NAME, NODE, PORT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
START_SECONDS, END_SECONDS = 300.0, 10.0


class Cluster:
    """One node with its control plane, in namespaces of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's settings, which work in the node's network."""
        return self.directory / "admin.conf"

    def start(self) -> None:
        """Return when the node's processes were started."""
        binaries = build()
        self.directory.mkdir(parents=True, exist_ok=True)
        Keys(self.directory).write()
        with (self.directory / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/usr/bin/unshare", "--net", "--mount", "--pid", "--fork", "--kill-child",
                 "--mount-proc", sys.executable, "-m", "tests.rigs.kube.node",
                 str(self.directory), str(binaries)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not (self.directory / "ready").exists():
            failed = self.directory / "failed"
            if failed.exists() or self._process.poll() is not None:
                why = failed.read_text() if failed.exists() else "the node ended"
                said = (self.directory / "node.log").read_text()[-3000:]
                self.stop()
                raise RuntimeError(f"{why}\n{said}")
            if time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(f"no cluster after {START_SECONDS:g} s")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        """The node's first process, as this host numbers it."""
        if self._process is None:
            raise RuntimeError("it was not started")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(children.read_text().split()[0])

    def stop(self) -> None:
        """End every process of it, and remove its control groups."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        # The kernel takes a moment to end what was killed, and keeps its groups until then.
        deadline = time.monotonic() + END_SECONDS
        while self._remove_groups() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_groups(self) -> bool:
        """Remove the control groups that are empty. Returns whether some are left."""
        found = list(Path("/sys/fs/cgroup").glob(f"*/{self.directory.name}/**/"))
        for each in sorted(found, reverse=True):
            with contextlib.suppress(OSError):
                each.rmdir()
        return any(each.exists() for each in found)


class Keys:
    """The certificates of one cluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys = directory / "keys"

    def write(self) -> None:
        """Make a CA, the server's and the clients' certificates, and their settings."""
        self._keys.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
        ca = self._certificate(self._name, self._key, ca=True)
        self._store("ca", ca, self._key)
        self._issue("api", "kube-apiserver", "", server=True)
        self._issue("admin", "admin", "system:masters")
        self._issue("kubelet", f"system:node:{NAME}", "system:nodes")
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self._keys / "accounts.key").write_bytes(_pem(accounts))
        (self._keys / "accounts.pem").write_bytes(
            accounts.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        self._issue("author", "author", "")
        for who in ("admin", "author", "kubelet"):
            self._write_settings(who)

    def _issue(self, file: str, name: str, group: str, *, server: bool = False) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if group:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        self._store(file, self._certificate(x509.Name(names), key, server=server), key)

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool = False,
        server: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if server:
            addresses = [ipaddress.ip_address(text) for text in ("127.0.0.1", NODE, API)]
            hosts = ("localhost", NAME, "kubernetes", "kubernetes.default.svc")
            builder = builder.add_extension(
                x509.SubjectAlternativeName(
                    [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
                ),
                critical=False,
            )
        return builder.sign(self._key, hashes.SHA256())

    def _store(
        self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        (self._keys / f"{file}.pem").write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
        )
        (self._keys / f"{file}.key").write_bytes(_pem(key))

    def _write_settings(self, who: str) -> None:
        keys = self._keys
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {
                "server": f"https://127.0.0.1:{PORT}",
                "certificate-authority": str(keys / "ca.pem"),
            }}],
            "users": [{"name": who, "user": {
                "client-certificate": str(keys / f"{who}.pem"),
                "client-key": str(keys / f"{who}.key"),
            }}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": who}}],
        }  # fmt: skip
        (self._directory / f"{who}.conf").write_text(json.dumps(config))


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
