"""Admission: the API server asks it about pods and policies before it stores them.

It decides nothing itself: pods by `pod_admission.py`, policies by the code that reads every policy.
It lists the policies of a namespace for each question, so that none is missed that was written a
moment ago. It has no access to any Secret but its own certificate's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from lightkube import AsyncClient, codecs
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.types import PatchType
from msgspec import Struct
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from keyhole.app.kube.cluster_view import AWAY
from keyhole.app.kube.pod_admission import (
    PASSED,
    Admission,
    admit_change,
    admit_pod,
    check_pod,
    is_stamped,
    labels_of,
    objections,
    selecting,
)
from keyhole.app.kube.policy_files import (
    PolicyFiles,
    check_cluster_wide,
    describe_faults,
    named_secrets,
)
from keyhole.app.kube.resources import ClusterPolicy, KeyholePolicy
from keyhole.app.kube.serving_certificate import ServingCertificate, serving_certificate
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.model.errors import KeyholeError
from keyhole.policy.fault import PolicyFaults

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.policy.policy import Policy

MAX_REVIEW = 8 << 20
"""Bytes of a question: an object of the API server has 1.5 MiB at most, and a change has two."""

CONFIGURATION = "keyhole"
"""The name of both webhook configurations."""


class AdmissionSettings(Struct, frozen=True):
    """Where admission is served."""

    namespace: str
    names: tuple[str, ...]
    """Names and addresses by which the API server knows it."""
    port: int
    secret: str = "keyhole-admission"  # noqa: S105 - the name of one


class AdmissionServer:
    """Answers the API server."""

    def __init__(self, client: AsyncClient, files: PolicyFiles) -> None:
        self._client = client
        self._files = files

    def application(self) -> Starlette:
        """The two paths that the API server asks."""
        return Starlette(
            routes=[
                Route("/stamp", self._answer(self._stamp), methods=["POST"]),
                Route("/pods", self._answer(self._pod), methods=["POST"]),
                Route("/policies", self._answer(self._policy), methods=["POST"]),
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
        """Change a new pod that a policy selects."""
        pod = asked.get("object") or {}
        chosen = selecting(await self._policies(asked.get("namespace") or ""), labels_of(pod))
        policy = await asyncio.to_thread(self._read, chosen[0]) if len(chosen) == 1 else None
        return admit_pod(pod, chosen, policy, secrets.token_hex(16))

    async def _pod(self, asked: dict[str, Any]) -> Admission:
        """Decide a pod as it would be stored."""
        new, old = asked.get("object") or {}, asked.get("oldObject") or {}
        if asked.get("subResource") == "ephemeralcontainers":
            refused = next(objections(new), "") if is_stamped(new) else ""
            return Admission(why=refused) if refused else PASSED
        policies = await self._policies(asked.get("namespace") or "")
        if asked.get("operation") == "UPDATE":
            return admit_change(old, new, policies)
        return check_pod(new, selecting(policies, labels_of(new)))

    async def _policies(self, namespace: str) -> list[ClusterPolicy]:
        listed = self._client.list(KeyholePolicy, namespace=namespace)
        return [ClusterPolicy.read(each) async for each in listed]

    def _read(self, policy: ClusterPolicy) -> Policy | None:
        try:
            return self._files.check(policy).file.loaded.policy
        except KeyholeError:
            return None

    # ── policies ──────────────────────────────────────────────────────────────────────────────────

    async def _policy(self, asked: dict[str, Any]) -> Admission:
        given = asked.get("object") or {}
        spec = given.get("spec") or {}
        if (asked.get("kind") or {}).get("kind") == "ClusterKeyholePolicy":
            check_cluster_wide(str(spec.get("policy", "")))
            return PASSED
        policy = ClusterPolicy.of(asked.get("namespace") or "", asked.get("name") or "", spec)
        examined = await asyncio.to_thread(self._files.check, policy)
        for name in sorted(set(named_secrets(examined.file.loaded.policy))):
            if not await self._may_read(asked.get("userInfo") or {}, policy.namespace, name):
                return Admission(
                    why=f"you may not read the Secret {name} of {policy.namespace}, so no policy"
                    " of yours uses it"
                )
        return PASSED

    async def _may_read(self, user: dict[str, Any], namespace: str, name: str) -> bool:
        """Whether the author of a policy could read a Secret: else a policy would be a way to use
        what its author was not given."""
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
    certificate = await serving_certificate(
        client, settings.namespace, settings.secret, settings.names
    )
    files = PolicyFiles(places.state / "cluster", places, FileCatalogue())
    application = AdmissionServer(client, files).application()
    config = await asyncio.to_thread(_configure, application, settings.port, certificate)
    await _announce(client, certificate.authority)
    await uvicorn.Server(config).serve()


def _configure(
    application: Starlette, port: int, certificate: ServingCertificate
) -> uvicorn.Config:
    """OpenSSL reads a key from a file alone; it is gone when this returns."""
    with tempfile.TemporaryDirectory() as made:
        chain, key = Path(made, "tls.crt"), Path(made, "tls.key")
        chain.write_bytes(certificate.certificate)
        key.touch(0o600)
        key.write_bytes(certificate.key)
        config = uvicorn.Config(
            application,
            host="0.0.0.0",  # noqa: S104 - the API server connects from the node
            port=port,
            ssl_certfile=str(chain),
            ssl_keyfile=str(key),
            log_level="warning",
            server_header=False,
            access_log=False,
        )
        config.load()
    return config


async def _announce(client: AsyncClient, authority: bytes) -> None:
    """Tell the API server which CA signs for these webhooks."""
    bundle = base64.b64encode(authority).decode("ascii")
    for kind in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
        found: Any = await client.get(kind, CONFIGURATION)
        patch = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, _ in enumerate(found.webhooks or ())
        ]
        await client.patch(kind, CONFIGURATION, patch, patch_type=PatchType.JSON)
