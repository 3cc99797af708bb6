"""Which mutations each level of `api` opens, and what is checked of their input (I3)."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.model.decision import Reason
from keyhole.model.path import RequestPath
from keyhole.policy.body import BodyFacts
from keyhole.policy.graphql.learnt_ids import MAX_ID, MAX_IDS, LearntIds, LearntNode
from tests.rigs.git.github_escapes import WIDGETS
from tests.rigs.git.judged import ALLOWED, JudgedForge, Told

WRITES = 'api = "pull-requests"\npush = ["agent/*"]'
MERGES = 'api = "merge"\npush = ["agent/*"]'


def mutate(behind: JudgedForge, name: str, **given: Any) -> Told:  # noqa: ANN401 - GraphQL's
    kind = f"{name[0].upper()}{name[1:]}Input"
    return behind.ask(f"mutation($i:{kind}!){{{name}(input:$i){{clientMutationId}}}}", {"i": given})


@pytest.fixture
def behind() -> JudgedForge:
    made = JudgedForge(WRITES)
    made.learn()
    return made


def ids(behind: JudgedForge) -> dict[str, str]:
    widgets = behind.forge.widgets
    return {
        "repository": widgets["id"],
        "issue": widgets["_issues"][0]["id"],
        "pull": widgets["_pulls"][0]["id"],
        "forks": widgets["_pulls"][1]["id"],
        "milestone": widgets["_milestones"][0]["id"],
        "ann": behind.forge.ann["id"],
    }


OPEN: dict[str, dict[str, Any]] = {
    "createPullRequest": {"repositoryId": "repository", "title": "t", "body": "b",
                          "headRefName": "agent/x", "baseRefName": "main", "draft": True},
    "updatePullRequest": {"pullRequestId": "pull", "title": "t", "baseRefName": "next",
                          "assigneeIds": ["ann"], "milestoneId": "milestone", "labelIds": []},
    "closePullRequest": {"pullRequestId": "pull"},
    "reopenPullRequest": {"pullRequestId": "pull"},
    "markPullRequestReadyForReview": {"pullRequestId": "pull"},
    "convertPullRequestToDraft": {"pullRequestId": "pull"},
    "requestReviews": {"pullRequestId": "pull", "userIds": ["ann"], "union": True},
    "requestReviewsByLogin": {"pullRequestId": "pull", "userLogins": ["eve"]},
    "replaceActorsForAssignable": {"assignableId": "issue", "actorLogins": ["ann"]},
    "addPullRequestReview": {"pullRequestId": "pull", "event": "REQUEST_CHANGES", "body": "b"},
    "addComment": {"subjectId": "issue", "body": "b"},
    "createIssue": {"repositoryId": "repository", "title": "t", "body": "b", "milestoneId": None},
    "updateIssue": {"id": "issue", "title": "t", "state": "CLOSED"},
    "closeIssue": {"issueId": "issue", "stateReason": "NOT_PLANNED"},
    "reopenIssue": {"issueId": "issue"},
}  # fmt: skip
MERGING: dict[str, dict[str, Any]] = {
    "mergePullRequest": {"pullRequestId": "pull", "mergeMethod": "SQUASH", "commitBody": "b"},
    "enablePullRequestAutoMerge": {"pullRequestId": "pull"},
    "disablePullRequestAutoMerge": {"pullRequestId": "pull"},
}


def filled(behind: JudgedForge, given: dict[str, Any]) -> dict[str, Any]:
    known = ids(behind)
    return {
        key: [known.get(v, v) for v in value] if isinstance(value, list)
        else known.get(value, value) if isinstance(value, str) else value
        for key, value in given.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_pull_requests_opens_it_and_read_does_not(name: str) -> None:
    for more, works in (('api = "read"', False), (WRITES, True), (MERGES, True)):
        behind = JudgedForge(more)
        behind.learn()
        told = mutate(behind, name, **filled(behind, OPEN[name]))
        assert [each[0] for each in behind.forge.done] == ([name] if works else []), told
        if not works:
            assert told.errors == f'keyhole: {name} needs api = "pull-requests"'
            assert told.judgement.decision.rule == "services.hub.api"


@pytest.mark.parametrize("name", MERGING)
def test_merge_opens_it_and_pull_requests_does_not(name: str) -> None:
    for more, works in ((WRITES, False), (MERGES, True)):
        behind = JudgedForge(more)
        behind.learn()
        told = mutate(behind, name, **filled(behind, MERGING[name]))
        assert [each[0] for each in behind.forge.done] == ([name] if works else []), told


def test_what_is_sent_is_what_was_given(behind: JudgedForge) -> None:
    """The text of a body arrives whole."""
    text = 'a "quoted" \\ line\n' * 3000
    mutate(behind, "addComment", subjectId=ids(behind)["issue"], body=text)
    assert behind.forge.done == [("addComment", {"subjectId": ids(behind)["issue"], "body": text})]


def test_a_new_pull_request_is_known_at_once(behind: JudgedForge) -> None:
    """gh goes on with the id that the answer has."""
    given = filled(behind, OPEN["createPullRequest"])
    made = behind.ask(
        "mutation($i:CreatePullRequestInput!){createPullRequest(input:$i){pullRequest{id url}}}",
        {"i": given},
    ).answer["data"]["createPullRequest"]["pullRequest"]
    assert mutate(behind, "requestReviewsByLogin", pullRequestId=made["id"], userLogins=["eve"])
    assert [name for name, _ in behind.forge.done] == ["createPullRequest", "requestReviewsByLogin"]


@pytest.mark.parametrize(
    ("given", "why", "reason"),
    [
        ({"headRefName": "other"}, "not a branch that 'push' grants", Reason.REF_NOT_GRANTED),
        ({"headRefName": "eve:agent/x"}, "not a plain branch", Reason.GRAPHQL),
        ({"headRefName": "agent/x/y"}, "not a branch that 'push' grants", Reason.REF_NOT_GRANTED),
        ({"baseRefName": "eve:main"}, "not a plain branch", Reason.GRAPHQL),
        (
            {"repositoryId": "R_unknown"},
            "is not from an answer that this session got",
            Reason.REPOSITORY_NOT_GRANTED,
        ),
        ({"repositoryId": "issue"}, "is the id of a Issue", Reason.GRAPHQL),
        (
            {"headRepositoryId": "R_unknown"},
            "is not from an answer that this session got",
            Reason.REPOSITORY_NOT_GRANTED,
        ),
    ],
)
def test_a_pull_request_comes_from_a_branch_that_push_grants(
    behind: JudgedForge, given: dict[str, Any], why: str, reason: Reason
) -> None:
    """I3: as a push does. The control is the row of OPEN."""
    told = mutate(behind, "createPullRequest", **filled(behind, OPEN["createPullRequest"] | given))
    assert why in told.errors
    assert told.judgement.decision.reason is reason
    assert behind.forge.done == []


def test_a_pull_request_from_the_default_branch_needs_it_in_push_by_name() -> None:
    """Whether a branch is the default is not known here, and a pull request moves nothing."""
    for push, works in (("**", True), ("main", True), ("agent/*", False)):
        behind = JudgedForge(f'api = "pull-requests"\npush = ["{push}"]')
        behind.learn()
        given = filled(behind, OPEN["createPullRequest"]) | {"headRefName": "main"}
        mutate(behind, "createPullRequest", **given)
        assert bool(behind.forge.done) is works


def test_only_what_could_be_pushed_is_merged() -> None:
    """I3: no fork's, which `deny_paths` has not seen, and no branch that `push` does not grant."""
    behind = JudgedForge(MERGES)
    behind.forge.add_pull(behind.forge.widgets, "a person's", "feature", "main")
    behind.learn()
    other = behind.forge.widgets["_pulls"][-1]["id"]
    assert (
        "from a fork"
        in mutate(behind, "mergePullRequest", pullRequestId=ids(behind)["forks"]).errors
    )
    assert "'push' grants" in mutate(behind, "mergePullRequest", pullRequestId=other).errors
    assert behind.forge.done == []
    mutate(behind, "mergePullRequest", pullRequestId=ids(behind)["pull"])
    assert behind.forge.done


