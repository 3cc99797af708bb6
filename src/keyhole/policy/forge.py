"""Git over HTTP: the repository and git endpoint that a path names, and whether it is granted.

One function for each kind of forge maps a path to a repository, or to nothing for any unusual path.
Called by `request.py` before any rule of a service. `push.py` decides on the content of a push;
`large_files.py` decides on the body of a batch of large files.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.repository import Forge, Repository

if TYPE_CHECKING:
    from keyhole.model.path import RequestPath
    from keyhole.policy.policy import GitGrant, Service


class GitEndpoint(enum.Enum):
    """Git's smart HTTP endpoints; everything else under a repository is not git."""

    REFS = ("info", "refs")
    FETCH = ("git-upload-pack",)
    PUSH = ("git-receive-pack",)
    ARCHIVE = ("git-upload-archive",)
    """Known so that it is refused by its name, also under a policy's broad `allow`."""
    LFS = ("info", "lfs")


class GitRequest(Struct, frozen=True):
    """A path that is git's: its repository (None when it names none) and endpoint."""

    repository: Repository | None
    endpoint: GitEndpoint
    below: tuple[str, ...] = ()
    """For LFS: the path after `info/lfs`."""

    def reads(self, query: str) -> bool:
        """Whether it belongs to a clone or a fetch."""
        if self.endpoint is GitEndpoint.REFS:
            return query == _READ_QUERY
        return self.endpoint is GitEndpoint.FETCH


class _Use(enum.Enum):
    """The effect of a request to an endpoint. The zero value is never allowed."""

    REFUSED = 0
    READ = 1
    WRITE = 2


LFS_TRANSFERS = "keyhole"
"""The path below `info/lfs` at which the gateway itself serves large files, under addresses of its
own."""

_LOCK = re.compile(r"[A-Za-z0-9._~=-]{1,128}")

# Compared byte for byte: http-backend takes the last of several, decodes names and ignores others.
_READ_QUERY = "service=git-upload-pack"
_WRITE_QUERY = "service=git-receive-pack"


class GitDecision(RequestDecision, frozen=True):
    """An allowed request to one of git's endpoints, with the parsed path."""

    request: GitRequest | None = None


def find_git_request(forge: Forge, path: RequestPath) -> GitRequest | None:
    """Read a path as git's, or None where it is something else."""
    found = _read(forge, path.segments)
    if found:
        return found
    # Attack: under a policy's broad `allow`, `/acme/vault%2Finfo/refs` and `/acme/vault/INFO/refs`
    # are plain paths here and git's to a server that decodes or folds first. They name nothing.
    odd = _read(forge, (path.split_reading or path).folded())
    return GitRequest(None, odd.endpoint) if odd else None


def is_graphql(path: RequestPath) -> bool:
    """Whether this is a forge's GraphQL endpoint, where repositories have opaque ids."""
    return (path.split_reading or path).folded() in _GRAPHQL


_GRAPHQL = frozenset({("graphql",), ("api", "graphql")})


def is_elsewhere(git: GitGrant, path: RequestPath) -> bool:
    """Whether a path of the forge's REST is about a repository that is not granted.

    Called for a refused path, which must then look as if it did not exist.
    """
    found = _below_root(git, path)
    # A GitLab project by number names no repository that can be granted.
    return found is not None and _within(git, found) is None


def find_resource(git: GitGrant, path: RequestPath) -> tuple[str, ...] | None:
    """The part of a path of the forge's REST behind the name of a granted repository."""
    found = _below_root(git, path)
    return None if found is None else _within(git, found)


def find_granted(git: GitGrant, path: RequestPath) -> Repository | None:
    """The granted repository that a path of the forge's REST is about."""
    found = _below_root(git, path)
    return None if found is None else _beginning(git, found)


def is_merge(git: GitGrant, path: RequestPath) -> bool:
    """Whether a path of GitHub's REST merges a pull request of a granted repository."""
    if git.forge is not Forge.GITHUB:
        return False
    match find_resource(git, path):
        case ("pulls", _, "merge"):
            return True
    return False


def _below_root(git: GitGrant, path: RequestPath) -> tuple[str, ...] | None:
    segments = (path.split_reading or path).folded()
    for root in _REST_ROOTS.get(git.forge, ()):
        if len(segments) > len(root) and segments[: len(root)] == root:
            return segments[len(root) :]
    return None


def repository_in_rest(forge: Forge, path: RequestPath) -> Repository | None:
    """The repository that a path of the forge's REST is about, where its name has two segments; a
    GitLab project may lie in any number of groups."""
    if forge is Forge.GITLAB:
        return None
    for root in _REST_ROOTS.get(forge, ()):
        if path.folded()[: len(root)] == root:
            return Repository.from_segments(forge, path.segments[len(root) : len(root) + 2])
    return None


