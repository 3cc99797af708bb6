"""Inside: the official SDKs as their READMEs show them. They find their key in the environment."""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic  # type: ignore[import-not-found]
import openai  # type: ignore[import-not-found]

ASK: list[Any] = [{"role": "user", "content": "hello"}]


def ask_anthropic() -> dict[str, Any]:
    """A message, a stream of one, and files, which the catalogue guards."""
    client = anthropic.Anthropic(max_retries=0)
    whole = client.messages.create(model="fake", max_tokens=9, messages=ASK)
    pieces: list[str] = []
    with client.messages.stream(model="fake", max_tokens=9, messages=ASK) as stream:
        for text in stream.text_stream:
            if not pieces:
                client.models.retrieve("go-on")
            pieces.append(text)
    try:
        client.beta.files.list()
    except anthropic.PermissionDeniedError as error:
        denied = error.body
    return {"whole": whole.content[0].text, "pieces": pieces, "denied": denied}


def ask_openai() -> dict[str, Any]:
    """A completion and a stream of one."""
    client = openai.OpenAI(max_retries=0)
    whole = client.chat.completions.create(model="fake", messages=ASK)
    pieces: list[str] = []
    for chunk in client.chat.completions.create(model="fake", messages=ASK, stream=True):
        if not pieces:
            client.models.retrieve("go-on")
        pieces.append(chunk.choices[0].delta.content)
    return {"whole": whole.choices[0].message.content, "pieces": pieces}


if __name__ == "__main__":
    json.dump({"anthropic": ask_anthropic(), "openai": ask_openai()}, sys.stdout)
