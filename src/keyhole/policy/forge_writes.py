"""Judges the JSON bodies of a forge's REST that write, where a field of the body decides.

For each such endpoint, `_WRITES` has the fields that a body may have, and what each must be. A
field that is not there is closed (I3): among them labels, which start workflows and stand for
approvals, `head_repo`, which leads to another repository, and `sudo`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.ref import Ref
from keyhole.model.repository import Forge
from keyhole.policy.body import BodyJudgement, refuse_unjudged
from keyhole.policy.push import RefChange, RemoteFacts, decide_ref_update, may_not_move

if TYPE_CHECKING:
    from keyhole.policy.body import BodyFacts
    from keyhole.policy.policy import Service
    from keyhole.wire.strict_json import JsonValue


class FieldUse(enum.Enum):
    """What a field of a body must be. The zero value is never allowed."""

    CLOSED = 0
    ANY = 1
    TEXT = 2
    """At GitLab: without a line that is a command, such as `/merge`."""
    BRANCH = 3
    """A plain branch of the repository."""
    PUSHED = 4
    """One that `push` grants."""
    COMMENTING = 5
    """A review that does not approve."""
    TARGET = 6
    """A branch to which a pull request may be moved (`push.py`, `may_not_move`)."""
    EMPTY = 7
    """Nothing: `glab` sends labels although none were given."""
    OWN = 8
    """The number of the same project, as GitLab has said it to this session."""


_ANY, _TEXT, _BRANCH, _PUSHED = FieldUse.ANY, FieldUse.TEXT, FieldUse.BRANCH, FieldUse.PUSHED

Shape = dict[str, FieldUse]


def _shape(any_of: str, **more: FieldUse) -> Shape:
    return dict.fromkeys(any_of.split(), _ANY) | more


_WRITES: dict[Forge, dict[str, Shape]] = {
    Forge.GITHUB: {
        "POST pulls": _shape("title body draft maintainer_can_modify", head=_PUSHED, base=_BRANCH),
        "PATCH pulls/*": _shape(
            "title body state maintainer_can_modify", base=FieldUse.TARGET
        ),
        "POST pulls/*/reviews": _shape("body comments commit_id", event=FieldUse.COMMENTING),
        "POST issues": _shape("title body assignee assignees milestone type"),
        "PATCH issues/*": _shape("title body state state_reason assignee assignees milestone type"),
    },
    Forge.GITLAB: {
        "POST merge_requests": _shape(
            "title assignee_id assignee_ids reviewer_ids milestone_id squash",
            description=_TEXT, source_branch=_PUSHED, target_branch=_BRANCH,
            labels=FieldUse.EMPTY, target_project_id=FieldUse.OWN,
        ),
        "PUT merge_requests/*": _shape(
            "title assignee_id assignee_ids reviewer_ids milestone_id state_event",
            description=_TEXT, target_branch=_BRANCH,
        ),
        "POST merge_requests/*/notes": _shape("", body=_TEXT),
        "POST issues": _shape(
            "title assignee_id assignee_ids milestone_id due_date",
            description=_TEXT, labels=FieldUse.EMPTY,
        ),
        "PUT issues/*": _shape(
            "title assignee_id assignee_ids milestone_id due_date state_event", description=_TEXT
        ),
        "POST issues/*/notes": _shape("", body=_TEXT),
    },
}  # fmt: skip

_NEEDED = {
    "POST pulls": "head",
    "POST merge_requests": "source_branch",
    "POST pulls/*/reviews": "event",
}
"""Fields without which an endpoint does something else, or cannot be judged."""

MOVING = frozenset({"PATCH pulls/*"})
"""Endpoints that may change the branch that a pull request goes to."""

_COMMENTING = frozenset({"COMMENT", "REQUEST_CHANGES"})
_BEFORE_COMMANDS = " \t>*+-`"


def find_write(forge: Forge, word: str, resource: tuple[str, ...] | None) -> str | None:
    """The endpoint of `_WRITES` that a request is for; None: no body is judged."""
    if resource is None:
        return None
    # The second word is a number, and the fourth a name of what belongs to it.
    plain = "/".join("*" if at == 1 else each for at, each in enumerate(resource))
    endpoint = f"{word} {plain}"
    return endpoint if endpoint in _WRITES.get(forge, {}) else None


def judge_write(
    service: Service, forge: Forge, endpoint: str, facts: BodyFacts, own: int | None = None
) -> BodyJudgement:
    """Judge a body. `own` is the number of the project, if it is known."""
    shape = _WRITES[forge][endpoint]
    if facts.flaw or not isinstance(facts.json, dict):
        return refuse_unjudged(facts, "send one JSON object")
    if facts.query:
        # Forges read the fields of a query as if they stood in the body.
        return _refuse(facts, "fields in the address are closed; send them in the body")
    needed = _NEEDED.get(endpoint)
    if needed is not None and needed not in facts.json:
        return _refuse(facts, f"'{needed}' is needed to judge it")
    for name, value in facts.json.items():
        if name not in shape:
            return _refuse(facts, f"the field '{name[:40]}' is closed")
        if shape[name] is FieldUse.OWN:
            if own is None or type(value) is not int or value != own:
                return _refuse(facts, f"'{name}' is not the number of this project")
            continue
        refused = _judge_field(service, facts, name, shape[name], value)
        if refused is not None:
            return refused
    return BodyJudgement(facts.decision)


def _judge_field(
    service: Service, facts: BodyFacts, name: str, use: FieldUse, value: JsonValue
) -> BodyJudgement | None:
    if use is _ANY:
        return None
    if use is FieldUse.EMPTY:
        return _refuse(facts, f"the field '{name}' is closed") if value else None
    if not isinstance(value, str):
        return _refuse(facts, f"'{name}' is not a text")
    if use is _TEXT:
        if any(line.lstrip(_BEFORE_COMMANDS).startswith("/") for line in value.splitlines()):
            return _refuse(facts, f"a line of '{name}' begins with '/', as a command does")
        return None
    if use is FieldUse.COMMENTING:
        return None if value in _COMMENTING else _refuse(facts, f"'{name}' may not approve")
    try:
        Ref.parse(f"refs/heads/{value}")
    except Unparsable:
        return _refuse(facts, f"'{name}' is not a plain branch of this repository")
    if use is FieldUse.TARGET and may_not_move(service, value):
        return _refuse(facts, f"{value} is protected by the policy", Reason.REF_PROTECTED)
    if use is _BRANCH or use is FieldUse.TARGET:
        return None
    decision = decide_ref_update(
        service, f"refs/heads/{value}", RefChange.FAST_FORWARD, RemoteFacts()
    )
    if decision.allowed or decision.reason is Reason.DEFAULT_BRANCH_UNKNOWN:
        return None
    return _refuse(facts, f"'{name}' is not a branch that 'push' grants", decision.reason)


def _refuse(facts: BodyFacts, why: str, reason: Reason = Reason.FEATURE_CLOSED) -> BodyJudgement:
    by = facts.decision
    return BodyJudgement(RequestDecision(Verdict.DENY, reason, by.rule, by.service), why)
