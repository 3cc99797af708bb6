"""No secret leaves in an answer, and nothing that leaves tells how much of it was right (I7)."""

from __future__ import annotations

import base64
import copy
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.placeholder import TokenShape
from keyhole.inject.renderings import Rendering, renderings
from keyhole.inject.scrub import HOLD_STEP, TOKEN_BYTES, Needles, NeedleSpan, Scrubber

SHAPE = TokenShape.parse("ghp_{alnum:36}")
SECRET = "ghp_Zq81xKc0vBn5mTy7LwRj2sUd94hGfPeAo6iX"
PLACEHOLDER = SHAPE.placeholder(bytes(range(7, 79)))
NEEDLES = Needles.of(SECRET, PLACEHOLDER)
HOLD = HOLD_STEP
"""Of that secret: its longest rendering has 120 bytes."""


def fed(needles: Needles, *pieces: bytes) -> list[bytes]:
    """What comes out at each piece, and at the end."""
    scrubber = Scrubber(needles)
    return [*(bytes(scrubber.feed(piece)) for piece in pieces), scrubber.end()]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(at)]


def other(byte: int) -> int:
    """Another byte of the same kind: a letter for a letter, a digit for a digit."""
    text = chr(byte)
    if text.isalpha():
        return ord("q" if text != "q" else "r")
    return ord("4" if text != "4" else "5") if text.isdigit() else byte ^ 1


GUESSES = [found.needle for found in renderings(SECRET, PLACEHOLDER)]


# ── what is replaced ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("found", renderings(SECRET, PLACEHOLDER), ids=lambda r: r.needle[:12])
def test_a_rendering_is_replaced_by_its_stand_in_wherever_it_is_cut(found: Rendering) -> None:
    """I7, with what is around it left as it was."""
    text = b'HTTP echo: {"key": "%b", "n": 1}\n' % found.needle
    clean = b'HTTP echo: {"key": "%b", "n": 1}\n' % found.stand_in
    assert NEEDLES.replace(text) == clean
    assert NEEDLES.found_in(text)
    for cut in range(len(text)):
        scrubber = Scrubber(NEEDLES)
        out = scrubber.feed(text[:cut]), scrubber.feed(text[cut:]), scrubber.end()
        assert b"".join(out) == clean
        assert scrubber.hits == 1


def test_what_holds_no_secret_passes_as_it_is() -> None:
    """The control: neither another token nor most of this one is touched."""
    for text in (
        b"",
        b"plain\n",
        SECRET[:-1].encode(),
        b"x" + SECRET[1:].encode(),
        PLACEHOLDER.encode(),
    ):
        assert NEEDLES.replace(text) is text
        assert not NEEDLES.found_in(text)
        assert b"".join(fed(NEEDLES, text)) == text


def test_a_chunk_without_a_secret_is_not_copied() -> None:
    chunk = b"data: {}\n\n" * 1000
    assert Scrubber(NEEDLES).feed(chunk) is chunk


def test_nothing_is_searched_for_where_there_is_no_secret() -> None:
    nothing = Needles.none()
    assert not nothing
    assert nothing.longest == 0
    scrubber = Scrubber(nothing)
    chunk = SECRET.encode()
    assert scrubber.feed(chunk) is chunk
    assert scrubber.end() == b""
    assert not Needles.of("short", PLACEHOLDER)
    assert not Needles.of_name("short", PLACEHOLDER)


def test_secrets_are_searched_for_together() -> None:
    other = "xoxb-0123456789-AbCdEfGhIjKlMnOp"
    both = NEEDLES | Needles.none() | Needles.of(other, PLACEHOLDER)
    assert len(both) > len(NEEDLES)
    assert both.longest == max(NEEDLES.longest, 3 * len(other))
    out = both.replace(f"{other} {SECRET}".encode())
    assert out == f"{PLACEHOLDER[: len(other)]} {PLACEHOLDER}".encode()


def test_the_value_of_basic_is_replaced_whole() -> None:
    text, needles = Needles.encoded("x-access-token:", SECRET, PLACEHOLDER)
    out = (NEEDLES | needles).replace(b"Basic " + text.encode())
    assert base64.b64decode(out.removeprefix(b"Basic ")) == f"x-access-token:{PLACEHOLDER}".encode()


