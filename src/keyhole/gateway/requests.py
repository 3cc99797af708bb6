"""A request that policy allows, as one part of the gateway hands it to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.policy.forge import GitEndpoint

if TYPE_CHECKING:
    from keyhole.http.request import RequestHead
    from keyhole.inject.credential import Credential
    from keyhole.model.decision import RequestDecision
    from keyhole.model.path import RequestPath
    from keyhole.model.repository import Repository
    from keyhole.policy.body import BodyJudge, BodyJudgement
    from keyhole.policy.large_files import LargeFileRequest
    from keyhole.policy.policy import GitGrant, ServiceHost


class BodyJudging(Struct, frozen=True):
    """The judge of a request's body, and where the request goes."""

    judge: BodyJudge
    host: ServiceHost
    path: RequestPath


class GitOperation(Struct, frozen=True):
    """A request to one of git's or LFS's endpoints, read by `git/operation.py`."""

    endpoint: GitEndpoint
    repository: Repository
    path: str
    """The repository's path as the client wrote it, without the endpoint."""
    grant: GitGrant
    writes: bool
    version: int
    gzip: bool
    fields: tuple[bytes, ...]
    """The client's fields that are passed on, as lines."""
    large: LargeFileRequest | None = None
    """For LFS: the kind of request."""

    @property
    def announces_push(self) -> bool:
        """Whether a push will follow that must be judged."""
        return self.endpoint is GitEndpoint.REFS and self.writes and self.judged

    @property
    def judged(self) -> bool:
        """Whether the pack of a push is judged."""
        return not self.grant.force or bool(self.grant.deny_paths)


class AuthorizedRequest(Struct):
    """A request as the client sent it, with the credential that it gets."""

    head: RequestHead
    decision: RequestDecision
    service: str
    credential: Credential | None
    operation: GitOperation | None = None
    judging: BodyJudging | None = None
    """The judge of its body, if its service has one that wants it."""
    by_head: BodyJudgement | None = None
    """The judgement by its head alone; None: there is none."""

    @property
    def unjudged(self) -> BodyJudging | None:
        """The judge that has yet to read its body."""
        return self.judging if self.by_head is None else None
