"""Reads a storage host's response: the parts that the client may see, and redirects.

Used by `largefiles.py` for each response to a transfer. The address and its credentials stay
outside (I1), so the gateway itself follows a redirect, and reports an error in words of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.git.batch import ErrorRewriter, tell_error
from keyhole.gateway.git.lfs import Transfer, storage_head
from keyhole.http.field import values_of
from keyhole.http.response import Framing
from keyhole.inject.transfer_secrets import transfer_secrets
from keyhole.model.errors import Malformed
from keyhole.wire.lfs_json import write_error
from keyhole.wire.lfs_response import StorageAddress, TransferAction

if TYPE_CHECKING:
    from keyhole.http.response import ResponseHead

MAX_HOPS = 2
"""Redirects of a download: as many as the client itself would follow."""

_ERRORS = 400
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSED = frozenset(b"last-modified date retry-after".split())
"""Fields of a storage host's answer that a client has a use for. All others stay outside: cookies,
challenges, digests, and the addresses that stand in Location."""


def redirected(transfer: Transfer, head: ResponseHead) -> Transfer | None:
    """The transfer that a redirect leads to; None when the response is no redirect.

    GitLab redirects downloads to its object storage. The client must not see that address, which is
    signed, and could not reach it. So the gateway follows it, with no field of the first request,
    and only for downloads: an upload was judged for the first host alone. Raises Malformed.
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
    needles = transfer.needles | transfer_secrets(TransferAction(address), transfer.large.oid)
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
    """Leave in a storage host's response only what the client may see; None: the body is an object
    and passes.

    Of any other response the client learns only whether it succeeded: S3 answers a wrong signature
    with the string that was signed. Raises Malformed.
    """
    head.lines = [line for line in head.lines if line.partition(b":")[0].lower() in _PASSED]
    if head.status >= _ERRORS:
        status = head.status
        if status == 401:
            # With a 401 the client would ask a person for a password again and again.
            head.status, head.start = 403, b"HTTP/1.1 403 Forbidden\r\n"
        return tell_error(head, write_error(f"the storage host answered {status}"))
    if transfer.method != "GET":
        return ErrorRewriter(b"")
    if head.status != 200 or head.encoding:
        raise Malformed("the storage host sends something else than the object")
    if head.framing is Framing.LENGTH and head.length != transfer.large.size:
        raise Malformed("the storage host sends an object of another size")
    # Served as bytes, so that an object in UTF-16, which git-lfs uploads as it is, can pass. A
    # response whose charset the sandbox chose could not be searched; it does not choose an
    # object's.
    head.lines.append(b"Content-Type: application/octet-stream\r\n")
    head.unreadable = False
    return None
