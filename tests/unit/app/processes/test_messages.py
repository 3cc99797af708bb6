"""Between processes: what is told comes out as it went in, secrets included, and nothing else."""

from __future__ import annotations

import ipaddress
from types import MappingProxyType

import msgspec
import pytest

from keyhole.app.processes.message_frames import MessageBuffer
from keyhole.app.processes.messages import (
    ChangeRefused,
    CloseDoor,
    KeeperAnswer,
    SecretRotated,
    pack_message,
    packed,
    unpack_keeper_message,
    unpack_run_message,
    unpacked,
)
from keyhole.app.setup.provision import Provision, SessionOpening
from keyhole.app.setup.trusted_roots import TrustedRoots
from keyhole.model.secret import Secret, SecretRef
from keyhole.policy.budget import GatewayLimits
from tests.rigs.policies import loaded
from tests.unit.policy.test_load import FULL

VALUE = "sk-" + "A1b2" * 10
SECRET = Secret(VALUE)


def frame(data: bytes) -> bytes:
    (found,) = MessageBuffer().feed(data)
    return found


def test_a_whole_session_crosses_as_it_is() -> None:
    policy = loaded(FULL).policy
    assert policy.services  # the control: there is something to lose
    assert policy.upstream.connect
    provision = Provision(
        "sha256:0", policy, TrustedRoots(b"roots\xff", None),
        MappingProxyType({"model": SECRET}), {"model": (SECRET,)}, ("a note",),
    )  # fmt: skip
    opening = SessionOpening("s1", provision, {"model": ("sk-x",)}, GatewayLimits(), "")
    found = unpacked(bytes(packed(opening)), SessionOpening)
    assert found.provision.policy == policy
    assert hash(found.provision.policy) == hash(policy)
    assert found.provision.roots == provision.roots
    assert found.provision.secrets["model"].reveal() == VALUE
    assert [each.reveal() for each in found.provision.hidden["model"]] == [VALUE]
    assert (found.session, found.stand_ins, found.limits) == (
        "s1", {"model": ("sk-x",)}, GatewayLimits()
    )  # fmt: skip


def test_a_reason_may_name_a_path_that_is_not_utf8() -> None:
    """Attack: it would end the keeper, and every session with it (I12)."""
    answer = KeeperAnswer(7, packed(None), "/p/\udcff: there is no such file")
    found = unpack_keeper_message(frame(pack_message(answer)))
    assert isinstance(found, KeeperAnswer)
    assert found.why == "/p/\\udcff: there is no such file"


def test_a_secret_crosses_by_the_one_hook_and_by_no_other_encoder() -> None:
    """I1."""
    reference = SecretRef.parse("store:model")
    message = SecretRotated(reference, SECRET, (SECRET,), "s1")
    found = unpack_keeper_message(frame(pack_message(message)))
    assert isinstance(found, SecretRotated)
    assert (found.reference, found.session) == (reference, "s1")
    assert [found.secret.reveal(), *(each.reveal() for each in found.hidden)] == [VALUE, VALUE]
    assert VALUE not in repr(found)
    for encode in (msgspec.msgpack.encode, msgspec.json.encode, msgspec.to_builtins):
        with pytest.raises(TypeError):
            encode(message)


def test_what_has_another_shape_is_not_believed() -> None:
    assert unpack_run_message(frame(pack_message(CloseDoor("done", 7)))) == CloseDoor("done", 7)
    wrong = (
        pack_message(KeeperAnswer(1, packed(None))),
        pack_message(CloseDoor(b"done", 7)),  # type: ignore[arg-type]
        pack_message(CloseDoor("done", "7")),  # type: ignore[arg-type]
    )
    for each in wrong:
        with pytest.raises(msgspec.ValidationError):
            unpack_run_message(frame(each))
    with pytest.raises(msgspec.ValidationError):
        unpacked(packed(["x"]), Provision)
    with pytest.raises(msgspec.ValidationError):
        unpack_keeper_message(frame(pack_message(CloseDoor("done", 7))))
    assert unpack_keeper_message(frame(pack_message(ChangeRefused("x")))) == ChangeRefused("x")


def test_what_is_not_known_neither_goes_in_nor_comes_out() -> None:
    address = ipaddress.ip_address("192.0.2.1")
    with pytest.raises(TypeError, match="IPv4Address does not go into a message"):
        packed(address)
    with pytest.raises(msgspec.ValidationError, match="IPv4Address does not come out"):
        unpacked(packed("192.0.2.1"), ipaddress.IPv4Address)
