"""Host names have one spelling, whatever was typed, and patterns cover what they say (I3, I4)."""

from __future__ import annotations

import string
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.host import (
    DEFAULT_PORT,
    MAX_NAME_LENGTH,
    MAX_PORT,
    Host,
    HostPattern,
    is_address,
    parse_port,
)

LABELS = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=12).filter(
    lambda label: label[0] != "-" and label[-1] != "-" and label[2:4] != "--"
)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "example"]))
# Letters of scripts that IDNA knows, and what it maps, drops or refuses.
INTERNATIONAL = st.text(
    st.sampled_from(
        "aZ9-.éÉß\u0451\u0416中\uff41\uff22\uff11\u3002\u00ad\u0301\u200d\u200b\u0660\u212a\u0130xn"
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("api.anthropic.com", "api.anthropic.com"),
        ("API.Anthropic.COM", "api.anthropic.com"),
        ("localhost", "localhost"),
        ("a", "a"),
        ("1password.example", "1password.example"),
        ("4.example", "4.example"),
        ("a.0xg", "a.0xg"),
        ("r3---sn-4g5e6nez.example", "r3---sn-4g5e6nez.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.EXAMPLE", "xn--bcher-kva.example"),
        # IDNA 2008, not 2003: sharp s stays itself and is not another's `fass`.
        ("faß.example", "xn--fa-hia.example"),
        ("中国.example", "xn--fiqs8s.example"),
        ("\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45.com", "example.com"),
        ("exa\u00admple.com", "example.com"),
        ("\u212aeyhole.example", "keyhole.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
    ],
)
def test_every_spelling_of_a_name_is_one_value(typed: str, name: str) -> None:
    assert Host.parse(typed) == Host(name)
    assert str(Host.parse(typed)) == name


REFUSED = {
    "an IP address": [
        *"""127.0.0.1 127.1 0x7f.1 0X7F.0.0.1 0X7F000001 example.0X1F 0177.0.0.1 2130706433
        0x7f000001 0x 1.2.3.4. [127.0.0.1] ::1 [::1] [::ffff:127.0.0.1] fe80::1%eth0
        [fe80::1%25eth0] a.b.c.0 example.0x1f""".split(),
        # Full-width digits become an address only after they are mapped.
        "\uff11\uff12\uff17.0.0.\uff11",
        "example.\uff11",
        "é.0\uff587f",
        "é.1",
        "127.0.0.1.\u00ad",
    ],
    "control characters": [
        "evil\0.example.com",
        "example.com\0",
        "example.com\n",
        "example.com\r",
        "exam ple.com",
        " example.com",
        "\texample.com",
        "example.com\x7f",
        "example.com\x1f",
    ],
    "percent-encoding": ["exam%70le.com", "example.com%00", "%65xample.com"],
    "user information": ["user@example.com", "user:pw@example.com", "ok.example\\@evil.example"],
    "no path": ["example.com/", "example.com/evil"],
    "no backslash": ["example.com\\evil"],
    "no query": ["example.com?x"],
    "no fragment": ["example.com#x"],
    "wildcard": ["*.example.com", "a.*.example.com", "*"],
    "underscore": ["_dmarc.example.com", "a_b.example.com"],
    "':' or brackets": ["example.com:443", "a:b"],
    "trailing dot": ["example.com.", "example.com..", "."],
    "no empty label": ["a..example.com", ".example.com", "example.\u00ad", "exämple.\u00ad\u00ad"],
    "plain '.'": [
        "127\u30020\u30020\u30021",
        "example\u3002com",
        "example\uff0ecom",
        "example\uff61com",
    ],
    "at most 253": ["a." * 126 + "ab", "a" * 300, "é" * 100_000],
    "IDNA 2008": [
        "a" * 64 + ".example",
        ("é" * 60) + ".example",
        ".".join(["é" * 40] * 6),
        *"""-a.example a-.example a.- xn--.example xn--a.example xn--abc-.example xn--0.example
        xn--999999999.example""".split(),
        # An emoji, a decomposed accent and a full-width letter in Punycode: what is decoded must
        # itself be the one spelling.
        "xn--ls8h.example",
        "xn--bucher-xyd.example",
        "xn--9ca7331k.example",
        "💩.example",
        "a\u200db.example",
        "a\u200cb.example",
        "a\u2024b.example",
        "a\ufe52b.example",
        "\u2488com.example",
        "a\uff3fb.example",
        "a\uff0500b.example",
        "a\uff20b.example",
        "a\uff0fb.example",
        "a\uff1ab.example",
        "[a].example",
        "a,b.example",
        "a\ud800.example",
        "\u202eelpmaxe.example",
        "\u0661\u0662\u0667.example",
        "\u00ad.example",
    ],
    "is missing": [""],
}


@pytest.mark.parametrize(
    ("why", "typed"), [(why, typed) for why, names in REFUSED.items() for typed in names]
)
def test_what_is_no_host_name_is_refused_and_the_reason_said(why: str, typed: str) -> None:
    """I4: none of these may become a name that some rule covers."""
    with pytest.raises(Unparsable) as refusal:
        Host.parse(typed)
    assert why in refusal.value.message


def test_a_name_of_253_characters_is_the_longest() -> None:
    longest = ".".join(["a" * 61] * 4) + ".abcde"
    assert len(longest) == MAX_NAME_LENGTH
    assert Host.parse(longest).name == longest
    with pytest.raises(Unparsable, match="253"):
        Host.parse("b" + longest)


def test_an_address_is_told_where_addresses_belong() -> None:
    with pytest.raises(Unparsable) as refusal:
        Host.parse("10.0.0.7")
    assert "[upstream.connect]" in (refusal.value.hint or "")


def test_a_trailing_dot_is_answered_with_the_name_without_it() -> None:
    with pytest.raises(Unparsable) as refusal:
        Host.parse("example.com.")
    assert refusal.value.hint == "example.com"


def test_labels_are_listed_from_left_to_right() -> None:
    assert Host.parse("a.b.example").labels == ("a", "b", "example")


def test_names_sort_as_text() -> None:
    assert sorted(map(Host.parse, ["b.example", "a.example"]))[0].name == "a.example"


@given(NAMES)
def test_a_plain_name_is_itself_in_any_case(name: str) -> None:
    assert Host.parse(name).name == name
    assert Host.parse(name.upper()) == Host.parse(name.title()) == Host.parse(name)


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=30), INTERNATIONAL, INTERNATIONAL.map(lambda t: f"a.{t}.b")))
@example("a.\u00ad")
@example("\ud800")
def test_whatever_is_accepted_is_canonical_and_reads_as_itself(text: str) -> None:
    """I4: parse is idempotent on its own output, and its output is lower-case LDH."""
    try:
        host = Host.parse(text)
    except Unparsable:
        return
    assert Host.parse(host.name) == host
    assert set(host.name) <= set(string.ascii_lowercase + string.digits + "-.")
    assert all(0 < len(label) <= 63 for label in host.labels)
    assert len(host.name) <= MAX_NAME_LENGTH
    assert not is_address(host.name)


