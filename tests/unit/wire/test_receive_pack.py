"""A push is read in one way or refused: each row of what C git accepts, with what is refused (I4).

That git does accept those rows is held by test_receivepack_against_git.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Malformed
from keyhole.wire.pkt_line import FLUSH, MAX_DATA, Marker, encode, read_packets
from keyhole.wire.receive_pack import (
    HELD_BACK,
    MAX_COMMANDS,
    MAX_LIST,
    MAX_NAME,
    MAX_OPTIONS,
    MAX_REASON,
    MAX_TEXT,
    PushReader,
    PushRequest,
    RefCommand,
    ReportReader,
    refusal_report,
)

ZERO, ONE, TWO = "0" * 40, "1" * 40, "2" * 40
CAPABILITIES = b" report-status-v2 side-band-64k object-format=sha1 agent=git/2.39.5"
PACK = b"PACK\0\0\0\x02\0\0\0\0"


def command(old: str = ONE, new: str = TWO, ref: bytes = b"refs/heads/agent/x") -> bytes:
    return b"%b %b %b" % (old.encode(), new.encode(), ref)


def listed(*commands: bytes, capabilities: bytes = CAPABILITIES) -> bytes:
    """A command list as git writes it: capabilities behind the first."""
    first, *others = commands
    return b"".join(map(encode, [first + b"\0" + capabilities, *others])) + FLUSH


PLAIN = listed(command())


def read(body: bytes) -> PushRequest:
    reader = PushReader()
    request = reader.feed(body)
    reader.end()
    assert request is not None
    return request


def refusal(body: bytes) -> str:
    with pytest.raises(Malformed) as refused:
        read(body)
    return refused.value.why


def test_a_push_of_git_is_read() -> None:
    reader = PushReader()
    request = reader.feed(PLAIN + PACK)
    assert request is not None
    assert request.commands == (RefCommand(ONE, TWO, "refs/heads/agent/x"),)
    assert request.capabilities == (
        "report-status-v2",
        "side-band-64k",
        "object-format=sha1",
        "agent=git/2.39.5",
    )
    assert (request.shallow, request.options, request.object_format) == ((), (), "sha1")
    assert request.has_pack
    assert request.wants_report
    assert request.wants_sideband
    assert not request.is_probe
    assert reader.rest == PACK
    assert reader.size == len(PLAIN)
    reader.end()


def test_what_is_fed_after_the_list_is_the_rest() -> None:
    reader = PushReader()
    request = reader.feed(PLAIN + b"PA")
    assert reader.feed(b"CK") is request
    assert reader.rest == b"CK"
    assert reader.size == len(PLAIN)


def test_kinds_of_change_are_told_by_zeros() -> None:
    create, update, delete = (
        RefCommand(*pair, "refs/heads/x") for pair in ((ZERO, ONE), (ONE, TWO), (ONE, ZERO))
    )
    assert [c.is_create for c in (create, update, delete)] == [True, False, False]
    assert [c.is_delete for c in (create, update, delete)] == [False, False, True]


def test_a_client_may_ask_for_no_report_and_no_sideband() -> None:
    request = read(encode(command()) + FLUSH)
    assert request.capabilities == ()
    assert not request.wants_report
    assert not request.wants_sideband
    assert read(listed(command(), capabilities=b"report-status")).wants_report


def test_a_line_may_end_with_one_line_feed() -> None:
    body = encode(command() + b"\0 report-status\n") + encode(command(ref=b"refs/heads/b") + b"\n")
    request = read(body + FLUSH)
    assert [c.ref for c in request.commands] == ["refs/heads/agent/x", "refs/heads/b"]
    assert request.capabilities == ("report-status",)
    assert "plain name" in refusal(encode(command() + b"\n\n") + FLUSH)


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("marker", [b"0001", b"0002"])
def test_only_a_flush_packet_ends_the_list(marker: bytes) -> None:
    """I4: C git ends it at any marker."""
    assert "flush" in refusal(PLAIN[:-4] + marker)
    assert "flush" in refusal(PLAIN[:-4] + marker + FLUSH)
    assert read(PLAIN)


def test_capabilities_stand_on_the_first_command_and_once() -> None:
    """I4: C git honours them on every line, and ignores what stands behind a second NUL."""
    second = command(ref=b"refs/heads/agent/y")
    assert read(listed(command(), second)).commands[1].ref == "refs/heads/agent/y"
    assert "first command" in refusal(listed(command(), second + b"\0"))
    assert "first command" in refusal(listed(command(), second + b"\0 report-status"))
    assert "printable" in refusal(listed(command(), capabilities=b" atomic\0 quiet"))
    assert "twice" in refusal(listed(command(), capabilities=b" atomic quiet atomic"))
    assert "twice" in refusal(
        listed(command(), capabilities=b" object-format=sha1 object-format=sha256")
    )


def test_options_that_are_asked_for_on_a_later_line_are_refused() -> None:
    """I4: C git would read an option section where the reader sees the pack."""
    late = encode(command() + b"\0 atomic") + encode(
        command(ref=b"refs/heads/agent/y") + b"\0 push-options"
    )
    assert "first command" in refusal(late + FLUSH + encode(b"ci.skip") + FLUSH)
    asked = listed(command(), capabilities=b" push-options")
    assert read(asked + encode(b"ci.skip") + FLUSH).options == ("ci.skip",)


@pytest.mark.parametrize("space", [b"\t", b"\n", b"\r", b"\x0b", b"\xa0"])
def test_capabilities_are_words_between_spaces_and_nothing_else(space: bytes) -> None:
    """I4: C git splits at tab, LF and CR too, so an agent's name could hide a capability."""
    hidden = b" agent=x" + space + b"push-options"
    assert "printable" in refusal(listed(command(), capabilities=hidden))
    plain = read(listed(command(), capabilities=b" agent=x  push-options ") + FLUSH)
    assert plain.capabilities == ("agent=x", "push-options")


