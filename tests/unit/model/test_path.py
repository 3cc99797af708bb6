"""A request path has one reading or is refused; rules meet requests as segments only (I3, I4)."""

from __future__ import annotations

import string
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.glob import Glob
from keyhole.model.path import (
    MAX_PATH_LENGTH,
    MAX_SEGMENTS,
    RequestPath,
    glob_text,
    parse_path_glob,
)

UNRESERVED = string.ascii_letters + string.digits + "-._~"
CLEAN_SEGMENTS = st.text(UNRESERVED, min_size=1, max_size=8).filter(lambda s: s not in (".", ".."))
CLEAN_PATHS = st.lists(CLEAN_SEGMENTS, max_size=5).map(lambda segments: "/" + "/".join(segments))
# Made of the pieces that attacks are made of, so that a good part of them is accepted.
HOSTILE_PATHS = st.lists(
    st.sampled_from(
        ["/", "/", "a", "b", "..", ".", "%2e", "%2E", "%2f", "%2F", "%5c", "%25", "%3b", ";", "\\",
         "%00", "%c0%af", "%ef%bc%8f", "%ef%bc%8e", "%c3%a9", "e%cc%81", "%20", "?", "%", "%4", "*",
         "é", "%e2%88%95", "%e2%84%aa", "%cd%be", "%e2%80%a5", "%e2%84%85", "%f0%9f%92%a9", "%ff"]
    ),
    max_size=8,
).map(lambda pieces: "/" + "".join(pieces))  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "segments"),
    [
        ("/", ()),
        ("/v1", ("v1",)),
        ("/v1/", ("v1",)),
        ("/v1/messages", ("v1", "messages")),
        ("/v1/models/a:generate", ("v1", "models", "a:generate")),
        ("/%76%31/%6Dessages", ("v1", "messages")),
        ("/a%20b", ("a b",)),
        ("/a+b", ("a+b",)),
        ("/caf%C3%A9", ("café",)),
        ("/cafe%CC%81", ("café",)),
        ("/...", ("...",)),
        ("/.well-known/x", (".well-known", "x")),
        ("/a..b/..c/d..", ("a..b", "..c", "d..")),
        ("/%E4%B8%AD", ("中",)),
        ("/a%3Fb%23c", ("a?b#c",)),
        ("/~u/(x)!$&'*,=@", ("~u", "(x)!$&'*,=@")),
    ],
)
def test_a_clean_path_is_its_decoded_segments(raw: str, segments: tuple[str, ...]) -> None:
    path = RequestPath.parse(raw)
    assert path.segments == segments
    assert path.raw == raw


REFUSED = {
    "starts with '/'": ["", "v1", "*", "https://example.org/", " /v1", "%2Fv1"],
    "';'": ["/a;b", "/a;", "/;/a", "/a/..;/b", "/a%3Bb", "/a%3bb", "/..%3B/b"],
    "empty, '.' or '..'": """// /// //v1 /v1//messages /v1// /. /.. /./v1 /v1/.. /v1/../ /v1/../keys
        /v1/%2e%2e/keys /v1/%2E%2E/keys /v1/%2e./keys /v1/.%2E/keys /v1/%2e/keys""".split(),
    "an encoded slash": ["/v1%2Fkeys", "/v1%2fkeys", "/%2F", "/..%2F..%2Fkeys", "/%2e%2e%2fkeys"],
    "an encoded backslash": ["/v1%5Ckeys", "/v1%5ckeys", "/..%5C..%5Ckeys"],
    "double encoding": ["/%252e%252e/keys", "/v1%252Fkeys", "/%25", "/%2525", "/a%2500"],
    "an encoded control": ["/a%00", "/%00", "/a%0d%0ab", "/a%09b", "/a%1f", "/a%7F"],
    "two hexadecimal digits": ["/%", "/a%", "/%4", "/%zz", "/%u002e", "/a%2", "/%%32%65", "/%+2e"],
    "must be percent-encoded": [
        *"/v1?x=1 /v1#x /<a> /[a] /a^b /a|b /{a} /`a`".split(),
        "/v1\\keys",
        "/a b",
        "/a\tb",
        "/a\nb",
        "/a\0",
        '/"',
        "/café",
        "/\uff0e\uff0e/keys",
        "/\ud800",
    ],
    "UTF-8": [
        *"/%ff /%E9 /%C3 /%C3/%A9 /%80".split(),
        # Overlong forms of '.', '/' and '\', and a surrogate.
        *"/%C0%AE%C0%AE/keys /%E0%80%AE /..%C0%AF /v1%C0%AFkeys /v1%E0%80%AFkeys /%C1%9C".split(),
        *"/%ED%A0%80 /%F5%80%80%80".split(),
    ],
    "read as a slash or dot": [
        "/v1%EF%BC%8Fkeys",  # full-width solidus
        "/%EF%BC%8E%EF%BC%8E/keys",  # full-width full stops
        "/.%EF%BC%8E/keys",
        "/%E2%80%A5/keys",  # two-dot leader
        "/%E2%80%A4/keys",  # one-dot leader
        "/v1%EF%BC%BCkeys",  # full-width backslash
        "/a%EF%BC%9Bb",  # full-width semicolon
        "/a%EF%BC%852Fb",  # full-width percent
        "/a%E2%84%85b",  # c/o
        "/v1%E2%88%95keys",  # division slash
        "/v1%E2%81%84keys",  # fraction slash
        "/v1%E2%88%96keys",  # set minus
        "/a%CD%BEb",  # Greek question mark, canonically ';'
        "/%E2%84%AAeys",  # Kelvin sign, canonically 'K'
    ],
}


