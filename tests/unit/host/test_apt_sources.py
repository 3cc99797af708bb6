"""apt's sources in both forms."""

from __future__ import annotations

import pytest

from keyhole.host import apt_sources


@pytest.mark.parametrize(
    ("line", "uris"),
    [
        ("deb http://apt.corp.example/debian stable main", ["http://apt.corp.example/debian"]),
        ("deb-src\thttps://apt.corp.example/ ./", ["https://apt.corp.example/"]),
        ("  deb [ arch=amd64 signed-by=/k.gpg ] https://a.example/x s m", ["https://a.example/x"]),
        ('deb "https://a.example/x" s m', ["https://a.example/x"]),
        ("deb https://a.example/x s m # https://b.example/", ["https://a.example/x"]),
        ("# deb https://a.example/x s m", []),
        ("deb", []),
        ("rpm https://a.example/x s m", []),
        ("debian https://a.example/x s m", []),
        ("deb cdrom:[Some GNU/Linux 12 - amd64]/ s m", ["cdrom:[Some"]),
    ],
)
def test_a_line_names_one_uri(line: str, uris: list[str]) -> None:
    assert list(apt_sources.uris("sources.list", line)) == uris


DEB822 = """\
# the first stanza
Types: deb deb-src
URIs: https://one.example/debian
# a comment within
  https://two.example/debian https://three.example/debian
Suites: stable

Enabled: no
URIs: https://off.example/

uris:https://four.example/
ENABLED: Yes
   \t
Enabled: false
Types: deb
URIs: https://off.example/
no field at all
"""


def test_a_stanza_names_several_unless_it_is_switched_off() -> None:
    assert apt_sources.uris("x.sources", DEB822) == (
        "https://one.example/debian",
        "https://two.example/debian",
        "https://three.example/debian",
        "https://four.example/",
    )


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("debian.sources", True),
        ("corp.list", True),
        ("corp.list.disabled", False),
        ("corp.list.save", False),
        ("corp list.list", False),
        ("corp.sources~", False),
        ("corp", False),
    ],
)
def test_apt_reads_files_of_certain_names_only(name: str, reads: bool) -> None:
    assert apt_sources.reads(name) is reads
