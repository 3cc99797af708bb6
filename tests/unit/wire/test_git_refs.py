"""An advertisement offers what Keyhole allows, and no way to another host (I2, I3)."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.git_refs import (
    ADVERTISEMENT_TYPES,
    RECEIVE_PACK,
    REQUEST_TYPES,
    RESULT_TYPES,
    UPLOAD_PACK,
    AdvertisementRewriter,
)
from keyhole.wire.pkt_line import FLUSH, MAX_DATA, Marker, encode, read_packets

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = b"1" * 40, b"2" * 40
PUSH_SERVICE = encode(b"# service=git-receive-pack\n") + FLUSH
FETCH_SERVICE = encode(b"# service=git-upload-pack\n") + FLUSH
OFFERED = (
    b"report-status report-status-v2 delete-refs side-band-64k quiet atomic ofs-delta push-options"
    b" push-cert=1700000000-abcdef object-format=sha1 agent=git/2.39.5 something-new x=y"
)
V2 = [
    b"agent=git/2.39.5\n",
    b"ls-refs=unborn\n",
    b"fetch=shallow wait-for-done filter packfile-uris something-new\n",
    b"server-option\n",
    b"object-format=sha1\n",
    b"object-info\n",
    b"bundle-uri\n",
    b"promisor-remote=name=x,url=https%3A%2F%2Felsewhere.example,token=hunter2\n",
    b"something-new=1\n",
]


def packets(*lines: bytes) -> bytes:
    return b"".join(map(encode, lines)) + FLUSH


def rewritten(body: bytes, service: str = RECEIVE_PACK, *, options: bool = False) -> bytes:
    rewriter = AdvertisementRewriter(service, options=options)
    return rewriter.feed(body) + rewriter.end()


def refusal(body: bytes, service: str = RECEIVE_PACK) -> str:
    with pytest.raises(Malformed) as refused:
        rewritten(body, service)
    return refused.value.why


PUSH = PUSH_SERVICE + packets(
    ONE + b" refs/heads/main\0" + OFFERED + b"\n", TWO + b" refs/tags/v1\n"
)


def offered(body: bytes) -> list[bytes]:
    """The capabilities on the first ref of a rewritten advertisement for a push."""
    first = read_packets(body.removeprefix(PUSH_SERVICE))[0]
    assert isinstance(first, bytes)
    return first.partition(b"\0")[2].removesuffix(b"\n").split(b" ")


def test_media_types_are_those_of_the_protocol() -> None:
    for service in (UPLOAD_PACK, RECEIVE_PACK):
        stem = b"application/x-" + service.encode()
        assert ADVERTISEMENT_TYPES[service] == stem + b"-advertisement"
        assert REQUEST_TYPES[service] == stem + b"-request"
        assert RESULT_TYPES[service] == stem + b"-result"


def test_a_push_is_offered_what_is_read_and_no_thin_packs() -> None:
    """I3: certificates, and what nobody knows, are not offered; what is granted stays."""
    assert rewritten(PUSH) == PUSH_SERVICE + packets(
        ONE + b" refs/heads/main\0"
        b"report-status report-status-v2 delete-refs side-band-64k quiet atomic ofs-delta"
        b" object-format=sha1 agent=git/2.39.5 no-thin\n",
        TWO + b" refs/tags/v1\n",
    )


@pytest.mark.parametrize("granted", [False, True])
def test_push_options_are_offered_where_they_are_granted(granted: bool) -> None:
    words = offered(rewritten(PUSH, options=granted))
    assert (b"delete-refs" in words, b"push-options" in words) == (True, granted)
    assert words.count(b"no-thin") == 1


def test_no_thin_is_offered_once() -> None:
    body = PUSH_SERVICE + packets(ONE + b" refs/heads/main\0no-thin report-status\n")
    assert offered(rewritten(body)) == [b"report-status", b"no-thin"]


def test_version_one_is_said_on() -> None:
    lines = read_packets(PUSH.removeprefix(PUSH_SERVICE))
    body = PUSH_SERVICE + packets(b"version 1\n", *[x for x in lines if isinstance(x, bytes)])
    assert rewritten(body) == rewritten(PUSH).replace(
        PUSH_SERVICE, PUSH_SERVICE + encode(b"version 1\n")
    )
    assert "OID NAME" in refusal(PUSH_SERVICE + packets(b"version 1\n", b"version 1\n"))
    assert "OID NAME" in refusal(PUSH_SERVICE + packets(b"version 2\n", *V2))


def test_objects_of_forks_are_not_told() -> None:
    """I3: what a client builds on them could not be proven."""
    body = PUSH_SERVICE + packets(
        ONE + b" refs/heads/main\0report-status\n", TWO + b" .have\n", b"shallow " + TWO + b"\n"
    )
    assert rewritten(body) == PUSH_SERVICE + packets(
        ONE + b" refs/heads/main\0report-status no-thin\n", b"shallow " + TWO + b"\n"
    )


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ((ONE + b" refs/heads/x\n",), ONE + b" refs/heads/x"),
        ((), b"0" * 40 + b" capabilities^{}"),
        ((TWO + b" .have\n", b"shallow " + TWO + b"\n"), b"0" * 40 + b" capabilities^{}"),
    ],
)
def test_capabilities_survive_the_fork_that_carried_them(
    lines: tuple[bytes, ...], first: bytes
) -> None:
    body = PUSH_SERVICE + packets(TWO + b" .have\0report-status\n", *lines)
    found = read_packets(rewritten(body).removeprefix(PUSH_SERVICE))
    assert found[0] == first + b"\0report-status no-thin\n"
    assert b".have" not in rewritten(body)
    assert rewritten(body).count(b"\0") == 1


def test_an_empty_repository_has_capabilities_and_no_ref() -> None:
    body = PUSH_SERVICE + packets(b"0" * 40 + b" capabilities^{}\0report-status\n")
    assert offered(rewritten(body)) == [b"report-status", b"no-thin"]


def test_a_second_list_of_capabilities_is_refused() -> None:
    """I4: clients differ in which of two they take."""
    second = TWO + b" refs/heads/x\0delete-refs\n"
    assert "first ref" in refusal(
        PUSH_SERVICE + packets(ONE + b" refs/heads/main\0atomic\n", second)
    )
    assert "first ref" in refusal(
        PUSH_SERVICE + packets(ONE + b" .have\0atomic\n", TWO + b" .have\0atomic\n")
    )
    assert rewritten(PUSH)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (PUSH[len(PUSH_SERVICE) :], "begin with its service"),
        (FETCH_SERVICE + PUSH[len(PUSH_SERVICE) :], "another service"),
        (PUSH_SERVICE[:-4] + PUSH[len(PUSH_SERVICE) :], "not followed by a flush"),
        (FLUSH + PUSH, "flush packet is missing"),
        (PUSH_SERVICE[:-4] + b"0001", "another marker"),
        (PUSH_SERVICE + FLUSH, "no capabilities"),
        (PUSH_SERVICE + packets(b"version 1"), "no capabilities"),
        (PUSH_SERVICE + packets(ONE + b" refs/heads/main\n"), "first ref has no capabilities"),
        (PUSH_SERVICE + packets(b"shallow " + ONE), "OID NAME"),
        (PUSH_SERVICE + packets(b"A" * 40 + b" refs/heads/main\0atomic"), "OID NAME"),
        (PUSH_SERVICE + packets(ONE + b" refs/heads/a b\0atomic"), "OID NAME"),
        (PUSH_SERVICE + packets(ONE + b" refs/heads/a\0atomic\tpush-cert=1"), "printable"),
        (PUSH[:-4] + encode(b"shallow " + ONE + b" x") + FLUSH, "OID NAME"),
        (PUSH + FLUSH, "follows"),
        (PUSH + b"x", "ends before"),
        (PUSH[:-4], "ends before"),
        (PUSH[:-9], "ends before"),
        (b"", "ends before"),
    ],
)
def test_what_is_no_advertisement_is_refused(body: bytes, why: str) -> None:
    assert why in refusal(body)
    assert rewritten(PUSH)


@pytest.mark.parametrize("start", [b"", FETCH_SERVICE])
def test_protocol_two_offers_no_other_host_and_no_free_text(start: bytes) -> None:
    """I2: all comes from this host alone. Some servers name the service first, C git does not."""
    assert rewritten(start + packets(b"version 2\n", *V2), UPLOAD_PACK) == start + packets(
        b"version 2\n",
        b"agent=git/2.39.5\n",
        b"ls-refs=unborn\n",
        b"fetch=shallow wait-for-done filter\n",
        b"object-format=sha1\n",
        b"object-info\n",
    )


def test_a_fetch_that_can_nothing_special_is_offered_without_a_value() -> None:
    for line in (b"fetch\n", b"fetch=\n", b"fetch=packfile-uris\n"):
        body = packets(b"version 2\n", line)
        assert rewritten(body, UPLOAD_PACK) == packets(b"version 2\n", b"fetch\n")


def test_a_capability_that_is_not_printable_is_refused() -> None:
    assert "printable" in refusal(packets(b"version 2\n", b"agent=x\0fetch"), UPLOAD_PACK)
    assert "printable" in refusal(packets(b"version 2\n", b"agent=x\nbundle-uri"), UPLOAD_PACK)


def test_a_line_that_grows_beyond_a_packet_is_refused() -> None:
    """I9: an origin cannot make the gateway write what no client reads."""
    full = b"agent=" + b"x" * (MAX_DATA - 6)
    assert "at most" in refusal(packets(b"version 2\n", full), UPLOAD_PACK)
    assert rewritten(packets(b"version 2\n", full[:-1]), UPLOAD_PACK)
    ref = ONE + b" refs/heads/a\0"
    words = b"agent=" + b"x" * (MAX_DATA - len(ref) - 6)
    assert "at most" in refusal(PUSH_SERVICE + packets(ref + words))


def test_older_protocols_pass_for_a_fetch() -> None:
    body = packets(
        ONE + b" HEAD\0multi_ack thin-pack symref=HEAD:refs/heads/main filter\n",
        TWO + b" refs/tags/v1\n",
        ONE + b" refs/tags/v1^{}\n",
        TWO + b" .have\n",
        b"shallow " + ONE,
    )
    assert rewritten(FETCH_SERVICE + body, UPLOAD_PACK) == FETCH_SERVICE + body
    one = FETCH_SERVICE + encode(b"version 1\n") + body
    assert rewritten(one, UPLOAD_PACK) == one
    # An empty repository of an older server.
    assert rewritten(FETCH_SERVICE + FLUSH, UPLOAD_PACK) == FETCH_SERVICE + FLUSH


@pytest.mark.parametrize("service", [UPLOAD_PACK, RECEIVE_PACK])
@pytest.mark.parametrize("tail", [b"", FLUSH, encode(b"more") + FLUSH, b"00"])
def test_an_error_passes_and_ends_the_answer(service: str, tail: bytes) -> None:
    said = encode(b"# service=" + service.encode()) + FLUSH + encode(b"ERR no such repository")
    assert rewritten(said + tail, service) == said


@given(st.data())
def test_an_advertisement_is_rewritten_the_same_wherever_it_is_cut(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(PUSH)), max_size=8)))
    rewriter, found = AdvertisementRewriter(RECEIVE_PACK), b""
    for start, end in zip([0, *cuts], [*cuts, len(PUSH)], strict=True):
        found += rewriter.feed(PUSH[start:end])
    assert found + rewriter.end() == rewritten(PUSH)


@given(st.binary(max_size=80), st.integers(0, len(PUSH)), st.sampled_from([*RESULT_TYPES]))
def test_whatever_an_origin_says_no_refused_word_is_offered(
    junk: bytes, at: int, service: str
) -> None:
    """I3: the rewritten list is read again, and holds only what may be offered."""
    try:
        found = rewritten(PUSH[:at] + junk + PUSH[at:], service)
    except Malformed:
        return
    for packet in read_packets(found):
        if isinstance(packet, bytes) and service == RECEIVE_PACK:
            words = packet.partition(b"\0")[2].removesuffix(b"\n").split(b" ")
            assert not {b"push-options", b"something-new", b"x=y"} & set(words)
            assert not any(word.startswith(b"push-cert") for word in words)


def test_many_refs_pass_without_being_held() -> None:
    """I9: ten thousand refs in pieces; what is held is less than a packet."""
    rewriter = AdvertisementRewriter(RECEIVE_PACK)
    rewriter.feed(PUSH[:-4])
    line = encode(ONE + b" refs/pull/1/head\n")
    for _ in range(10_000):
        assert rewriter.feed(line) == line
    assert rewriter.feed(FLUSH) == FLUSH
    assert rewriter.end() == b""


def git(place: Path, *arguments: str, protocol: str = "") -> bytes:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_PROTOCOL": protocol,
    }
    done = subprocess.run(["git", *arguments], capture_output=True, env=environment, check=True)  # noqa: S607
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_what_a_real_git_advertises_is_rewritten(tmp_path: Path) -> None:
    origin = str(tmp_path / "origin.git")
    git(tmp_path, "init", "-q", "--bare", origin)
    for service in (UPLOAD_PACK, RECEIVE_PACK):
        for protocol in ("", "version=1", "version=2"):
            body = git(
                tmp_path,
                service.removeprefix("git-"),
                "--http-backend-info-refs",
                origin,
                protocol=protocol,
            )
            if protocol != "version=2" or service == RECEIVE_PACK:
                body = encode(b"# service=" + service.encode() + b"\n") + FLUSH + body
            found = read_packets(rewritten(body, service))
            assert found[-1] is Marker.FLUSH
            assert (b"no-thin" in b"".join(p for p in found if isinstance(p, bytes))) is (
                service == RECEIVE_PACK
            )
