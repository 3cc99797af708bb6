"""Inside: httpx with HTTP/2, whole and in pieces, to an origin that repeats what it gets."""

from __future__ import annotations

import json
import sys

import httpx  # type: ignore[import-not-found]

OWN = {"Authorization": "Bearer of-the-client", "X-Kept": "yes"}
PIECES = [b"piece " * 1000] * 20

if __name__ == "__main__":
    with httpx.Client(http2=True, base_url="https://node.example") as client:
        said = client.get("/v1/said", headers=OWN)
        denied = client.get("/v2/other")
        with client.stream("POST", "/v1/echo", content=iter(PIECES)) as response:
            echoed = b"".join(response.iter_bytes())
    found = {
        "version": said.http_version,
        "said": said.text,
        "denied": [denied.status_code, denied.json()["reason"]],
        "echoed": echoed == b"".join(PIECES),
    }
    json.dump(found, sys.stdout)