@given(INTERNATIONAL.map(lambda t: f"{t}.example"))
def test_the_upper_case_of_a_name_is_never_another_name(name: str) -> None:
    """Upper case of sharp s is 'SS', another word; all else folds back."""
    assume("ß" not in name)
    try:
        host = Host.parse(name)
    except Unparsable:
        return
    assert Host.parse(name.upper()) == host


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("127.0.0.1", True),
        ("127.1", True),
        ("::1", True),
        ("[::1]", True),
        ("fe80::1%eth0", True),
        ("2130706433", True),
        ("example.0x7f", True),
        ("example.com", False),
        ("4.example", False),
        ("dead.beef", False),
        ("", False),
    ],
)
def test_what_a_resolver_would_read_as_an_address_is_one(text: str, yes: bool) -> None:
    assert is_address(text) is yes


# ── patterns ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "pattern", "written"),
    [
        ("example.org", HostPattern(Host("example.org"), False, 443), "example.org"),
        ("example.org:443", HostPattern(Host("example.org"), False, 443), "example.org"),
        ("*.Example.org", HostPattern(Host("example.org"), True, 443), "*.example.org"),
        ("db.example.org:5432", HostPattern(Host("db.example.org"), False, 5432), None),
        ("*.example.org:8443", HostPattern(Host("example.org"), True, 8443), None),
        ("*.bücher.example", HostPattern(Host("xn--bcher-kva.example"), True), None),
    ],
)
def test_a_pattern_is_a_name_or_its_subdomains_at_one_port(
    text: str, pattern: HostPattern, written: str | None
) -> None:
    assert HostPattern.parse(text) == pattern
    assert HostPattern.parse(str(pattern)) == pattern
    assert written is None or str(pattern) == written


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*", "every host"),
        ("*:443", "every host"),
        ("*.", "missing"),
        ("**.example.org", "wildcard"),
        ("*example.org", "wildcard"),
        ("a*.example.org", "wildcard"),
        ("*.*.example.org", "wildcard"),
        ("a.*.org", "wildcard"),
        ("*.127.0.0.1", "IP address"),
        ("10.0.0.1:443", "IP address"),
        ("[::1]:443", "IP address"),
        ("::1", "IP address"),
        ("example.org:", "port"),
        ("example.org:0", "port"),
        ("example.org:65536", "port"),
        ("example.org:*", "port"),
        ("example.org:https", "port"),
        (":443", "missing"),
        ("https://example.org/x", "scheme"),
        ("", "missing"),
    ],
)
def test_a_pattern_of_any_other_form_is_refused(text: str, why: str) -> None:
    """I3: no spelling widens a pattern beyond a name's subdomains at one port."""
    with pytest.raises(Unparsable) as refusal:
        HostPattern.parse(text)
    assert why in refusal.value.message