def test_a_name_is_replaced_where_it_is_spelled_out() -> None:
    needles = Needles.of_name("AKIAIOSFODNN7QQQQQQQ", PLACEHOLDER)
    assert len(needles) == 1
    assert (
        needles.replace(b"<Id>AKIAIOSFODNN7QQQQQQQ</Id>")
        == b"<Id>%b</Id>" % PLACEHOLDER[:20].encode()
    )


PERIODIC = "abcabcabcabcabcabcabc"


@pytest.mark.parametrize("times", range(1, 12))
def test_of_secrets_that_overlap_no_byte_is_left(times: int) -> None:
    """I7: had the first been replaced alone, the rest of the second would be the secret's end."""
    needles = Needles.of(PERIODIC, "STANDIN")
    text = b"<" + PERIODIC.encode() + b"abc" * times + b">"
    clean = needles.replace(text)
    assert len(clean) == len(text)
    assert not set(clean) & set(b"abc")
    for cut in range(len(text)):
        assert b"".join(fed(needles, text[:cut], text[cut:])) == clean
    assert b"".join(fed(needles, *(text[i : i + 1] for i in range(len(text))))) == clean


def test_of_two_secrets_that_begin_alike_the_longer_one_is_replaced_whole() -> None:
    needles = Needles.of(SECRET, PLACEHOLDER) | Needles.of(SECRET + "-longer-one", PLACEHOLDER)
    out = needles.replace(f"{SECRET}-longer-one.".encode())
    assert out == f"{(PLACEHOLDER * 2)[: len(SECRET) + 11]}.".encode()


# ── any stream, cut anywhere ──────────────────────────────────────────────────────────────────────

SPACED = "correct horse battery ünstable"
SECRETS = {
    "token": (SECRET, PLACEHOLDER),
    "long": ("sk-ant-api03-" + "Q7x_Z-0b" * 12 + "AA", "~^" * 55),
    "escaped": ("wJa/rXUtnFEMI+K7MDENG/bPxRfiCYzEXA+PLEKEY", "~^" * 20),
    "periodic": (PERIODIC, "~^" * 10),
    "spaced": (SPACED, "~^" * 14),
    "short": ("0123456789abcdef", "~^" * 8),
}


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, bytes, list[int]]:
    """A secret's name, a text full of what is or almost is one of its needles, and cuts."""
    name = draw(st.sampled_from(sorted(SECRETS)))
    made = renderings(*SECRETS[name])
    needles = st.sampled_from([found.needle for found in made])
    pieces = draw(
        st.lists(
            st.one_of(
                needles,
                st.builds(lambda n, k: n[: k % len(n)], needles, st.integers(0, 400)),
                st.builds(lambda n, k: n[k % len(n) :], needles, st.integers(0, 400)),
                st.sampled_from([b"\n", b" ", b"\n\n", b"\x00", b"\xff", b"~", b"%", b'"', b"/"]),
                st.binary(max_size=8),
                st.builds(lambda n: b"x" * n, st.integers(0, 700)),
            ),
            max_size=8,
        )
    )
    text = draw(st.sampled_from([b"", b"\n"])).join(pieces)
    return name, text, draw(st.lists(st.integers(0, len(text)), max_size=8))


@given(streams())
def test_any_stream_comes_out_as_if_it_had_come_at_once(
    stream: tuple[str, bytes, list[int]],
) -> None:
    """I7: chunk boundaries decide nothing."""
    name, text, cuts = stream
    needles = Needles.of(*SECRETS[name])
    scrubber = Scrubber(needles)
    given_in, out = 0, b""
    for piece in split(text, cuts):
        given_in += len(piece)
        out += scrubber.feed(piece)
        assert scrubber.held == given_in - len(out)
    out += scrubber.end()
    assert scrubber.held == 0
    assert out == needles.replace(text)
    assert len(out) == len(text)
    assert scrubber.hits == len(needles.spans(text))
    assert_clean(out, needles.spans(text), renderings(*SECRETS[name]))


