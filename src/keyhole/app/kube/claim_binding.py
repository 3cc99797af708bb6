"""Puts a pod of agent-sandbox under the policy for its claim. Called by `pod_sessions.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from keyhole.app.kube.pod_admission import seeded_noise
from keyhole.app.kube.resources import AWAY
from keyhole.app.setup.client_setup import SessionPlaceholders
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from keyhole.app.kube.cluster_view import ClusterView, KnownPod
    from keyhole.app.kube.pod_records import PodRecord
    from keyhole.app.kube.sandbox_claims import Claim, ClaimChange


async def bind_claim(
    view: ClusterView, known: KnownPod, record: PodRecord
) -> tuple[KnownPod, PodRecord, Claim | None]:
    """A pod under the policy for the claim that has it, if one has. Raises Refused."""
    try:
        claim = await view.claim_of(known.pod)
    except AWAY as error:
        raise Refused(f"the API server does not say who claims {known.pod}: {error}") from None
    # Attack: a Sandbox is put back into its pool after a claim; the next claim would be given
    # what the first one left running in the pod.
    if claim is None or record.claim not in ("", claim.uid):
        return known, record, None
    policy = await view.claimed_policy(known.pod, claim)
    if policy is not None:
        template = known.policy.file.loaded.policy
        given = SessionPlaceholders(template, seeded_noise(known.seed)).environment
        known = structs.replace(known, policy=policy, given=given, claimed=True)
    return known, structs.replace(record, claim=claim.uid), claim


def is_about(change: ClaimChange | None, record: PodRecord, *, is_open: bool) -> bool:
    """Whether a change of a claim may open or close the door of a pod that needs one; without a
    change, any may."""
    if change is None:
        return True
    if change.namespace != record.pod.namespace:
        return False
    names_it = change.valid and change.sandbox == record.sandbox
    if is_open:
        return record.claim == change.uid and not names_it
    return names_it
