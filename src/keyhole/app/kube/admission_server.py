"""Admission: the API server asks it about pods and policies before it stores them.

`pod_admission.py` decides about pods, and the code that reads every policy decides about policies.
For each request this server lists the policies of the namespace again, so that it does not miss one
that was written a moment ago. It can read no Secret except that of its own certificate.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from lightkube import AsyncClient, codecs
from lightkube.resources.core_v1 import Namespace, Pod
from msgspec import Struct
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from keyhole.app.kube.cluster_wide import ClusterWide, read_or_close, selecting_namespace
from keyhole.app.kube.permissions import CERTIFICATE
from keyhole.app.kube.pod_admission import (
    PASSED,
    Admission,
    admit_change,
    admit_pod,
    bound_pod,
    check_pod,
    labels_of,
    selecting,
)
from keyhole.app.kube.pod_counts import keep_pod_counts
from keyhole.app.kube.policy_files import PolicyFiles, describe_faults
from keyhole.app.kube.resources import (
    AWAY,
    MAX_NAMESPACE_POLICIES,
    ClusterKeyholePolicy,
    ClusterPolicy,
    KeyholePolicy,
)
from keyhole.app.kube.serving_certificate import CertificateSecret
from keyhole.app.kube.webhook_trust import WebhookTrust
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.model.errors import KeyholeError
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import timedelta

    from starlette.requests import Request

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.policy.policy import Policy

MAX_REVIEW = 8 << 20
"""Bytes of a request: an object has at most 1.5 MiB, and a change has the old and the new one."""


class AdmissionSettings(Struct, frozen=True):
    """Where admission is served."""

    namespace: str
    names: tuple[str, ...]
    """Names and addresses by which the API server knows it."""
    port: int
    lifetime: timedelta
    """Of its certificate."""
    exempt: tuple[str, ...]
    """Namespaces whose pods the API server does not ask about."""


class AdmissionServer:
    """Answers the requests of the API server."""

    def __init__(self, client: AsyncClient, files: PolicyFiles, exempt: Collection[str]) -> None:
        """`exempt` are the namespaces whose pods the API server does not ask about."""
        self._client = client
        self._files = files
        self._exempt = exempt

    def application(self) -> Starlette:
        """The paths to which the API server sends requests."""
        return Starlette(
            routes=[
                Route("/stamp", self._answer(self._stamp), methods=["POST"]),
                Route("/pods", self._answer(self._pod), methods=["POST"]),
                Route("/policies", self._answer(self._policy), methods=["POST"]),
                Route("/ready", _ready),
            ]
        )

    def _answer(self, decide: Callable[[dict[str, Any]], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> JSONResponse:
            data = b""
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_REVIEW:
                    return JSONResponse({"error": "too large"}, 413)
            try:
                asked = json.loads(data)["request"]
                admission = await decide(asked)
            except PolicyFaults as faults:
                admission = Admission(why="; ".join(describe_faults(faults)))
            except KeyholeError as error:
                admission = Admission(why=str(error))
            except AWAY as error:
                admission = Admission(why=f"the API server does not answer Keyhole: {error}")
            return JSONResponse(_review(asked.get("uid", ""), admission))

        return answer

    # ── pods ──────────────────────────────────────────────────────────────────────────────────────

    async def _stamp(self, asked: dict[str, Any]) -> Admission:
        """Stamp a new pod if a policy selects it."""
        pod = asked.get("object") or {}
        namespace = asked.get("namespace") or ""
        chosen = selecting(await self._policies(namespace), labels_of(pod))
        policy = None
        if len(chosen) == 1:
            wide = await self._cluster_wide(namespace)
            policy = await asyncio.to_thread(self._read, chosen[0], wide)
        return admit_pod(pod, chosen, policy, secrets.token_hex(16))

    async def _pod(self, asked: dict[str, Any]) -> Admission:
        """Decide a pod as it would be stored."""
        namespace = asked.get("namespace") or ""
        new, old = asked.get("object") or {}, asked.get("oldObject") or {}
        policies = await self._policies(namespace)
        if (asked.get("kind") or {}).get("kind") == "Binding":
            # A Binding names the node, and may carry labels and annotations for the pod.
            found = await self._client.get(Pod, str(asked.get("name")), namespace=namespace)
            pod = found.to_dict()
            return admit_change(pod, bound_pod(pod, new), policies)
        # A change of any subresource may change labels and annotations, too.
        if asked.get("operation") == "UPDATE":
            return admit_change(old, new, policies)
        return check_pod(new, selecting(policies, labels_of(new)))

    async def _policies(self, namespace: str) -> list[ClusterPolicy]:
        listed = self._client.list(KeyholePolicy, namespace=namespace)
        return [ClusterPolicy.read(each) async for each in listed]

    async def _cluster_wide(self, namespace: str) -> tuple[ClusterWide, ...]:
        """The ClusterKeyholePolicies of a namespace; one that cannot be read refuses what it
        selects."""
        listed = self._client.list(ClusterKeyholePolicy)
        found = [read_or_close(each) async for each in listed]
        named: Any = await self._client.get(Namespace, namespace)
        return selecting_namespace(found, named.metadata.labels or {})

    def _read(self, policy: ClusterPolicy, wide: tuple[ClusterWide, ...]) -> Policy | None:
        try:
            return self._files.check(policy, wide).file.loaded.policy
        except KeyholeError:
            return None

    # ── policies ──────────────────────────────────────────────────────────────────────────────────

    async def _policy(self, asked: dict[str, Any]) -> Admission:
        given = asked.get("object") or {}
        spec = given.get("spec") or {}
        old = asked.get("oldObject") or {}
        if asked.get("operation") == "UPDATE" and old.get("spec") == given.get("spec"):
            # It grants what it granted before. The accounts of the cluster that remove finalizers
            # or rewrite stored objects may read no Secret.
            return PASSED
        if (asked.get("kind") or {}).get("kind") == "ClusterKeyholePolicy":
            wide = ClusterWide.of(asked.get("name") or "", spec)
            await asyncio.to_thread(self._files.check_wide, wide)
            return PASSED
        policy = ClusterPolicy.of(asked.get("namespace") or "", asked.get("name") or "", spec)
        # Attack: a policy that is said to be valid, in a namespace whose pods nobody stamps (I3).
        if policy.namespace in self._exempt:
            return Admission(
                why=f"pods of {policy.namespace} are exempt, so no policy selects them"
            )
        if asked.get("operation") == "CREATE":
            listed = self._client.list(KeyholePolicy, namespace=policy.namespace)
            if len([each async for each in listed]) >= MAX_NAMESPACE_POLICIES:
                return Admission(
                    why=f"{policy.namespace} has {MAX_NAMESPACE_POLICIES} policies, which is the"
                    " most; delete one"
                )
        bounding = await self._cluster_wide(policy.namespace)
        await asyncio.to_thread(self._files.check, policy, bounding)
        # Each author of a policy or of a change must be able to read the Secrets that it names.
        # Attack: edit another person's policy to use a Secret that one may not read.
        for name in sorted(await asyncio.to_thread(self._files.own_secrets, policy)):
            if not await self._may_read(asked.get("userInfo") or {}, policy.namespace, name):
                return Admission(
                    why=f"you may not read the Secret {name} of {policy.namespace}, so no policy"
                    " of yours uses it"
                )
        return PASSED

    async def _may_read(self, user: dict[str, Any], namespace: str, name: str) -> bool:
        """Whether the author of a policy may read a Secret. Otherwise a policy could use a Secret
        that its author may not read."""
        asked = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": user.get("username", ""),
                "uid": user.get("uid"),
                "groups": user.get("groups") or [],
                "extra": user.get("extra") or {},
                "resourceAttributes": {
                    "verb": "get", "resource": "secrets", "namespace": namespace, "name": name,
                },
            },
        }  # fmt: skip
        answer: Any = await self._client.create(codecs.from_dict(asked))
        return bool(answer.status and answer.status.allowed)


async def _ready(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ready\n")


def _review(uid: str, admission: Admission) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": admission.allowed}
    if admission.why:
        response["status"] = {"message": f"keyhole: {admission.why}", "code": 403}
    if admission.patch:
        patch = json.dumps(admission.patch).encode("utf-8")
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode("ascii")}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


async def serve_admission(settings: AdmissionSettings, places: HostPaths) -> None:
    """Serve the API server, after it was told the CA. Never returns. Raises what the API server
    declines."""
    client = AsyncClient(field_manager="keyhole-admission")
    secret = CertificateSecret(settings.namespace, CERTIFICATE, settings.names, settings.lifetime)
    trust = WebhookTrust(client, secret, _say)
    await trust.begin()
    files = PolicyFiles(places.state / "cluster", places, FileCatalogue())
    config = uvicorn.Config(
        AdmissionServer(client, files, settings.exempt).application(),
        host="0.0.0.0",  # noqa: S104 - the API server connects from the node
        port=settings.port,
        log_level="warning",
        server_header=False,
        access_log=False,
    )
    config.load()
    config.ssl = trust.context
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(trust.keep()),
            tasks.create_task(keep_pod_counts(client, _say)),
        ]
        await uvicorn.Server(config).serve()
        for each in beside:
            each.cancel()


def _say(text: str) -> None:
    """To the container's log."""
    sys.stderr.write(f"keyhole: {text}\n")