@pytest.mark.parametrize(
    "word",
    [b"push-options=no", b"push-options=", b"atomic=1", b"agent", b"agent=", b"new-thing", b"="],
)
def test_a_capability_that_was_not_offered_is_refused(word: bytes) -> None:
    """I3: C git takes `push-options=no` for a yes; one that is unknown may change what follows."""
    assert "not offered" in refusal(listed(command(), capabilities=b" quiet " + word))
    assert read(listed(command(), capabilities=b" quiet")).capabilities == ("quiet",)


CERTIFICATE = (
    b"push-cert\0 report-status",
    b"certificate version 0.1\n",
    b"pusher x <x@example.org> 0 +0000\n",
    b"\n",
    command(ref=b"refs/heads/main") + b"\n",
    b"push-cert-end\n",
)


@pytest.mark.parametrize(
    "body",
    [
        b"".join(map(encode, CERTIFICATE)) + FLUSH,
        PLAIN[:-4] + b"".join(map(encode, CERTIFICATE)) + FLUSH,
        encode(b"push-cert") + FLUSH,
        encode(b"shallow " + ONE.encode()) + encode(b"push-cert\0 atomic") + FLUSH,
        encode(b"push-certificate") + FLUSH,
    ],
)
def test_a_push_certificate_is_refused_wherever_it_stands(body: bytes) -> None:
    """I4: C git executes its commands though it never offered to, beside plain ones as well."""
    assert "certificate" in refusal(body)
    assert read(PLAIN)


def test_new_zero_is_a_delete_whatever_old_is() -> None:
    """I3: servers compare no old when they delete."""
    unknown = read(listed(command(old="f" * 40, new=ZERO)))
    assert unknown.commands[0].is_delete
    assert not unknown.has_pack
    assert RefCommand(ZERO, ZERO, "refs/heads/main").is_delete
    assert not RefCommand(ZERO, ZERO, "refs/heads/main").is_create


@pytest.mark.parametrize("oid", [ZERO, ONE])
def test_a_command_changes_its_ref(oid: str) -> None:
    """I3: zero to zero deletes past denyDeletes and denyDeleteCurrent."""
    assert "does not change" in refusal(listed(command(old=oid, new=oid)))
    assert read(listed(command(old=oid, new=TWO)))


def test_a_ref_is_named_once() -> None:
    """I4: C git executes both in order, so a fast-forward may be followed by the way back."""
    assert "two commands" in refusal(listed(command(), command(TWO, ONE)))
    assert len(read(listed(command(), command(TWO, ONE, b"refs/heads/y"))).commands) == 2


@pytest.mark.parametrize("swap", [("a", "A"), ("a", "g"), ("a", " ")])
def test_objects_are_named_in_lower_case_hex(swap: tuple[str, str]) -> None:
    low = "abcdef0123" * 4
    assert read(listed(command(new=low))).commands[0].new == low
    assert "hex" in refusal(listed(command(new=low.replace(*swap))))
    assert "hex" in refusal(listed(command(old=low.replace(*swap))))


def test_lengths_are_in_lower_case_hex() -> None:
    assert PLAIN[:4] == b"00ac"
    assert read(PLAIN)
    assert "lower-case hex" in refusal(b"00AC" + PLAIN[4:])


