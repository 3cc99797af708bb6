"""Git over HTTP: these repositories and git's own endpoints, nothing else (I3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import Reason, RequestDecision
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host
from keyhole.model.path import RequestPath
from keyhole.model.repository import Forge
from keyhole.policy.forge import (
    GitEndpoint,
    GitRequest,
    decide_git_request,
    find_git_request,
    is_elsewhere,
    is_graphql,
    repository_at,
    repository_in_rest,
)
from keyhole.policy.request import RequestFacts, decide_request
from tests.rigs.inject.shelf import pairs
from tests.rigs.policies import book, loaded

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
    return decide_request(BOOK, Host.parse(host), 443, RequestFacts(method, path, query))


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


def split_query(target: str) -> tuple[str, str]:
    path, _, query = target.partition("?")
    return path, query.replace("READ", READ).replace("WRITE", WRITE)


# READ and WRITE stand for the queries.
ELSE = {
    Reason.REPOSITORY_NOT_GRANTED: """
        GET /acme/secrets/info/refs?READ /acme/widgets/x/info/refs?READ
            /acme/widgets.git.git/info/refs?READ /widgets/info/refs?READ
            /acme/widgets.wiki.git/info/refs?READ /acme/widgets.GIT/info/refs?READ
            /acme/widgets%20/info/refs?READ /acme/widget%C5%BF/info/refs?READ
            /acme/widgets/INFO/refs?READ
        POST /acme/secrets/git-upload-archive /acme/widgets/Git-Receive-Pack
    """,
    Reason.ENDPOINT_REFUSED: """
        GET /acme/widgets/info/refs /acme/widgets/info/refs?READ&x=1
            /acme/widgets/info/refs?READ&WRITE /acme/widgets/info/refs?service=git%2dreceive-pack
            /acme/widgets/info/refs?s%65rvice=git-upload-pack /acme/widgets/git-upload-pack
            /acme/widgets/info/refs?service=git-upload-archive /acme/widgets/info/refs?service=
            /acme/widgets/info/refs?READ& /acme/widgets/info/refs?x&READ
            /acme/widgets/info/refs?SERVICE=git-upload-pack
        HEAD /acme/widgets/info/refs?READ
        POST /acme/widgets/git-upload-pack?x=1 /acme/widgets/info/refs?READ
            /acme/widgets/git-receive-pack?WRITE /acme/widgets/git-upload-archive
        DELETE /acme/widgets/info/lfs/locks/1
        PUT /acme/widgets/git-receive-pack /acme/widgets/info/refs
        UNLOCK /acme/widgets/info/refs
    """,
    Reason.NO_RULE: """
        GET /acme/widgets/objects/01/23456789 /acme/widgets/objects/info/http-alternates
            /acme/widgets/archive/main.zip /acme/secrets/raw/main/x /acme/widgets/HEAD
            /acme/widgets/objects/info/packs /info/refs?READ
        PUT /acme/widgets/objects/01/23456789
        MKCOL /acme/widgets/objects/01/
        LOCK /acme/widgets/refs/heads/main
        MOVE /acme/widgets/objects/01/23
        PROPFIND /acme/widgets/
    """,
    Reason.PATH_MALFORMED: """
        GET /acme//widgets/info/refs?READ /acme/./widgets/info/refs?READ
            /acme/%2e%2e/acme/widgets/info/refs?READ /acme%2Fwidgets/info/refs?READ
            /acme/widgets%00/info/refs?READ /acme/widgets;x/info/refs?READ
            /acme/widgets%3bx/info/refs?READ /acme/widgets/../secrets/info/refs?READ
    """,
}


@pytest.mark.parametrize(
    ("method", "path", "query", "reason"),
    [
        (method, *split_query(target), reason)
        for reason, text in ELSE.items()
        for method, target in pairs(text)
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
    assert not decide(api, "GET", "/repos/acme/secrets/issues").allowed
    assert decide(api, "GET", "/repos/acme/widgets/keys").reason is Reason.GUARDED_ENDPOINT
    assert decide(api, "GET", "/rate_limit").service == "forge"


def test_the_apis_level_is_the_policys() -> None:
    api = "api.git.example"
    assert decide(api, "POST", "/repos/other/thing/pulls").allowed
    assert decide(api, "POST", "/repos/acme/widgets/pulls").reason is Reason.NO_RULE


def test_a_project_is_found_by_its_encoded_path_too() -> None:
    lab = "lab.example"
    assert decide(lab, "GET", "/api/v4/projects/group%2Fsub%2Fproject/issues").allowed
    assert not decide(lab, "GET", "/api/v4/projects/group%2Fsub%2Fother/issues").allowed
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
        (Forge.GITHUB, "/Acme/Widgets.git", "acme/widgets"),
        (Forge.GITHUB, "/acme/%77idgets", "acme/widgets"),
        (Forge.GITHUB, "/acme/widgets.wiki.git", "acme/widgets.wiki"),
        (Forge.GITHUB, "/acme", None),
        (Forge.GITHUB, "/acme/.git", None),
        (Forge.GITHUB, "/acme/widgets.GIT", None),
        (Forge.GITHUB, "/acme/widgets.git.git", None),
        (Forge.GITHUB, "/acme/widgets/wiki", None),
        (Forge.GITHUB, "/0123456789abcdef.git", None),  # a gist
        (Forge.GITEA, "/Acme/widgets.git", "acme/widgets"),
        (Forge.GITEA, "/acme/widgets/x", None),
        (Forge.GITLAB, "/Acme/Sub/Deep/widgets.git", "acme/sub/deep/widgets"),
        (Forge.GITLAB, "/acme/widgets.wiki.git", "acme/widgets.wiki"),
        (Forge.GITLAB, "/acme/widgets/snippets/1.git", "acme/widgets/snippets/1"),
        (Forge.GITLAB, "/acme/-/widgets", None),
        (Forge.GITLAB, "/acme/widgets/-/tree", None),
        (Forge.GITLAB, "/acme/widgets/-", None),
        (Forge.BITBUCKET, "/Acme/Widgets.git", "acme/widgets"),
        (Forge.BITBUCKET, "/scm/PROJ/repo.git", "proj/repo"),
        (Forge.BITBUCKET, "/scm/~ann/repo.git", "~ann/repo"),
        (Forge.BITBUCKET, "/SCM/PROJ/repo.git", None),
        (Forge.BITBUCKET, "/scm/scm/PROJ/repo.git", None),
        (Forge.BITBUCKET, "/scm/repo.git", None),
        (Forge.BITBUCKET, "/~~ann/repo.git", None),
        (Forge.AZURE_DEVOPS, "/Org/My%20Project/_git/Repo", "org/my project/repo"),
        (Forge.AZURE_DEVOPS, "/org/_git/repo", "org/repo/repo"),
        (Forge.AZURE_DEVOPS, "/org/project/_git/repo.git", "org/project/repo.git"),
        (Forge.AZURE_DEVOPS, "/org/project/repo", None),
        (Forge.AZURE_DEVOPS, "/org/project/_git/_full/repo", None),
        (Forge.AZURE_DEVOPS, "/org/project/_git/_optimized/repo", None),
        (Forge.AZURE_DEVOPS, "/org/_git/_full/repo", None),
        (Forge.AZURE_DEVOPS, "/org/_git/_git/repo", None),
        (Forge.AZURE_DEVOPS, "/org/project/_GIT/repo", None),
        (Forge.AZURE_DEVOPS, "/project/_git/repo/x", None),
        # Of ORG.visualstudio.com, where the organisation is in the host: never ORG/PROJECT/NAME.
        (Forge.AZURE_DEVOPS, "/project/_git/repo", "project/repo/repo"),
        (Forge.AZURE_DEVOPS, "/DefaultCollection/p/_git/repo", "defaultcollection/p/repo"),
        (Forge.GENERIC, "/Team/Repo.git", "Team/Repo"),
        (Forge.GENERIC, "/repo", "repo"),
    ],
)  # fmt: skip
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


SHARED = book(
    """