@pytest.mark.parametrize(
    "text", ["https://example.org", "https://example.org/a/b", "https://me:hunter2@example.org/"]
)
def test_a_url_is_answered_with_its_host_and_never_with_its_password(text: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        HostPattern.parse(text)
    assert refusal.value.hint == "example.org"
    assert "hunter2" not in refusal.value.message


@pytest.mark.parametrize("text", ["1", "443", "65535"])
def test_a_port_is_decimal(text: str) -> None:
    assert parse_port(text) == int(text) <= MAX_PORT


@pytest.mark.parametrize(
    "text", ["", "0", "00", "0443", "+443", "-1", "4 3", " 443", "443\n", "65536", "99999",
             "100000", "0x1bb", "4_43", "\u0664\u0664\u0663", "\uff14\uff14\uff13", "443.0"],
)  # fmt: skip
def test_a_port_has_no_sign_space_leading_zero_or_other_digits(text: str) -> None:
    with pytest.raises(Unparsable, match="65535"):
        parse_port(text)


# Every name of up to three labels of two letters, and every pattern over them.
UNIVERSE = [
    Host(".".join(labels)) for depth in (1, 2, 3, 4) for labels in product("ab", repeat=depth)
]
BASES = [host for host in UNIVERSE if len(host.labels) <= 2]
PATTERNS = [HostPattern(base, subdomains) for base in BASES for subdomains in (False, True)]


def covered(pattern: HostPattern) -> set[Host]:
    """By enumeration: the names that a pattern covers, label by label."""
    want = pattern.host.labels
    return {
        host
        for host in UNIVERSE
        if (host.labels[-len(want) :] == want and len(host.labels) > len(want)
            if pattern.subdomains else host.labels == want)
    }  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_pattern_covers_the_names_that_enumeration_finds(pattern: HostPattern) -> None:
    assert {host for host in UNIVERSE if pattern.matches(host)} == covered(pattern)


@pytest.mark.parametrize("one", PATTERNS, ids=str)
def test_two_patterns_overlap_exactly_if_they_share_a_name(one: HostPattern) -> None:
    for two in PATTERNS:
        shared = bool(covered(one) & covered(two))
        assert one.overlaps(two) is two.overlaps(one) is shared, (str(one), str(two))


@pytest.mark.parametrize("one", PATTERNS, ids=str)
def test_a_pattern_covers_another_exactly_if_it_has_all_of_its_names(one: HostPattern) -> None:
    for two in PATTERNS:
        assert one.covers(two) is (covered(two) <= covered(one)), (str(one), str(two))
    assert not one.covers(HostPattern(one.host, one.subdomains, 8443))


def test_patterns_at_two_ports_share_nothing() -> None:
    at_443, at_8443 = HostPattern.parse("*.a.example"), HostPattern.parse("*.a.example:8443")
    assert at_443.overlaps(HostPattern.parse("x.a.example"))
    assert not at_443.overlaps(at_8443)
    assert at_443.port == DEFAULT_PORT


def test_a_wildcard_covers_neither_itself_nor_a_longer_word() -> None:
    """I3: `evilexample.org` is not below `example.org`."""
    pattern = HostPattern.parse("*.example.org")
    assert pattern.matches(Host.parse("a.example.org"))
    assert pattern.matches(Host.parse("a.b.example.org"))
    assert not pattern.matches(Host.parse("example.org"))
    assert not pattern.matches(Host.parse("evilexample.org"))
    assert not pattern.matches(Host.parse("example.org.evil.test"))


def test_a_pattern_says_its_name_without_the_port() -> None:
    assert HostPattern.parse("*.a.example:8443").name == "*.a.example"
    assert HostPattern.parse("a.example:8443").name == "a.example"
