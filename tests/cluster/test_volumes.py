"""The volume of a pod: for the pod that the kubelet names, and for no other (I5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from lightkube.resources.core_v1 import Pod

from keyhole.app.kube.csi_messages import MESSAGES
from keyhole.app.kube.csi_server import DRIVER
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from tests.rigs.kube.estate import Estate

_CONTEXT = "csi.storage.k8s.io/pod"


def call(estate: Estate, method: str, request: Message) -> str:
    """Ask the driver as the kubelet does; why it refuses, or nothing."""
    path = f"/proc/{estate.pid}/root/var/lib/kubelet/plugins/{DRIVER}/csi.sock"
    with grpc.insecure_channel(f"unix://{path}") as channel:
        ask = channel.unary_unary(
            f"/csi.v1.Node/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["Empty"].FromString,
        )
        try:
            ask(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            return str(error)
    return ""


def publish(estate: Estate, target: str, uid: str, name: str) -> str:
    given = {"uid": uid, "name": name, "namespace": "default"}
    entries = [
        MESSAGES["Entry"](key=f"{_CONTEXT}.{key}", value=value) for key, value in given.items()
    ]
    request = MESSAGES["PublishRequest"](target_path=target, volume_context=entries)
    return call(estate, "NodePublishVolume", request)


def _uid(estate: Estate, name: str) -> str:
    found = estate.client.get(Pod, name, namespace="default").metadata
    return (found.uid if found else None) or ""


@pytest.fixture
def two(estate: Estate) -> Iterator[tuple[str, str]]:
    """The uids of a pod behind a door, and of one that no policy selects."""
    estate.run("owner", selected=True)
    estate.run("other", selected=False)
    yield _uid(estate, "owner"), _uid(estate, "other")
    estate.remove("owner")
    estate.remove("other")


def test_a_volume_is_filled_for_the_pod_that_the_kubelet_names_and_for_no_other_i5(
    estate: Estate, two: tuple[str, str]
) -> None:
    owner, other = two

    def place(uid: str) -> str:
        return f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/tried/mount"

    wrong = {
        "no volume of this pod": (place(other), owner, "owner"),
        "another one now": (place(other), other, "owner"),
        "no KeyholePolicy": (place(other), other, "other"),
        "no volume of": (f"{place(owner)}/../../../../../{other}/tried", owner, "owner"),
        "named by its uid": (f"/var/lib/kubelet/pods/{'.'}/tried", ".", "owner"),
    }
    for said, (target, uid, name) in wrong.items():
        assert said in publish(estate, target, uid, name)
    found = estate.on_node("/usr/bin/find", "/var/lib/kubelet/pods", "-path", "*/tried/*")
    assert not found, "nothing is left where it was refused"
    # The control: the same request for the pod itself.
    assert publish(estate, place(owner), owner, "owner") == ""
    try:
        assert "ca.pem" in estate.on_node("/bin/ls", place(owner))
    finally:
        request = MESSAGES["UnpublishRequest"](target_path=place(owner))
        assert call(estate, "NodeUnpublishVolume", request) == ""