@pytest.mark.parametrize(
    ("why", "raw"), [(why, raw) for why, paths in REFUSED.items() for raw in paths]
)
def test_a_path_that_servers_could_read_in_two_ways_is_refused(why: str, raw: str) -> None:
    """I4: none of these reaches a rule. The control is the table of clean paths above."""
    with pytest.raises(Unparsable) as refusal:
        RequestPath.parse(raw)
    assert why in refusal.value.message


def test_a_path_is_bounded_in_length_and_depth() -> None:
    """I9."""
    longest, deepest = "/" + "a" * (MAX_PATH_LENGTH - 1), "/a" * MAX_SEGMENTS
    assert len(RequestPath.parse(longest).segments) == 1
    assert len(RequestPath.parse(deepest).segments) == MAX_SEGMENTS
    for too_much in (longest + "a", deepest + "/a"):
        with pytest.raises(Unparsable, match="at most"):
            RequestPath.parse(too_much)


@given(CLEAN_PATHS, st.data())
def test_percent_encoding_an_unreserved_character_changes_nothing(
    path: str, data: st.DataObject
) -> None:
    """RFC 3986 §6.2.2.2, in either case of the digits (I4)."""
    spelled = "".join(
        data.draw(st.sampled_from([c, f"%{ord(c):02x}", f"%{ord(c):02X}"])) if c != "/" else c
        for c in path
    )
    assert RequestPath.parse(spelled).segments == RequestPath.parse(path).segments


def naive_segments(raw: str) -> list[str]:
    """As the plainest server would: decode everything once, then split at slashes."""
    octets = bytearray()
    rest = raw
    while rest:
        if rest[0] == "%":
            octets.append(int(rest[1:3], 16))
            rest = rest[3:]
        else:
            octets += rest[0].encode()
            rest = rest[1:]
    _, *parts = octets.decode("utf-8", "surrogateescape").split("/")
    return parts[:-1] if parts[-1] == "" else parts


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=20), st.text(max_size=20).map("/".__add__), HOSTILE_PATHS))
@example("//")
@example("/%2F")
def test_whatever_is_accepted_a_naive_server_reads_in_the_same_way(raw: str) -> None:
    """I4: no differential. Composed and decomposed accents are one; nothing else is."""
    try:
        path = RequestPath.parse(raw)
    except Unparsable:
        return
    composed = [unicodedata.normalize("NFC", s) for s in naive_segments(raw)]
    assert list(path.segments) == composed
    assert not any(set(s) & set("/\\;%\0") or s in (".", "..", "") for s in path.segments)
    # Nor does a server see more slashes or dot segments that folds compatibility forms.
    flat = "/".join(unicodedata.normalize("NFKC", s) for s in path.segments)
    assert len(flat.split("/")) == max(1, len(path.segments))
    assert not {".", ".."} & set(flat.split("/"))


# ── where a service takes %2F as a character ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raw", "segments", "split"),
    [
        ("/", (), ()),
        ("/a/b", ("a", "b"), ("a", "b")),
        ("/projects/acme%2Fx/issues", ("projects", "acme/x", "issues"),
         ("projects", "acme", "x", "issues")),
        ("/caf%C3%A9%2fx", ("café/x",), ("café", "x")),
        ("/%2F", ("/",), None),
        ("/a%2F", ("a/",), None),
        ("/a%2F%2Fb", ("a//b",), None),
        ("/a%2F..%2Fb", ("a/../b",), None),
        ("/a%2F%2e%2e", ("a/..",), None),
        ("/.%2Fa", ("./a",), None),
    ],
)  # fmt: skip
def test_an_encoded_slash_has_two_readings_and_the_second_must_be_clean(
    raw: str, segments: tuple[str, ...], split: tuple[str, ...] | None
) -> None:
    """I4: a request is allowed only if both readings are; None is a reading that is not clean."""
    path = RequestPath.parse(raw, opaque_slash=True)
    other = path.split_reading
    assert path.segments == segments
    assert (other.segments if other else None) == split
    assert other is None or other.raw == raw


