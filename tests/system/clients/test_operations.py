"""Unmodified SDKs use the operations that a policy names, and no others (I3, I6)."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.clients.errands import Household
from tests.rigs.clients.services import keep
from tests.rigs.sandbox.projects import SEARCH
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

POLICY = """
[services.aws]
hosts = ["sqs.eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com"]
secret = "file:~/secrets/aws"
operations = ["List*", "SendMessage", "Publish", "S*", "A*"]
[services.aws-s3]
hosts = ["widgets.s3.eu-west-1.amazonaws.com"]
secret = "file:~/secrets/aws"
allow = ["GET,PUT,DELETE /**"]
[services.slack]
secret = "file:~/secrets/slack"
allow_also = ["POST /api/chat.*", "POST /api/files.*"]
[services.kubernetes]
hosts = ["kube.example"]
secret = "file:~/secrets/kube"
allow_also = ["* /api/v1/namespaces/**", "WEBSOCKET /api/v1/namespaces/dev/pods/*/exec"]
"""
"""As wide as it can be without the names of what is to stay closed."""

KUBECTL = """
export KUBECONFIG=$HOME/kubeconfig
kubectl config set-cluster c --server https://kube.example >/dev/null
kubectl config set-cluster c --certificate-authority /etc/keyhole/ca.pem >/dev/null
kubectl config set-credentials me --token "$KUBE_TOKEN" >/dev/null
kubectl config set-context c --cluster c --user me --namespace dev >/dev/null
kubectl config use-context c >/dev/null
kubectl get pods -o name
kubectl exec p -- id
kubectl -n prod exec p -- id || echo "no exec in prod"
"""

CLOSED_AWS = {
    "DeleteQueue", "AddPermission", "Subscribe", "CopyObject", "UploadPartCopy", "PutObjectAcl",
    "PutObjectPublic", "PutObjectTagging", "PutBucketPolicy", "DeleteVersion",
}  # fmt: skip


def kubectl_by_websocket() -> bool:
    """Whether this host has a kubectl that runs commands by a WebSocket; Debian 12's does not."""
    found = shutil.which("kubectl", path=SEARCH)
    if found is None:
        return False
    words = [found, "version", "--client", "-o", "json"]
    asked = subprocess.run(words, capture_output=True, timeout=PATIENCE, check=True)
    version = json.loads(asked.stdout)["clientVersion"]
    return (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 31)


@pytest.fixture(scope="module")
def said(new_project: Callable[[], Project], services: Services, inside: Inside) -> dict[str, Any]:
    """What each client said, all in one run."""
    made = Household(new_project(), services, inside)
    keep(made.project, "secrets/slack", services.keys.slack)
    keep(made.project, "secrets/kube", services.keys.kube)
    made.policy(POLICY)
    made.place("operations.py")
    errands = {"sdks": f"exec {inside.python} -s operations.py"}
    if kubectl_by_websocket():
        errands["kubectl"] = KUBECTL
    return made.errands(errands)[0]


def result(said: dict[str, Any], name: str) -> dict[str, Any]:
    ended = said["sdks"]
    assert ended["code"] == 0, ended["err"]
    found: dict[str, Any] = json.loads(ended["out"])[name]
    return found


def test_boto3_calls_what_is_named_and_nothing_else(
    said: dict[str, Any], services: Services
) -> None:
    """I3: by a header, by a form, and by marks of an upload, each signed anew with the real key.
    Control: the operations that are open, with the same client."""
    found = result(said, "aws")
    assert {name for name, status in found.items() if status == 403} == CLOSED_AWS
    assert {status for name, status in found.items() if name not in CLOSED_AWS} == {200}
    told = "".join(json.loads(said["sdks"]["out"])["refusals"])
    assert (
        'keyhole: it asks for Subscribe, which services.aws leaves closed; operations = ["Su'
        in told
    )
    assert "keyhole: it asks for copy (header x-amz-copy-source), which services.aws-s3" in told
    assert "keyhole: it asks for DeleteQueue, which services.aws leaves closed" in told
    asked = services.requests("sqs.eu-west-1.amazonaws.com")
    targets = [value for each in asked for name, value in each["headers"] if name == "x-amz-target"]
    assert targets == ["AmazonSQS.ListQueues", "AmazonSQS.SendMessage"]
    marked = [
        name
        for each in services.requests("widgets.s3.eu-west-1.amazonaws.com")
        for name, _ in each["headers"]
        if name in ("x-amz-copy-source", "x-amz-acl")
    ]
    assert marked == []


def test_slacks_sdk_posts_and_cannot_delete_share_or_use_a_token_of_its_own(
    said: dict[str, Any],
) -> None:
    """I3, I6."""
    assert result(said, "slack") == {
        "conversations.list": True,
        "chat.postMessage": True,
        "chat.delete": 403,
        "files.sharedPublicURL": 403,
        "own token": 403,
        "own token as JSON": 403,
    }


def test_a_command_runs_in_a_pod_that_the_policy_names(said: dict[str, Any]) -> None:
    """I3: neither a rule for all namespaces nor a GET opens it elsewhere."""
    assert result(said, "kube") == {
        "dev/pods": 200,
        "dev/secrets/s": 403,
        "dev/pods/p/exec?command=id": 403,
        "dev/pods/p/proxy": 403,
        "dev": "ran with v5.channel.k8s.io\n",
        "prod": 403,
    }


def test_kubectl_lists_pods_and_runs_a_command_where_it_may(said: dict[str, Any]) -> None:
    """The same with kubectl itself."""
    if "kubectl" not in said:
        # `make setup` cannot install one: Debian's is older. The test above makes the requests.
        pytest.skip("kubectl is not installed, or is older than 1.31 and so runs commands by SPDY")
    ended = said["kubectl"]
    assert ended["out"] == "pod/p\nran with v5.channel.k8s.io\nno exec in prod\n", ended
