"""TLS of Keyhole's own connections: makes the verifying context, and refuses any other (I4).

`certs/` adds the roots. Every connection that carries a credential is made with such a context.
"""

from __future__ import annotations

import ssl

from keyhole.model.errors import Misuse


def verifying_context() -> ssl.SSLContext:
    """A client context that verifies certificate and name, without any root yet."""
    # Not create_default_context: it writes the keys of every connection to $SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A certificate on a person's list is trusted, also an intermediate one, as by curl and Go.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # RFC 9525 §2: a common name is no identity (I4).
    context.hostname_checks_common_name = False
    return context


def insist_on_verifying(context: ssl.SSLContext) -> None:
    """Raises Misuse for a context that takes any certificate, or one for another name."""
    if context.verify_mode is not ssl.CERT_REQUIRED or not context.check_hostname:
        raise Misuse("this context does not verify the origin")
