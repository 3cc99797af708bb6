"""Inside: call a real SDK and a custom service; then wait, so as to be looked at."""

from __future__ import annotations

import json
import os
import sys

import anthropic  # type: ignore[import-not-found]
import requests

if __name__ == "__main__":
    client = anthropic.Anthropic(max_retries=0)
    message = client.messages.create(
        model="fake", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
    )
    answer = requests.get("https://billing.example/v1/echo", timeout=20).json()
    held = os.memfd_create("planted")
    os.write(held, bytes.fromhex(sys.argv[1]))
    said = {"sdk": message.content[0].text, "echo": answer["headers"]["authorization"]}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
