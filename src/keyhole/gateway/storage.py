"""A storage host's answer: what of it the client may see, and where it leads instead.

Asked by `largefiles.py` for each answer to a transfer. The address and what opens it stay outside
(I1), so the gateway goes where a redirect leads, and an error is told in words of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.batch import ErrorRewriter, tell_error
from keyhole.gateway.lfs import Transfer, storage_head
from keyhole.inject.lent import lent_secrets
from keyhole.wire.httpfield import Malformed, values_of
from keyhole.wire.httpresponse import Framing
from keyhole.wire.lfsanswer import Action, StorageAddress
from keyhole.wire.lfsjson import write_error

if TYPE_CHECKING:
    from keyhole.wire.httpresponse import ResponseHead

MAX_HOPS = 2
"""Redirects of a download: as many as the client itself would follow."""

_ERRORS = 400
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSED = frozenset(b"last-modified date retry-after".split())
"""Fields of a storage host's answer that a client has a use for. All others stay outside: cookies,
challenges, digests, and the addresses that stand in Location."""


def redirected(transfer: Transfer, head: ResponseHead) -> Transfer | None:
    """Where a download is to be asked for instead; None when the answer is no redirect.

    GitLab sends downloads on to its object storage. The client must not see that address, which is
    signed, and could not reach it; so the gateway follows it, with no field of the first request
    and for downloads alone: an upload that moved was judged for another host. Raises Malformed.
    """
    if head.status not in _REDIRECTS:
        return None
    if transfer.method != "GET" or transfer.hops >= MAX_HOPS:
        raise Malformed("the storage host sends the transfer somewhere else")
    places = values_of(head.lines, b"location")
    if len(places) != 1:
        raise Malformed("a redirect has one Location")
    if transfer.own.found_in(places[0]):
        raise Malformed("the storage host would send the forge's own credential somewhere else")
    address = StorageAddress.parse(places[0].decode("latin-1"))
    if transfer.repo.leads_astray(address):
        raise Malformed("the storage host sends the transfer to another place of the forge")
    needles = transfer.needles | lent_secrets(Action(address), transfer.large.oid)
    return Transfer(
        address.host,
        address.port,
        "GET",
        storage_head("GET", address, ()),
        b"",
        transfer.large,
        transfer.repo,
        transfer.own,
        needles,
        transfer.hops + 1,
    )


def tidy(transfer: Transfer, head: ResponseHead) -> ErrorRewriter | None:
    """Leave in a storage host's answer what the client may see; None: the body passes as it comes.

    An object passes. Of all else, only whether it worked: S3 answers a wrong signature with the
    string that was signed. Raises Malformed.
    """
    head.lines = [line for line in head.lines if line.partition(b":")[0].lower() in _PASSED]
    if head.status >= _ERRORS:
        status = head.status
        if status == 401:
            # The client would ask a person for a password, without end.
            head.status, head.start = 403, b"HTTP/1.1 403 Forbidden\r\n"
        return tell_error(head, write_error(f"the storage host answered {status}"))
    if transfer.method != "GET":
        return ErrorRewriter(b"")
    if head.status != 200 or head.encoding:
        raise Malformed("the storage host sends something else than the object")
    if head.framing is Framing.LENGTH and head.length != transfer.large.size:
        raise Malformed("the storage host sends an object of another size")
    # git-lfs uploads a text in UTF-16 as such. Nobody inside chose its characters, as one might of
    # an answer that then could not be searched: they are bytes.
    head.lines.append(b"Content-Type: application/octet-stream\r\n")
    head.unreadable = False
    return None
