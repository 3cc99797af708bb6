"""Inside: requests and httpx against a service that repeats all it is told."""

from __future__ import annotations

import json
import sys

import httpx  # type: ignore[import-not-found]
import requests

URL = "https://billing.example/v1/echo?page=2"
OWN = {"Authorization": "Bearer of-the-client", "X-Kept": "yes"}

if __name__ == "__main__":
    with requests.Session() as session:
        first = session.get(URL, headers=OWN).json()
        posted = session.post(URL, data=(b"piece " for _ in range(3))).json()
    with httpx.Client() as client:
        second = client.get(URL, headers=OWN).json()
        denied = client.delete(URL)
    said = {
        "requests": first,
        "posted": posted["body"],
        "httpx": second,
        "denied": [denied.status_code, denied.json()],
    }
    json.dump(said, sys.stdout)
