"""The messages of CSI and of the kubelet's plugin registration that the agent speaks.

Described here by their field numbers: the kubelet uses only a few of them for an inline volume, and
generated code for the whole interface would be longer than the rest of the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BOOL = descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
_ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_INT32  # an enumeration has the same bytes
_INNER = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_MANY = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL

_MESSAGES: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "Empty": (),
    "PluginInfo": (("name", 1, _TEXT, _ONE, ""), ("vendor_version", 2, _TEXT, _ONE, "")),
    "NodeInfo": (("node_id", 1, _TEXT, _ONE, ""),),
    "Entry": (("key", 1, _TEXT, _ONE, ""), ("value", 2, _TEXT, _ONE, "")),
    # A map is a list of pairs on the wire.
    "PublishRequest": (
        ("volume_id", 1, _TEXT, _ONE, ""),
        ("target_path", 4, _TEXT, _ONE, ""),
        ("readonly", 6, _BOOL, _ONE, ""),
        ("volume_context", 8, _INNER, _MANY, "Entry"),
    ),
    "UnpublishRequest": (("volume_id", 1, _TEXT, _ONE, ""), ("target_path", 2, _TEXT, _ONE, "")),
    "Registration": (
        ("type", 1, _TEXT, _ONE, ""),
        ("name", 2, _TEXT, _ONE, ""),
        ("endpoint", 3, _TEXT, _ONE, ""),
        ("supported_versions", 4, _TEXT, _MANY, ""),
    ),
    "RegistrationStatus": (
        ("plugin_registered", 1, _BOOL, _ONE, ""),
        ("error", 2, _TEXT, _ONE, ""),
    ),
}


def _build() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="keyhole/csi.proto", package="keyhole.csi", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, inner in fields:
            message.field.add(
                name=field, number=number, type=kind, label=label,
                type_name=f".keyhole.csi.{inner}" if inner else None,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"keyhole.csi.{name}"))
        for name in _MESSAGES
    }


MESSAGES = _build()
"""Classes by the names above."""


class ContextEntry(Protocol):
    """An `Entry`."""

    key: str
    value: str


class VolumeRequest(Protocol):
    """A `PublishRequest` or an `UnpublishRequest`, of which the second has no context."""

    target_path: str
    volume_context: Sequence[ContextEntry]
