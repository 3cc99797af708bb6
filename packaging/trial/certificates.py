"""Writes the provider's certificate and its authority: `certificates.py DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import trustme

HOSTS = (
    "api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "api.mistral.ai",
    "api.githubcopilot.com", "api.github.com",
)  # fmt: skip


def main() -> None:
    """`chain.pem` has the key and the certificate, `ca.pem` the authority alone."""
    directory = Path(sys.argv[1])
    authority = trustme.CA()
    issued = authority.issue_cert(*HOSTS)
    pems = (issued.private_key_pem, *issued.cert_chain_pems)
    (directory / "chain.pem").write_bytes(b"".join(pem.bytes() for pem in pems))
    (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())


if __name__ == "__main__":
    main()
