"""Heads of plain HTTP requests, on port 80: the same grammar, for the `http` scheme.

Used by the gateway's gate for port 80. The head is passed on unchanged, so the gate refuses each
field that would be removed or rewritten on an inspected connection.
"""

from __future__ import annotations

import re

from keyhole.http.request import RequestHead, RequestReader, Treatment, request_line_pattern
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, RequestUnfit, Unparsable
from keyhole.model.host import Host

HTTP_PORT = 80

_REQUEST_LINE = request_line_pattern("http")
_ASTERISK = re.compile(r"OPTIONS \* HTTP/1\.([01])")
_UPGRADE = "a connection cannot be turned into another protocol"
_CONNECT = re.compile(r"(?i:CONNECT) [\x21-\x7e]+ HTTP/1\.[01]")


class PlainRequestReader(RequestReader):
    """Reads the heads of requests to one host.

    Raises RequestUnfit for a request to another host than the connection's (I4), and for one after
    which the connection would speak a protocol that is not judged.
    """

    __slots__ = ()

    def __init__(self, host: str) -> None:
        super().__init__(host, HTTP_PORT, _keep, {}, _REQUEST_LINE)

    def parse(self, head: bytes) -> RequestHead:
        """Read a head, which ends before the empty line."""
        request = super().parse(head)
        if b"upgrade" in field_names(head):
            raise RequestUnfit(Reason.HTTP_UPGRADE, _UPGRADE)
        return request

    def _request_line(self, row: bytes, head: bytes) -> RequestHead:
        text = str(row, "latin-1")
        if _CONNECT.fullmatch(text):
            raise RequestUnfit(Reason.HTTP_UPGRADE, _UPGRADE)
        found = _ASTERISK.fullmatch(text)
        if found is not None:
            http10 = found[1] == "0"
            return RequestHead("OPTIONS", "*", None, http10, [], [], http10, "OPTIONS", head)
        return super()._request_line(row, head)

    def _check_host(self, host: bytes) -> None:
        name, colon, port = host.partition(b":")
        try:
            Host.parse(name.decode("ascii"))
        except (Unparsable, UnicodeDecodeError):
            raise Malformed("Host and target do not name one host") from None
        if colon and port != b"80":
            raise Malformed("Host and target do not name one host")
        raise RequestUnfit(Reason.HOST_MISMATCH, "Host is not the name that was connected to")


def field_names(head: bytes) -> frozenset[bytes]:
    """The names of a head's fields, in lower case; the head was read before."""
    return frozenset(line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:])


def _keep(name: bytes) -> Treatment:
    return Treatment.KEEP
