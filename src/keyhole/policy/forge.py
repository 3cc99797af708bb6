"""Git over HTTP: which repository and which of git's endpoints a path names, and may it be?

One function of the forge's kind from path to repository, or to nothing for anything unusual. What
happens inside a push is decided in `push.py`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.repository import Forge, Repository
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.path import RequestPath
    from keyhole.policy.policy import Service


class GitEndpoint(enum.Enum):
    """Git's smart HTTP endpoints; everything else under a repository is not git."""

    REFS = ("info", "refs")
    FETCH = ("git-upload-pack",)
    PUSH = ("git-receive-pack",)
    LFS = ("info", "lfs")


@dataclass(frozen=True, slots=True)
class GitRequest:
    """A path that is git's: its repository (None when it names none) and endpoint."""

    repository: Repository | None
    endpoint: GitEndpoint

    def reads(self, query: str) -> bool:
        """Whether it belongs to a clone or a fetch."""
        if self.endpoint is GitEndpoint.REFS:
            return query == _READ_QUERY
        return self.endpoint is GitEndpoint.FETCH


_METHODS = {
    GitEndpoint.REFS: frozenset({"GET"}),
    GitEndpoint.FETCH: frozenset({"POST"}),
    GitEndpoint.PUSH: frozenset({"POST"}),
    GitEndpoint.LFS: frozenset({"GET", "POST", "PUT"}),
}

# Compared byte for byte: http-backend takes the last of several, decodes names and ignores others.
_READ_QUERY = "service=git-upload-pack"
_WRITE_QUERY = "service=git-receive-pack"


def find_git_request(forge: Forge, path: RequestPath) -> GitRequest | None:
    """Read a path as git's, or None where it is something else."""
    segments = path.segments
    for endpoint in GitEndpoint:
        words = endpoint.value
        if endpoint is GitEndpoint.LFS:
            at = _find(segments, words)
            if at > 0:
                return GitRequest(repository_at(forge, segments[:at]), endpoint)
        elif len(segments) > len(words) and segments[-len(words) :] == words:
            return GitRequest(repository_at(forge, segments[: -len(words)]), endpoint)
    return None


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
    if method not in _METHODS[request.endpoint]:
        return RequestDecision(reason=Reason.ENDPOINT_REFUSED, service=name)
    writes = request.endpoint is GitEndpoint.PUSH
    if request.endpoint is GitEndpoint.REFS:
        if query not in (_READ_QUERY, _WRITE_QUERY):
            return RequestDecision(reason=Reason.ENDPOINT_REFUSED, service=name)
        writes = query == _WRITE_QUERY
    elif query and request.endpoint is not GitEndpoint.LFS:
        return RequestDecision(reason=Reason.ENDPOINT_REFUSED, service=name)
    if writes and not (git.push or git.tags):
        return RequestDecision(reason=Reason.READ_ONLY, rule=f"{service.rule}.push", service=name)
    return RequestDecision(Verdict.ALLOW, Reason.RULE, f"{service.rule}.repos", name)


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