def assert_clean(out: bytes, spans: list[NeedleSpan], made: tuple[Rendering, ...]) -> None:
    """No needle is in what comes out.

    One exception is no leak: beside a needle, the text has another one but for its last character
    or its first, and the stand-in happens to supply that. It passes without the neighbour as well.
    """
    replaced = {at for span in spans for at in range(span.start, span.end)}
    for needle, _, _ in made:
        at = out.find(needle)
        while at >= 0:
            supplied = sum(i in replaced for i in range(at, at + len(needle)))
            assert 0 < supplied < len(needle) // 2
            at = out.find(needle, at + 1)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=10))
def test_any_bytes_pass_unchanged(text: bytes, cuts: list[int]) -> None:
    """The control: what is replaced above is the secret and nothing else."""
    assert b"".join(fed(NEEDLES, *split(text, cuts))) == text


def test_a_scrubber_is_ready_for_another_body_after_the_end_of_one() -> None:
    scrubber = Scrubber(NEEDLES)

    def passed(text: str) -> str:
        return b"".join((scrubber.feed(text.encode()), scrubber.end())).decode()

    half = len(SECRET) // 2
    assert passed(SECRET[:half]) == SECRET[:half]
    assert passed(SECRET[half:]) == SECRET[half:]
    assert scrubber.hits == 0
    assert passed(SECRET) == PLACEHOLDER
    assert scrubber.hits == 1


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=4))
def test_a_view_comes_out_as_bytes_do(around: bytes, cuts: list[int]) -> None:
    """The gateway feeds views of a buffer that is used again, so nothing may refer to it."""
    text = around + SECRET.encode() + around
    buffer, scrubber, out = bytearray(len(text)), Scrubber(NEEDLES), []
    for piece in split(text, cuts):
        buffer[: len(piece)] = piece
        out.append(bytes(scrubber.feed(memoryview(buffer)[: len(piece)])))
        buffer[:] = bytes(len(buffer))
    assert [*out, scrubber.end()] == fed(NEEDLES, *split(text, cuts))


FILL = b"\x00\xff some text of an answer\n" * 400
"""More than is searched in one piece of memory only; no part of it waits."""


def passed_on(needles: Needles, *pieces: bytes) -> list[tuple[bytes, bytes]]:
    """The same as `fed`, of views of one buffer that is used again, and in two pieces each."""
    buffer, scrubber = bytearray(max(map(len, pieces))), Scrubber(needles)
    out = []
    for piece in pieces:
        buffer[: len(piece)] = piece
        waited, rest = scrubber.pass_on(memoryview(buffer)[: len(piece)])
        out.append((bytes(waited), bytes(rest)))
        buffer[:] = bytes(len(buffer))
    return [*out, (b"", scrubber.end())]


