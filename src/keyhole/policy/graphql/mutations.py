"""Judges a mutation: the level of `api` that opens it, and each id and branch of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from graphql import GraphQLInputField, assert_input_object_type, get_named_type

from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.ref import Ref
from keyhole.policy.graphql.refusal import refusal
from keyhole.policy.graphql.roots import unknown_id
from keyhole.policy.push import (
    RefChange,
    RemoteFacts,
    decide_ref_update,
    is_protected,
    may_not_move,
)
from keyhole.policy.schema import ApiAccess

if TYPE_CHECKING:
    from keyhole.policy.graphql.learnt_ids import LearntIds
    from keyhole.policy.graphql.selection import FieldSelection, Selected
    from keyhole.policy.graphql.table import Table
    from keyhole.policy.policy import GitGrant, Service

PUSHED = "BE_PUSHED"


class MutationJudge:
    """Judges mutations for one session."""

    def __init__(self, table: Table, service: Service, git: GitGrant, ids: LearntIds) -> None:
        self._table = table
        self._service = service
        self._git = git
        self._ids = ids

    def judge(self, tree: FieldSelection) -> tuple[str, Selected]:
        """The one field of a mutation. Raises RequestUnfit."""
        if len(tree.fields) != 1:
            raise refusal("a mutation has one field")
        ((key, each),) = tree.fields.items()
        if each.field is None:
            raise refusal("a mutation has one field")
        needs = self._table.says("needs", each.field)
        level = ApiAccess[needs["api"]] if needs else ApiAccess.OFF
        if needs is None or not self._git.api.covers(level):
            why = f'{each.name} needs api = "{level}"'
            raise refusal(why, rule=f"{self._service.rule}.api")
        of = assert_input_object_type(get_named_type(each.field.args["input"].type))
        given: dict[str, Any] = each.arguments["input"]
        for name, value in given.items():
            self._judge_value(f"{each.name}({name}:)", of.fields[name], value)
        base = given.get("baseRefName")
        if base is not None and "pullRequestId" in given:
            if may_not_move(self._service, base):
                self._refuse_protected(base)
            self._ids.forget_branches()
        return key, each

    def _judge_value(self, place: str, field: GraphQLInputField, value: Any) -> None:  # noqa: ANN401
        if self._table.says("empty", field) is not None and value:
            raise refusal(f"{place} is closed")
        if value is None:
            return
        if (wanted := self._table.says("id", field)) is not None:
            for node_id in value if isinstance(value, list) else [value]:
                self._judge_id(place, node_id, wanted["of"])
        if (may := self._table.says("branch", field)) is not None:
            self._judge_branch(place, value, pushed=may["may"] == PUSHED)
        if self._table.says("merged", field) is not None:
            self._judge_merge(value)

    def _judge_id(self, place: str, node_id: str, types: list[str]) -> None:
        known = self._ids.find(node_id)
        if known is None:
            raise unknown_id(node_id)
        if known.type not in types:
            raise refusal(f"{place} is the id of a {known.type}")

    def _judge_branch(self, place: str, name: str, *, pushed: bool) -> None:
        try:
            Ref.parse(f"refs/heads/{name}")
        except Unparsable:
            # This also refuses OWNER:BRANCH, the branch of a fork.
            raise refusal(f"{place} is not a plain branch of this repository") from None
        if pushed:
            self._judge_head(name)

    def _judge_head(self, name: str) -> None:
        decision = decide_ref_update(
            self._service, f"refs/heads/{name}", RefChange.FAST_FORWARD, RemoteFacts()
        )
        if not decision.allowed and decision.reason is not Reason.DEFAULT_BRANCH_UNKNOWN:
            why = f"'{name}' is not a branch that 'push' grants"
            raise refusal(why, decision.reason, decision.rule)

    def _judge_merge(self, node_id: str) -> None:
        """Allow a merge only from a branch that the policy allows to push, so that `deny_paths` was
        checked and the pull request is not a stranger's. The target may be any branch that
        `protect` does not name: merging into it is the purpose of the request."""
        known = self._ids.find(node_id)
        if known is None or known.branches is None:
            raise refusal("read the pull request again before it is merged")
        if known.branches.crosses:
            raise refusal("a pull request from a fork is not merged")
        self._judge_head(known.branches.head)
        if is_protected(self._git, known.branches.base):
            self._refuse_protected(known.branches.base)

    def _refuse_protected(self, branch: str) -> NoReturn:
        why = f"{branch} is protected by the policy"
        raise refusal(why, Reason.REF_PROTECTED, f"{self._service.rule}.protect")
