"""Which documents are read, and how each bound and each closed thing is refused (I3, I9)."""

from __future__ import annotations

import json

import pytest

from keyhole.model.decision import Reason
from keyhole.policy.graphql.document import MAX_DOCUMENT, MAX_TOKENS, MAX_VALUES
from keyhole.policy.graphql.selection import MAX_DEPTH, MAX_FIELDS
from tests.rigs.git.github_escapes import VAULT, WIDGETS
from tests.rigs.git.judged import JudgedForge

DOUBLING = "".join(f" fragment f{n} on Query {{ ...f{n + 1} ...f{n + 1} }}" for n in range(16))

REFUSED = {
    "{ viewer { login } ": "cannot be read",
    "{ a: viewer { x: login x: name } }": "two different fields",
    "{ viewer { repositories } }": "User.repositories is closed",
    "{ viewer { login { x } } }": "has no fields",
    "{ viewer }": "needs fields",
    "{ viewer { } }": "needs fields",
    "{ nothing }": "Query.nothing is closed",
    "{ viewer(x: 1) { login } }": "viewer(x:) is closed",
    f"{{ {WIDGETS} {{ issue {{ id }} }} }}": "Repository.issue",
    f'{{ {WIDGETS} {{ issue(number:"x") {{ id }} }} }}': "Repository.issue",
    f"query($n:String) {{ {WIDGETS} {{ issue(number:$n) {{ id }} }} }}": "Repository.issue",
    'query($n:Int=3) { repository(owner:"acme",name:$n) { id } }': "another type",
    "query($n:Nothing) { viewer { login } }": "the type Nothing is closed",
    "query($n:[Nothing!]!) { viewer { login } }": "the type Nothing is closed",
    "mutation { deleteIssue { x } }": "deleteIssue is closed at every level of 'api'",
    "query($n:Int!) { viewer { login } }": "$n",
    "{ viewer { login @deprecated } }": "@deprecated is closed",
    "{ viewer { login @include } }": "@include",
    "{ viewer { login @skip(if:$x) } }": "@skip",
    "query @x { viewer { login } }": "directives on an operation",
    "subscription { issueUpdated { title } }": "subscriptions are closed",
    "query a { viewer { login } } query b { viewer { login } }": "one operation; this one has 2",
    "fragment f on User { login }": "one operation; this one has 0",
    "type A { b: C }": "one operation, and fragments",
    "{ ...f } fragment f on Query { viewer { id } } fragment f on Query { x }": "different names",
    "{ ...f }": "no plain fragment 'f'",
    "{ ...f } fragment f on Query @x { viewer { login } }": "no plain fragment 'f'",
    "{ ...f } fragment f on Query { ...g } fragment g on Query { ...f }": "spreads itself",
    "{ ...f } fragment f on Query { ...f }": "spreads itself",
    "{ ... on Nothing { x } }": "type Nothing is closed",
    "{ ... on URI { x } }": "type URI is closed",
    "{ viewer { keyhole_x: login } }": "alias 'keyhole_x' is closed",
    "{ viewer { __x: login } }": "alias '__x' is closed",
    "{ viewer { __typename { x } } }": "neither arguments nor fields",
    "{ __schema { types { name } } }": "introspection is closed",
    '{ __type(name:"User") { name } viewer { login } }': "introspection is closed",
    '{ __type(name:"User") { interfaces { name } } }': "'interfaces' is closed",
    '{ __type(name:"User") { fields { type { name } } } }': "but for names",
    '{ __type(name:"User") { ... on X { name } } }': "introspection is closed",
    "{ __type { name } }": "introspection is closed",
    "query($n:String!) { __type(name:$n) { name } }": "$n",
    f"{{ {WIDGETS} {{ issues(first:101) {{ totalCount }} }} }}": "at most 100",
    f"{{ {WIDGETS} {{ issues(last:-1) {{ totalCount }} }} }}": "at most 100",
    f"{{ {WIDGETS} {{ issues(first:100) {{ nodes {{ comments(first:100) {{ nodes {{ reactionGroups "
    "{ users(first:100) { totalCount } } } } } } } }": "more than 500000",
    '{ node(id:"I_1") { id } }': "is not from an answer that this session got",
    "{ nodes(ids:[" + '"x",' * 101 + "]) { id } }": "more than 100 ids",
    "{" + "viewer{login}" * MAX_TOKENS + "}": "tokens",
    "{ viewer { login } }" + " " * MAX_DOCUMENT: "cannot be read",
    "#\n" * 60 + "{ viewer { login } }": "cannot be read",
    "{...f0}" + DOUBLING + " fragment f16 on Query { viewer { login } }": f"{MAX_FIELDS} fields",
    "{viewer" * 900 + "}" * 900: "cannot be read",
    "{" + "... on Query {" * (MAX_DEPTH + 1) + "viewer{login}" + "}" * (MAX_DEPTH + 2): "deep",
    f"{{ {WIDGETS} {{ issue(number:1) {{ author {{ x: login ... on User {{ x: name }} }} }} }} }}":
        "two different fields",
    f"{{ {WIDGETS} {{ issue(number:1) {{ author {{ ... on User {{ x: name }} x: login }} }} }} }}":
        "two different fields",
    f"{{ {WIDGETS} {{ object {{ ... on Commit {{ p: parents {{ totalCount }} }} p: id }} }} }}":
        "two different fields",
    'query($n:DateTime=3) { viewer { login } }': "$n",
    f"{{ {WIDGETS} {{ object(oid:3) {{ id }} }} }}": "Repository.object",
}  # fmt: skip