def test_nothing_is_merged_into_what_the_policy_protects() -> None:
    """Also where the base is changed after it was read, or while it is read."""
    behind = JudgedForge(MERGES + '\nprotect = ["Release/*"]')
    pull = behind.forge.widgets["_pulls"][0]
    pull["baseRefName"] = "release/1"
    behind.learn()
    told = mutate(behind, "mergePullRequest", pullRequestId=pull["id"])
    assert "release/1 is protected by the policy" in told.errors
    assert told.judgement.decision.reason is Reason.REF_PROTECTED

    pull["baseRefName"] = "main"
    behind.learn()
    read = '{"query":"{ repository(owner:\\"acme\\",name:\\"widgets\\")'
    read += '{ pullRequest(number:2) { id } } }"}'
    slow = behind.judge.judge(behind.facts(read.encode(), flaw="", json={
        "query": f"{{ {WIDGETS} {{ pullRequest(number:2) {{ id }} }} }}"}))  # fmt: skip
    moved = mutate(behind, "updatePullRequest", pullRequestId=pull["id"], baseRefName="release/1")
    assert moved.judgement.decision.reason is Reason.REF_PROTECTED
    mutate(behind, "updatePullRequest", pullRequestId=pull["id"], baseRefName="next")
    assert slow.reader is not None
    slow.reader.begin(200, {})
    slow.reader.feed(
        b'{"data":{"repository":{"keyhole_name":"acme/widgets","pullRequest":{"id":"%s",'
        b'"keyhole_in":{"keyhole_name":"acme/widgets"},"keyhole_head":"agent/first",'
        b'"keyhole_base":"main","keyhole_crosses":false}}}}' % pull["id"].encode()
    )
    slow.reader.end()
    told = mutate(behind, "mergePullRequest", pullRequestId=pull["id"])
    assert "read the pull request again" in told.errors
    assert [name for name, _ in behind.forge.done] == ["updatePullRequest"]


