"""What every proxy of intercepted traffic has to do, said once: rules, removals, one addition.

The client's head is that of an API's client: 17 headers, a placeholder among them. A proxy judges
the request by twenty rules, takes away every place where a credential can ride, writes one of its
own, counts the request against a rate and writes a line about it.
"""

from __future__ import annotations

from keyhole.inject.slots import GLOBAL_SLOTS, SlotLocation

HOST = "api.example"
PORT = 443

SECRET = "sk-bench-6fD2q9XkT0vLr4WmYb8sNc1hZe5uGa3j"  # noqa: S105 - made up, and good for nothing
PLACEHOLDER = "sk-bench-0000000000000000000000000000000000"
ADDED = ("authorization", f"Bearer {SECRET}")

RESOURCES = (
    "models messages files batches responses embeddings images audio moderations threads "
    "runs steps assistants uploads stores graders evals usage projects items"
).split()
"""The first segments of what may be asked; one rule for each."""

METHODS = ("GET", "POST")
RULES = [f"{','.join(METHODS)} /v1/{name}/**" for name in RESOURCES]

REMOVED = [
    *(
        slot.name
        for slot in GLOBAL_SLOTS
        if slot.place is SlotLocation.HEADER and "*" not in slot.name
    ),
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
]

SMALL, DOWN, UP, EVENTS, ECHO = (f"/v1/{name}/7" for name in ("items", *RESOURCES[2:6]))
"""What the origin serves under these paths; any other path is as SMALL is."""

VARIES = ("x-request-id", "idempotency-key", "traceparent", "x-client-time")
"""Headers that are new in every request of a client with varied heads, as are path and query."""


def head(target: str, method: str = "GET", *more: str) -> str:
    """A request's head as a client of an API sends it; `%s` where heads may vary."""
    return "\r\n".join(
        (
            f"{method} {target} HTTP/1.1",
            f"Host: {HOST}",
            "Accept: application/json",
            "Accept-Language: *",
            "User-Agent: Widgets/Python 1.58.2",
            "X-Client-Lang: python",
            "X-Client-Package-Version: 1.58.2",
            "X-Client-OS: Linux",
            "X-Client-Arch: x64",
            "X-Client-Runtime: CPython",
            "X-Client-Retry-Count: 0",
            "X-Client-Time: %08d",
            "X-API-Version: 2023-06-01",
            "X-Request-Id: req_%08d4c1f9a2b7d3e",
            "Idempotency-Key: %08d-71e2-4b58-9c3d-0fa6b2d81c47",
            "Traceparent: 00-%08d8c2f4e6a9b1d3f507182a4c6-00f067aa0ba902b7-01",
            f"Authorization: Bearer {PLACEHOLDER}",
            "Sec-Fetch-Mode: cors",
            *more,
            "",
            "",
        )
    )


def steady(target: str, method: str = "GET", *more: str) -> bytes:
    """A head whose variable parts are always the same."""
    return (head(target, method, *more) % ((1,) * len(VARIES))).encode()
