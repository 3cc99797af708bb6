"""The node agent: gives the pods that policies select their door and their volume.

A process beside a gateway, as `app/containers/door_receiver.py` is. It alone talks to the API
server, the kubelet and the CNI plugin, and enters pods' networks; it reads no byte that a pod
sends. It dies with the gateway; then the doors are closed (I2), and the next one opens them again.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Any

from lightkube import AsyncClient

from keyhole.app.kube.cluster_view import ClusterView
from keyhole.app.kube.cni_install import CniPlaces, chain_plugin, install_plugin
from keyhole.app.kube.cni_server import CniServer
from keyhole.app.kube.csi_server import CsiServer
from keyhole.app.kube.node_settings import NodeSettings
from keyhole.app.kube.pod_sessions import PodSessions
from keyhole.app.kube.policy_files import PolicyFiles
from keyhole.app.processes.child import stay_with_parent
from keyhole.app.processes.sandbox_channel import MAX_MESSAGE, SandboxChannel
from keyhole.app.session.session_register import SUPERVISOR
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.control.client import ControlClient
from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox import programs
from keyhole.system.syscalls import name_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.app.setup.host_paths import HostPaths

CHAIN_SECONDS = 5.0
"""How often the node's configuration of CNI is looked at."""

MAX_WORDS = 1000
"""Characters of a message, which fit into a response of the control socket."""


def main() -> None:
    """Run as `python -c … LINE`; the first message is its `NodeSettings`."""
    if not stay_with_parent():
        return
    # If this gateway dies, the next one ends only processes of this name.
    name_process(SUPERVISOR)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    told = sock.recv(MAX_MESSAGE)
    if told:
        asyncio.run(_main(sock, *NodeSettings.read(told)))


async def _main(sock: socket.socket, settings: NodeSettings, places: HostPaths) -> None:
    gone, opened = asyncio.Event(), asyncio.Event()

    def heard(message: dict[str, Any]) -> None:
        if "open" in message:
            opened.set()

    line = SandboxChannel(asyncio.get_running_loop(), sock, heard, gone.set)

    def say(text: str) -> None:
        line.say(say=text[:MAX_WORDS])

    async def serve() -> None:
        await opened.wait()
        nft = (str(programs.find_programs(contained=True).nft),)
        files = PolicyFiles(places.state / "cluster", places, FileCatalogue())
        view = ClusterView(AsyncClient(field_manager="keyhole"), files, say)
        sessions = PodSessions(view, places, ControlClient(places.runtime), nft, say)
        view.removed = sessions.close_under
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(view.follow())
            await view.known.wait()
            # Doors that are there before new ones: their pods run and wait.
            await sessions.restore()
            tasks.create_task(CniServer(settings.cni, sessions).serve())
            tasks.create_task(_keep_chained(settings, nft[0], say))
            tasks.create_task(CsiServer(settings.kubelet, settings.node, sessions).serve())
            line.say(lacks="")
            say("pods of this node are served")

    serving = asyncio.ensure_future(serve())
    left = asyncio.ensure_future(gone.wait())
    await asyncio.wait((serving, left), return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and (error := serving.exception()):
        say(f"no pod can be served: {error!r}")
    serving.cancel()
    await asyncio.gather(serving, left, return_exceptions=True)


async def _keep_chained(settings: NodeSettings, nft: str, say: Callable[[str], None]) -> None:
    """Install the plugin, and put it back where the cluster's own network plugin removed it."""
    places = CniPlaces()
    await asyncio.to_thread(install_plugin, places, nft)
    while True:
        try:
            await asyncio.to_thread(chain_plugin, places, settings.cni)
        except (OSError, ResourceUnusable) as error:
            say(f"the plugin could not be chained: {error}")
        await asyncio.sleep(CHAIN_SECONDS)


if __name__ == "__main__":
    main()
