"""A forge that executes GraphQL for real, in the shape of GitHub's, and the REST that gh needs.

It would do anything that a token of its owner may: read each repository, and write to it. It keeps
what it was asked (`asked`) and what it did (`done`), by which tests see what arrived.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphql import (
    FieldDefinitionNode,
    GraphQLError,
    NonNullTypeNode,
    OverlappingFieldsCanBeMergedRule,
    build_ast_schema,
    execute_sync,
    parse,
    specified_rules,
    validate,
    visit,
)
from graphql.language import Visitor

from keyhole.policy.graphql import table
from tests.rigs.gateway.talk import ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphql import GraphQLSchema

    from tests.rigs.gateway.talk import Message

SECRET = "of-the-vault"
"""In every text of the repository that is not granted, and of the fork."""

Thing = dict[str, Any]

_RULES = [each for each in specified_rules if each is not OverlappingFieldsCanBeMergedRule]
"""GitHub answers gh's documents, in which one name stands for the states of two types."""

_WHEN = "2026-07-01T00:00:00Z"


class _Nullable(Visitor):
    """What a test does not fill in is null."""

    def enter_field_definition(self, node: FieldDefinitionNode, *_: object) -> FieldDefinitionNode:
        if isinstance(node.type, NonNullTypeNode):
            return replace(node, type=node.type.type)
        return node


@functools.cache
def _schema() -> GraphQLSchema:
    open_ones = Path(table.__file__).with_name("github.graphql").read_text()
    more = Path(__file__).with_name("github_more.graphql").read_text()
    return build_ast_schema(
        visit(parse(f"{open_ones}\n{more}"), _Nullable()), assume_valid_sdl=True
    )


def _page(entries: Callable[[], list[Thing]] | list[Thing]) -> Callable[..., Thing]:
    def connection(_info: object, **arguments: Any) -> Thing:  # noqa: ANN401 - GraphQL's
        found = entries() if callable(entries) else entries
        if head := arguments.get("headRefName"):
            found = [each for each in found if each["headRefName"] == head]
        if states := arguments.get("states"):
            found = [each for each in found if each.get("state") in states]
        return {
            "nodes": found,
            "edges": [{"node": each, "cursor": str(n)} for n, each in enumerate(found)],
            "totalCount": len(found),
            "issueCount": len(found),
            "pageInfo": {"hasNextPage": False, "endCursor": None},
        }

    return connection


