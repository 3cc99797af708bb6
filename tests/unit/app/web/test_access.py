from __future__ import annotations

import pytest

from keyhole.app.web.access import LINK_SECONDS, MAX_TOKENS, WebAccess

PORT = 8123
OWN = "127.0.0.1:8123"


class Hands:
    now = 0.0


def _access() -> tuple[WebAccess, str]:
    access = WebAccess(PORT)
    token = access.exchange(access.new_link().partition("#")[2])
    assert token is not None
    return access, token


def _refusal(access: WebAccess, method: str, path: str, **headers: str) -> tuple[int, str] | None:
    raw = [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()]
    return access.refusal(method, path, raw)


def test_a_link_is_exchanged_once_and_for_a_while() -> None:
    hands = Hands()
    access = WebAccess(PORT, lambda: hands.now)
    key = access.new_link().partition("#")[2]
    assert access.exchange(key + "x") is None
    assert access.exchange(key) is not None  # control
    assert access.exchange(key) is None
    key = access.new_link().partition("#")[2]
    hands.now = LINK_SECONDS + 1
    assert access.exchange(key) is None


def test_a_new_link_makes_old_ones_void() -> None:
    access = WebAccess(PORT)
    first, second, third = (access.new_link().partition("#")[2] for _ in range(3))
    assert access.exchange(first) is None
    assert access.exchange(second)
    assert access.exchange(third)


def test_few_pages_are_known_at_a_time() -> None:
    access, first = _access()
    tokens = [access.exchange(access.new_link().partition("#")[2]) for _ in range(MAX_TOKENS)]
    assert not access.is_token(first)
    assert all(access.is_token(each or "") for each in tokens)


def test_the_page_itself_may_read_and_act() -> None:
    access, token = _access()
    own = {"host": OWN, "authorization": f"Bearer {token}", "sec_fetch_site": "same-origin"}
    assert _refusal(access, "GET", "/api/live", **own) is None
    assert _refusal(access, "POST", "/api/x", origin=f"http://{OWN}", **own) is None
    assert _refusal(access, "POST", "/api/login", origin=f"http://{OWN}", host=OWN) is None
    assert _refusal(access, "GET", "/", host=OWN, sec_fetch_site="none") is None


@pytest.mark.parametrize(
    ("method", "path", "changed", "refused"),
    [
        # DNS rebinding: another name that leads here.
        ("GET", "/", {"host": "evil.example:8123"}, (421, "wrong-host")),
        ("GET", "/api/live", {"host": "localhost:8123"}, (421, "wrong-host")),
        ("GET", "/api/live", {"host": "127.0.0.1"}, (421, "wrong-host")),
        ("GET", "/api/live", {"host": ""}, (421, "wrong-host")),
        # A page of another origin; another port of this host is one.
        ("POST", "/api/x", {"origin": "http://127.0.0.1:9999"}, (403, "wrong-origin")),
        ("POST", "/api/x", {"origin": "null"}, (403, "wrong-origin")),
        ("POST", "/api/x", {"origin": None}, (403, "wrong-origin")),
        ("POST", "/api/login", {"origin": "http://evil.example"}, (403, "wrong-origin")),
        ("GET", "/api/live", {"origin": "http://evil.example"}, (403, "wrong-origin")),
        ("GET", "/api/live", {"sec_fetch_site": "same-site"}, (403, "wrong-origin")),
        ("GET", "/api/live", {"sec_fetch_site": "cross-site"}, (403, "wrong-origin")),
        ("GET", "/api/live", {"sec_fetch_site": "none"}, (403, "wrong-origin")),
        # Another program of this host.
        ("GET", "/api/live", {"authorization": None}, (401, "no-token")),
        ("GET", "/api/live", {"authorization": "Bearer guess"}, (401, "no-token")),
        ("GET", "/api/live", {"authorization": "Basic abc"}, (401, "no-token")),
        ("POST", "/", {}, (405, "not-allowed")),
    ],
)
def test_others_are_refused(
    method: str, path: str, changed: dict[str, str | None], refused: tuple[int, str]
) -> None:
    access, token = _access()
    given = {
        "host": OWN,
        "origin": f"http://{OWN}",
        "authorization": f"Bearer {token}",
        "sec_fetch_site": "same-origin",
    }
    assert _refusal(access, "GET", "/api/live", **given) is None  # control
    given = {name: value for name, value in (given | changed).items() if value is not None}
    assert _refusal(access, method, path, **given) == refused


def test_a_header_that_comes_twice_is_refused() -> None:
    access, _ = _access()
    twice = [(b"host", OWN.encode()), (b"Host", b"evil.example")]
    assert access.refusal("GET", "/", twice) == (400, "malformed")
