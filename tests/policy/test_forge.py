"""Git over HTTP: these repositories and git's own endpoints, nothing else (I3)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.host import Host
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.policy.forge import (
    GitEndpoint,
    GitRequest,
    decide_git_request,
    find_git_request,
    repository_at,
)
from keyhole.policy.request import Request, decide_request
from tests.worlds import book, loaded

READ, WRITE = "service=git-upload-pack", "service=git-receive-pack"
BOOK = book(
    """
[services.forge]
secret = "store:one"
repos = ["acme/widgets"]
push = ["agent/*"]
[services.second]
use = "forge"
secret = "store:two"
repos = ["other/thing"]
api = "pull-requests"
[services.lab]
repos = ["group/sub/project"]
[services.own]
hosts = ["own.example"]
forge = "generic"
repos = ["Team/Repo"]
api = "off"
"""
)


def decide(host: str, method: str, path: str, query: str = "") -> RequestDecision:
    return decide_request(BOOK, Host.parse(host), 443, Request(method, path, query))


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/acme/widgets/info/refs", READ),
        ("GET", "/acme/widgets.git/info/refs", READ),
        ("GET", "/Acme/WIDGETS.git/info/refs", READ),
        ("GET", "/acme/widgets/info/refs", WRITE),
        ("POST", "/acme/widgets/git-upload-pack", ""),
        ("POST", "/acme/widgets.git/git-receive-pack", ""),
        ("POST", "/acme/widgets.git/info/lfs/objects/batch", ""),
        ("GET", "/acme/%77idgets/info/refs", READ),
    ],
)
def test_git_works_for_a_granted_repository(method: str, path: str, query: str) -> None:
    decision = decide("git.example", method, path, query)
    assert decision.allowed
    assert (decision.service, decision.rule) == ("forge", "services.forge.repos")


@pytest.mark.parametrize(
    ("method", "path", "query", "reason"),
    [
        ("GET", "/acme/secrets/info/refs", READ, Reason.REPOSITORY_NOT_GRANTED),
        ("GET", "/acme/widgets/x/info/refs", READ, Reason.REPOSITORY_NOT_GRANTED),
        ("GET", "/acme/widgets.git.git/info/refs", READ, Reason.REPOSITORY_NOT_GRANTED),
        ("GET", "/widgets/info/refs", READ, Reason.REPOSITORY_NOT_GRANTED),
        ("GET", "/acme/widgets.wiki.git/info/refs", READ, Reason.REPOSITORY_NOT_GRANTED),
        ("GET", "/acme/widgets/info/refs", "", Reason.ENDPOINT_REFUSED),
        ("GET", "/acme/widgets/info/refs", f"{READ}&x=1", Reason.ENDPOINT_REFUSED),
        ("GET", "/acme/widgets/info/refs", f"{READ}&{WRITE}", Reason.ENDPOINT_REFUSED),
        ("GET", "/acme/widgets/info/refs", "service=git%2dreceive-pack", Reason.ENDPOINT_REFUSED),
        ("GET", "/acme/widgets/info/refs", "s%65rvice=git-upload-pack", Reason.ENDPOINT_REFUSED),
        ("HEAD", "/acme/widgets/info/refs", READ, Reason.ENDPOINT_REFUSED),
        ("GET", "/acme/widgets/git-upload-pack", "", Reason.ENDPOINT_REFUSED),
        ("POST", "/acme/widgets/git-upload-pack", "x=1", Reason.ENDPOINT_REFUSED),
        ("DELETE", "/acme/widgets/info/lfs/locks/1", "", Reason.ENDPOINT_REFUSED),
        ("POST", "/acme/widgets/git-upload-archive", "", Reason.NO_RULE),
        ("GET", "/acme/widgets/HEAD", "", Reason.NO_RULE),
        ("GET", "/acme/widgets/objects/info/packs", "", Reason.NO_RULE),
        ("PROPFIND", "/acme/widgets/", "", Reason.NO_RULE),
        ("GET", "/acme/widgets/../secrets/info/refs", READ, Reason.PATH_MALFORMED),
        ("GET", "/info/refs", READ, Reason.NO_RULE),
    ],
)
def test_everything_else_on_a_git_host_does_not_exist(
    method: str, path: str, query: str, reason: Reason
) -> None:
    decision = decide("git.example", method, path, query)
    assert (decision.allowed, decision.reason) == (False, reason)


def test_reading_and_writing_are_separate_grants() -> None:
    """`info/refs?service=git-receive-pack` is a write already."""
    reading = decide("git.example", "GET", "/other/thing/info/refs", READ)
    assert (reading.allowed, reading.service) == (True, "second")
    for method, path, query in [
        ("GET", "/other/thing/info/refs", WRITE),
        ("POST", "/other/thing/git-receive-pack", ""),
    ]:
        decision = decide("git.example", method, path, query)
        assert (decision.reason, decision.rule) == (Reason.READ_ONLY, "services.second.push")


def test_the_forges_api_is_confined_to_granted_repositories() -> None:
    api = "api.git.example"
    assert decide(api, "GET", "/repos/acme/widgets/issues/1").service == "forge"
    assert decide(api, "GET", "/repos/Acme/Widgets/issues").allowed
    assert decide(api, "GET", "/repos/other/thing/issues").service == "second"
    assert decide(api, "GET", "/repos/acme/secrets/issues").reason is Reason.NO_RULE
    assert decide(api, "GET", "/repos/acme/widgets/keys").reason is Reason.GUARDED_ENDPOINT
    assert decide(api, "GET", "/rate_limit").service == "forge"


def test_the_apis_level_is_the_policys() -> None:
    api = "api.git.example"
    assert decide(api, "POST", "/repos/other/thing/pulls").allowed
    assert decide(api, "POST", "/repos/acme/widgets/pulls").reason is Reason.NO_RULE


def test_a_project_is_found_by_its_encoded_path_too() -> None:
    lab = "lab.example"
    assert decide(lab, "GET", "/api/v4/projects/group%2Fsub%2Fproject/issues").allowed
    assert decide(lab, "GET", "/api/v4/projects/group%2Fsub%2Fother/issues").reason is (
        Reason.NO_RULE
    )
    assert decide(lab, "GET", "/group/sub/project.git/info/refs", READ).allowed
    assert decide(lab, "GET", "/group/sub%2Fproject.git/info/refs", READ).reason is (
        Reason.REPOSITORY_NOT_GRANTED
    )


def test_a_generic_host_keeps_case() -> None:
    assert decide("own.example", "GET", "/Team/Repo.git/info/refs", READ).allowed
    assert not decide("own.example", "GET", "/team/repo.git/info/refs", READ).allowed


@pytest.mark.parametrize(
    ("forge", "path", "repository"),
    [
        (Forge.GITHUB, "/acme/widgets", "acme/widgets"),
        (Forge.GITLAB, "/a/b/c/d.git", "a/b/c/d"),
        (Forge.BITBUCKET, "/acme/widgets.git", "acme/widgets"),
        (Forge.BITBUCKET, "/scm/PROJ/repo.git", "proj/repo"),
        (Forge.AZURE_DEVOPS, "/Org/My%20Project/_git/Repo", "org/my project/repo"),
        (Forge.AZURE_DEVOPS, "/org/_git/repo", "org/repo/repo"),
        (Forge.AZURE_DEVOPS, "/org/project/repo", None),
        (Forge.AZURE_DEVOPS, "/org/project/_git/_full/repo", None),
        (Forge.GITHUB, "/acme", None),
        (Forge.GITLAB, "/acme/-/widgets", None),
        (Forge.GITHUB, "/acme/.git", None),
    ],
)
def test_each_forge_names_repositories_its_way(
    forge: Forge, path: str, repository: str | None
) -> None:
    found = repository_at(forge, RequestPath.parse(path).segments)
    assert (str(found) if found else None) == repository


def test_lfs_is_found_at_any_depth_below_a_repository() -> None:
    path = RequestPath.parse("/acme/widgets.git/info/lfs/locks/verify")
    found = find_git_request(Forge.GITHUB, path)
    assert found is not None
    assert (str(found.repository), found.endpoint) == ("acme/widgets", GitEndpoint.LFS)


def test_a_service_without_a_git_grant_grants_no_repository() -> None:
    service = loaded("[services.model]").policy.services[0]
    decision = decide_git_request(service, GitRequest(None, GitEndpoint.FETCH), "POST", "")
    assert decision.reason is Reason.REPOSITORY_NOT_GRANTED


@pytest.mark.parametrize(
    ("path", "query", "reads"),
    [
        ("/a/b/info/refs", "service=git-upload-pack", True),
        ("/a/b/git-upload-pack", "", True),
        ("/a/b/info/refs", "service=git-receive-pack", False),
        ("/a/b/info/refs", "", False),
        ("/a/b/git-receive-pack", "", False),
        ("/a/b/info/lfs/objects/batch", "", False),
    ],
)
def test_only_clones_and_fetches_read(path: str, query: str, reads: bool) -> None:
    """I3: what is not known to read counts as writing."""
    found = find_git_request(Forge.GITHUB, RequestPath.parse(path))
    assert found is not None
    assert found.reads(query) is reads