class GithubForge:
    """The forge's state. `token` is the one that it accepts."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.schema = _schema()
        self.asked: list[str] = []
        """Documents that arrived."""
        self.done: list[tuple[str, Thing]] = []
        """Mutations that were made, with their input."""
        self.refused: list[str] = []
        """Errors that it answered with."""
        self._nodes: dict[str, Thing] = {}
        self._count = 100
        self.ann = self._person("User", "ann")
        self.acme = self._person("Organization", "acme")
        self.eve = self._person("User", "eve")
        self.repositories: dict[str, Thing] = {}
        self.widgets = self._repository("acme/widgets", self.acme)
        self.docs = self._repository("acme/docs", self.acme)
        self.vault = self._repository("acme/vault", self.acme, SECRET)
        self.fork = self._repository("eve/widgets", self.eve, SECRET, parent=self.widgets)
        self.widgets["parent"] = self.vault
        for repository in (self.widgets, self.docs, self.vault):
            self._fill(repository)
        first, second = self.widgets["_issues"][0], self.vault["_issues"][0]
        self.widgets["_pulls"][0]["closingIssuesReferences"] = _page([first, second])
        first["subIssues"] = _page([second])
        first["parent"] = second
        first["closedByPullRequestsReferences"] = _page(
            [*self.widgets["_pulls"], *self.vault["_pulls"]]
        )

    # ── things ────────────────────────────────────────────────────────────────────────────────────

    def _thing(self, kind: str, **more: Any) -> Thing:  # noqa: ANN401 - GraphQL's
        self._count += 1
        node_id = f"{kind[:2].upper()}_{self._count}"
        made = {"__typename": kind, "id": node_id, "databaseId": self._count, "createdAt": _WHEN,
                "updatedAt": _WHEN, **more}  # fmt: skip
        self._nodes[node_id] = made
        return made

    def _person(self, kind: str, login: str) -> Thing:
        person = self._thing(
            kind, login=login, name=login.title(), url=f"https://x.invalid/{login}"
        )
        person["repositories"] = _page(lambda: list(self.repositories.values()))
        person["repository"] = lambda _i, name: self.repositories.get(f"{login}/{name}")
        person["organizations"] = _page(lambda: [self.acme])
        person["email"] = f"{SECRET}@corp.example"
        person["gists"] = lambda _i, **_: {"nodes": [{"name": SECRET, "description": SECRET}]}
        return person

    def _repository(self, name: str, owner: Thing, text: str = "plain", **more: Any) -> Thing:  # noqa: ANN401
        made = self._thing(
            "Repository",
            name=name.partition("/")[2],
            nameWithOwner=name,
            owner=owner,
            description=f"{text} {name}",
            url=f"https://github.com/{name}",
            hasIssuesEnabled=True,
            viewerPermission="WRITE",
            visibility="PRIVATE",
            isPrivate=True,
            mergeCommitAllowed=True,
            squashMergeAllowed=True,
            rebaseMergeAllowed=True,
            tempCloneToken=SECRET,
            _issues=[],
            _pulls=[],
            _text=text,
            **more,
        )
        self.repositories[name] = made
        main = self._thing("Ref", name="main", prefix="refs/heads/", repository=made)
        labels = [self._thing("Label", name=text, color="ff0000", repository=made)]
        milestones = [self._thing("Milestone", number=1, title=text, state="OPEN", repository=made)]
        releases = [
            self._thing("Release", name="v1", tagName="v1", description=text, repository=made,
                        publishedAt=_WHEN, isLatest=True, author=self.ann)
        ]  # fmt: skip
        made |= {
            "defaultBranchRef": main,
            "ref": lambda _i, qualifiedName: main,
            "labels": _page(labels),
            "label": lambda _i, name: labels[0],
            "milestones": _page(milestones),
            "milestone": lambda _i, number: milestones[0],
            "releases": _page(releases),
            "release": lambda _i, tagName: releases[0],
            "latestRelease": releases[0],
            "issue": lambda _i, number: self._find(made["_issues"], number),
            "issues": _page(made["_issues"]),
            "issueOrPullRequest": lambda _i, number: self._find(
                made["_issues"] + made["_pulls"], number
            ),
            "pullRequest": lambda _i, number: self._find(made["_pulls"], number),
            "pullRequests": _page(made["_pulls"]),
            "forks": _page(lambda: [self.fork]),
            "assignableUsers": _page(lambda: [self.ann, self.eve]),
            "suggestedActors": _page(lambda: [self.ann, self.eve]),
            "watchers": _page(lambda: [self.ann]),
            "object": lambda _i, **_: self._thing("Blob", text=text, oid="0" * 40),
            "_labels": labels,
            "_milestones": milestones,
        }
        return made

    def _fill(self, repository: Thing) -> None:
        text = repository["_text"]
        self.add_issue(repository, f"{text} issue", text)
        self.add_pull(repository, f"{text} pull", "agent/first", "main")
        self.add_pull(repository, f"{text} of the fork", "theirs", "main", crosses=True)

    def _talk(self, repository: Thing, kind: str, title: str, body: str, **more: Any) -> Thing:  # noqa: ANN401
        number = len(repository["_issues"]) + len(repository["_pulls"]) + 1
        made = self._thing(
            kind, number=number, title=title, body=body, state="OPEN", repository=repository,
            url=f"{repository['url']}/{'pull' if kind == 'PullRequest' else 'issues'}/{number}",
            author=self.ann, **more,
        )  # fmt: skip
        made["_comments"] = [self._thing("IssueComment", body=body, author=self.ann,
                                         repository=repository, viewerDidAuthor=True)]  # fmt: skip
        made |= {
            "comments": _page(made["_comments"]),
            "labels": _page(repository["_labels"]),
            "assignees": _page([self.ann]),
            "assignedActors": _page([self.ann]),
            "participants": _page([self.ann]),
            "milestone": repository["_milestones"][0],
            "reactionGroups": [],
        }
        return made

    def add_issue(self, repository: Thing, title: str, body: str) -> Thing:
        made = self._talk(repository, "Issue", title, body)
        repository["_issues"].append(made)
        return made

    def add_pull(
        self, repository: Thing, title: str, head: str, base: str, *, crosses: bool = False
    ) -> Thing:
        context = {"__typename": "CheckRun", "name": "ci", "status": "COMPLETED",
                   "conclusion": "SUCCESS", "startedAt": _WHEN, "completedAt": _WHEN,
                   "detailsUrl": "https://ci.invalid",
                   "isRequired": lambda _i, **_: True}  # fmt: skip
        rollup = {"state": "SUCCESS", "contexts": _page([context])}
        commit = {"oid": "1" * 40, "messageHeadline": title, "statusCheckRollup": rollup,
                  "authors": _page([]),
                  "associatedPullRequests": _page(self.vault_pulls)}  # fmt: skip
        made = self._talk(
            repository, "PullRequest", title, title, headRefName=head, baseRefName=base,
            isCrossRepository=crosses, headRepository=self.fork if crosses else repository,
            headRepositoryOwner=self.eve if crosses else repository["owner"],
            baseRef=repository["defaultBranchRef"], mergeable="MERGEABLE", reviewDecision=None,
            mergeStateStatus="CLEAN", headRefOid="1" * 40, additions=1, deletions=0,
        )  # fmt: skip
        review = self._thing("PullRequestReview", author=self.eve, body=title, state="COMMENTED",
                             repository=repository, submittedAt=_WHEN)  # fmt: skip
        made |= {
            "commits": _page([{"commit": commit}]),
            "files": _page([{"path": "README", "additions": 1, "deletions": 0}]),
            "reviews": _page([review]),
            "latestReviews": _page([review]),
            "reviewRequests": _page([{"requestedReviewer": self.eve}]),
            "closingIssuesReferences": _page([]),
            "statusCheckRollup": rollup,
            "headRef": {"__typename": "Ref", "name": head,
                        "repository": made["headRepository"]},
            "viewerMergeHeadlineText": lambda _i, **_: f"Merge {head}",
            "viewerMergeBodyText": lambda _i, **_: title,
        }  # fmt: skip
        repository["_pulls"].append(made)
        return made

    def vault_pulls(self) -> list[Thing]:
        found: list[Thing] = self.vault["_pulls"]
        return found

    @staticmethod
    def _find(among: list[Thing], number: int) -> Thing | None:
        return next((each for each in among if each["number"] == number), None)

    # ── GraphQL ───────────────────────────────────────────────────────────────────────────────────

    def execute(self, body: bytes) -> Thing:
        """Execute a request's body, as a server does."""
        given = json.loads(body)
        many = given if isinstance(given, list) else [given]
        answers = [self._execute(each) for each in many]
        return answers[0] if isinstance(given, dict) else {"data": answers}

    def _execute(self, given: Thing) -> Thing:
        text = given["query"]
        self.asked.append(text)
        try:
            document = parse(text)
        except GraphQLError as error:
            return self._failed([error])
        if errors := validate(self.schema, document, _RULES):
            return self._failed(errors)
        result = execute_sync(
            self.schema,
            document,
            self._root(),
            variable_values=given.get("variables"),
            operation_name=given.get("operationName"),
        )
        return {"data": result.data, **(self._failed(result.errors) if result.errors else {})}

    def _failed(self, errors: list[GraphQLError]) -> Thing:
        self.refused += [each.message for each in errors]
        return {"errors": [{"message": each.message, "path": each.path} for each in errors]}

    def _root(self) -> Thing:
        named = {
            "repository": lambda _i, owner, name: self.repositories.get(f"{owner}/{name}".lower()),
            "viewer": self.ann,
            "node": lambda _i, id: self._nodes.get(id),  # noqa: A006 - GraphQL's
            "nodes": lambda _i, ids: [self._nodes.get(each) for each in ids],
            "search": self._search,
            "organization": lambda _i, login: self.acme,
            "user": lambda _i, login: self.ann if login == "ann" else self.eve,
            "repositoryOwner": lambda _i, login: self.acme,
            "resource": lambda _i, url: self.vault,
            "rateLimit": {"limit": 5000, "cost": 1, "remaining": 4999},
        }
        mutations = self.schema.mutation_type
        assert mutations is not None
        return named | {name: self._mutation(name) for name in mutations.fields}

    def _search(self, _info: object, query: str, type: str, **arguments: Any) -> Thing:  # noqa: A002, ANN401 - GraphQL's
        """Leaks on purpose: the vault is in each answer, whatever was asked."""
        places = [word.removeprefix("repo:") for word in query.split() if word.startswith("repo:")]
        found = [
            each
            for name, repository in self.repositories.items()
            if name in places or name == "acme/vault"
            for each in repository["_issues"] + repository["_pulls"]
            if _fits(query.split(), each["__typename"])
        ]
        return _page(found)(_info, **arguments)

    def _mutation(self, name: str) -> Callable[..., Thing]:
        def made(_info: object, input: Thing) -> Thing:  # noqa: A002 - GraphQL's
            self.done.append((name, input))
            answer: Thing = {"clientMutationId": input.get("clientMutationId")}
            subject = next((self._nodes.get(input[key]) for key in _SUBJECTS if key in input), None)
            if name == "createPullRequest" and subject:
                pull = self.add_pull(
                    subject, input["title"], input["headRefName"], input["baseRefName"]
                )
                return answer | {"pullRequest": pull}
            if name == "createIssue" and subject:
                return answer | {"issue": self.add_issue(subject, input["title"], input["body"])}
            if name == "addComment" and subject:
                comment = self._thing("IssueComment", body=input["body"], author=self.ann,
                                      repository=subject["repository"],
                                      url=f"{subject['url']}#issuecomment-1")  # fmt: skip
                return answer | {"commentEdge": {"node": comment}, "subject": subject}
            if subject and (state := _STATES.get(name)):
                subject["state"] = state
            kind = {"PullRequest": "pullRequest", "Issue": "issue"}.get(
                (subject or {}).get("__typename", "")
            )
            return answer | ({kind: subject} if kind else {})

        return made

    # ── HTTP ──────────────────────────────────────────────────────────────────────────────────────

    def answer(self, message: Message) -> bytes:
        """Answer a request to api.github.com, or below `/api` of a server of one's own."""
        if message.headers.get("authorization") != f"Bearer {self.token}":
            return _say(b"401 Unauthorized", {"message": "Bad credentials"})
        path = message.target.partition("?")[0].removeprefix("/api/v3").removeprefix("/api")
        if path == "/graphql":
            return _say(b"200 OK", self.execute(message.body))
        return rest(path, message)