def _within(git: GitGrant, segments: tuple[str, ...]) -> tuple[str, ...] | None:
    repo = _beginning(git, segments)
    return None if repo is None else segments[len(repo.path) :]


def _beginning(git: GitGrant, segments: tuple[str, ...]) -> Repository | None:
    for repo in git.repos:
        if repo.path == segments[: len(repo.path)]:
            return repo
    return None


_REST_ROOTS = {
    Forge.GITHUB: (("repos",), ("api", "v3", "repos")),
    Forge.GITLAB: (("api", "v4", "projects"),),
    Forge.GITEA: (("api", "v1", "repos"),),
    Forge.BITBUCKET: (("2.0", "repositories"),),
}
"""The position of a repository's name in REST paths."""


def repository_at(forge: Forge, segments: tuple[str, ...]) -> Repository | None:
    """The repository whose address on its host is this path."""
    if forge is Forge.AZURE_DEVOPS:
        return _azure(segments)
    if forge is Forge.BITBUCKET and segments[:1] == ("scm",):
        segments = segments[1:]
    return Repository.from_segments(forge, segments)


def decide_git_request(
    service: Service, request: GitRequest, method: str, query: str
) -> RequestDecision:
    """Decide a request to one of git's endpoints."""
    git = service.git
    name = service.name
    if git is None or request.repository not in git.repos:
        return RequestDecision(
            reason=Reason.REPOSITORY_NOT_GRANTED, rule=f"{service.rule}.repos", service=name
        )
    use = _use(request, method, query)
    if use is _Use.REFUSED:
        return RequestDecision(reason=Reason.ENDPOINT_REFUSED, service=name)
    if use is _Use.WRITE and not (git.push or git.tags):
        return RequestDecision(reason=Reason.READ_ONLY, rule=f"{service.rule}.push", service=name)
    return GitDecision(Verdict.ALLOW, Reason.RULE, f"{service.rule}.repos", name, request)


def _use(request: GitRequest, method: str, query: str) -> _Use:
    """Exact methods and queries: anything that git itself does not send matches no endpoint."""
    match request.endpoint, method, query:
        case GitEndpoint.REFS, "GET", _:
            return {_READ_QUERY: _Use.READ, _WRITE_QUERY: _Use.WRITE}.get(query, _Use.REFUSED)
        case GitEndpoint.FETCH, "POST", "":
            return _Use.READ
        case GitEndpoint.PUSH, "POST", "":
            return _Use.WRITE
        case GitEndpoint.LFS, _, _:
            return _lfs_use(request.below, method, query)
    return _Use.REFUSED


def _lfs_use(below: tuple[str, ...], method: str, query: str) -> _Use:
    match below, method, query:
        case ("objects", "batch"), "POST", "":
            return _Use.READ  # or an upload, as its body declares
        case ("locks",), "GET", _:
            return _Use.READ
        case ("locks",) | ("locks", "verify"), "POST", "":
            return _Use.WRITE  # git-lfs asks to verify before it pushes
        case ("locks", lock, "unlock"), "POST", "" if _LOCK.fullmatch(lock):
            return _Use.WRITE
        case (name, _), "GET", "" if name == LFS_TRANSFERS:
            return _Use.READ
        case (name, _), "PUT" | "POST", "" if name == LFS_TRANSFERS:
            return _Use.WRITE
    return _Use.REFUSED


def _read(forge: Forge, segments: tuple[str, ...]) -> GitRequest | None:
    for endpoint in GitEndpoint:
        words = endpoint.value
        if endpoint is GitEndpoint.LFS:
            at = _find(segments, words)
            if at > 0:
                below = segments[at + len(words) :]
                return GitRequest(repository_at(forge, segments[:at]), endpoint, below)
        elif len(segments) > len(words) and segments[-len(words) :] == words:
            return GitRequest(repository_at(forge, segments[: -len(words)]), endpoint)
    return None


def _azure(segments: tuple[str, ...]) -> Repository | None:
    """`org/project/_git/repo`, or `org/_git/repo` where the project has the repository's name."""
    match segments:
        case (org, project, "_git", repo):
            return Repository.from_segments(Forge.AZURE_DEVOPS, (org, project, repo))
        case (org, "_git", repo):
            return Repository.from_segments(Forge.AZURE_DEVOPS, (org, repo, repo))
    return None


def _find(segments: tuple[str, ...], words: tuple[str, ...]) -> int:
    size = len(words)
    for at in range(len(segments) - size + 1):
        if segments[at : at + size] == words:
            return at
    return -1