def test_a_shallow_line_is_read_to_its_end() -> None:
    """I4: C git ignores what follows the object, capabilities too."""
    border = b"shallow " + ONE.encode()
    assert read(encode(border + b"\n") + encode(border) + PLAIN).shallow == (ONE, ONE)
    for odd in (b" junk", b"\0 push-options", b"\n\n", b"0"):
        assert "shallow" in refusal(encode(border + odd) + PLAIN)
    assert "shallow" in refusal(encode(b"shallow " + b"A" * 40) + PLAIN)
    assert "shallow" in refusal(PLAIN[:-4] + encode(border) + FLUSH)


def test_shallow_lines_alone_are_no_push() -> None:
    assert "no command" in refusal(encode(b"shallow " + ONE.encode()) + FLUSH)
    assert read(encode(b"shallow " + ONE.encode()) + PLAIN)


def test_nothing_follows_a_push_that_has_no_pack() -> None:
    """I4: C git ignores a second list; another server may not."""
    delete = listed(command(new=ZERO))
    assert not read(delete).has_pack
    assert "follows" in refusal(FLUSH + PLAIN)
    assert "follows" in refusal(delete + PLAIN)
    assert "follows" in refusal(delete + PACK)
    reader = PushReader()
    reader.feed(delete)
    assert reader.feed(b"") is not None
    with pytest.raises(Malformed, match="follows"):
        reader.feed(b"0")


def test_a_probe_is_a_flush_packet_alone() -> None:
    probe = read(FLUSH)
    assert probe.is_probe
    assert not probe.has_pack
    assert not read(PLAIN).is_probe


def test_a_body_that_ends_within_the_list_is_refused() -> None:
    for end in range(len(PLAIN)):
        reader = PushReader()
        assert reader.feed(PLAIN[:end]) is None
        with pytest.raises(Malformed, match="ends before"):
            reader.end()
    assert read(PLAIN)


@pytest.mark.parametrize(
    "name",
    [b"refs/heads/MAIN", b"refs/Heads/x", b"refs/heads/\xff", b"refs/heads/x\xe2\x80\x8b", b"HEAD",
     b"refs/for/main", b"refs/replace/" + b"1" * 40, b"refs/heads/a..b", b"refs/heads/a.lock"],
)  # fmt: skip
def test_names_that_the_policy_judges_come_through_unchanged(name: bytes) -> None:
    """I3: `Ref.parse` refuses them; to it, no byte of a name is lost."""
    assert read(listed(command(ref=name))).commands[0].ref.encode("latin-1") == name


@pytest.mark.parametrize(
    "name",
    [b"", b" ", b"refs/heads/a b", b"refs/heads/a\n", b"refs/heads/\x7f", b"refs/\t", b"x\r"],
)
def test_names_that_would_break_a_line_are_refused(name: bytes) -> None:
    """I8: a name cannot forge a line of a report or of the audit."""
    assert "plain name" in refusal(listed(command(ref=name)))
    assert "plain name" in refusal(listed(command(), command(ref=name) + b"\n"))
    assert read(PLAIN)


# ── object formats, options, bounds ──────────────────────────────────────────────────────────────


def test_names_of_objects_are_as_long_as_the_format_says() -> None:
    one, two = "1" * 64, "2" * 64
    sha256 = b" object-format=sha256"
    request = read(
        encode(b"shallow " + one.encode()) + listed(command(one, two), capabilities=sha256)
    )
    assert request.object_format == "sha256"
    assert "as long" in refusal(listed(command(one, two)))
    assert "as long" in refusal(listed(command(), capabilities=sha256))
    assert "as long" in refusal(listed(command(ONE, two)))
    assert "as long" in refusal(encode(b"shallow " + one.encode()) + PLAIN)
    assert "unknown" in refusal(listed(command(), capabilities=b" object-format=md5"))


def test_options_are_plain_text() -> None:
    asked = listed(command(), capabilities=b" push-options")
    request = read(asked + encode("größe=1\n".encode()) + encode(b"ci.skip") + FLUSH + PACK)
    assert request.options == ("größe=1", "ci.skip")
    assert read(asked + FLUSH).options == ()
    for odd in (b"", b"\n", b"a\0b", b"a\nb", b"\xff", b"\xc2\x85", b"\x7f"):
        assert "option" in refusal(asked + encode(odd) + FLUSH)
    assert "flush" in refusal(asked + encode(b"a") + b"0001")
    delete = listed(command(new=ZERO), capabilities=b" push-options")
    assert read(delete + encode(b"a") + FLUSH).options == ("a",)


