"""One pod with a door, from when its door is served until it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.kube.pod_states import BOUND

if TYPE_CHECKING:
    from keyhole.app.kube.cluster_view import KnownPod
    from keyhole.app.kube.inbound_door import InboundDoor
    from keyhole.app.kube.pod_files import PodSetup
    from keyhole.app.kube.pod_records import PodRecord
    from keyhole.app.kube.resources import PodIdentity
    from keyhole.app.kube.sandbox_claims import Claim
    from keyhole.app.run.daemon_gateway import AttachedSession
    from keyhole.sandbox.containers.interface_watch import InterfaceWatch


class PodSession(Struct):
    """What belongs to the door of one pod."""

    setup: PodSetup
    record: PodRecord
    gateway: AttachedSession
    watch: InterfaceWatch
    known: KnownPod
    inbound: InboundDoor | None = None
    """None: nobody can connect to it."""

    @property
    def pod(self) -> PodIdentity:
        """The pod."""
        return self.record.pod

    def note_bound(self, claim: Claim | None) -> None:
        """Write down whose session it is (I8)."""
        pod = self.pod
        self.gateway.note(
            BOUND, uid=pod.uid, namespace=pod.namespace, pod=pod.name, account=pod.account
        )
        if claim is not None:
            self.gateway.note("claimed", claim=claim.name, uid=claim.uid)

    def close_inbound(self) -> None:
        """Let nobody connect to it any more."""
        if self.inbound is not None:
            self.inbound.close()
            self.inbound = None

    async def end(self) -> None:
        """Close its door."""
        self.close_inbound()
        self.watch.close()
        await self.gateway.close(0)
