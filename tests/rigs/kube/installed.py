"""A cluster on which the chart was installed, with the image that the Dockerfile makes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from tests.rigs.compose.image import build_image, engine_client
from tests.rigs.containers.engines import OwnEngine
from tests.rigs.kube.binaries import build
from tests.rigs.kube.cluster import ROOT
from tests.rigs.kube.estate import Estate
from tests.rigs.kube.images import load

if TYPE_CHECKING:
    from collections.abc import Sequence

CHART = ROOT / "packaging/kubernetes/chart"
NAMESPACE = "keyhole-system"
IMAGE = "keyhole.test/keyhole"
SECONDS = 300.0
"""For a command, on a machine that is busy."""


def saved_image(ground: Path) -> Path:
    """The image as an archive, built by an engine of our own."""
    directory = ground / "engine"
    directory.mkdir()
    engine = OwnEngine(directory)
    archive = ground / "image.tar"
    try:
        name = build_image(engine, ground, f"{IMAGE}:tested")
        engine_client(engine, "docker", "save", "-o", str(archive), name, cwd=ground)
    finally:
        engine.close()
    return archive


class InstalledCluster(Estate):
    """One cluster, with the release `keyhole`."""

    def __init__(self, directory: Path, image: Path, values: Sequence[str] = ()) -> None:
        self._image = image
        self._values = (f"image.repository={IMAGE}", "image.tag=tested", "image.pullPolicy=Never",
                        *values)  # fmt: skip
        super().__init__(directory)

    def _install(self) -> None:
        load(self.pid, self._image.read_bytes(), self._image.with_suffix(".again"))
        values = [word for each in self._values for word in ("--set", each)]
        self.helm("install", "keyhole", str(CHART), *values, "--wait", "--timeout", "4m")
        printed = self.keyhole("kube", "rbac", "--namespace", "default", "--secret", "one")
        for each in codecs.load_all_yaml(printed):
            self.client.apply(each, force=True)

    def helm(self, *words: str) -> str:
        """Run Helm as the cluster's administrator; what it printed."""
        return self._administer([str(build() / "helm"), *words])

    def keyhole(self, *words: str, check: bool = True) -> str:
        """Run Keyhole's own command as the cluster's administrator."""
        return self._administer([str(Path(sys.executable).parent / "keyhole"), *words], check=check)

    def _administer(self, words: Sequence[str], *, check: bool = True) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.cluster.directory),
               "KUBECONFIG": str(self.cluster.kubeconfig), "LANG": "C.UTF-8"}  # fmt: skip
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=SECONDS, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, (
            f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{self.said[-4000:]}"
        )
        return done.stdout

    def parts(self, component: str) -> list[str]:
        """The names of the pods of one part."""
        labels: dict[str, Any] = {"app.kubernetes.io/component": component}
        found = self.client.list(Pod, namespace=NAMESPACE, labels=labels)
        return [each.metadata.name or "" for each in found if each.metadata]

    def log(self, pod: str, container: str) -> str:
        """What a container of Keyhole's has printed."""
        try:
            return "".join(self.client.log(pod, container=container, namespace=NAMESPACE))
        except ApiError as error:
            return f"{error}\n"

    @property
    def said(self) -> str:
        """What all parts have printed, and how far each is."""
        told = []
        for component, containers in (
            ("agent", ("agent", "reports")),
            ("admission", ("admission",)),
        ):
            for pod in self.parts(component):
                status: Any = self.client.get(Pod, pod, namespace=NAMESPACE).status
                states = [each.state for each in status.containerStatuses or ()]
                told.append(f"{pod}: {status.phase} {states}\n")
                told += [self.log(pod, each) for each in containers]
        return "".join(told)

    def asked(self, account: str) -> list[dict[str, Any]]:
        """The requests of one of Keyhole's accounts, by the API server's own log."""
        lines = (self.cluster.directory / "audit.log").read_text("utf-8").splitlines()
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        events = (json.loads(line) for line in lines)
        return [each for each in events if each["user"]["username"] == user]