def test_a_push_is_bounded_in_commands_options_names_and_bytes() -> None:
    """I9: each bound is reached, and one more is refused."""
    many = [command(ref=b"refs/heads/%d" % n) for n in range(MAX_COMMANDS + 1)]
    assert len(read(listed(*many[:-1])).commands) == MAX_COMMANDS
    assert "at most 256" in refusal(listed(*many))

    asked = listed(command(), capabilities=b" push-options")
    assert len(read(asked + encode(b"o") * MAX_OPTIONS + FLUSH).options) == MAX_OPTIONS
    assert "options" in refusal(asked + encode(b"o") * (MAX_OPTIONS + 1) + FLUSH)

    assert read(listed(command(ref=b"x" * MAX_NAME)))
    assert "plain name" in refusal(listed(command(ref=b"x" * (MAX_NAME + 1))))

    border = encode(b"shallow " + ONE.encode())
    fitting = (MAX_LIST - len(PLAIN)) // len(border)
    assert len(read(border * fitting + PLAIN).shallow) == fitting
    assert str(MAX_LIST) in refusal(border * (fitting + 1) + PLAIN)


def test_a_list_without_end_is_refused_while_it_comes() -> None:
    """I9: no more is held than the bound and a packet."""
    reader, border = PushReader(), encode(b"shallow " + ONE.encode())
    for _ in range(MAX_LIST // len(border)):
        assert reader.feed(border) is None
    with pytest.raises(Malformed, match=str(MAX_LIST)):
        reader.feed(border)


NAMES = st.from_regex(rb"refs/(heads|tags)/[a-z0-9/._\xff-]{1,20}", fullmatch=True)
OIDS = st.sampled_from([ZERO, ONE, TWO, "ab" * 20])
LISTS = st.lists(
    st.tuples(OIDS, OIDS, NAMES).filter(lambda c: c[0] != c[1]),
    min_size=1,
    max_size=5,
    unique_by=lambda c: c[2],
)


@given(LISTS, st.lists(st.sampled_from(["a", "ci.skip"]), max_size=3), st.data())
def test_a_push_is_read_the_same_wherever_its_bytes_are_cut(
    commands: list[tuple[str, str, bytes]], options: list[str], data: st.DataObject
) -> None:
    wanted = b" report-status push-options" if options else b" report-status"
    body = listed(*[command(*c) for c in commands], capabilities=wanted)
    if options:
        body += b"".join(encode(o.encode()) for o in options) + FLUSH
    size = len(body)
    expected = read(body)
    assert [(c.old, c.new, c.ref.encode("latin-1")) for c in expected.commands] == commands
    assert list(expected.options) == options
    if expected.has_pack:
        body += PACK
    reader, found, rest, at = PushReader(), None, b"", 0
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8))), len(body)]:
        found = reader.feed(body[at:cut])
        rest += reader.rest
        at = cut
    assert found == expected
    assert reader.size == size
    assert rest == body[size:]


@given(st.binary(max_size=300), st.integers(0, len(PLAIN)))
def test_any_bytes_are_read_or_refused_and_nothing_else(junk: bytes, at: int) -> None:
    for body in (junk, PLAIN[:at] + junk + PLAIN[at:], PLAIN[:at] + junk):
        try:
            request = PushReader().feed(body)
        except Malformed:
            continue
        assert request is None or len(request.commands) <= MAX_COMMANDS


# ── the answers ──────────────────────────────────────────────────────────────────────────────────

TWO_REFS = read(listed(command(), command(ref=b"refs/heads/main")))
REASON = "keyhole: push to main is not allowed"


def bands(body: bytes) -> list[tuple[int, bytes]]:
    packets = read_packets(body)
    assert packets[-1] is Marker.FLUSH
    return [(p[0], p[1:]) for p in packets if isinstance(p, bytes)]


def test_a_refusal_names_every_ref_in_band_one_under_a_hint_in_band_two() -> None:
    found = bands(
        refusal_report(TWO_REFS, {"refs/heads/main": REASON}, "keyhole: see\nkeyhole: this")
    )
    assert found[:2] == [(2, b"keyhole: see\n"), (2, b"keyhole: this\n")]
    assert found[2][0] == 1
    assert read_packets(found[2][1]) == [
        b"unpack ok\n",
        b"ng refs/heads/agent/x " + HELD_BACK.encode() + b"\n",
        b"ng refs/heads/main " + REASON.encode() + b"\n",
        Marker.FLUSH,
    ]


