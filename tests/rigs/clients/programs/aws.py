"""Inside: boto3. It signs with the keys of its environment, which are placeholders."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import boto3  # type: ignore[import-not-found]
import botocore.config  # type: ignore[import-not-found]
import botocore.exceptions  # type: ignore[import-not-found]

CONFIG = botocore.config.Config(
    retries={"total_max_attempts": 1}, s3={"addressing_style": "virtual"}
)


def use_bucket() -> dict[str, Any]:
    """Put and get: bytes, a file whose checksum comes behind it, an awkward name, a part."""
    s3 = boto3.client("s3", config=CONFIG)
    said: dict[str, Any] = {}
    for name, body in {
        "plain": b"some bytes",
        "stream": io.BytesIO(b"streamed " * 30_000),
        "a b+c/ü~*'()!.txt": b"awkward",
        "empty": b"",
    }.items():
        s3.put_object(Bucket="widgets", Key=name, Body=body, Metadata={"note": "x  y"})
        said[name] = len(s3.get_object(Bucket="widgets", Key=name)["Body"].read())
    try:
        s3.delete_object(Bucket="widgets", Key="plain")
    except botocore.exceptions.ClientError as error:
        said["delete"] = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return said


def use_bedrock() -> dict[str, Any]:
    """Converse, its stream, and invoke, with a model that is named by an ARN."""
    bedrock = boto3.client("bedrock-runtime", config=CONFIG)
    arn = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.fake-v1:0"
    messages = [{"role": "user", "content": [{"text": "hello"}]}]
    whole = bedrock.converse(modelId="fake.model-v1:0", messages=messages)
    stream = bedrock.converse_stream(modelId="fake.model-v1:0", messages=messages)["stream"]
    deltas = [e["contentBlockDelta"] for e in stream if "contentBlockDelta" in e]
    invoked = bedrock.invoke_model(modelId=arn, body=json.dumps({"prompt": "hello"}))
    return {
        "whole": whole["output"]["message"]["content"][0]["text"],
        "pieces": [delta["delta"]["text"] for delta in deltas],
        "invoked": json.load(invoked["body"]),
    }


def sign_with_another_key() -> int:
    """Keys that an attacker brought: what they sign for must not pass (I6)."""
    s3 = boto3.client(
        "s3",
        config=CONFIG,
        aws_access_key_id="AKIAAAAAAAAAAAAAAAAA",
        aws_secret_access_key="x" * 40,
    )
    try:
        s3.get_object(Bucket="widgets", Key="plain")
    except botocore.exceptions.ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return 200


if __name__ == "__main__":
    json.dump(
        {"s3": use_bucket(), "bedrock": use_bedrock(), "foreign": sign_with_another_key()},
        sys.stdout,
    )