@pytest.mark.parametrize(
    "raw",
    [
        "/a%5Cb",
        "/a%252Fb",
        "/a%3Bb",
        "/..",
        "/a//b",
        "/a%00",
        # A full-width solidus or dots hide behind a slash that is allowed.
        "/a%2Fb%EF%BC%8Fc",
        "/a%2F%EF%BC%8E%EF%BC%8E%EF%BC%8Fc",
        "/a%2F%EF%BC%8E%EF%BC%8E",
        "/a%2F%E2%80%A5%2Fc",
    ],
)
def test_an_opaque_slash_excuses_nothing_else(raw: str) -> None:
    with pytest.raises(Unparsable):
        RequestPath.parse(raw, opaque_slash=True)


def test_folding_forgets_case_and_width() -> None:
    raw = "/V1/K%C3%A9ys/%EF%BC%A1%EF%BC%B0i"
    assert RequestPath.parse(raw).folded() == ("v1", "kéys", "api")


# ── the path of a rule ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("/", ()),
        ("/v1", ("v1",)),
        ("/v1/", ("v1",)),
        ("/v1/**", ("v1", "**")),
        ("/**/keys/*", ("**", "keys", "*")),
        ("/v1/models/*:generate*", ("v1", "models", "*:generate*")),
        ("/repos/{repo}/issues", ("repos", "{repo}", "issues")),
        ("/a b", ("a b",)),
        ("/cafe\u0301", ("café",)),
        ("/" + "a/" * MAX_SEGMENTS, ("a",) * MAX_SEGMENTS),
    ],
)
def test_the_path_of_a_rule_is_written_decoded(text: str, segments: tuple[str, ...]) -> None:
    assert parse_path_glob(text) == Glob(segments)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "starts with '/'"),
        ("v1/**", "starts with '/'"),
        ("/v1?x", "query"),
        ("/v1#x", "fragment"),
        ("/v1%2Fx", "decoded"),
        ("/a;b", "';'"),
        ("/a\\b", "control"),
        ("/a\0", "control"),
        ("/a\x7f", "control"),
        ("//", "empty"),
        ("/a//b", "empty"),
        ("/a/./b", "empty"),
        ("/a/../b", "empty"),
        ("/a**", "stands alone"),
        ("/***", "stands alone"),
        ("/a/**b/c", "stands alone"),
        ("/a" * (MAX_SEGMENTS + 1), "at most"),
    ],
)
def test_the_path_of_a_rule_that_could_never_match_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        parse_path_glob(text)
    assert why in refusal.value.message


def test_a_missing_slash_is_answered_with_the_right_spelling() -> None:
    with pytest.raises(Unparsable) as refusal:
        parse_path_glob("v1/**")
    assert refusal.value.hint == "/v1/**"


@given(CLEAN_PATHS)
def test_a_clean_path_without_wildcards_is_a_rule_for_itself_alone(path: str) -> None:
    glob = parse_path_glob(path)
    segments = RequestPath.parse(path).segments
    assert glob.matches(segments)
    assert not glob.matches((*segments, "x"))


@given(st.text(max_size=20))
def test_the_path_of_a_rule_is_read_or_refused_and_never_crashes(text: str) -> None:
    for typed in (text, "/" + text):
        try:
            glob = parse_path_glob(typed)
        except Unparsable:
            continue
        assert parse_path_glob("/" + str(glob)) == glob


def test_a_path_of_many_combining_marks_is_refused() -> None:
    """I12: to normalise them takes quadratic time."""
    assert RequestPath.parse("/e" + "%CC%A3" * 30).segments == ("\u1eb9" + "\u0323" * 29,)
    with pytest.raises(Unparsable, match="marks in a row"):
        RequestPath.parse("/e" + "%CC%A3" * 31)
    with pytest.raises(Unparsable, match="marks in a row"):
        parse_path_glob("/e" + "\u0323" * 31)


@pytest.mark.parametrize(
    ("raw", "glob"),
    [
        ("/", "/"),
        ("/v1/a%20b%3Fc/", "/v1/a*b*c"),
        ("/caf%C3%A9", "/caf\u00e9"),
        ("/a***b", "/a*b"),
        ("/a/**", None),
        ("/a%2Fb", None),
    ],
)
def test_the_narrowest_rule_for_a_path_covers_it(raw: str, glob: str | None) -> None:
    path = RequestPath.parse(raw, opaque_slash=True)
    assert glob_text(path) == glob
    assert glob is None or parse_path_glob(glob).matches(path.segments)