@pytest.fixture(scope="module")
def behind() -> JudgedForge:
    return JudgedForge()


@pytest.mark.parametrize(("document", "why"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_document_is_refused_in_words(behind: JudgedForge, document: str, why: str) -> None:
    """I3, I9: and nothing reaches the forge."""
    before = len(behind.forge.asked)
    told = behind.ask(document)
    assert why in told.errors, told.errors
    assert told.judgement.why in told.errors
    assert not told.judgement.allowed
    assert len(behind.forge.asked) == before


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([{"query": "{viewer{login}}"}], "one JSON object"),
        ({"query": 3}, "'query' is a text"),
        ({"query": "{viewer{login}}", "variables": [1]}, "'variables' an object"),
        ({"query": "{viewer{login}}", "extensions": {}}, "'extensions' beside"),
        ({"id": "persisted"}, "'id' beside"),
        ({"query": "query a {viewer{login}}", "operationName": "b"}, "names no operation"),
        ({}, "'query' is a text"),
    ],
)
def test_a_body_of_another_shape_is_refused(behind: JudgedForge, body: object, why: str) -> None:
    assert why in behind.send(body).errors


def test_the_values_of_variables_are_few_i12(behind: JudgedForge) -> None:
    """Attack: a list of ids that takes graphql-core a tenth of a second. Control: one that is as
    long as may be."""
    query = "query($a:[[ID!]!]!){viewer{login}}"
    for count, why in ((MAX_VALUES - 2, ""), (MAX_VALUES, "more than")):
        told = behind.send({"query": query, "variables": {"a": [["x"] * count]}})
        assert why in told.errors
        assert told.judgement.allowed is (not why)


def test_a_body_that_cannot_be_read_is_refused(behind: JudgedForge) -> None:
    """I9: among them a name that stands twice."""
    for body in (
        b"{",
        b'{"query":"{viewer{login}}","query":"{viewer{email}}"}',
        b'{"query":"\\ud800"}',
    ):
        told = behind.send_bytes(body)
        assert told.judgement.decision.reason is Reason.BODY_UNJUDGED
        assert "cannot be judged" in told.errors


def test_a_query_in_the_address_is_refused(behind: JudgedForge) -> None:
    said = behind.judge.judge(behind.facts(b"", query="query={viewer{login}}", flaw="", json={}))
    assert "a query in the address is closed" in said.why


def test_words_of_a_client_cannot_forge_a_line(behind: JudgedForge) -> None:
    """I8: names of a document are in the log."""
    told = behind.ask('{ node(id:"\\u001b[2J\\n\u2028x") { id } }')
    assert told.judgement.why.isascii()
    assert told.judgement.why.isprintable()


def test_what_is_open_is_answered_as_it_was_asked(behind: JudgedForge) -> None:
    told = behind.ask(
        "query named($n:Int=1,$yes:Boolean!){ me:viewer{login} ...r rateLimit{cost} }"
        f" fragment r on Query {{ w:{WIDGETS} {{ __typename issue(number:$n)"
        " { ...i ... on Issue { number } ... on Node { id } ... on PullRequest { isDraft } }"
        " hidden:name @skip(if:$yes) shown:name @include(if:$yes) shown:name projects(first:3)"
        " { nodes { id } } } }"
        " fragment i on Issue { title author { ... on User { name } login __typename"
        " ... on Organization { name } } }",
        {"yes": True, "unused": 1},
        operationName="named",
    )
    forge = behind.forge
    issue = {
        "title": "plain issue", "number": 1, "id": forge.widgets["_issues"][0]["id"],
        "author": {"login": "ann", "__typename": "User", "name": "Ann"},
    }  # fmt: skip
    assert told.answer == {
        "data": {
            "me": {"login": "ann"},
            "w": {"__typename": "Repository", "issue": issue, "shown": "widgets", "projects": None},
            "rateLimit": {"cost": 1},
        }
    }
    assert not forge.refused
    (sent,) = [each for each in forge.asked if "issue(number: 1)" in each]
    assert "$" not in sent
    assert "fragment" not in sent
    assert "projects" not in sent


