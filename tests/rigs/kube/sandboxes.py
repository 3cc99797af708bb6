"""agent-sandbox in a cluster of the tests: its real controller, templates, pools and claims."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

from httpx2 import HTTPError
from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource

from keyhole.app.kube.resources import CLAIMS, Sandbox, SandboxClaim
from tests.rigs.kube.binaries import build
from tests.rigs.kube.estate import kill_entered
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.kube.estate import Estate

SandboxWarmPool = create_namespaced_resource(
    CLAIMS, "v1beta1", "SandboxWarmPool", "sandboxwarmpools"
)
SandboxTemplate = create_namespaced_resource(
    CLAIMS, "v1beta1", "SandboxTemplate", "sandboxtemplates"
)
_API = f"{CLAIMS}/v1beta1"


class AgentSandbox:
    """The controller, running on the node of an estate."""

    def __init__(self, estate: Estate) -> None:
        self._estate = estate
        place = build()
        for each in codecs.load_all_yaml((place / "agent-sandbox.yaml").read_text("utf-8")):
            kind: Any = each
            # Without its webhook no older version can be asked for; no test asks.
            kind.spec.conversion = None
            estate.client.apply(kind, force=True)
        until(self._knows_claims)
        self._log = estate.cluster.directory / "agent-sandbox.log"
        self._program = str(place / "agent-sandbox-controller")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        estate = self._estate
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["/usr/bin/nsenter", "--target", str(estate.pid), "--mount", "--pid", "--net",
                 "/usr/bin/env", "-i", f"KUBECONFIG={estate.cluster.kubeconfig}",
                 self._program, "--extensions", "--enable-webhook=false",
                 "--leader-elect=false", "--metrics-bind-address=0",
                 "--health-probe-bind-address=0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Without the controller, which would repair what is patched meanwhile."""
        self.close()
        try:
            yield
        finally:
            self._process = self._start()

    @property
    def said(self) -> str:
        """What the controller has said."""
        return self._log.read_text("utf-8", "replace")

    def close(self) -> None:
        """End it."""
        kill_entered(self._process)

    def _knows_claims(self) -> bool:
        try:
            for kind in (Sandbox, SandboxClaim, SandboxWarmPool, SandboxTemplate):
                list(self._estate.client.list(kind, namespace="default"))
        except (ApiError, HTTPError):
            return False
        return True

    # ── objects ───────────────────────────────────────────────────────────────────────────────────

    def pool(self, name: str, replicas: int, namespace: str = "default") -> None:
        """A template whose pods a policy selects, and a warm pool of it, with all pods running."""
        pod = self._estate.pod(name, selected=True, namespace=namespace)
        template = {
            "apiVersion": _API, "kind": "SandboxTemplate",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "networkPolicyManagement": "Unmanaged",
                "podTemplate": {
                    "metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"],
                },
            },
        }  # fmt: skip
        pool = {
            "apiVersion": _API, "kind": "SandboxWarmPool",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}},
        }  # fmt: skip
        self._estate.apply(template, pool)

        def ready() -> bool:
            if self._process.poll() is not None:
                # As its Deployment does: it ends when the API server lists its kinds too late.
                self._process = self._start()
            found: Any = self._estate.client.get(SandboxWarmPool, name, namespace=namespace)
            return bool(found.status) and found.status.get("readyReplicas", 0) >= replicas

        until(ready, pause=0.1, told=lambda: f"{self.said[-2000:]}{self._estate.said[-2000:]}")

    def warm(self, pool: str, namespace: str = "default") -> list[str]:
        """The Sandboxes of a pool that nobody has claimed; their pods have the same names."""
        found: Any = self._estate.client.list(Sandbox, namespace=namespace)
        return sorted(str(each.metadata.name) for each in found if _owner(each) == pool)

    def running(self, pool: str) -> list[str]:
        """Those of them whose pods run."""
        names = self.warm(pool)
        return [each for each in names if self._estate.is_there(each)]

    def claim(
        self, name: str, pool: str, namespace: str = "default", labels: dict[str, str] | None = None
    ) -> None:
        """Ask for a Sandbox of a pool."""
        claim = {
            "apiVersion": _API, "kind": "SandboxClaim",
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
            "spec": {"warmPoolRef": {"name": pool}},
        }  # fmt: skip
        self._estate.client.create(codecs.from_dict(claim))

    def given(self, claim: str, namespace: str = "default") -> str:
        """Wait until a claim was given a Sandbox; the Sandbox's name."""
        names: list[str] = []

        def given() -> bool:
            found: Any = self._estate.client.get(SandboxClaim, claim, namespace=namespace)
            names.append(((found.status or {}).get("sandbox") or {}).get("name") or "")
            return bool(names[-1])

        until(given, pause=0.02, told=lambda: self.said[-3000:])
        return names[-1]


def _owner(thing: Any) -> str:  # noqa: ANN401 - an object of the API server
    return next((each.name for each in thing.metadata.ownerReferences or ()), "")
