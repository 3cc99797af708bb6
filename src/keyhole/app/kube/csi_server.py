"""The volume of a pod, served to the kubelet as a CSI driver for inline volumes.

The kubelet asks for the volume before it starts anything of the pod. The kubelet names the pod, not
the pod itself (I5). The files are in memory; the kubelet mounts them read-only.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
from grpc import aio

from keyhole import __version__
from keyhole.app.kube.csi_messages import MESSAGES
from keyhole.app.kube.resources import PodIdentity
from keyhole.model.errors import KeyholeError
from keyhole.system import syscalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from keyhole.app.kube.csi_messages import VolumeRequest
    from keyhole.app.kube.pod_sessions import PodSessions

DRIVER = "csi.keyhole.dev"
_IDENTITY, _NODE = "csi.v1.Identity", "csi.v1.Node"
_REGISTRATION = "pluginregistration.Registration"
_POD = "csi.storage.k8s.io/"
_VOLUMES = "/pods/"


class RequestContext(Protocol):
    """The part of gRPC's context that is used."""

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...


class CsiServer:
    """Serves the kubelet on two sockets: the driver's own, and the one that registers it."""

    def __init__(
        self,
        kubelet: Path,
        node: str,
        sessions: PodSessions,
        check_network: Callable[[], Awaitable[None]],
    ) -> None:
        """`check_network` raises while a new pod would start without a door."""
        self._kubelet = kubelet
        self._socket = kubelet / "plugins" / DRIVER / "csi.sock"
        self._registration = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._node = node
        self._sessions = sessions
        self._check_network = check_network

    async def serve(self) -> None:
        """Serve until it is cancelled."""
        driver = self._server(
            self._socket,
            {
                _IDENTITY: {
                    "GetPluginInfo": ("Empty", self._info),
                    "GetPluginCapabilities": ("Empty", self._nothing),
                    "Probe": ("Empty", self._nothing),
                },
                _NODE: {
                    "NodeGetInfo": ("Empty", self._node_info),
                    "NodeGetCapabilities": ("Empty", self._nothing),
                    "NodePublishVolume": ("PublishRequest", self._publish),
                    "NodeUnpublishVolume": ("UnpublishRequest", self._unpublish),
                },
            },
        )
        registration = self._server(
            self._registration,
            {
                _REGISTRATION: {
                    "GetInfo": ("Empty", self._register),
                    "NotifyRegistrationStatus": ("RegistrationStatus", self._nothing),
                }
            },
        )
        await driver.start()
        await registration.start()
        try:
            await asyncio.gather(driver.wait_for_termination(), registration.wait_for_termination())
        finally:
            await driver.stop(0)
            await registration.stop(0)

    def _server(
        self,
        path: Path,
        services: dict[str, dict[str, tuple[str, Callable[[Any, Any], Awaitable[Any]]]]],
    ) -> aio.Server:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = aio.server()
        for service, methods in services.items():
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(
                    answer,
                    request_deserializer=MESSAGES[request].FromString,
                    response_serializer=lambda message: message.SerializeToString(),
                )
                for name, (request, answer) in methods.items()
            }
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        server.add_insecure_port(f"unix://{path}")
        return server

    async def _nothing(self, request: Message, context: RequestContext) -> Message:
        return MESSAGES["Empty"]()

    async def _info(self, request: Message, context: RequestContext) -> Message:
        return MESSAGES["PluginInfo"](name=DRIVER, vendor_version=__version__)

    async def _node_info(self, request: Message, context: RequestContext) -> Message:
        return MESSAGES["NodeInfo"](node_id=self._node)

    async def _register(self, request: Message, context: RequestContext) -> Message:
        return MESSAGES["Registration"](
            type="CSIPlugin", name=DRIVER, endpoint=str(self._socket),
            supported_versions=["1.0.0"],
        )  # fmt: skip

    async def _publish(self, request: VolumeRequest, context: RequestContext) -> Message:
        given = {each.key: each.value for each in request.volume_context}
        pod = PodIdentity(
            given.get(f"{_POD}pod.uid", ""),
            given.get(f"{_POD}pod.namespace", ""),
            given.get(f"{_POD}pod.name", ""),
        )
        target = await self._checked(request.target_path, pod.uid, context)
        try:
            await asyncio.to_thread(_mount, target)
            await self._sessions.publish(pod, target)
            await self._check_network()
        except (KeyholeError, OSError) as error:
            await asyncio.to_thread(_unmount, target)
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return MESSAGES["Empty"]()

    async def _unpublish(self, request: VolumeRequest, context: RequestContext) -> Message:
        target = await self._checked(request.target_path, "", context)
        self._sessions.unpublish(target)
        await asyncio.to_thread(_unmount, target)
        return MESSAGES["Empty"]()

    async def _checked(self, path: str, uid: str, context: RequestContext) -> Path:
        """The path, which must lie in the kubelet's directory for this pod's volumes."""
        place = f"{self._kubelet}{_VOLUMES}{uid}/" if uid else f"{self._kubelet}{_VOLUMES}"
        if not path.startswith(place) or ".." in path.split("/"):
            why = f"{path} is no volume of this pod"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        return Path(path)


def _mount(target: Path) -> None:
    """Mount a tmpfs at the volume's path. A second call changes nothing."""
    target.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not os.path.ismount(target):
        syscalls.mount_tmpfs(str(target))
        os.chmod(target, 0o755)  # noqa: S103 - the pod reads it


def _unmount(target: Path) -> None:
    if os.path.ismount(target):
        syscalls.detach_mount(str(target))
    if target.is_dir():
        target.rmdir()
