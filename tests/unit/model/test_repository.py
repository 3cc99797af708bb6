"""A repository is one value however its forge lets it be spelled, and no other (I4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.errors import Unparsable
from keyhole.model.repository import MAX_DEPTH, Forge, Repository, ignores_case

FOLDING = [Forge.GITHUB, Forge.GITEA, Forge.GITLAB, Forge.BITBUCKET]
NAMED = {
    Forge.GITHUB: "acme/widgets",
    Forge.GITEA: "acme/widgets",
    Forge.GITLAB: "acme/group/widgets",
    Forge.BITBUCKET: "acme/widgets",
    Forge.AZURE_DEVOPS: "acme/project/widgets",
    Forge.GENERIC: "team/widgets",
}


@pytest.mark.parametrize("forge", Forge)
def test_a_repository_is_written_as_it_is_read(forge: Forge) -> None:
    repository = Repository.parse(forge, NAMED[forge])
    assert str(repository) == NAMED[forge]
    assert repository == Repository(tuple(NAMED[forge].split("/")))
    assert Repository.from_segments(forge, repository.path) == repository


@pytest.mark.parametrize("forge", FOLDING)
@pytest.mark.parametrize(
    "spelling",
    ["acme/widgets", "Acme/Widgets", "ACME/WIDGETS", "acme/widgets.git", "Acme/Widgets.git",
     "/acme/widgets", "acme/widgets/", "/acme/widgets.git/"],
)  # fmt: skip
def test_case_and_one_dot_git_make_no_difference_on_a_forge(forge: Forge, spelling: str) -> None:
    assert Repository.parse(forge, spelling) == Repository(("acme", "widgets"))
    assert ignores_case(forge)


@pytest.mark.parametrize("forge", FOLDING)
def test_only_one_dot_git_is_dropped(forge: Forge) -> None:
    """What remains must not end so again, in any case: some servers would drop that, too (I4)."""
    for odd in ("widgets.git.git", "widgets.GIT", "widgets.Git", "widgets.GIT.git"):
        assert Repository.from_segments(forge, ("acme", odd)) is None
    assert Repository.parse(forge, "acme/widgets.wiki.git").path[1] == "widgets.wiki"


def test_a_plain_git_server_keeps_case_apart() -> None:
    """Two directories on such a server are two repositories."""
    upper, lower = (Repository.parse(Forge.GENERIC, t) for t in ("team/X", "team/x"))
    assert upper != lower
    assert Repository.parse(Forge.GENERIC, "team/X.git") == upper
    assert not ignores_case(Forge.GENERIC)


def test_azure_devops_keeps_dot_git_and_takes_spaces() -> None:
    forge = Forge.AZURE_DEVOPS
    spaced = Repository.parse(forge, "Acme/My Project/My Widgets")
    assert spaced == Repository(("acme", "my project", "my widgets"))
    with_suffix = Repository.parse(forge, "acme/project/widgets.git")
    assert with_suffix.path[2] == "widgets.git"
    assert with_suffix != Repository.parse(forge, "acme/project/widgets")


@pytest.mark.parametrize("forge", [Forge.GITLAB, Forge.GENERIC])
def test_groups_nest_as_deep_as_gitlab_lets_them(forge: Forge) -> None:
    """I9."""
    deepest = "/".join(["g"] * (MAX_DEPTH - 1) + ["widgets"])
    assert len(Repository.parse(forge, deepest).path) == MAX_DEPTH
    with pytest.raises(Unparsable, match=forge):
        Repository.parse(forge, "g/" + deepest)


def test_a_plain_git_server_may_have_repositories_at_its_root() -> None:
    assert Repository.parse(Forge.GENERIC, "widgets.git").path == ("widgets",)


@pytest.mark.parametrize(
    ("forge", "text"),
    [
        (Forge.GITHUB, "widgets"),
        (Forge.GITHUB, "acme/group/widgets"),
        (Forge.GITHUB, "acme/widgets/tree/main"),
        (Forge.GITEA, "widgets"),
        (Forge.GITEA, "acme/group/widgets"),
        (Forge.GITLAB, "widgets"),
        (Forge.GITLAB, "acme/-/widgets"),
        (Forge.GITLAB, "acme/widgets/-/tree/main"),
        (Forge.GITLAB, "-acme/widgets"),
        (Forge.BITBUCKET, "scm/acme/widgets"),
        (Forge.AZURE_DEVOPS, "acme/widgets"),
        (Forge.AZURE_DEVOPS, "acme/project/sub/widgets"),
        # The short and the long form of a URL's path.
        (Forge.AZURE_DEVOPS, "acme/_git/widgets"),
        (Forge.AZURE_DEVOPS, "acme/project/_git/widgets"),
        (Forge.AZURE_DEVOPS, "acme/ project/widgets"),
        (Forge.AZURE_DEVOPS, "acme/project /widgets"),
        (Forge.GENERIC, ""),
    ],
)
def test_a_name_of_another_forge_is_refused_with_an_example(forge: Forge, text: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        Repository.parse(forge, text)
    assert forge.value in refusal.value.message
    example = (refusal.value.hint or "").removeprefix("as in ").strip("'")
    assert str(Repository.parse(forge, example)) == example


UNUSUAL = [
    ("..", "widgets"),
    ("acme", ".."),
    ("acme", "."),
    ("acme", "..."),
    ("acme", ""),
    ("", "widgets"),
    ("acme", ".git"),
    ("acme", "..git"),
    ("acme", "widgets\0"),
    ("acme", "widgets\n"),
    ("acme", "wid gets\t"),
    ("acme", "wid/gets"),
    ("acme", "wid\\gets"),
    ("acme", "wid%67ets"),
    ("acme", "widgets;x"),
    ("acme", "widgets?x"),
    ("acme", "widgets#x"),
    ("acme", "wid*"),
    ("acme", "w\u0456dgets"),
    ("acme", "widgets\u200b"),
    ("\u212aeyhole", "widgets"),
    ("acme", "x" * 300),
]


@pytest.mark.parametrize("forge", Forge)
@pytest.mark.parametrize("segments", UNUSUAL, ids=ascii)
def test_anything_unusual_in_a_path_names_no_repository(
    forge: Forge, segments: tuple[str, str]
) -> None:
    """I4: what a forge might read otherwise is nothing; the control is the same path, plain."""
    front = tuple(NAMED[forge].split("/"))[:-2]
    assert Repository.from_segments(forge, (*front, "acme", "widgets")) is not None
    assert Repository.from_segments(forge, (*front, *segments)) is None


@pytest.mark.parametrize("forge", Forge)
@pytest.mark.parametrize("text", ["*", "acme/*", "*/*", "acme/**", "acme/wid*"])
def test_wildcards_are_refused(forge: Forge, text: str) -> None:
    """I3: repositories are granted one by one."""
    with pytest.raises(Unparsable, match="without wildcards"):
        Repository.parse(forge, text)


@pytest.mark.parametrize("forge", Forge)
@pytest.mark.parametrize("text", ["acme%2Fwidgets", "acme/..%2fwidgets", "../acme/widgets"])
def test_an_encoded_or_climbing_name_is_refused(forge: Forge, text: str) -> None:
    with pytest.raises(Unparsable, match="not a repository"):
        Repository.parse(forge, text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("https://github.com/acme/widgets", "acme/widgets"),
        ("https://github.com/acme/widgets.git", "acme/widgets"),
        ("https://github.com/acme/widgets/", "acme/widgets"),
        ("ssh://git@github.com:22/acme/widgets.git", "acme/widgets"),
        ("git@github.com:acme/widgets.git", "acme/widgets"),
        ("https://me:hunter2@github.com/acme/widgets.git", "acme/widgets"),
        ("https://github.com", None),
        ("https://github.com/acme/wid gets", None),
        ("git@github.com", None),
    ],
)
def test_a_url_is_answered_with_the_name_and_never_with_its_password(
    text: str, hint: str | None
) -> None:
    with pytest.raises(Unparsable) as refusal:
        Repository.parse(Forge.GITHUB, text)
    assert "without its host" in refusal.value.message
    assert refusal.value.hint == hint


def test_personal_repositories_of_bitbucket_begin_with_a_tilde() -> None:
    assert Repository.parse(Forge.BITBUCKET, "~ann/widgets").path == ("~ann", "widgets")
    assert Repository.from_segments(Forge.GITHUB, ("~ann", "widgets")) is None


def test_repositories_sort_by_their_path() -> None:
    names = ["b/a", "a/b", "a/a"]
    found = sorted(Repository.parse(Forge.GITHUB, name) for name in names)
    assert [str(r) for r in found] == sorted(names)


@given(st.sampled_from(Forge), st.text(max_size=16))
def test_any_text_is_a_canonical_repository_or_refused(forge: Forge, text: str) -> None:
    for typed in (text, f"acme/{text}", f"acme/project/{text}"):
        try:
            found = Repository.parse(forge, typed)
        except Unparsable:
            continue
        assert Repository.from_segments(forge, found.path) in (
            found,
            # A name that still ends in '.git' loses it once more.
            Repository((*found.path[:-1], found.path[-1].removesuffix(".git"))),
        )
        assert not {"", ".", ".."} & set(found.path)
