"""The claims of the demo, each judged by observations (I10).

Called by `cli/demo.py`. It only reads records: the client cannot know the real key and the service
cannot know the placeholder, so neither reports on the other. A claim without an observation does
not hold.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.proofs import demo_repository
from keyhole.app.proofs.demo_calls import CALLS
from keyhole.app.proofs.demo_client import (
    CLONE,
    COMMIT,
    DECODED,
    DENIED_ADDRESS,
    DENIED_CALL,
    DENIED_HOST,
    DENIED_PATH,
    GRANTED,
    POISONED,
    PUSH,
    REFUSED,
    VARIABLE,
    WORKFLOW,
)
from keyhole.app.proofs.demo_service import ASK, CALL, ECHO, NAME, RIGHT
from keyhole.model.decision import Reason
from keyhole.model.event import EventKind
from keyhole.model.reasons import GrpcStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.proofs.demo import DemoRun
    from keyhole.audit.log_reader import LogEntry

_REFUSED = "refused: "
_CALL_DENIED = f"status {GrpcStatus.PERMISSION_DENIED.value} keyhole: "

_Expected = tuple[str, str, str, str, str]

_EVENTS: tuple[_Expected, ...] = (
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ASK),
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ECHO),
    (EventKind.REQUEST, "allow", Reason.SECRET_SCRUBBED, NAME, ECHO),
    (EventKind.REQUEST, "deny", Reason.NO_RULE, NAME, DENIED_PATH),
    (EventKind.REQUEST, "allow", Reason.RULE, CALLS, CALL),
    (EventKind.REQUEST, "deny", Reason.NO_RULE, CALLS, DENIED_CALL),
    (EventKind.DNS, "deny", Reason.NO_RULE, DENIED_HOST, ""),
    (EventKind.CONNECT, "deny", Reason.LITERAL_ADDRESS, DENIED_ADDRESS, ""),
)
"""Events that the log must have: kind, verdict, reason, host and, for a request, its path."""

_REF_EVENTS: tuple[_Expected, ...] = tuple(
    (EventKind.REF, verdict, reason, demo_repository.HOST, f"refs/heads/{branch}")
    for verdict, reason, branch in (
        ("allow", Reason.RULE, GRANTED),
        ("deny", Reason.REF_NOT_GRANTED, REFUSED),
        ("deny", Reason.DENIED_PATH, POISONED),
    )
)
"""The same for pushes, with the ref in place of the path."""


class DemoClaim(Struct, frozen=True):
    """One claim of the demo, and whether it holds."""

    text: str
    held: bool


def check_claims(shown: DemoRun) -> tuple[DemoClaim, ...]:
    """Every claim of the demo, in the order of the client's attempts.

    If this host has no git that serves a repository, there are no claims about pushes.
    """
    said = dict(line.split("\t", 1) for line in shown.transcript.splitlines() if "\t" in line)
    asked = said.get(f"GET https://{NAME}{ASK}", "")
    echoed = said.get(f"GET https://{NAME}{ECHO}", "")
    denied = said.get(f"GET https://{NAME}{DENIED_PATH}", "")
    stand_in = f"Bearer {shown.placeholder}"
    reached = {one.path for one in shown.received}
    events, pushes = set(_EVENTS), _judge_git(shown, said)
    if pushes:
        events.update(_REF_EVENTS)
    return (
        DemoClaim(
            "the client ran to its end, without a network: it had no interface but lo",
            shown.code == 0 and said.get("network interfaces") == "lo",
        ),
        DemoClaim(
            "its environment held a placeholder in the key's place",
            said.get(f"env {VARIABLE}") == shown.placeholder != shown.key,
        ),
        DemoClaim(
            "the service received the real key, with every request that reached it",
            asked == f"200 {RIGHT}"
            and {ASK, ECHO} <= reached
            and all(one.real_key for one in shown.received),
        ),
        DemoClaim(
            "the service sent the key back, plain and encoded; the client saw the placeholder",
            any(one.path == ECHO and one.key_sent_back for one in shown.received)
            and echoed == f"200 {stand_in}"
            and said.get(DECODED) == stand_in,
        ),
        DemoClaim(
            "a path that no rule names was answered by the gateway and never reached the service",
            denied.startswith("403 ") and DENIED_PATH not in reached,
        ),
        DemoClaim(
            "a gRPC call over HTTP/2 was allowed by its name; another was denied with a reason",
            said.get(f"GRPC {CALL[1:]}") == f"status 0 {RIGHT}"
            and said.get(f"GRPC {DENIED_CALL[1:]}", "").startswith(_CALL_DENIED)
            and CALL in reached
            and DENIED_CALL not in reached,
        ),
        DemoClaim(
            "a host and an address that no rule names were out of reach",
            all(
                said.get(f"GET https://{host}/", "").startswith(_REFUSED)
                for host in (DENIED_HOST, DENIED_ADDRESS)
            ),
        ),
        *pushes,
        DemoClaim(
            "nothing that the client printed holds the key, as it is or encoded",
            shown.placeholder in shown.transcript
            and not holds_key(shown, shown.transcript.encode()),
        ),
        DemoClaim(
            "the audit log is whole, has each of these requests and refusals, and not the key",
            shown.log_whole
            and events <= set(map(_event, shown.entries))
            and not any(holds_key(shown, entry.data) for entry in shown.entries),
        ),
    )


def _judge_git(shown: DemoRun, said: Mapping[str, str]) -> tuple[DemoClaim, ...]:
    """The service's repository shows what a push did; accepted pushes are the control of refused
    ones."""
    before, after = shown.before, shown.after
    if before is None or after is None:
        return ()
    commit, poisoned = said.get(f"{COMMIT}{GRANTED}", ""), said.get(f"{COMMIT}{POISONED}", "")
    unmoved = before.refs.get(demo_repository.MAIN, "")
    arrived = [one for one in shown.received if one.path.endswith("/git-receive-pack")]
    pushed = (
        said.get(f"{PUSH}{GRANTED}", "").startswith("exit 0: ")
        and after.refs.get(f"refs/heads/{GRANTED}", "") == commit
        and commit in after.objects - before.objects
        and [one.real_key for one in arrived] == [True]
    )
    return (
        DemoClaim(
            f"git cloned a repository and pushed {GRANTED}, which the service has now",
            said.get(CLONE, "").startswith("exit 0: ") and pushed,
        ),
        DemoClaim(
            f"git was refused {REFUSED} in its own words, and {REFUSED} did not move",
            pushed
            and _rejected(said, REFUSED)
            and unmoved in before.objects
            and after.refs.get(demo_repository.MAIN) == unmoved,
        ),
        DemoClaim(
            f"a push that adds {WORKFLOW} was refused, and nothing of it reached the service",
            pushed
            and _rejected(said, POISONED)
            and WORKFLOW in said.get(f"{PUSH}{POISONED}", "")
            and poisoned not in after.objects | {""}
            and set(after.refs) == {*before.refs, f"refs/heads/{GRANTED}"},
        ),
    )


def _rejected(said: Mapping[str, str], branch: str) -> bool:
    words = f"exit 1: ! [remote rejected] HEAD -> {branch} (keyhole: "
    return said.get(f"{PUSH}{branch}", "").startswith(words)


def holds_key(shown: DemoRun, data: bytes) -> bool:
    """Whether the real key is in there, as it is, in hex or in base64."""
    return any(spelling in data for spelling in _spellings(shown.key.encode("ascii")))


def _spellings(key: bytes) -> list[bytes]:
    """The spellings of the key. Made independently of those that the gateway searches for, since
    that search is what is judged."""
    found = [key, key.hex().encode(), key.hex().upper().encode()]
    for before in range(3):
        # In base64, the characters at both ends of the key depend on the bytes around it.
        aligned = key[-before % 3 :]
        whole = aligned[: len(aligned) // 3 * 3]
        found += [base64.b64encode(whole), base64.urlsafe_b64encode(whole)]
    return found


def _event(entry: LogEntry) -> _Expected:
    record = entry.record
    if record is None:
        return ("", "", "", "", "")
    path = str(record.details.get("path", record.details.get("ref", "")))
    return (record.kind, record.verdict, record.reason, record.host, path)
