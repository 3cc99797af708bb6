"""The judge of a forge's GraphQL for one session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import RequestUnfit
from keyhole.policy.body import BodyJudgement
from keyhole.policy.graphql.answer import GraphqlAnswer, answer_of
from keyhole.policy.graphql.document import read_operation
from keyhole.policy.graphql.introspection import answer_introspection
from keyhole.policy.graphql.learnt_ids import LearntIds
from keyhole.policy.graphql.mutations import MutationJudge
from keyhole.policy.graphql.refusal import refusal
from keyhole.policy.graphql.roots import judge_roots
from keyhole.policy.graphql.selection import SelectionResolver
from keyhole.policy.graphql.table import github_table
from keyhole.policy.graphql.writing import write_mutation, write_query

if TYPE_CHECKING:
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.graphql.document import GraphqlOperation
    from keyhole.policy.policy import GitGrant, Service


def prepare_graphql() -> None:
    """Load the tables now, so that no session waits while another's first document loads them."""
    github_table()


class GraphqlJudge:
    """Judges GraphQL requests by the grant of a service."""

    def __init__(self, service: Service, git: GitGrant) -> None:
        self._table = github_table()
        self._service = service
        self._git = git
        self.ids = LearntIds()
        self._mutations = MutationJudge(self._table, service, git, self.ids)

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """Judge a request to the endpoint of GraphQL."""
        try:
            if facts.query:
                raise refusal("a query in the address is closed")
            if facts.flaw:
                raise refusal(f"its body cannot be judged: {facts.flaw}", Reason.BODY_UNJUDGED)
            operation = read_operation(self._table, facts.json)
            if operation.writes:
                return self._judge_mutation(facts, operation)
            return self._judge_query(facts, operation)
        except RequestUnfit as refused:
            return _refusal(facts, refused)

    def _judge_query(self, facts: BodyFacts, operation: GraphqlOperation) -> BodyJudgement:
        told = answer_introspection(self._table, operation)
        if told is not None:
            return BodyJudgement(facts.decision, answer=told)
        tree = SelectionResolver(self._table, operation).resolve()
        absent = judge_roots(self._table, self._git, self.ids, tree)
        reader = GraphqlAnswer(self._table, tree, self._git.repos, self.ids, absent)
        if tree.fields:
            return BodyJudgement(facts.decision, body=write_query(self._table, tree), reader=reader)
        why = f"{absent[0].what} is not granted" if absent else "it asks for nothing"
        rule = f"{self._service.rule}.repos"
        return BodyJudgement(
            RequestDecision(Verdict.DENY, Reason.REPOSITORY_NOT_GRANTED, rule, self._service.name),
            why,
            answer=msgspec.json.encode(answer_of({"data": {}}, absent)),
        )

    def _judge_mutation(self, facts: BodyFacts, operation: GraphqlOperation) -> BodyJudgement:
        tree = SelectionResolver(self._table, operation).resolve()
        key, selected = self._mutations.judge(tree)
        reader = GraphqlAnswer(self._table, tree, self._git.repos, self.ids)
        body = write_mutation(self._table, key, selected)
        return BodyJudgement(facts.decision, selected.name, body=body, reader=reader)


def _refusal(facts: BodyFacts, refused: RequestUnfit) -> BodyJudgement:
    """A refusal as a GraphQL error, which clients print."""
    by = facts.decision
    message = f"keyhole: {refused.message}"
    answer = {"data": None, "errors": [{"type": "FORBIDDEN", "message": message}]}
    return BodyJudgement(
        RequestDecision(Verdict.DENY, Reason(refused.reason), refused.rule or by.rule, by.service),
        refused.message,
        answer=msgspec.json.encode(answer),
    )