def _fits(words: list[str], kind: str) -> bool:
    """Whether a search asks for this kind."""
    asked = {word.partition(":")[2] for word in words if word.startswith(("is:", "type:"))}
    return not asked & {"pr", "issue"} or ("pr" in asked) is (kind == "PullRequest")


_SUBJECTS = ("repositoryId", "pullRequestId", "issueId", "subjectId", "id", "assignableId")
_STATES = {
    "closePullRequest": "CLOSED", "reopenPullRequest": "OPEN", "mergePullRequest": "MERGED",
    "closeIssue": "CLOSED", "reopenIssue": "OPEN",
}  # fmt: skip

_RUN = {
    "id": 11, "name": "ci", "display_title": "ci", "status": "completed", "conclusion": "success",
    "event": "push", "head_branch": "main", "head_sha": "0" * 40, "workflow_id": 3, "run_number": 1,
    "run_attempt": 1, "created_at": _WHEN, "updated_at": _WHEN, "run_started_at": _WHEN,
    "check_suite_id": 1, "html_url": "https://x.invalid/run",
}  # fmt: skip
_WORKFLOW = {"id": 3, "name": "ci", "path": ".github/workflows/ci.yml", "state": "active"}
_RELEASE = {
    "id": 5, "tag_name": "v1", "name": "v1", "body": "first", "assets": [], "draft": False,
    "created_at": _WHEN, "published_at": _WHEN, "author": {"login": "ann"},
    "html_url": "https://x.invalid/v1",
}  # fmt: skip
_WIDGETS = "/repos/acme/widgets"


