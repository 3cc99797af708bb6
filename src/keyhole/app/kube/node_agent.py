"""The node agent: gives the pods that policies select their door and their volume.

A process beside a gateway, as `app/containers/door_receiver.py` is. It alone talks to the API
server, the kubelet and the CNI plugin, and enters pods' networks; it reads no byte that a pod
sends. It dies with the gateway; then the doors are closed (I2), and the next one opens them again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lightkube import AsyncClient

from keyhole.app.kube.cluster_view import ClusterView
from keyhole.app.kube.cni_install import CniPlaces, install_plugin
from keyhole.app.kube.cni_server import CniServer
from keyhole.app.kube.csi_server import CsiServer
from keyhole.app.kube.node_report import NodeReport, keep_metrics
from keyhole.app.kube.node_settings import NodeSettings
from keyhole.app.kube.plugin_chain import PluginChain
from keyhole.app.kube.pod_doors import PodDoors
from keyhole.app.kube.pod_events import PodEvents
from keyhole.app.kube.pod_sessions import PodSessions
from keyhole.app.kube.policy_files import PolicyFiles
from keyhole.app.kube.sandbox_claims import ClaimWatch
from keyhole.app.session.door_process import MAX_WORDS, run_door_process
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.control.client import ControlClient
from keyhole.sandbox import programs

if TYPE_CHECKING:
    from keyhole.app.kube.resources import PodIdentity
    from keyhole.app.processes.sandbox_channel import SandboxChannel
    from keyhole.app.setup.host_paths import HostPaths


def main() -> None:
    """Run by the gateway; the first message is its `NodeSettings`."""
    run_door_process(_main, "no pod can be served")


async def _main(told: bytes, line: SandboxChannel, opened: asyncio.Event) -> None:
    await opened.wait()
    await NodeAgent(*NodeSettings.read(told), line).serve()


class NodeAgent:
    """The parts of an agent, and the order in which they begin."""

    def __init__(self, settings: NodeSettings, places: HostPaths, line: SandboxChannel) -> None:
        self._settings = settings
        self._line = line
        self._client = AsyncClient(field_manager="keyhole")
        self._nft = (str(programs.find_programs(contained=True).nft),)
        self._files = PolicyFiles(places.state / "cluster", places, FileCatalogue())
        self._view = ClusterView(self._client, self._files, self._say)
        self._events = PodEvents(self._client, settings.node)
        self._control = ControlClient(places.runtime)
        doors = PodDoors(self._nft, self._say, self._view.labels_at, settings.network)
        self._sessions = PodSessions(
            self._view, places, self._control, doors, self._say, self._refused
        )
        self._view.removed, self._view.changed = self._sessions.close_under, self._sessions.apply
        self._claims = ClaimWatch(
            self._client, self._sessions.concerned, self._sessions.settle, self._say
        )
        self._sessions.wanted = self._claims.want

    def _say(self, text: str) -> None:
        self._line.say(say=text[:MAX_WORDS])

    def _refused(self, pod: PodIdentity, line: str) -> None:
        self._say(f"pod {pod}: {line}")
        self._events.refused(pod, line)

    async def serve(self) -> None:
        """Serve the kubelet and the plugin; never returns."""
        settings, sessions = self._settings, self._sessions
        await asyncio.to_thread(self._files.clear)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.follow())
            tasks.create_task(self._view.follow())
            tasks.create_task(self._events.write())
            await self._view.known.wait()
            # Doors that are there before new ones: their pods run and wait.
            await sessions.restore()
            await sessions.reopen_all()
            tasks.create_task(sessions.tend())
            tasks.create_task(CniServer(settings.cni, sessions).serve())
            # Attack: start a pod before the plugin is in the node's configuration. It would have
            # its interface, so it gets no volume, without which it does not start (I2).
            chain = PluginChain(CniPlaces(), settings.cni, self._say)
            await asyncio.to_thread(install_plugin, CniPlaces(), self._nft[0])
            tasks.create_task(chain.keep())
            volumes = CsiServer(settings.kubelet, settings.node, sessions, chain.check)
            tasks.create_task(volumes.serve())
            report = NodeReport(settings.node, self._client, sessions.states, self._say)
            tasks.create_task(report.keep())
            if settings.metrics is not None:
                metrics = keep_metrics(settings.metrics, self._control, self._view, sessions.states)
                tasks.create_task(metrics)
            self._line.say(lacks="")
            self._say("pods of this node are served")


if __name__ == "__main__":
    main()