def test_a_refusal_without_sideband_is_the_report_alone() -> None:
    request = read(listed(command(), capabilities=b" report-status"))
    assert read_packets(refusal_report(request, {}, "hint")) == [
        b"unpack ok\n",
        b"ng refs/heads/agent/x " + HELD_BACK.encode() + b"\n",
        Marker.FLUSH,
    ]


def test_a_report_that_is_too_long_for_a_packet_is_split() -> None:
    names = [b"refs/heads/%d/" % n + b"x" * (MAX_NAME - 20) for n in range(MAX_COMMANDS)]
    request = read(listed(*[command(ref=name) for name in names]))
    body = refusal_report(request, {n.decode(): "y" * 1000 for n in names})
    found = bands(body)
    assert len(found) > 4
    assert {band for band, _ in found} == {1}
    assert max(len(data) for _, data in found) == MAX_DATA - 1
    lines = read_packets(b"".join(data for _, data in found))
    assert lines[1:-1] == [b"ng %b %b\n" % (name, b"y" * MAX_REASON) for name in names]


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("a\nok refs/heads/main\n", b"a ok refs/heads/main"),
        ("k\u00e9y\x1b[31m\x00", b"k y [31m"),
        ("\n", HELD_BACK.encode()),
    ],
)
def test_a_reason_is_one_line_of_printable_ascii(reason: str, written: bytes) -> None:
    """I8: a reason cannot forge the answer for another ref, nor write to a terminal."""
    request = read(listed(command(), capabilities=b" report-status"))
    lines = read_packets(refusal_report(request, {"refs/heads/agent/x": reason}))
    assert lines[1] == b"ng refs/heads/agent/x " + written + b"\n"


ANSWER = [b"unpack ok\n", b"ok refs/heads/a\n", b"ng refs/heads/b not  good\n", FLUSH]


def framed(pieces: list[bytes]) -> bytes:
    return b"".join(encode(b"\x01" + piece) for piece in pieces) + FLUSH


@given(st.data())
def test_an_answer_is_read_however_it_is_framed_and_cut(data: st.DataObject) -> None:
    inner = b"".join(line if line == FLUSH else encode(line) for line in ANSWER)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(inner)), max_size=6)))
    pieces = [inner[a:b] for a, b in zip([0, *cuts], [*cuts, len(inner)], strict=True)]
    whole = encode(b"\x02remote: hello\n") + framed(pieces)
    at = data.draw(st.integers(0, len(whole)))
    for body in (whole, inner):
        reader = ReportReader()
        reader.feed(body[:at])
        reader.feed(body[at:])
        assert reader.results() == {"refs/heads/a": "ok", "refs/heads/b": "not  good"}


def test_our_own_refusals_are_read_as_such() -> None:
    reader = ReportReader()
    reader.feed(refusal_report(TWO_REFS, {"refs/heads/main": REASON}, "hint"))
    assert reader.results() == {"refs/heads/agent/x": HELD_BACK, "refs/heads/main": REASON}


def test_a_refusal_never_reads_as_its_opposite() -> None:
    """I8: the audit would say that a ref moved."""
    reader = ReportReader()
    reader.feed(encode(b"ng refs/heads/a ok") + encode(b"ng refs/heads/b") + encode(b"ok c\n"))
    assert reader.results() == {"refs/heads/a": "ng ok", "refs/heads/b": "ng", "c": "ok"}


def test_odd_answers_end_the_reading_and_raise_nothing() -> None:
    """I9: what an origin says is bounded, and no error of its own."""
    reader = ReportReader()
    reader.feed(b"0004" + encode(b"ok refs/heads/a\n") + encode(b"option x") + b"zzzz")
    reader.feed(encode(b"ok refs/heads/b\n"))
    assert reader.results() == {"refs/heads/a": "ok"}
    reader = ReportReader()
    reader.feed(framed([b"zzzz"]) + framed([encode(b"ok refs/heads/b\n")]))
    assert reader.results() == {}
    reader = ReportReader()
    for n in range(MAX_COMMANDS + 5):
        reader.feed(encode(b"ok refs/heads/%d\n" % n))
    reader.feed(encode(b"ng refs/heads/0 " + b"\x1b" + b"x" * 3000) + encode(b"ok " + b"x" * 1025))
    reader.feed(b"0004")
    reader.feed(framed([b"ok refs/heads/z\n"]))
    assert len(reader.results()) == MAX_COMMANDS
    assert reader.results()["refs/heads/0"] == "x" * MAX_TEXT


@given(st.binary(max_size=200))
def test_no_answer_raises(data: bytes) -> None:
    reader = ReportReader()
    reader.feed(data)
    reader.feed(encode(b"\x01" + data) + encode(data))
    assert len(reader.results()) <= 3
