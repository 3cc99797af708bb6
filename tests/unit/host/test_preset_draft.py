"""What holds for every preset: merging, narrowing, bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.host.found_credential import FoundCredential
from keyhole.host.preset_draft import MAX_HOSTS, PresetDraft
from keyhole.model.errors import Refused
from keyhole.model.rule import AccessRule
from tests.rigs.host.building import PASSWORD, grants, host, injections, revealed, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def draft(tmp_path: Path) -> PresetDraft:
    return PresetDraft("test", host(tmp_path))


def place(draft: PresetDraft, url: str, **more: object) -> None:
    at = draft.locate(url, "~/.rc")
    assert at is not None
    draft.grant(at, "~/.rc", **more)  # type: ignore[arg-type]


def test_a_host_named_twice_is_one_host(draft: PresetDraft) -> None:
    place(draft, "https://index.corp.example/a/")
    place(draft, "https://INDEX.corp.example:443/b/")
    place(draft, "http://index.corp.example/a/")
    preset = draft.finish("")
    assert grants(preset) == {
        "index.corp.example": ["GET /**"],
        "index.corp.example:80": ["GET /**"],
    }
    assert preset.sources == ("~/.rc",)


def test_a_credential_narrows_what_may_be_read_with_it(draft: PresetDraft) -> None:
    """A token for one feed of a forge opens the whole API of that forge."""
    place(draft, f"https://me:{PASSWORD}@forge.corp.example/api/packages/simple/")
    place(draft, "https://other.corp.example/simple/")
    preset = draft.finish("")
    assert grants(preset) == {
        "forge.corp.example": ["GET /api/packages/simple/**"],
        "other.corp.example": ["GET /**"],
    }


def test_every_location_of_a_host_with_a_credential_stays_readable(draft: PresetDraft) -> None:
    place(draft, "https://index.corp.example/public/")
    place(draft, f"https://me:{PASSWORD}@index.corp.example/private/")
    place(draft, f"https://me:{PASSWORD}@index.corp.example/more/", scope=("more", "files"))
    preset = draft.finish("")
    assert grants(preset)["index.corp.example"] == [
        "GET /public/**", "GET /private/**", "GET /more/files/**",
    ]  # fmt: skip
    assert preset.notes == ()


def test_of_two_credentials_for_one_host_the_first_is_used(draft: PresetDraft) -> None:
    place(draft, f"https://me:{PASSWORD}@index.corp.example/a/")
    place(draft, "https://me:another-one@index.corp.example/b/")
    preset = draft.finish("")
    assert revealed(preset, "index.corp.example") == PASSWORD
    assert grants(preset) == {"index.corp.example": ["GET /a/**"]}
    assert "second credential for index.corp.example" in preset.notes[0]


def test_a_credential_is_never_used_over_plain_http(draft: PresetDraft) -> None:
    place(draft, f"http://me:{PASSWORD}@plain.corp.example/")
    place(draft, f"https://me:{PASSWORD}@tls.corp.example/")
    preset = draft.finish("")
    assert injections(preset) == {"tls.corp.example": "header Authorization: Basic me:{secret}"}
    assert revealed(preset, "plain.corp.example:80") is None
    assert "plain http" in preset.notes[0]


def test_more_rules_are_kept_once(draft: PresetDraft) -> None:
    rule = AccessRule.parse("POST /audit/**")
    place(draft, "https://index.corp.example/", rules=[rule])
    place(draft, "https://index.corp.example/", rules=[rule])
    assert grants(draft.finish("")) == {"index.corp.example": ["GET /**", "POST /audit/**"]}


def test_where_a_credential_was_read_is_a_source_too(draft: PresetDraft) -> None:
    place(draft, "https://a.example/", credential=FoundCredential.bearer("x").found_in("~/.netrc"))
    assert draft.finish("").sources == ("~/.rc", "~/.netrc")


def test_there_are_at_most_so_many_hosts(draft: PresetDraft) -> None:
    for number in range(MAX_HOSTS + 2):
        place(draft, f"https://mirror{number}.corp.example/")
    place(draft, "https://mirror0.corp.example/again")
    preset = draft.finish("")
    assert len(preset.hosts) == MAX_HOSTS
    assert preset.notes == (f"more than {MAX_HOSTS} hosts: the rest is left out",)


@pytest.mark.parametrize(
    ("url", "note"),
    [
        (f"https://me:{PASSWORD}@192.0.2.7/", "IP address"),
        ("file:///opt/wheels", "[sandbox] readable"),
        ("/opt/wheels", "[sandbox] readable"),
        (f"https://{PASSWORD}@index.corp.example/", "user name without a password"),
    ],
)
def test_what_cannot_be_used_is_noted_without_repeating_it(
    draft: PresetDraft, url: str, note: str
) -> None:
    draft.locate(url, "~/.rc")
    place(draft, "https://index.corp.example/")
    notes = draft.finish("").notes
    assert notes[0].startswith("~/.rc: ")
    assert note in notes[0]
    assert PASSWORD not in notes[0]


def test_without_any_host_the_person_is_told_what_to_do_and_why(draft: PresetDraft) -> None:
    draft.locate("https://192.0.2.7/", "~/.rc")
    with pytest.raises(Refused, match=r"set an index; ~/.rc: .*IP address"):
        draft.finish("set an index")


def test_a_file_that_the_sandbox_can_write_is_noted_and_not_read(tmp_path: Path) -> None:
    file = write(tmp_path / "project" / "rc", "text")
    assert PresetDraft("test", host(tmp_path)).read(file) == "text"
    wary = PresetDraft("test", host(tmp_path, writable=(tmp_path / "project",)))
    assert wary.read(file) is None
    assert wary.read(tmp_path / "project" / "nothing") is None
    place(wary, "https://index.corp.example/")
    assert [n for n in wary.finish("").notes if "sandbox can write" in n]
