"""DNS messages are read strictly and answered as the RFCs say; none makes the server raise."""

from __future__ import annotations

from ipaddress import IPv4Address

import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import DnsAnswer
from keyhole.wire.dns import (
    ANSWER_TTL,
    MAX_MESSAGE,
    UDP_PAYLOAD,
    DnsMalformed,
    DnsQuestion,
    answer,
    failure,
    parse,
)

ADDRESS = IPv4Address("198.18.0.1")


def query(name: str = "Ok.eXample", kind: str = "A", edns: int | bool | None = None) -> bytes:
    return dns.message.make_query(name, kind, use_edns=edns).to_wire()


def question(data: bytes) -> DnsQuestion:
    """The question in some bytes."""
    found = parse(data)
    assert isinstance(found, DnsQuestion)
    return found


def test_a_question_is_read_as_it_was_spelled() -> None:
    found = question(query())
    assert (found.name, found.record_type, found.record_class) == ("Ok.eXample", 1, 1)
    assert found.type_name == "A"
    assert question(query(kind="TYPE65280")).type_name == "TYPE65280"


def test_bytes_in_a_name_that_could_be_taken_for_others_are_escaped() -> None:
    wire = query("a.b.example").replace(b"\x01a\x01b", b"\x03a.b")
    assert question(wire).name == r"a\.b.example"
    wire = query("evil.ok.example").replace(b"\x04evil", b"\x04ev\x00l")
    assert question(wire).name == r"ev\000l.ok.example"


def test_an_address_is_answered_with_the_spelling_of_the_question() -> None:
    asked = question(query(edns=0))
    reply = dns.message.from_wire(answer(asked, DnsAnswer.ADDRESS, ADDRESS))
    assert reply.id == asked.query.id
    assert reply.rcode() == dns.rcode.NOERROR
    assert reply.flags & dns.flags.QR
    assert reply.flags & dns.flags.RA
    assert not reply.flags & dns.flags.AD
    assert reply.question[0].name.to_text() == "Ok.eXample."
    assert (str(reply.answer[0][0]), reply.answer[0].ttl) == (str(ADDRESS), ANSWER_TTL)
    assert (reply.edns, reply.payload) == (0, UDP_PAYLOAD)


def test_edns_is_answered_only_where_it_was_used() -> None:
    reply = dns.message.from_wire(answer(question(query()), DnsAnswer.ADDRESS, ADDRESS))
    assert reply.edns == -1


@pytest.mark.parametrize(
    ("decided", "code", "authority"),
    [
        (DnsAnswer.NXDOMAIN, dns.rcode.NXDOMAIN, 1),
        (DnsAnswer.NODATA, dns.rcode.NOERROR, 1),
        (DnsAnswer.REFUSED, dns.rcode.REFUSED, 0),
        (DnsAnswer.ADDRESS, dns.rcode.SERVFAIL, 0),
    ],
)
def test_no_answer_has_its_code_and_its_soa(
    decided: DnsAnswer, code: dns.rcode.Rcode, authority: int
) -> None:
    reply = dns.message.from_wire(answer(question(query()), decided, None))
    assert (reply.rcode(), reply.answer, len(reply.authority)) == (code, [], authority)


def test_the_longest_question_fits_without_truncation() -> None:
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    for decided in DnsAnswer:
        wire = answer(question(query(longest, edns=0)), decided, ADDRESS)
        assert len(wire) <= 512
        assert not dns.message.from_wire(wire).flags & dns.flags.TC


def test_failure_is_servfail() -> None:
    assert dns.message.from_wire(failure(question(query()))).rcode() == dns.rcode.SERVFAIL


def changed(index: int, value: int) -> bytes:
    """A question with one byte changed."""
    data = bytearray(query())
    data[index] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason", "code"),
    [
        (b"", "too short for a header", None),
        (query()[:11], "too short for a header", None),
        (changed(2, 0x81), "not a query", None),
        (changed(2, 5 << 3), "opcode", dns.rcode.NOTIMP),
        (changed(2, 4 << 3), "opcode", dns.rcode.NOTIMP),
        (changed(5, 0), "not one question", dns.rcode.FORMERR),
        (changed(5, 2), "not one question", dns.rcode.FORMERR),
        (changed(7, 1), "not one question", dns.rcode.FORMERR),
        (changed(9, 1), "not one question", dns.rcode.FORMERR),
        (changed(11, 1), "unreadable", dns.rcode.FORMERR),
        (query() + b"!", "unreadable", dns.rcode.FORMERR),
        (query()[:-1], "unreadable", dns.rcode.FORMERR),
        (query()[:12] + b"\xc0\x0c\x00\x01\x00\x01", "unreadable", dns.rcode.FORMERR),
        (query() + bytes(MAX_MESSAGE), "too long", dns.rcode.FORMERR),
        (query(edns=1), "EDNS version", dns.rcode.BADVERS),
    ],
)
def test_what_is_not_one_question_is_answered_as_the_rfcs_say(
    data: bytes, reason: str, code: dns.rcode.Rcode | None
) -> None:
    found = parse(data)
    assert isinstance(found, DnsMalformed)
    assert found.reason == reason
    if code is None:
        assert found.reply is None
    else:
        assert found.reply is not None
        reply = dns.message.from_wire(found.reply)
        assert (reply.rcode(), reply.id) == (code, int.from_bytes(data[:2], "big"))


@given(st.binary(max_size=200), st.sampled_from([b"", query()[:12], query()[:20], query(edns=0)]))
def test_no_bytes_make_it_raise(data: bytes, start: bytes) -> None:
    found = parse(start + data)
    if isinstance(found, DnsQuestion):
        assert found.type_name
        for decided in DnsAnswer:
            assert answer(found, decided, ADDRESS)


@given(st.data())
def test_a_damaged_question_never_raises(data: st.DataObject) -> None:
    whole = bytearray(query(edns=0))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    found = parse(bytes(whole))
    if isinstance(found, DnsQuestion):
        for decided in DnsAnswer:
            assert answer(found, decided, ADDRESS)
