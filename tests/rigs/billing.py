"""A language model on loopback that bills by the token, and a policy with a budget of money."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import trustme

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.gateway.talk import Message
    from tests.rigs.sandbox.projects import Project

NAME = "model.example"

BUY = f"""
import json, sys, urllib.error, urllib.request
print("ready", flush=True)
for line in sys.stdin:
    body = json.dumps({{"model": line.strip()}}).encode()
    asked = urllib.request.Request("https://{NAME}/v1/chat/completions", body)
    asked.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(asked, timeout=100) as answer:
            print(answer.status, flush=True)
    except urllib.error.HTTPError as error:
        print(json.loads(error.read())["reason"], flush=True)
"""
"""A program that asks the model that each line names, and prints how that ended."""


def _bill(message: Message) -> bytes:
    """Every answer costs a dollar by the policy's price."""
    usage = {"prompt_tokens": 900_000, "completion_tokens": 100_000, "total_tokens": 1_000_000}
    model = json.loads(message.body)["model"]
    said = {"id": "c", "model": model, "choices": [], "usage": usage}
    return ok(json.dumps(said).encode(), b"Content-Type: application/json")


@contextlib.contextmanager
def billed_model(project: Project, budget: str, name: str = "model") -> Iterator[Service]:
    """The model behind a policy that allows it, as `services.NAME`."""
    authority, served = trustme.CA(), Service(_bill)
    server = Origin(served, tls_for(authority, NAME))
    (project.home / f"ca-{name}.pem").write_bytes(authority.cert_pem.bytes())
    (project.home / "key").write_text("sk-real-0123456789abcdefghij\n")
    (project.home / "key").chmod(0o600)
    project.policy(
        f'[services.{name}]\nuse = "openai"\nhosts = ["{NAME}"]\nsecret = "file:~/key"\n'
        f'prices = {{ "m" = {{ input = "1 USD", output = "1 USD" }} }}\nbudget = {{ {budget} }}\n'
        f'[upstream]\nca_file = "~/ca-{name}.pem"\n'
        f'[upstream.connect]\n"{NAME}:443" = "{server.address}"\n'
    )
    try:
        yield served
    finally:
        server.close()


def buy(run: object, model: str = "m") -> None:
    """Have a running `BUY` ask once more."""
    stdin = run.stdin  # type: ignore[attr-defined]
    stdin.write(f"{model}\n".encode())
    stdin.flush()
