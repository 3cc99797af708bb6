"""Inside: boto3, Slack's SDK, and a WebSocket as kubectl opens it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import boto3  # type: ignore[import-not-found]
import botocore.config  # type: ignore[import-not-found]
import botocore.exceptions  # type: ignore[import-not-found]
import requests
import slack_sdk  # type: ignore[import-not-found]
import slack_sdk.errors  # type: ignore[import-not-found]
from websockets.exceptions import InvalidStatus  # type: ignore[import-not-found]
from websockets.sync.client import connect  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = botocore.config.Config(
    retries={"total_max_attempts": 1}, s3={"addressing_style": "virtual"}
)
REFUSALS: list[str] = []
"""What boto3 says of each."""

KUBE = "https://kube.example/api/v1/namespaces"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/1/q"
TOPIC = "arn:aws:sns:eu-west-1:1:t"
OBJECT = {"Bucket": "widgets", "Key": "inbox/a"}


def status(call: Callable[..., Any], **arguments: Any) -> int:  # noqa: ANN401 - boto3's own
    """What a call of boto3 ends with."""
    try:
        found = call(**arguments)
    except botocore.exceptions.ClientError as error:
        found = error.response
        REFUSALS.append(str(error))
    return int(found["ResponseMetadata"]["HTTPStatusCode"])


def use_aws() -> dict[str, int]:
    """By a field of the head, by a form, and by marks of an upload."""
    sqs, sns, s3 = (boto3.client(name, config=CONFIG) for name in ("sqs", "sns", "s3"))
    return {
        "ListQueues": status(sqs.list_queues),
        "SendMessage": status(sqs.send_message, QueueUrl=QUEUE, MessageBody="Action=x&y"),
        "DeleteQueue": status(sqs.delete_queue, QueueUrl=QUEUE),
        "AddPermission": status(
            sqs.add_permission, QueueUrl=QUEUE, Label="x", AWSAccountIds=["1"], Actions=["*"]
        ),
        "ListTopics": status(sns.list_topics),
        "Publish": status(sns.publish, TopicArn=TOPIC, Message="a;Action=Subscribe&b=%"),
        "Subscribe": status(
            sns.subscribe, TopicArn=TOPIC, Protocol="https", Endpoint="https://evil.example"
        ),
        "PutObject": status(s3.put_object, Body=b"x" * 300_000, **OBJECT),
        "GetObject": status(s3.get_object, **OBJECT),
        "CopyObject": status(s3.copy_object, CopySource="other/secret", **OBJECT),
        "UploadPartCopy": status(
            s3.upload_part_copy, CopySource="other/secret", PartNumber=1, UploadId="1", **OBJECT
        ),
        "PutObjectAcl": status(s3.put_object_acl, ACL="public-read", **OBJECT),
        "PutObjectPublic": status(s3.put_object, Body=b"x", ACL="public-read", **OBJECT),
        "PutObjectTagging": status(
            s3.put_object_tagging, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}, **OBJECT
        ),
        "PutBucketPolicy": status(s3.put_bucket_policy, Bucket="widgets", Policy="{}"),
        "DeleteVersion": status(s3.delete_object, VersionId="1", **OBJECT),
    }


def use_slack() -> dict[str, Any]:
    """Methods, and a token of the program's own in a body."""
    client = slack_sdk.WebClient(token=os.environ["SLACK_BOT_TOKEN"])
    said: dict[str, Any] = {}
    for name, call in {
        "conversations.list": client.conversations_list,
        "chat.postMessage": lambda: client.chat_postMessage(channel="C1", text="hi"),
        "chat.delete": lambda: client.chat_delete(channel="C1", ts="1"),
        "files.sharedPublicURL": lambda: client.files_sharedPublicURL(file="F1"),
        "own token": lambda: client.api_call(
            "chat.postMessage", data={"token": "xoxb-evil", "channel": "C1", "text": "hi"}
        ),
    }.items():
        try:
            said[name] = call()["ok"]
        except slack_sdk.errors.SlackApiError as error:
            said[name] = error.response.status_code
    # The SDK itself moves a token out of JSON.
    evil = {"token": "xoxb-evil", "channel": "C1", "text": "hi"}
    address = "https://slack.com/api/chat.postMessage"
    said["own token as JSON"] = requests.post(address, json=evil, timeout=30).status_code
    return said


def use_kube() -> dict[str, Any]:
    """Reads, a secret, and a command in a pod of two namespaces."""
    token = {"Authorization": f"Bearer {os.environ['KUBE_TOKEN']}"}
    said: dict[str, Any] = {
        path: requests.get(f"{KUBE}/{path}", headers=token, timeout=30).status_code
        for path in ("dev/pods", "dev/secrets/s", "dev/pods/p/exec?command=id", "dev/pods/p/proxy")
    }
    for space in ("dev", "prod"):
        address = f"wss{KUBE[5:]}/{space}/pods/p/exec?command=id&stdout=true"
        try:
            protocol: Any = ["v5.channel.k8s.io"]
            with connect(address, additional_headers=token, subprotocols=protocol) as socket:
                said[space] = bytes(socket.recv())[1:].decode()
        except InvalidStatus as error:
            said[space] = error.response.status_code
    return said


if __name__ == "__main__":
    said = {"aws": use_aws(), "slack": use_slack(), "kube": use_kube(), "refusals": REFUSALS}
    json.dump(said, sys.stdout)