def test_a_base_that_is_changed_by_rest_must_be_read_again() -> None:
    """I3: the branch that a merge goes to is the one that was read."""
    behind = JudgedForge(MERGES)
    behind.learn()
    path = RequestPath.parse("/repos/acme/widgets/pulls/2")
    facts = BodyFacts(
        behind.service.hosts[0], "PATCH", path, ALLOWED, json={"base": "next"}, flaw=""
    )
    assert behind.judge.judge(facts).allowed
    pull = ids(behind)["pull"]
    assert (
        "read the pull request again"
        in mutate(behind, "mergePullRequest", pullRequestId=pull).errors
    )
    behind.learn()
    assert mutate(behind, "mergePullRequest", pullRequestId=pull).judgement.allowed


def test_a_mutation_has_one_field(behind: JudgedForge) -> None:
    issue = ids(behind)["issue"]
    one = f'addComment(input:{{subjectId:"{issue}",body:"b"}}){{clientMutationId}}'
    for text in (f"a:{one} b:{one}", f"{one} __typename", "__typename"):
        assert behind.ask(f"mutation {{ {text} }}").errors == "keyhole: a mutation has one field"
    assert behind.forge.done == []
    behind.ask(f"mutation {{ {one} }}")
    assert len(behind.forge.done) == 1


def test_ids_are_bounded_and_the_oldest_are_forgotten() -> None:
    """I9."""
    known = LearntIds()
    for number in range(MAX_IDS + 1):
        known.learn(f"I_{number}", LearntNode("Issue"))
    assert known.find("I_0") is None
    assert known.find("I_1") is not None
    for odd in (None, 3, "", "x" * (MAX_ID + 1)):
        known.learn(odd, LearntNode("Issue"))
        assert known.find(odd) is None


def test_ids_of_one_session_are_unknown_to_another(behind: JudgedForge) -> None:
    """I12. The control: this session knows them."""
    pull = ids(behind)["pull"]
    other = JudgedForge(WRITES)
    assert (
        "is not from an answer that this session got"
        in mutate(other, "closePullRequest", pullRequestId=pull).errors
    )
    assert mutate(behind, "closePullRequest", pullRequestId=pull).judgement.allowed
