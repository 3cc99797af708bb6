"""Shows the page of a granted GitLab project without what only maintainers see.

`glab` asks for this page before it opens a merge request or an issue. GitLab shows maintainers the
runner registration token there, the address of a mirror with its password, and projects elsewhere;
so a sandbox gets the members that are listed here, and no other (I3).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, ResponseUnfit
from keyhole.model.repository import Forge, Repository
from keyhole.policy.body import BodyJudgement
from keyhole.policy.collected_answer import CollectedAnswer
from keyhole.wire.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import GitGrant

_MEMBERS = frozenset(
    "id name path path_with_namespace name_with_namespace description default_branch web_url "
    "http_url_to_repo ssh_url_to_repo readme_url visibility archived empty_repo created_at "
    "last_activity_at topics tag_list star_count forks_count open_issues_count merge_method "
    "squash_option issues_enabled merge_requests_enabled wiki_enabled jobs_enabled "
    "snippets_enabled issues_access_level merge_requests_access_level repository_access_level "
    "builds_access_level remove_source_branch_after_merge allow_merge_on_skipped_pipeline "
    "only_allow_merge_if_pipeline_succeeds only_allow_merge_if_all_discussions_are_resolved".split()
)
_NESTED = {
    "namespace": frozenset("id name path kind full_path".split()),
    "permissions": frozenset({"project_access", "group_access"}),
}
_SUCCESS = range(200, 300)


ProjectNumbers: TypeAlias = dict[Repository, int]
"""The numbers of granted projects that this session has read: one for each at most."""


def judge_project(git: GitGrant, numbers: ProjectNumbers, facts: BodyFacts) -> BodyJudgement:
    """Send the request, and filter the answer."""
    return BodyJudgement(facts.decision, reader=ProjectAnswer(git, numbers))


class ProjectAnswer(CollectedAnswer):
    """Leaves out every member that is not listed, and notes the project's number."""

    def __init__(self, git: GitGrant, numbers: ProjectNumbers) -> None:
        super().__init__()
        self._git = git
        self._numbers = numbers

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """As `AnswerRewriter`. An error of GitLab shows no project, so it passes unread.
        Attack: a range of it (206), which a client asks for to have it passed."""
        return status in _SUCCESS

    def end(self) -> bytes:
        """As `AnswerRewriter`."""
        try:
            answer = read_json(self._collected())
        except Malformed:
            answer = None
        if not isinstance(answer, dict):
            raise ResponseUnfit(Reason.ENDPOINT_REFUSED, "the answer is not a project")
        # A project that was moved is answered under its old name, too.
        path = tuple(str(answer.get("path_with_namespace")).split("/"))
        found = Repository.from_segments(Forge.GITLAB, path)
        if found is None or found not in self._git.repos:
            raise ResponseUnfit(Reason.REPOSITORY_NOT_GRANTED, "it is about another project")
        number = answer.get("id")
        if type(number) is int:
            self._numbers[found] = number
        shown = {name: value for name, value in answer.items() if name in _MEMBERS}
        for name, members in _NESTED.items():
            inner = answer.get(name)
            if isinstance(inner, dict):
                shown[name] = {key: value for key, value in inner.items() if key in members}
        return json.dumps(shown).encode()