def test_the_type_of_the_root_may_be_asked_for(behind: JudgedForge) -> None:
    assert behind.ask("{ __typename }").answer == {"data": {"__typename": "Query"}}


def test_an_interface_as_a_fragment_of_another_is_resolved_by_types(behind: JudgedForge) -> None:
    told = behind.ask(f"{{ {WIDGETS} {{ owner {{ login ... on Actor {{ avatarUrl }} }} }} }}")
    assert told.answer["data"]["repository"]["owner"] == {"login": "acme", "avatarUrl": None}


def test_a_field_that_only_closed_ones_surround_is_null(behind: JudgedForge) -> None:
    """The forge is asked for a name alone."""
    told = behind.ask(f"{{ {WIDGETS} {{ projectsV2(first:1) {{ nodes {{ id }} }} owner {{ ... on"
                      " Organization { teams(first:1) { nodes { id } } } } } }")  # fmt: skip
    assert told.answer["data"]["repository"] == {"projectsV2": None, "owner": {"teams": None}}
    assert "projectsV2" not in behind.forge.asked[-1]
    assert "teams" not in behind.forge.asked[-1]


def test_a_field_with_fields_of_an_interface_and_of_its_type_is_refused(
    behind: JudgedForge,
) -> None:
    """One answer would be read twice."""
    for inner in (
        "... on PullRequest { a:id } ... on Node { a:id }",
        "... on Node { a:id } ... on PullRequest { a:id }",
    ):
        told = behind.ask(f"{{ {WIDGETS} {{ issueOrPullRequest(number:2) {{ {inner} }} }} }}")
        assert told.answer["data"]["repository"]["issueOrPullRequest"]["a"]


def test_the_fields_of_a_type_are_told_from_the_table(behind: JudgedForge) -> None:
    """gh asks servers of one's own so. The forge is not asked."""
    before = len(behind.forge.asked)
    told = behind.ask(
        '{ User: __type(name:"User") { name f:fields(includeDeprecated:true) { name } } '
        '__type(name:"SearchType") { enumValues { n:name } fields { name } } '
        'i:__type(name:"IssueOrder") { inputFields { name } } no:__type(name:"Nothing") { name } }'
    )
    data = told.answer["data"]
    assert data["User"]["name"] == "User"
    assert {"name": "login"} in data["User"]["f"]
    assert {"name": "repositories"} not in data["User"]["f"]
    assert data["__type"] == {"enumValues": [{"n": "ISSUE"}, {"n": "ISSUE_ADVANCED"}], "fields": []}
    assert data["i"] == {"inputFields": [{"name": "direction"}, {"name": "field"}]}
    assert data["no"] is None
    assert len(behind.forge.asked) == before
    assert told.judgement.decision.allowed


def test_a_repository_that_is_not_granted_does_not_exist(behind: JudgedForge) -> None:
    """I3: as gh knows it from a missing one, also beside one that is granted."""
    missing = "Could not resolve to a Repository with the name 'acme/vault'."
    alone = behind.ask(f"{{ {VAULT} {{ id }} }}")
    assert alone.answer["data"] == {"repository": None}
    assert alone.errors == missing
    assert alone.judgement.decision.reason is Reason.REPOSITORY_NOT_GRANTED
    beside = behind.ask(f"{{ a:{WIDGETS} {{ name }} b:{VAULT} {{ id }} }}")
    assert beside.answer["data"] == {"a": {"name": "widgets"}, "b": None}
    assert beside.errors == missing
    team = behind.ask('{ organization(login:"acme") { teams(first:1) { nodes { id } } } }')
    assert team.errors == "Could not resolve to an Organization with the login of 'acme'."
    odd = behind.ask('{ repository(owner:"a b",name:"../x") { id } }')
    assert "Could not resolve" in odd.errors


def test_a_document_that_skips_everything_asks_for_nothing(behind: JudgedForge) -> None:
    told = behind.ask("{ viewer @skip(if:true) { login } }")
    assert told.judgement.why == "it asks for nothing"
    assert not told.judgement.allowed


def test_a_value_of_the_forge_s_own_types_is_a_text(behind: JudgedForge) -> None:
    told = behind.ask(f'{{ {WIDGETS} {{ object(oid:"0") {{ oid ... on Blob {{ text }} }} }} }}')
    assert told.answer["data"]["repository"]["object"] == {"oid": "0" * 40, "text": "plain"}


def test_strings_arrive_as_they_were(behind: JudgedForge) -> None:
    """Quotes, backslashes, lines and other alphabets in a value that is written anew."""
    hard = 'q"uo\\te\n\u2028\u00e9\U0001f600 """ $x {'
    behind.ask(
        "query($q:String){" + WIDGETS + "{labels(first:1,query:$q){totalCount}}}", {"q": hard}
    )
    assert not behind.forge.refused
    assert json.dumps(hard, ensure_ascii=False)[1:6] in behind.forge.asked[-1]