def _found(repository: str, title: str) -> dict[str, Any]:
    return {
        "number": 1, "title": title, "state": "open", "updated_at": _WHEN, "labels": [],
        "html_url": "https://x.invalid/1", "repository_url": f"https://api.github.com/repos/{repository}",
        "user": {"login": "ann"},
    }  # fmt: skip


_REST: dict[str, Any] = {
    "/user": {"login": "ann", "id": 7},
    "/search/issues": {
        "total_count": 2,
        "items": [_found("acme/widgets", "it crashes"), _found("acme/vault", SECRET)],
    },
    _WIDGETS: {"id": 1, "name": "widgets", "full_name": "acme/widgets", "private": True},
    f"{_WIDGETS}/readme": {"name": "README", "content": "cGxhaW4=", "html_url": "x"},
    f"{_WIDGETS}/actions/runs": {"total_count": 1, "workflow_runs": [_RUN]},
    f"{_WIDGETS}/actions/runs/11": _RUN,
    f"{_WIDGETS}/actions/runs/11/jobs": {"total_count": 0, "jobs": []},
    f"{_WIDGETS}/actions/runs/11/attempts/1": _RUN,
    f"{_WIDGETS}/actions/runs/11/artifacts": {"total_count": 0, "artifacts": []},
    f"{_WIDGETS}/actions/workflows": {"total_count": 1, "workflows": [_WORKFLOW]},
    f"{_WIDGETS}/actions/workflows/3": _WORKFLOW,
    f"{_WIDGETS}/releases/tags/v1": _RELEASE,
    f"{_WIDGETS}/releases/latest": _RELEASE,
}


def rest(path: str, message: Message) -> bytes:
    """REST, of which only what is granted has a shape; all else answers with the secret."""
    if "diff" in message.headers.get("accept", "") and path.startswith(f"{_WIDGETS}/pulls/"):
        return ok(b"diff --git a/README b/README\n", b"Content-Type: text/plain")
    if message.method != "GET":
        made = json.loads(message.body) if message.body.startswith(b"{") else {}
        return _say(b"201 Created", {"id": 9, "number": 2, "html_url": path, **made})
    return _say(b"200 OK", _REST.get(path, {"reached": path, "text": SECRET}))


def _say(status: bytes, said: object) -> bytes:
    kind = b"Content-Type: application/json; charset=utf-8"
    return ok(json.dumps(said).encode(), kind, status=status)