@pytest.mark.parametrize("found", renderings(SECRET, PLACEHOLDER), ids=lambda r: r.needle[:12])
@pytest.mark.parametrize("before", [b"", b"token=", b"x" * HOLD])
def test_a_rendering_is_replaced_in_large_views_wherever_it_is_cut(
    found: Rendering, before: bytes
) -> None:
    """I7: within a view, and across two of them."""
    for cut in (0, 1, len(found.needle) // 2, len(found.needle) - 1, len(found.needle)):
        begun, rest = found.needle[:cut], found.needle[cut:]
        out = passed_on(NEEDLES, FILL + before + begun, rest + FILL, FILL)
        clean = FILL + before + found.stand_in + FILL + FILL
        assert b"".join(itertools.chain(*out)) == clean


def test_a_large_view_without_a_secret_is_not_copied() -> None:
    """Of two pieces the first is what had waited."""
    scrubber, view = Scrubber(NEEDLES), memoryview(bytearray(FILL + b"abc"))
    assert list(map(bytes, scrubber.pass_on(view))) == [b"", FILL]
    waited, rest = scrubber.pass_on(view)
    assert (waited, rest.obj is view.obj) == (b"abc", True)
    # The control: where there is something to replace, it is.
    reflected = memoryview(bytearray(FILL + SECRET.encode() + b"\n"))
    waited, rest = scrubber.pass_on(reflected)
    assert (waited, rest.obj is reflected.obj) == (b"abc", False)


def test_of_large_views_as_much_waits_as_of_any() -> None:
    """A view that ends in a run as long as a needle, one of a secret with a space, a small one."""
    spaced = Needles.of("a secret with some spaces", "")
    for needles in (NEEDLES, spaced, Needles.none()):
        for pieces in ([FILL + b"y" * 300, b"z" * 300 + FILL], [b"ab", b"c\n"], [FILL, FILL]):
            one, two = passed_on(needles, *pieces), fed(needles, *pieces)
            assert [waited + rest for waited, rest in one] == two


@pytest.mark.parametrize("needle", GUESSES, ids=lambda n: n[:12])
def test_a_right_guess_leaves_large_views_as_a_wrong_one_does(needle: bytes) -> None:
    """I7: the pieces, which are records of their own for the client, are as long."""
    for size in (len(needle) // 2, len(needle) - 1, len(needle)):
        right = needle[:size]
        wrong = right[:-1] + bytes((other(right[-1]),))
        for cut in (0, size // 2, size - 1):
            outs = [
                passed_on(NEEDLES, FILL + guess[:cut], guess[cut:] + FILL)
                for guess in (right, wrong)
            ]
            lengths = [[(len(waited), len(rest)) for waited, rest in out] for out in outs]
            assert lengths[0] == lengths[1]


# ── what waits, and for how long ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "event", [b'data: {"t": "hel"}\n\n', b"id: 7\r\n", "größe: ö".encode(), b"a "]
)
def test_what_ends_in_a_byte_of_no_token_leaves_at_once(event: bytes) -> None:
    """An event of a stream is not delayed by the scan."""
    assert fed(NEEDLES, event, event) == [event, event, b""]


def test_a_run_that_is_not_over_waits_up_to_the_longest_needle() -> None:
    run = b"x" * (HOLD + 100)
    assert fed(NEEDLES, b"say " + run[:50], run[50:], b"\nend\n") == [
        b"say ",
        run[:100],
        run[100:] + b"\nend\n",
        b"",
    ]


def test_of_an_endless_run_a_bounded_part_waits() -> None:
    """I9: a body without a single space does not fill the memory."""
    scrubber = Scrubber(NEEDLES)
    for _ in range(100):
        scrubber.feed(b"x" * 1000)
        assert scrubber.held == HOLD


def test_a_secret_with_a_space_makes_the_last_bytes_wait_always() -> None:
    needles = Needles.of(SPACED, "STANDIN")
    assert not needles.tight
    hold = -(-needles.longest // HOLD_STEP) * HOLD_STEP
    scrubber = Scrubber(needles)
    assert scrubber.feed(b"a b\n" * 10) == b""
    assert scrubber.feed(b"\n" * hold) == b"a b\n" * 10
    assert scrubber.end() == b"\n" * hold
    text = b"a " + SPACED.encode() + b" b"
    for cut in range(len(text)):
        assert SPACED.encode() not in b"".join(fed(needles, text[:cut], text[cut:], b" " * 1000))


@pytest.mark.parametrize("length", [16, 40, 85, 86, 108, 700])
def test_how_much_waits_tells_a_secrets_length_roughly_and_nothing_else(length: int) -> None:
    """I7."""
    one, two = ("0aZ_" * 200)[:length], ("x9-Q" * 200)[:length]
    held = []
    for secret in (one, two):
        scrubber = Scrubber(Needles.of(secret, PLACEHOLDER))
        scrubber.feed(b"x" * 10_000)
        held.append(scrubber.held)
    assert held[0] == held[1] >= 3 * length
    assert held[0] % HOLD_STEP == 0


@pytest.mark.parametrize("needle", GUESSES, ids=lambda n: n[:12])
@pytest.mark.parametrize("around", [(b"", b""), (b"Bearer ", b"\n"), (b"x" * 300, b"y" * 300)])
def test_a_right_guess_leaves_as_a_wrong_one_does(
    needle: bytes, around: tuple[bytes, bytes]
) -> None:
    """I7: the attacker has the upstream echo a guess, cut as he likes, and watches what arrives.

    For every beginning of the secret, and for a guess that is wrong in its last character, as many
    bytes leave at each feed; and as long as the guess is not the whole secret, the same bytes.
    """
    before, after = around
    step = 1 if len(needle) < 60 else 7
    for size in [*range(1, len(needle), step), len(needle)]:
        right = needle[:size]
        wrong = right[:-1] + bytes((other(right[-1]),))
        assert right != wrong
        for cut in range(0, size + 1, step):
            pieces = [
                [before + guess[:cut], guess[cut:] + after, b"\n"] for guess in (right, wrong)
            ]
            outs = [fed(NEEDLES, *piece) for piece in pieces]
            assert [len(out) for out in outs[0]] == [len(out) for out in outs[1]]
            assert b"".join(outs[1]) == b"".join(pieces[1])
            if size < len(needle):
                assert b"".join(outs[0]) == b"".join(pieces[0])
            else:
                # The control: the whole secret is another thing, in content and there alone.
                clean = b"".join(outs[0])
                assert needle not in clean
                assert clean.startswith(before)
                assert clean.endswith(after + b"\n")


def test_the_bytes_of_a_run_are_those_of_any_token() -> None:
    assert all(byte in TOKEN_BYTES for found in GUESSES for byte in found)
    assert bytes(byte for byte in range(256) if byte not in TOKEN_BYTES) == bytes(
        [*range(0x21), *range(0x7F, 256)]
    )


# ── custody ───────────────────────────────────────────────────────────────────────────────────────


def test_needles_show_nothing_of_the_secret() -> None:
    """I8."""
    assert repr(NEEDLES) == "Needles(8)"
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            take(NEEDLES)


# ── what changes on the way ───────────────────────────────────────────────────────────────────────

LATER = "sk-next-9876543210zyxwvutsrq-" + "longer" * 60
SPACED = "a secret of words, of which there are some"


@given(
    st.lists(
        st.sampled_from([b"a ", b"b", b"\n", SECRET.encode(), SECRET[:9].encode(), b"x" * 300]),
        max_size=12,
    ),
    st.lists(st.integers(0, 400), max_size=6),
    st.sampled_from([LATER, SPACED]),
    st.data(),
)
def test_a_stream_that_is_on_its_way_is_searched_for_what_comes_to_be_sought(
    before: list[bytes], cuts: list[int], later: str, data: st.DataObject
) -> None:
    """I7: not a byte is lost or said twice, and neither secret passes."""
    needles = Needles()
    needles.become((NEEDLES,))
    scrubber, out = Scrubber(needles), b""
    text = b"".join(before)
    for piece in split(text, cuts):
        out += scrubber.feed(piece)
    needles.become((NEEDLES, Needles.of(later, PLACEHOLDER)))
    more = data.draw(st.sampled_from([b"", b" ", b"."])) + later.encode() + b" " + SECRET.encode()
    for piece in split(more, data.draw(st.lists(st.integers(0, 500), max_size=4))):
        out += scrubber.feed(piece)
    out += scrubber.end()
    assert len(out) == len(text + more)
    assert later.encode() not in out
    # The same text may begin in what was passed by the rules of before.
    assert SECRET.encode() not in out


def test_what_is_searched_for_can_come_to_be_nothing_and_something_again() -> None:
    needles = Needles()
    scrubber = Scrubber(needles)
    assert bytes(scrubber.feed(b"plain")) == b"plain"
    needles.become((NEEDLES,))
    assert bytes(scrubber.feed(b" kept")) == b" "
    needles.become(())
    assert bytes(scrubber.feed(b" on")) == b"kept on"
    assert not needles
    assert NEEDLES.covers(needles)
    assert not needles.covers(NEEDLES)
    both = NEEDLES | Needles.of(LATER, PLACEHOLDER)
    assert both.covers(NEEDLES)
    assert not NEEDLES.covers(both)
    assert len(both | NEEDLES) == len(both)
