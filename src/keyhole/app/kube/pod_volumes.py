"""The volumes of pods with their CAs: they outlive a pod's session, since the runtime may make the
pod's network anew. Called by `pod_sessions.py`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from keyhole.app.kube.pod_admission import seeded_noise
from keyhole.app.kube.pod_authorities import PodAuthorities
from keyhole.app.kube.pod_files import PodSetup

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.kube.cluster_view import KnownPod
    from keyhole.app.setup.host_paths import HostPaths


class PodVolumes:
    """The directories that the kubelet mounts into pods, by the pod's uid."""

    def __init__(self, places: HostPaths) -> None:
        self._places = places
        self._authorities = PodAuthorities(places.runtime / "pods")
        self._paths: dict[str, Path] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._paths

    def path(self, uid: str) -> Path | None:
        """Where a pod's volume is."""
        return self._paths.get(uid)

    async def prepare(self, known: KnownPod) -> PodSetup:
        """Read what a pod needs. Raises KeyholeError."""
        noise = seeded_noise(known.seed)
        return await asyncio.to_thread(
            PodSetup.prepare,
            known.pod, noise, known.policy, self._places, self._authorities, known.given,
        )  # fmt: skip

    def add(self, uid: str, path: Path) -> None:
        """A pod has a volume."""
        self._paths[uid] = path

    def take(self, path: Path) -> list[str]:
        """A volume is taken away; the pods whose it was."""
        found = [uid for uid, each in self._paths.items() if each == path]
        for uid in found:
            del self._paths[uid]
        return found

    async def write_again(self, setup: PodSetup) -> None:
        """Write the files of a pod that runs, if it has a volume."""
        volume = self._paths.get(setup.pod.uid)
        if volume is not None:
            with contextlib.suppress(OSError):  # the kubelet unmounts it in this moment
                await asyncio.to_thread(setup.write_again, volume)

    def forget(self, uid: str) -> None:
        """The pod is gone, and its CA with it."""
        self._authorities.remove(uid)

    def keep_only(self, uids: set[str]) -> None:
        """Forget all other pods, which ended while no agent was there."""
        self._authorities.keep_only(uids)
