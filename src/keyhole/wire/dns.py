"""DNS messages: parses a question from bytes, and writes a decision as bytes (RFC 1035, 2308, 6891,
9619).

Called by the gateway's name server, which forwards nothing. dnspython reads and writes the
messages; this module decides which response a message gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset
from msgspec import Struct

from keyhole.model.decision import DnsAnswer
from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from ipaddress import IPv4Address

ANSWER_TTL = 60
"""Seconds that an answer is valid. An address belongs to its name for the whole session; the time
is short so that a client asks again and the log shows that the name is still used."""

NEGATIVE_TTL = 5
"""Seconds that "no" may be remembered: a person may allow the name while the sandbox runs."""

UDP_PAYLOAD = 1232
"""Bytes that this server takes and sends by UDP (the DNS flag day's value)."""

MAX_MESSAGE = 4096
"""Bytes of a question that is read at all; an honest one has less than 300."""

MAX_ADDITIONAL = 2
"""Records behind a question: EDNS, and a signature. Each may point to one name of 127 labels, which
is read again: 4 KiB of such records would take 20 ms of the loop (I12)."""

_HEADER = 12
_QR = 0x8000
_MIN_UDP = 512
_EDNS_VERSION = 0


class DnsMalformed(Struct, frozen=True):
    """Not one question. `reply` is the response that the RFCs require, None where they require
    none."""

    reason: str
    reply: bytes | None = None


class DnsQuestion(Struct, frozen=True):
    """One question. `name` is in presentation form, with odd bytes escaped."""

    name: str
    record_type: int
    record_class: int
    query: dns.message.Message

    __repr__ = redacted_repr("query")

    @property
    def type_name(self) -> str:
        """The record type as a person writes it."""
        return dns.rdatatype.to_text(dns.rdatatype.RdataType.make(self.record_type))


def parse(data: bytes) -> DnsQuestion | DnsMalformed:
    """Read one message of a client."""
    if len(data) < _HEADER:
        return DnsMalformed("too short for a header")
    flags = int.from_bytes(data[2:4], "big")
    if flags & _QR:
        # If an answer were answered, two servers could be made to talk for ever.
        return DnsMalformed("not a query")
    if dns.opcode.from_flags(flags) != dns.opcode.QUERY:
        return DnsMalformed("opcode", _bare(data, dns.rcode.NOTIMP))
    form_error = _bare(data, dns.rcode.FORMERR)
    if len(data) > MAX_MESSAGE:
        return DnsMalformed("too long", form_error)
    questions, answers, authorities, additional = (
        int.from_bytes(data[i : i + 2], "big") for i in (4, 6, 8, 10)
    )
    if questions != 1 or answers or authorities or additional > MAX_ADDITIONAL:
        # RFC 9619: a QUERY with more than one question is answered with FORMERR.
        return DnsMalformed("not one question", form_error)
    try:
        query = dns.message.from_wire(data)
    except (dns.exception.DNSException, ValueError):
        # Includes a signature by a key that this server does not have (UnknownTSIGKey).
        return DnsMalformed("unreadable", form_error)
    if query.edns > _EDNS_VERSION:
        return DnsMalformed("EDNS version", _render(_response(query, dns.rcode.BADVERS)))
    asked = query.question[0]
    return DnsQuestion(asked.name.to_text(omit_final_dot=True), asked.rdtype, asked.rdclass, query)


def answer(question: DnsQuestion, decided: DnsAnswer, address: IPv4Address | None) -> bytes:
    """The message that carries a decision; an address that is missing is a failure (I3)."""
    match decided:
        case DnsAnswer.REFUSED:
            return _render(_response(question.query, dns.rcode.REFUSED))
        case DnsAnswer.NXDOMAIN:
            return _negative(question, dns.rcode.NXDOMAIN)
        case DnsAnswer.NODATA:
            return _negative(question, dns.rcode.NOERROR)
        case DnsAnswer.ADDRESS if address is not None:
            reply = _response(question.query, dns.rcode.NOERROR)
            owner = question.query.question[0].name
            reply.answer.append(dns.rrset.from_text(owner, ANSWER_TTL, "IN", "A", str(address)))
            return _render(reply)
        case _:
            return failure(question)


def failure(question: DnsQuestion) -> bytes:
    """SERVFAIL: the server, not the name, is at fault."""
    return _render(_response(question.query, dns.rcode.SERVFAIL))


def _response(query: dns.message.Message, rcode: dns.rcode.Rcode) -> dns.message.Message:
    """An answer with the question as it was spelled, and an OPT record if one was sent."""
    reply = dns.message.make_response(query, recursion_available=True, our_payload=UDP_PAYLOAD)
    reply.set_rcode(rcode)
    return reply


def _negative(question: DnsQuestion, rcode: dns.rcode.Rcode) -> bytes:
    """No such name, or no such record; the SOA says for how long (RFC 2308 §3)."""
    reply = _response(question.query, rcode)
    reply.authority.append(_AUTHORITY)
    return _render(reply)


def _render(reply: dns.message.Message) -> bytes:
    # One question and at most one small record: 253 + 75 bytes never need truncation at 512.
    return reply.to_wire(max_size=_MIN_UDP)


def _bare(data: bytes, rcode: dns.rcode.Rcode) -> bytes:
    """A header alone: the question could not be read, so it is not repeated."""
    asked = int.from_bytes(data[2:4], "big")
    kept = asked & (0x7800 | dns.flags.RD)
    return data[:2] + (_QR | kept | rcode).to_bytes(2, "big") + bytes(8)


_AUTHORITY = dns.rrset.from_text(
    dns.name.root,
    NEGATIVE_TTL,
    "IN",
    "SOA",
    f"keyhole.invalid. hostmaster.keyhole.invalid. 1 3600 600 86400 {NEGATIVE_TTL}",
)
