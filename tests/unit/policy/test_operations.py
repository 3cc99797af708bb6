"""An operation that method and path do not tell is closed unless the policy opens it (I3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.body import BodyFacts, find_flaw, read_facts
from keyhole.policy.build import PolicyContext
from keyhole.policy.disclose import disclose
from keyhole.policy.explain import Explanation, explain
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.load import PolicyText, load
from keyhole.policy.operations import OperationJudge, find_table
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.summary import summarise
from keyhole.policy.target import RequestTarget, parse_target
from keyhole.wire.parameters import MAX_PARAMETERS
from tests.rigs.inject.shelf import NAMES, service
from tests.rigs.policies import book, covered_suffix, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.policy import Service

SHELF = PolicyContext({name: service(name) for name in NAMES}, covered_suffix, ())

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
JSON = {"content-type": "application/json"}
TARGET = {"content-type": "application/x-amz-json-1.0"}

QUEUES = "[services.queues]\nhosts = ['queues.corp.example']\nsecret = 'store:q'\n"
SQS = (
    "[services.aws]\nhosts = ['sqs.eu-west-1.amazonaws.com']\nsecret = 'store:aws'\n"
    "allow_also = ['POST /1/q']\noperations = ['ListQueues', 'Get*', '*']\n"
)
S3 = (
    "[services.aws-s3]\nhosts = ['b.s3.eu-west-1.amazonaws.com', 's3.eu-west-1.amazonaws.com']\n"
    "secret = 'store:aws'\nallow = ['GET /**', 'PUT,POST,DELETE /**']\n"
)
SLACK = (
    "[services.slack]\nsecret = 'store:s'\nallow_also = ['POST /api/chat.*', 'POST /api/files.*']\n"
)
KUBE = (
    "[services.kubernetes]\nhosts = ['kube.corp.example:6443']\nsecret = 'store:k'\n"
    "allow_also = ['* /api/v1/namespaces/dev/**', 'WEBSOCKET /api/v1/namespaces/dev/**']\n"
)


def rules(policy: str) -> Rulebook:
    """A policy with the catalogue that ships."""
    file = PolicyText("keyhole.toml", b"version = 1\n" + policy.encode())
    return Rulebook(load(file, None, SHELF).policy)


def ask(
    found: Rulebook,
    words: str,
    fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Explanation:
    target = parse_target(tuple(words.split(" ")), "GET")
    assert isinstance(target, RequestTarget)
    return explain(found, target, fields or {}, body)


# ── each way of naming ────────────────────────────────────────────────────────────────────────────

Q = "https://queues.corp.example"
ALLOWED = [
    (f"GET {Q}/?Action=ListQueues&Version=1", {}, None),
    (f"POST {Q}/", FORM, b"Action=ListQueues&Version=1"),
    (f"POST {Q}/", {**TARGET, "x-amz-target": "AmazonSQS.ListQueues"}, b"{}"),
    (f"POST {Q}/service/Queues/operation/ListQueues", {"content-type": "application/cbor"}, b"x"),
    (f"POST {Q}/?Action=ListQueues", {}, b""),
    (f"POST {Q}/say", FORM, b"text=hi"),
    (f"POST {Q}/say", JSON, b'{"text": "hi"}'),
    (f"POST {Q}/graphql", JSON, b'{"query": "query A { issues { id } } query B { me { id } }"}'),
    (f"POST {Q}/graphql", JSON, b'{"query": "fragment F on I { id } { issues { ...F } }"}'),
    (f"PUT {Q}/store/x?uploadId=1&response-expires=2", {"x-amz-meta-a": "1"}, b"bytes"),
    (f"PUT {Q}/store/x", {"content-type": "text/plain", "x-other": "1"}, b"bytes"),
    (f"GET {Q}/elsewhere?acl", {"x-amz-copy-source": "b/k"}, None),
]
CLOSED = [
    (f"GET {Q}/?Action=DeleteQueue", {}, None, "DeleteQueue"),
    (f"POST {Q}/", FORM, b"Action=DeleteQueue", "DeleteQueue"),
    (f"POST {Q}/", {**TARGET, "x-amz-target": "SQS.DeleteQueue"}, b"{}", "DeleteQueue"),
    (f"POST {Q}/service/Q/operation/DeleteQueue", {}, b"", "DeleteQueue"),
    (f"POST {Q}/say", FORM, b"text=hi&token=xoxb-1", "own-token"),
    (f"POST {Q}/say", FORM, b"text=hi&%74oken=xoxb-1", "own-token"),
    (f"POST {Q}/say", JSON, b'{"Token": "xoxb-1"}', "own-token"),
    (f"POST {Q}/graphql", JSON, b'{"query": "mutation { issueDelete(id: 1) { ok } }"}',
     "issueDelete"),
    (f"POST {Q}/graphql", JSON, b'{"query": "subscription { x }"}', "subscription"),
    (f"PUT {Q}/store/x?acl", {}, b"", "acl"),
    (f"PUT {Q}/store/x?ACL=", {}, b"", "acl"),
    (f"PUT {Q}/store/x?a%63l", {}, b"", "acl"),
    (f"PUT {Q}/store/x", {"x-amz-copy-source": "other/k"}, b"", "copy"),
    (f"PUT {Q}/store/x", {"content-type": "multipart/form-data; boundary=x"}, b"x", "form-upload"),
    (f"PUT {Q}/store/x?torrent", {}, b"", "query:torrent"),
    (f"PUT {Q}/store/x", {"x-amz-new": "1"}, b"", "header:x-amz-new"),
]  # fmt: skip
UNCLEAR = [
    (f"GET {Q}/", {}, None),
    (f"POST {Q}/", FORM, b"Version=1"),
    (f"POST {Q}/", {"content-type": "multipart/form-data; boundary=x"}, b"x"),
    (f"POST {Q}/", {**TARGET, "x-amz-target": "a.ListQueues, a.DeleteQueue"}, b"{}"),
    (f"POST {Q}/service/Q/operation/ListQueues/operation/x", {}, b""),
    (f"POST {Q}/service/Q/operation/List%20Queues", {}, b""),
    (f"POST {Q}/service/Q/operation", {}, b""),
    (f"POST {Q}/say", JSON, b'["token"]'),
    (f"POST {Q}/say", JSON, b'{"token": 1, "token": 2}'),
    (f"POST {Q}/say", FORM, b'text="hi"'),
    (f"POST {Q}/graphql", JSON, b'{"id": "persisted"}'),
    (f"POST {Q}/graphql", JSON, b'{"query": "mutation {"}'),
    (f"POST {Q}/graphql", JSON, b'{"query": "mutation { ...F } fragment F on M { x }"}'),
    (f"POST {Q}/graphql", JSON, b'{"query": "type Q { x: Int }"}'),
    (f"POST {Q}/graphql", FORM, b"query=mutation"),
    (f"PUT {Q}/store/x?{'n' * 70}", {}, b""),
]


@pytest.mark.parametrize(("words", "fields", "body"), ALLOWED, ids=range(len(ALLOWED)))
def test_what_is_open_passes(words: str, fields: dict[str, str], body: bytes | None) -> None:
    found = ask(book(QUEUES), words, fields, body)
    assert found.decision.allowed, found


@pytest.mark.parametrize(("words", "fields", "body", "word"), CLOSED, ids=range(len(CLOSED)))
def test_what_is_closed_is_named_and_its_word_opens_it(
    words: str, fields: dict[str, str], body: bytes | None, word: str
) -> None:
    """I3, with the control: the word that the refusal names opens it."""
    found = ask(book(QUEUES), words, fields, body)
    assert found.decision.reason is Reason.OPERATION_CLOSED
    assert found.decision.rule == f"catalogue.queues.{word}"
    assert f"it asks for {word}" in found.said
    assert found.fix is not None
    assert str(found.fix) == f'[services.queues]\noperations = ["{word}"]'
    opened = ask(book(f'{QUEUES}operations = ["{word}"]\n'), words, fields, body)
    assert opened.decision.allowed, opened


@pytest.mark.parametrize(("words", "fields", "body"), UNCLEAR, ids=range(len(UNCLEAR)))
def test_what_is_unclear_is_refused_whatever_is_open(
    words: str, fields: dict[str, str], body: bytes | None
) -> None:
    """I3: not guessed."""
    found = ask(book(f"{QUEUES}operations = ['*']\n"), words, fields, body)
    assert found.decision.reason is Reason.OPERATION_UNCLEAR
    assert found.fix is None


def test_a_body_that_is_encoded_or_of_another_type_is_refused_where_it_decides() -> None:
    found = book(QUEUES)
    packed = ask(found, f"POST {Q}/", {**FORM, "content-encoding": "gzip"}, b"\x1f\x8b")
    assert packed.decision.reason is Reason.BODY_UNJUDGED
    # Where the head decides, the body is not read.
    named = {**TARGET, "x-amz-target": "SQS.ListQueues", "content-encoding": "gzip"}
    assert ask(found, f"POST {Q}/", named, b"\x1f\x8b").decision.allowed


def test_a_guarded_operation_is_opened_by_its_own_name_alone() -> None:
    words, wide = f"GET {Q}/?Action=GetSecretValue", f"{QUEUES}operations = ['*', 'Get*']\n"
    assert ask(book(wide), words).decision.reason is Reason.OPERATION_CLOSED
    assert ask(book(wide), f"GET {Q}/?Action=GetQueueUrl").decision.allowed
    assert ask(book(f"{QUEUES}operations = ['GetSecret*']\n"), words).decision.allowed


def test_a_request_without_its_body_is_explained_as_far_as_its_head_goes() -> None:
    found = book(QUEUES)
    assert "its body is judged, too" in ask(found, f"POST {Q}/").caveats[0]
    assert ask(found, f"PUT {Q}/store/x").caveats == ()
    assert ask(found, f"PUT {Q}/store/x?acl").decision.reason is Reason.OPERATION_CLOSED
    assert ask(found, f"WEBSOCKET {Q}/store/x").decision.reason is Reason.WEBSOCKET_NOT_GRANTED


# ── the judge itself ──────────────────────────────────────────────────────────────────────────────


def of_policy(found: Rulebook) -> Service:
    return found.policy.services[0]


def test_a_judge_says_which_fields_it_reads_and_judges_by_the_head_where_it_can() -> None:
    judge = OperationJudge(of_policy(book(QUEUES)))
    assert judge.fields == {
        "x-amz-target", "x-operation",
        "x-amz-copy-source*", "content-type", "x-amz-*",
    }  # fmt: skip
    facts = head_of("POST", "/", {**FORM})
    assert judge.judge_head(facts) is None
    elsewhere = head_of("POST", "/elsewhere", {})
    said = judge.judge_head(elsewhere)
    assert said is not None
    assert said.allowed
    assert judge.judge(elsewhere).decision.reason is Reason.BODY_UNJUDGED
    refused = judge.judge_head(head_of("POST", "/", {**FORM}, "Action=DeleteQueue"))
    assert refused is not None
    assert not refused.allowed


def head_of(word: str, path: str, fields: dict[str, str], query: str = "") -> BodyFacts:
    decision = RequestDecision(Verdict.ALLOW, Reason.RULE, "x", "queues")
    host = of_policy(book(QUEUES)).hosts[0]
    facts = BodyFacts(host, word, RequestPath.parse(path), decision, query, fields)
    return replace(facts, flaw=find_flaw(fields, empty=False))


def test_a_chunked_body_may_be_empty() -> None:
    judge = OperationJudge(of_policy(book(QUEUES)))
    facts = read_facts(head_of("POST", "/", {**FORM}, "Action=ListQueues"), b"")
    assert judge.judge(facts).allowed


def test_a_path_with_an_escaped_slash_is_read_in_both_ways() -> None:
    host = replace(of_policy(book(QUEUES)).hosts[0], encoded_slash=True)
    found = find_table(host, "PUT", RequestPath.parse("/store%2Fx", opaque_slash=True))
    assert found is host.operations[3]
    assert find_table(host, "PUT", RequestPath.parse("/x%2Fy", opaque_slash=True)) is None


# ── what a person and an agent are told ───────────────────────────────────────────────────────────


def test_a_word_that_opens_nothing_is_a_fault_of_the_policy() -> None:
    policy = b"version = 1\n" + S3.encode() + b"operations = ['copi']\n"
    with pytest.raises(PolicyFaults, match="there is no 'copi'") as refusal:
        load(PolicyText("keyhole.toml", policy), None, SHELF)
    assert refusal.value.faults[0].hint == "did you mean 'copy'?"
    vague = policy.replace(b"copi", b"zzzzzzzz")
    with pytest.raises(PolicyFaults) as refusal:
        load(PolicyText("keyhole.toml", vague), None, SHELF)
    assert "known: acl, bucket-settings" in str(refusal.value.faults[0].hint)
    own = "[services.x]\nhosts = ['x.example']\nallow = ['GET /**']\noperations = ['copy']\n"
    assert "'operations' is for services" in messages(own)
    assert "an operation is a name or a word" in messages(QUEUES + "operations = ['a b']\n")
    assert "there is no 'field:x'" in messages(QUEUES + "operations = ['field:x']\n")


def test_grants_and_the_file_inside_tell_what_is_open_and_closed() -> None:
    policy = book(QUEUES + "operations = ['List*', 'copy']\n").policy
    told = json.loads(disclose(policy))["services"][0]["operations"]
    assert told == {"open": ["List*", "copy"], "closed": ["acl", "form-upload", "own-token"]}
    lines = [line.text for line in summarise(policy, ())]
    assert "operations List*, copy" in lines
    assert "keeps closed acl, form-upload, own-token" in lines
    plain = book("[services.x]\nhosts = ['x.example']\nallow = ['GET /**']\n").policy
    assert json.loads(disclose(plain))["services"][0]["operations"] is None


# ── the catalogue that ships ──────────────────────────────────────────────────────────────────────

SQS_HOST = "https://sqs.eu-west-1.amazonaws.com"
BUCKET = "https://b.s3.eu-west-1.amazonaws.com"
STORE = "https://s3.eu-west-1.amazonaws.com"
SLACK_API = "https://slack.com/api"
POD = "https://kube.corp.example:6443/api/v1/namespaces/dev/pods/p"

ESCAPES: list[tuple[str, str, dict[str, str], bytes | None]] = [
    # AWS: operations by name, in every place and spelling. `*` is granted.
    (SQS, f"GET {SQS_HOST}/?Action=GetSecretValue", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=ListQueues&Action=GetSecretValue", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=ListQueues&action=GetSecretValue", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=ListQueues&%41ction=GetSecretValue", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=ListQueues;Action=GetSecretValue", {}, None),
    (SQS, f"GET {SQS_HOST}/?x=1;Action=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?action=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?ACTION=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?%41ction=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=List%51ueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=List+Queues", {}, None),
    (SQS, f"GET {SQS_HOST}/?+Action=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action[]=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action%00=ListQueues", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=", {}, None),
    (SQS, f"GET {SQS_HOST}/", {}, None),
    (SQS, f"GET {SQS_HOST}/?Action=getsecretvalue", {}, None),
    (SQS, f"POST {SQS_HOST}/?Action=ListQueues", FORM, b"Action=ListQueues"),
    (SQS, f"POST {SQS_HOST}/?Action=ListQueues", FORM, b"Action=GetSecretValue"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"Action=ListQueues&Action=GetSecretValue"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"Action=GetSecretValue&Action=ListQueues"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"a=1;Action=ListQueues"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"%41ction=ListQueues"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"Action=ListQueues\r\nAction=GetSecretValue"),
    (SQS, f"POST {SQS_HOST}/", FORM, b"Action=ListQueues\0"),
    (SQS, f"POST {SQS_HOST}/", FORM, b""),
    (SQS, f"POST {SQS_HOST}/", {"content-type": "text/plain"}, b"Action=ListQueues"),
    (SQS, f"POST {SQS_HOST}/", {"content-type": "multipart/form-data; boundary=x"}, b"--x"),
    (SQS, f"POST {SQS_HOST}/", {**FORM, "content-encoding": "gzip"}, b"\x1f\x8b"),
    (SQS, f"POST {SQS_HOST}/", {"content-type": f"{FORM['content-type']}, text/plain"}, b"x=1"),
    (SQS, f"POST {SQS_HOST}/",
     {"content-type": "application/x-www-form-urlencoded; charset=utf-7"}, b"Action=ListQueues"),
    (SQS, f"POST {SQS_HOST}/", {**TARGET, "x-amz-target": "secretsmanager.GetSecretValue"}, b"{}"),
    (SQS, f"POST {SQS_HOST}/", {**TARGET, "x-amz-target": "a.ListQueues,a.DeleteQueue"}, b"{}"),
    (SQS, f"POST {SQS_HOST}/", {**FORM, "x-amz-target": "a.ListQueues"}, b"Action=GetSecretValue"),
    (SQS, f"POST {SQS_HOST}/?Action=ListQueues", {**TARGET, "x-amz-target": "a.SendCommand"}, b""),
    (SQS, f"POST {SQS_HOST}/", {"content-type": "text/plain", "x-amz-target": "a.ListQueues"},
     b"Action=GetSecretValue"),
    (SQS, f"POST {SQS_HOST}/service/S/operation/GetSecretValue", {}, b""),
    (SQS, f"POST {SQS_HOST}/service/S/operation/ListQueues",
     {"content-type": "application/cbor", "x-amz-target": "a.GetSecretValue"}, b""),
    (SQS, f"POST {SQS_HOST}/service/S/Operation/GetSecretValue", {}, b""),
    (SQS, f"POST {SQS_HOST}/1/q", FORM, b"Action=SetQueueAttributes"),
    (SQS, f"POST {SQS_HOST}/1/q?Action=AddPermission", {}, b""),
    # S3: an upload that is more than one.
    (S3, f"PUT {BUCKET}/x", {"x-amz-copy-source": "/other/secret"}, b""),
    (S3, f"PUT {BUCKET}/x", {"x-amz-copy-source-range": "bytes=0-1"}, b""),
    (S3, f"PUT {BUCKET}/x?partNumber=1&uploadId=2", {"x-amz-copy-source": "/other/secret"}, b""),
    (S3, f"PUT {BUCKET}/x?x-amz-copy-source=other", {}, b""),
    (S3, f"PUT {BUCKET}/x?acl", {}, b"<x/>"),
    (S3, f"PUT {BUCKET}/x?Acl=", {}, b"<x/>"),
    (S3, f"PUT {BUCKET}/x?%61cl", {}, b"<x/>"),
    (S3, f"PUT {BUCKET}/x?a=1&acl", {}, b"<x/>"),
    (S3, f"PUT {BUCKET}/x?uploadId=1;acl", {}, b"<x/>"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-acl": "public-read"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-grant-read": "uri=all"}, b"x"),
    (S3, f"PUT {BUCKET}/x?x-amz-acl=public-read", {}, b"x"),
    (S3, f"PUT {STORE}/b?policy", {}, b"{}"),
    (S3, f"PUT {STORE}/b?cors", {}, b"<x/>"),
    (S3, f"PUT {STORE}/b?replication", {}, b"<x/>"),
    (S3, f"PUT {STORE}/b?website", {}, b"<x/>"),
    (S3, f"PUT {STORE}/b?notification", {}, b"<x/>"),
    (S3, f"PUT {STORE}/b?lifecycle", {}, b"<x/>"),
    (S3, f"PUT {STORE}/b?publicAccessBlock", {}, b"<x/>"),
    (S3, f"DELETE {STORE}/b?policy", {}, None),
    (S3, f"PUT {STORE}/b?brandNewSetting", {}, b"<x/>"),
    (S3, f"POST {STORE}/b?delete", {}, b"<x/>"),
    (S3, f"POST {STORE}/b", {"content-type": "multipart/form-data; boundary=x"}, b"x"),
    (S3, f"POST {STORE}/b/x?restore", {}, b"<x/>"),
    (S3, f"DELETE {BUCKET}/x?versionId=1", {}, None),
    (S3, f"PUT {BUCKET}/x", {"x-amz-object-lock-mode": "COMPLIANCE"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-website-redirect-location": "https://evil.example"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-server-side-encryption-aws-kms-key-id": "arn:evil"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-server-side-encryption-customer-key": "k"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-tagging": "a=b"}, b"x"),
    (S3, f"PUT {BUCKET}/x", {"x-amz-brand-new": "1"}, b"x"),
    (S3, f"GET {BUCKET}/?session", {}, None),
    (S3, f"GET {BUCKET}/x?brandNew", {}, None),
    (S3, f"PUT {BUCKET}/?policy", {}, b"{}"),
    # Slack: one method of many, and a token of the client's own.
    (SLACK, f"POST {SLACK_API}/chat.delete", FORM, b"ts=1"),
    (SLACK, f"POST {SLACK_API}/chat.deleteScheduledMessage", FORM, b"ts=1"),
    (SLACK, f"POST {SLACK_API}/chat.Delete", FORM, b"ts=1"),
    (SLACK, f"POST {SLACK_API}/files.sharedPublicURL", FORM, b"file=1"),
    (SLACK, f"POST {SLACK_API}/files.delete", FORM, b"file=1"),
    (SLACK, f"POST {SLACK_API}/admin.users.list", FORM, b"x=1"),
    (SLACK, f"POST {SLACK_API}/apps.connections.open", FORM, b"x=1"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", FORM, b"channel=c&text=t&token=xoxb-evil"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", FORM, b"channel=c;token=xoxb-evil"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", FORM, b"channel=c&%74oken=xoxb-evil"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", JSON, b'{"token": "xoxb-evil"}'),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", JSON, b'{"\\u0074oken": "xoxb-evil"}'),
    (SLACK, f"POST {SLACK_API}/chat.postMessage",
     {"content-type": "multipart/form-data; boundary=x"}, b"--x"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", {}, b"\xff\xfe"),
    # Kubernetes: a GET runs a command, and a rule for the namespace does not open it.
    (KUBE, f"GET {POD}/exec?command=id", {}, None),
    (KUBE, f"POST {POD}/exec?command=id", {"upgrade": "SPDY/3.1"}, None),
    (KUBE, f"WEBSOCKET {POD}/exec?command=id", {}, None),
    (KUBE, f"WEBSOCKET {POD}/Exec?command=id", {}, None),
    (KUBE, f"GET {POD}/attach", {}, None),
    (KUBE, f"WEBSOCKET {POD}/attach", {}, None),
    (KUBE, f"GET {POD}/portforward?ports=80", {}, None),
    (KUBE, f"WEBSOCKET {POD}/portforward?ports=80", {}, None),
    (KUBE, f"GET {POD}/proxy/metrics", {}, None),
    (KUBE, f"PATCH {POD}/ephemeralcontainers", {}, b"{}"),
    (KUBE, f"POST {POD[:-7]}/serviceaccounts/default/token", {}, b"{}"),
    (KUBE, f"GET {POD[:-7]}/secrets/x", {}, None),
    (KUBE, f"GET {POD[:-7]}/services/x/proxy", {}, None),
    (KUBE, "GET https://kube.corp.example:6443/api/v1/nodes/n/proxy/exec/ns/p/c", {}, None),
    (KUBE, "GET https://kube.corp.example:6443/api/v1/secrets?watch=true", {}, None),
    # Others.
    ("[services.stripe]\nsecret = 'store:s'\n",
     "GET https://api.stripe.com/v1/charges?expand[]=data.payment_intent", {}, None),
    ("[services.stripe]\nsecret = 'store:s'\n",
     "GET https://api.stripe.com/v1/charges?expand%5B0%5D=data.payment_intent", {}, None),
    ("[services.stripe]\nsecret = 'store:s'\n",
     "GET https://api.stripe.com/v1/charges", {"stripe-account": "acct_1"}, None),
    ("[services.vercel]\nsecret = 'store:s'\n",
     "GET https://api.vercel.com/v6/deployments?teamId=team_1", {}, None),
    ("[services.linear]\nsecret = 'store:s'\n", "POST https://api.linear.app/graphql", JSON,
     b'{"query": "mutation { issueDelete(id: \\"1\\") { success } }"}'),
    ("[services.linear]\nsecret = 'store:s'\noperations = ['*']\n",
     "POST https://api.linear.app/graphql", JSON,
     b'{"query": "mutation { a: apiKeyCreate(input: {}) { success } }"}'),
    ("[services.linear]\nsecret = 'store:s'\n", "POST https://api.linear.app/graphql", JSON,
     b'{"query": "query A { me { id } } mutation B { issueDelete(id: 1) { success } }",'
     b' "operationName": "A"}'),
    ("[services.google-cloud]\nsecret = 'file:~/k.json'\nallow_also = ['PUT /b/**']\n",
     "PUT https://storage.googleapis.com/b/x", {"x-goog-copy-source": "other/x"}, b""),
    ("[services.google-cloud]\nsecret = 'file:~/k.json'\nallow_also = ['PUT /b/**']\n",
     "PUT https://storage.googleapis.com/b/x?acl", {}, b""),
    ("[services.google-cloud]\nsecret = 'file:~/k.json'\nallow_also = ['PUT /b/**']\n",
     "PUT https://storage.googleapis.com/b/x", {"x-goog-acl": "public-read"}, b""),
]  # fmt: skip

CONTROLS: list[tuple[str, str, dict[str, str], bytes | None]] = [
    (SQS, f"GET {SQS_HOST}/?Action=ListQueues&Version=2012-11-05", {}, None),
    (SQS, f"POST {SQS_HOST}/", FORM, b"Action=ListQueues&Version=2012-11-05"),
    (SQS, f"POST {SQS_HOST}/", {**TARGET, "x-amz-target": "AmazonSQS.SendMessage"}, b"{}"),
    (SQS, f"POST {SQS_HOST}/service/S/operation/ListQueues",
     {"content-type": "application/cbor"}, b"\xa0"),
    (SQS, f"POST {SQS_HOST}/1/q", FORM, b"Action=SendMessage&MessageBody=a%3BAction%3Db"),
    (SQS, f"POST {SQS_HOST}/1/q", {"content-type": "application/zip"}, b"PK"),
    (S3, f"PUT {BUCKET}/x?x-id=PutObject", {"x-amz-meta-a": "1", "x-amz-checksum-crc32": "x"}, b""),
    (S3, f"PUT {BUCKET}/x?partNumber=1&uploadId=2", {}, b"part"),
    (S3, f"POST {BUCKET}/x?uploads", {}, b""),
    (S3, f"DELETE {BUCKET}/x", {}, None),
    (S3, f"GET {BUCKET}/?list-type=2&prefix=a&delimiter=%2F", {}, None),
    (S3, f"GET {BUCKET}/x?acl", {}, None),
    (S3, f"GET {BUCKET}/x?response-content-type=a", {"x-amz-checksum-mode": "ENABLED"}, None),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", FORM, b"channel=c&text=hi"),
    (SLACK, f"POST {SLACK_API}/chat.postMessage", JSON, b'{"channel": "c", "text": "token"}'),
    (SLACK, f"GET {SLACK_API}/conversations.list?limit=1", {}, None),
    (KUBE, f"GET {POD}/log?follow=true", {}, None),
    (KUBE, f"GET {POD}", {}, None),
    (KUBE, f"DELETE {POD}", {}, None),
    ("[services.stripe]\nsecret = 'store:s'\n",
     "GET https://api.stripe.com/v1/charges?limit=3", {"stripe-version": "2025"}, None),
    ("[services.vercel]\nsecret = 'store:s'\n",
     "GET https://api.vercel.com/v6/deployments?limit=3", {}, None),
    ("[services.linear]\nsecret = 'store:s'\noperations = ['issueCreate']\n",
     "POST https://api.linear.app/graphql", JSON,
     b'{"query": "mutation M($i: I!) { issueCreate(input: $i) { success } }", "variables": {}}'),
    ("[services.google-cloud]\nsecret = 'file:~/k.json'\nallow_also = ['PUT /b/**']\n",
     "PUT https://storage.googleapis.com/b/x", {"x-goog-meta-a": "1"}, b""),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "words", "fields", "body"), ESCAPES, ids=range(len(ESCAPES)))
def test_no_way_around_a_closed_operation(
    policy: str, words: str, fields: dict[str, str], body: bytes | None
) -> None:
    """I3: the policy opens as much as it can without naming what is asked for."""
    found = ask(rules(policy), words, fields, body)
    assert not found.decision.allowed, found


@pytest.mark.parametrize(("policy", "words", "fields", "body"), CONTROLS, ids=range(len(CONTROLS)))
def test_the_same_policies_let_ordinary_requests_pass(
    policy: str, words: str, fields: dict[str, str], body: bytes | None
) -> None:
    """The control of the escapes above: the same policies, methods, paths and types."""
    found = ask(rules(policy), words, fields, body)
    assert found.decision.allowed, found


def test_fields_of_a_request_are_few_i12() -> None:
    """Attack: thousands of names, each of which is compared with every mark. Control: the most that
    is read."""
    found, post = rules(SLACK), "POST https://slack.com/api/users.list"
    for count, allowed in ((MAX_PARAMETERS, True), (MAX_PARAMETERS + 1, False)):
        members = {f"m{n}": n for n in range(count)}
        form = "&".join(f"{name}=1" for name in members).encode()
        assert ask(found, post, JSON, json.dumps(members).encode()).decision.allowed is allowed
        assert ask(found, post, FORM, form).decision.allowed is allowed


def test_an_open_mark_does_not_hide_a_closed_one_i3() -> None:
    found = rules(f"{S3}operations = ['acl']\n")
    put = "PUT https://b.s3.eu-west-1.amazonaws.com/x"
    assert ask(found, f"{put}?acl").decision.allowed
    for query in ("acl&tagging", "tagging&acl"):
        said = ask(found, f"{put}?{query}")
        assert not said.decision.allowed
        assert said.decision.rule.endswith(".tagging")
