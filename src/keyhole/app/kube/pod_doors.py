"""Makes the door of a pod and its way in, in the pod's network. Called by `pod_sessions.py`."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.inbound_door import InboundDoor, InboundNetworks
from keyhole.app.kube.node_settings import OWN_NETWORK
from keyhole.model.errors import KeyholeError
from keyhole.sandbox.pods.interface_move import move_interfaces, set_up_again
from keyhole.sandbox.pods.pod_network import in_network, keep_network, make_door, new_network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from keyhole.app.kube.pod_records import PodRecord
    from keyhole.app.run.daemon_gateway import AttachedSession
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.pods.pod_network import PodDoor


class PodDoors(Struct, frozen=True):
    """How doors are made on this node."""

    nft: tuple[str, ...]
    """The command."""
    say: Callable[[str], None]
    labels_at: Callable[[str, str], Awaitable[dict[str, str]]]
    """The labels of the pod of a namespace that has an address."""
    node_network: Path = OWN_NETWORK
    """The network from which the kubelet's probes come."""

    def make(self, record: PodRecord) -> tuple[PodDoor, tuple[str, ...]]:
        """The door, and the pod's addresses, which are in the network `away` then. Raises
        KeyholeError, OSError."""
        pod = os.open(record.network, os.O_RDONLY | os.O_CLOEXEC)
        away = -1
        try:
            if record.away.exists():
                away = os.open(record.away, os.O_RDONLY | os.O_CLOEXEC)
            else:
                away = new_network()
                keep_network(away, record.away)
            door = make_door(pod, away, self.nft)
            if not door.moved.names:
                return door, record.addresses
            try:
                in_network(away, lambda: set_up_again(door.moved))
            except KeyholeError as error:
                self.say(f"pod {record.pod}: nobody can connect to it: {error}")
                return door, ()
            return door, door.moved.addresses
        finally:
            for each in (pod, away):
                if each >= 0:
                    os.close(each)

    def drop_interfaces(self, record: PodRecord) -> None:
        """Take interfaces out of a pod that were put into it later. Attack: a pod that may use raw
        sockets sends frames, which no ruleset of its network sees (I2). They go to a network that
        ends at once: virtual ones end with it, and the node gets its own back. Raises KeyholeError,
        OSError."""
        pod = os.open(record.network, os.O_RDONLY | os.O_CLOEXEC)
        nowhere = -1
        try:
            nowhere = new_network()
            in_network(pod, lambda: move_interfaces(nowhere))
        finally:
            for each in (pod, nowhere):
                if each >= 0:
                    os.close(each)

    def open_inbound(
        self, record: PodRecord, probed: tuple[int, ...], policy: Policy, gateway: AttachedSession
    ) -> InboundDoor | None:
        """The way in of a pod whose kubelet connects to the ports `probed`; None: there is none,
        which the pod can do without."""
        if not record.addresses:
            return None
        try:
            networks = InboundNetworks.open(
                record.network, record.away, self.node_network, record.addresses
            )
            labels = functools.partial(self.labels_at, record.pod.namespace)
            return InboundDoor(networks, probed, policy, labels, gateway.note)
        except (KeyholeError, OSError) as error:
            self.say(f"pod {record.pod}: nobody can connect to it: {error}")
            return None
