"""What a person asks about is read as the door would see it."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Unparsable
from keyhole.policy.push import RefChange
from keyhole.policy.request import RequestFacts
from keyhole.policy.target import HostTarget, LiteralTarget, PushTarget, RequestTarget, parse_target


@pytest.mark.parametrize(
    ("text", "host", "port", "path", "query"),
    [
        ("https://Example.org", "example.org", 443, "/", ""),
        ("https://example.org/a/b?c=d", "example.org", 443, "/a/b", "c=d"),
        ("http://example.org/x", "example.org", 80, "/x", ""),
        ("https://example.org:8443?q", "example.org", 8443, "/", "q"),
    ],
)
def test_a_url_is_a_request(text: str, host: str, port: int, path: str, query: str) -> None:
    target = parse_target((text,), "post")
    assert isinstance(target, RequestTarget)
    assert (target.host.name, target.port) == (host, port)
    assert target.request == RequestFacts("POST", path, query)


@pytest.mark.parametrize(
    ("words", "method", "word", "port"),
    [
        (("GET+body https://example.org/x",), "GET", "GET+body", 443),
        (("delete+BODY", "https://example.org/x"), "GET", "DELETE+body", 443),
        (("https://example.org/x",), "get+body", "GET+body", 443),
        (("https://example.org/x",), "websocket", "WEBSOCKET", 443),
        (("WEBSOCKET https://example.org/x",), "GET", "WEBSOCKET", 443),
        (("wss://example.org/x",), "GET", "WEBSOCKET", 443),
        (("ws://example.org/x",), "GET", "WEBSOCKET", 80),
        (("POST https://example.org/x",), "GET", "POST", 443),
        (("grpc https://example.org/x",), "GET", "GRPC", 443),
    ],
)
def test_a_request_is_asked_about_as_a_rule_names_it(
    words: tuple[str, ...], method: str, word: str, port: int
) -> None:
    target = parse_target(words, method)
    assert isinstance(target, RequestTarget)
    assert (target.port, target.request) == (port, RequestFacts(word, "/x"))


@pytest.mark.parametrize("text", ["GET example.org", "FETCH https://example.org/", "GET+body"])
def test_a_method_stands_before_a_url_alone(text: str) -> None:
    with pytest.raises(Unparsable):
        parse_target((text,), "GET")


@pytest.mark.parametrize(
    ("text", "port"), [("example.org", 443), ("example.org:22", 22), ("example.org/", 443)]
)
def test_a_name_is_a_connection(text: str, port: int) -> None:
    target = parse_target((text,), "GET")
    assert isinstance(target, HostTarget)
    assert (target.host.name, target.port) == ("example.org", port)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1",
        "https://10.0.0.1/x",
        "[::1]",
        "https://[2001:db8::1]:8443/x",
        "127.1:80",
        "0x7f.1",
    ],
)
def test_an_address_is_told_from_a_name(text: str) -> None:
    assert isinstance(parse_target((text,), "GET"), LiteralTarget)


PUSHES = [
    ("git push https://git.example/a/b.git agent/x", "refs/heads/agent/x", RefChange.FAST_FORWARD),
    ("git push https://git.example/a/b.git refs/tags/v1", "refs/tags/v1", RefChange.FAST_FORWARD),
    ("git push https://git.example/a/b.git HEAD:x", "refs/heads/x", RefChange.FAST_FORWARD),
    ("git push https://git.example/a/b.git +x", "refs/heads/x", RefChange.FORCE),
    ("git push -f https://git.example/a/b.git x", "refs/heads/x", RefChange.FORCE),
    (
        "git push https://git.example/a/b.git x --force-with-lease=x",
        "refs/heads/x",
        RefChange.FORCE,
    ),
    ("git push https://git.example/a/b.git :x", "refs/heads/x", RefChange.DELETE),
    ("git push --delete https://git.example/a/b.git x", "refs/heads/x", RefChange.DELETE),
    ("git push git@git.example:a/b.git x", "refs/heads/x", RefChange.FAST_FORWARD),
    ("git push ssh://git@git.example:22/a/b.git x", "refs/heads/x", RefChange.FAST_FORWARD),
]


@pytest.mark.parametrize(("text", "ref", "change"), PUSHES)
def test_a_push_is_read_as_git_reads_it(text: str, ref: str, change: RefChange) -> None:
    for words in ((text,), tuple(text.split())):
        target = parse_target(words, "GET")
        assert isinstance(target, PushTarget)
        assert (target.host.name, target.port, target.path) == ("git.example", 443, "/a/b.git")
        assert (target.ref, target.change) == (ref, change)


def test_a_push_may_name_a_host_alone() -> None:
    target = parse_target(("git push https://git.example x",), "GET")
    assert isinstance(target, PushTarget)
    assert target.path == "/"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "https://user@example.org/",
        "https://ok.test\\@evil.test/",
        "https://exa\tmple.org/",
        "ftp://example.org/",
        "https://example.org/#fragment",
        "https:///x",
        "example.org:0",
        "git push origin main",
        "git push https://git.example/a/b",
        "git push --mirror https://git.example/a/b x",
        "git pull",
    ],
)
def test_what_is_none_of_these_is_refused(text: str) -> None:
    with pytest.raises(Unparsable):
        parse_target((text,), "GET")