[services.lab]
repos = ["group/sub/project"]
allow = ["* /**"]
[services.own]
hosts = ["own.example"]
forge = "gitea"
repos = ["acme/widgets"]
push = ["agent/*"]
allow = ["* /**"]
encoded_slash = true
[services.reader]
hosts = ["reader.example"]
forge = "gitea"
repos = ["acme/widgets"]
[services.azure]
hosts = ["dev.example"]
forge = "azure-devops"
repos = ["acme/project/widgets"]
[services.scm]
hosts = ["scm.example"]
forge = "bitbucket"
repos = ["~ann/widgets", "PROJ/widgets"]
"""
)


def ask(host: str, method: str, path: str, query: str = "") -> RequestDecision:
    return decide_request(SHARED, Host.parse(host), 443, RequestFacts(method, path, query))


@pytest.mark.parametrize(
    "path",
    """/acme/vault/info/refs /acme/vault%2Finfo/refs /acme/vault/info%2Frefs /acme/vault/INFO/Refs
        /acme/vault%2FInfo%2FRefs /acme/widgets/info%2Frefs /acme/vault/git-upload-pack
        /acme/vault%2Fgit-upload-pack /acme/vault/Git-Upload-Pack /acme/vault/git-receive-pack/
        /acme/vault/git-upload-archive /acme/vault%2Fgit-upload-archive
        /acme/vault/info/lfs/objects/batch /acme/vault%2Finfo/lfs/objects/batch
        /acme/vault/Info/LFS/objects/batch /info/lfs/acme/vault/info/refs
        /acme/widgets/info/lfs/vault/info/refs
        /acme/widgets/info/lfs/vault/git-receive-pack""".split(),
)
def test_a_broad_allow_does_not_open_git_of_other_repositories(path: str) -> None:
    """I4: also in the reading of a server that decodes or folds first.

    The controls: git of the granted repository, and what the `allow` is for.
    """
    for method in ("GET", "POST"):
        for query in ("", READ, WRITE):
            decision = ask("own.example", method, path, query)
            assert decision.reason is Reason.REPOSITORY_NOT_GRANTED
    assert ask("own.example", "GET", "/acme/widgets/info/refs", READ).allowed
    assert ask("own.example", "GET", "/acme/vault/info").allowed


@pytest.mark.parametrize(
    ("method", "below", "query", "reads", "writes"),
    [
        ("POST", "objects/batch", "", True, True),
        ("GET", "locks", "", True, True),
        ("GET", "locks", "path=a.bin&limit=5", True, True),
        ("POST", "locks/verify", "", False, True),
        ("POST", "locks", "", False, True),
        ("POST", "locks/9f-0/unlock", "", False, True),
        ("GET", "keyhole/0123abc", "", True, True),
        ("PUT", "keyhole/0123abc", "", False, True),
        ("POST", "keyhole/0123abc", "", False, True),
    ],
)
def test_large_files_have_their_endpoints(
    method: str, below: str, query: str, reads: bool, writes: bool
) -> None:
    """I3: what locks or uploads is a write; what a batch asks for is in its body."""
    path = f"/acme/widgets.git/info/lfs/{below}"
    assert ask("own.example", method, path, query).allowed is writes
    decision = ask("reader.example", method, path, query)
    assert decision.allowed is reads
    assert reads or decision.reason is Reason.READ_ONLY


@pytest.mark.parametrize(
    ("method", "below", "query"),
    [
        ("GET", "", ""),
        ("GET", "objects/batch", ""),
        ("POST", "objects/batch", "x=1"),
        ("POST", "objects/batch/x", ""),
        ("POST", "objects%2Fbatch", ""),
        ("POST", "Objects/Batch", ""),
        ("GET", "objects/0123", ""),
        ("PUT", "objects/0123", ""),
        ("POST", "objects", ""),
        ("DELETE", "locks/1", ""),
        ("POST", "locks/verify", "x"),
        ("POST", "locks/1/unlock", "force=true"),
        ("POST", "locks/..%2F1/unlock", ""),
        ("POST", "locks/a%20b/unlock", ""),
        ("GET", "keyhole", ""),
        ("GET", "keyhole/a/b", ""),
        ("GET", "keyhole/a", "x=1"),
        ("DELETE", "keyhole/a", ""),
        ("PATCH", "keyhole/a", ""),
    ],
)
def test_nothing_else_is_an_endpoint_of_large_files(method: str, below: str, query: str) -> None:
    """I3. The controls are above."""
    path = f"/acme/widgets.git/info/lfs/{below}".rstrip("/")
    decision = ask("own.example", method, path, query)
    assert (decision.allowed, decision.reason) == (False, Reason.ENDPOINT_REFUSED)


@pytest.mark.parametrize(
    ("host", "granted", "refused"),
    [
        ("lab.example", "/Group/sub/project.git", "/group/sub/project/-"),
        ("lab.example", "/group/sub/project", "/group/sub"),
        ("lab.example", "/group/sub/project", "/group/sub/project.wiki.git"),
        ("lab.example", "/group/sub/project", "/group/sub/project/snippets/1.git"),
        ("lab.example", "/group/sub/project", "/group%2Fsub%2Fproject"),
        ("dev.example", "/acme/project/_git/widgets", "/acme/project/_git/widgets.git"),
        ("dev.example", "/Acme/Project/_git/Widgets", "/acme/project/_git/_full/widgets"),
        ("dev.example", "/acme/project/_git/widgets", "/acme/project/_git/_optimized/widgets"),
        ("dev.example", "/acme/project/_git/widgets", "/acme/_git/widgets"),
        ("dev.example", "/acme/project/_git/widgets", "/acme/project/widgets"),
        ("dev.example", "/acme/project/_git/widgets", "/DefaultCollection/project/_git/widgets"),
        ("scm.example", "/scm/~ann/widgets.git", "/scm/ann/widgets.git"),
        ("scm.example", "/scm/proj/widgets.git", "/scm/~proj/widgets.git"),
        ("scm.example", "/scm/proj/widgets", "/users/proj/repos/widgets"),
    ],
)
def test_each_forges_spellings_meet_its_grants_and_no_others(
    host: str, granted: str, refused: str
) -> None:
    """I4, with its control in each row."""
    assert ask(host, "GET", f"{granted}/info/refs", READ).allowed
    decision = ask(host, "GET", f"{refused}/info/refs", READ)
    assert not decision.allowed
    assert decision.reason in (Reason.REPOSITORY_NOT_GRANTED, Reason.PATH_MALFORMED)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/graphql", True),
        ("/api/graphql", True),
        ("/API/GraphQL/", True),
        ("/api%2Fgraphql", True),
        ("/repos/acme/widgets/contents/graphql", False),
        ("/", False),
        ("/graphql/x", False),
    ],
)
def test_graphql_is_known_by_its_place(path: str, expected: bool) -> None:
    assert is_graphql(RequestPath.parse(path, opaque_slash=True)) is expected


@given(st.text("acmeINFOREFSinforefs-gitupload/.%2F", max_size=40))
def test_any_path_is_gits_for_a_repository_or_for_none(text: str) -> None:
    """I4: an odd reading never names one."""
    try:
        path = RequestPath.parse("/" + text, opaque_slash=True)
    except Unparsable:
        return
    found = find_git_request(Forge.GITHUB, path)
    if found and found.repository:
        assert len(found.repository.path) == 2
        assert not any("/" in segment for segment in path.segments[:2])


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("api.git.example", "/repos/acme/secrets/issues", True),
        ("api.git.example", "/repos/acme/secrets", True),
        ("api.git.example", "/api/v3/repos/acme%2Fsecrets/x", True),
        ("api.git.example", "/repos/acme", True),
        ("api.git.example", "/REPOS/Acme/Widgets/keys", False),
        ("api.git.example", "/repos", False),
        ("api.git.example", "/user/keys", False),
        ("lab.example", "/api/v4/projects/group%2Fsub%2Fother/issues", True),
        ("lab.example", "/api/v4/projects/42/issues", True),
        ("lab.example", "/api/v4/projects/group%2Fsub%2Fproject/variables", False),
        ("lab.example", "/api/v4/groups/group", False),
        ("own.example", "/repos/a/b", False),
    ],
)
def test_rest_of_a_repository_that_is_not_granted_is_known(
    host: str, path: str, expected: bool
) -> None:
    """What is refused there is answered as if it did not exist (DESIGN §3)."""
    rules = BOOK.services(Host.parse(host), 443)[0]
    assert rules.service.git is not None
    assert is_elsewhere(rules.service.git, RequestPath.parse(path, opaque_slash=True)) is expected


@pytest.mark.parametrize(
    ("forge", "path", "name"),
    [
        (Forge.GITHUB, "/repos/Acme/widgets/pulls", "acme/widgets"),
        (Forge.GITHUB, "/api/v3/repos/acme/widgets", "acme/widgets"),
        (Forge.GITEA, "/api/v1/repos/acme/widgets/issues", "acme/widgets"),
        (Forge.GITHUB, "/repos/acme", "None"),
        (Forge.GITHUB, "/user/repos", "None"),
        (Forge.GITLAB, "/api/v4/projects/acme%2Fwidgets", "None"),
    ],
)
def test_a_rest_path_names_its_repository(forge: Forge, path: str, name: str) -> None:
    assert str(repository_in_rest(forge, RequestPath.parse(path, opaque_slash=True))) == name
