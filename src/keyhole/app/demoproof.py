"""What a run of the demo must show, each claim judged by what was seen (I10).

Called by `cli/demo.py`. It looks at what others wrote down and touches nothing: the client cannot
know the real key and the service cannot know the placeholder, so neither is asked whether it saw
the other's. What was not seen does not hold.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from keyhole.app import demorepository
from keyhole.app.democlient import (
    CLONE,
    COMMIT,
    DECODED,
    DENIED_ADDRESS,
    DENIED_HOST,
    DENIED_PATH,
    GRANTED,
    POISONED,
    PUSH,
    REFUSED,
    VARIABLE,
    WORKFLOW,
)
from keyhole.app.demoservice import ASK, ECHO, NAME, RIGHT
from keyhole.gateway.refusal import SECRET_SCRUBBED
from keyhole.model.decision import Reason
from keyhole.model.event import EventKind
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.demo import Shown
    from keyhole.audit.read import Entry

_REFUSED = "refused: "

_Expected = tuple[str, str, str, str, str]

_EVENTS: tuple[_Expected, ...] = (
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ASK),
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ECHO),
    (EventKind.REQUEST, "allow", SECRET_SCRUBBED, NAME, ECHO),
    (EventKind.REQUEST, "deny", Reason.NO_RULE, NAME, DENIED_PATH),
    (EventKind.DNS, "deny", Reason.NO_RULE, DENIED_HOST, ""),
    (EventKind.CONNECT, "deny", Reason.LITERAL_ADDRESS, DENIED_ADDRESS, ""),
)
"""What the log must have: kind, verdict, reason, host and, of a request, its path."""

_REF_EVENTS: tuple[_Expected, ...] = tuple(
    (EventKind.REF, verdict, reason, demorepository.HOST, f"refs/heads/{branch}")
    for verdict, reason, branch in (
        ("allow", Reason.RULE, GRANTED),
        ("deny", Reason.REF_NOT_GRANTED, REFUSED),
        ("deny", Reason.DENIED_PATH, POISONED),
    )
)
"""The same of pushes, with the ref for a path."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that the demo says, and whether it was so."""

    text: str
    held: bool


def judge(shown: Shown) -> tuple[Claim, ...]:
    """Every claim of the demo, in the order in which the client came by them.

    Where this host has no git that serves a repository, nothing is said of pushes.
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
        Claim(
            "the client ran to its end, without a network: it had no interface but lo",
            shown.code == 0 and said.get("network interfaces") == "lo",
        ),
        Claim(
            "its environment held a placeholder in the key's place",
            said.get(f"env {VARIABLE}") == shown.placeholder != shown.key,
        ),
        Claim(
            "the service received the real key, with every request that reached it",
            asked == f"200 {RIGHT}"
            and {ASK, ECHO} <= reached
            and all(one.real_key for one in shown.received),
        ),
        Claim(
            "the service sent the key back, plain and encoded; the client saw the placeholder",
            any(one.path == ECHO and one.key_sent_back for one in shown.received)
            and echoed == f"200 {stand_in}"
            and said.get(DECODED) == stand_in,
        ),
        Claim(
            "a path that no rule names was answered by the gateway and never reached the service",
            denied.startswith("403 ") and DENIED_PATH not in reached,
        ),
        Claim(
            "a host and an address that no rule names were out of reach",
            all(
                said.get(f"GET https://{host}/", "").startswith(_REFUSED)
                for host in (DENIED_HOST, DENIED_ADDRESS)
            ),
        ),
        *pushes,
        Claim(
            "nothing that the client printed holds the key, as it is or encoded",
            shown.placeholder in shown.transcript
            and not holds_key(shown, shown.transcript.encode()),
        ),
        Claim(
            "the audit log is whole, has each of these requests and refusals, and not the key",
            shown.log_whole
            and events <= set(map(_event, shown.entries))
            and not any(holds_key(shown, entry.data) for entry in shown.entries),
        ),
    )


def _judge_git(shown: Shown, said: Mapping[str, str]) -> tuple[Claim, ...]:
    """What a push did is read on the service's side; what got through is the others' control."""
    before, after = shown.before, shown.after
    if before is None or after is None:
        return ()
    commit, poisoned = said.get(f"{COMMIT}{GRANTED}", ""), said.get(f"{COMMIT}{POISONED}", "")
    unmoved = before.refs.get(demorepository.MAIN, "")
    arrived = [one for one in shown.received if one.path.endswith("/git-receive-pack")]
    pushed = (
        said.get(f"{PUSH}{GRANTED}", "").startswith("exit 0: ")
        and after.refs.get(f"refs/heads/{GRANTED}", "") == commit
        and commit in after.objects - before.objects
        and [one.real_key for one in arrived] == [True]
    )
    return (
        Claim(
            f"git cloned a repository and pushed {GRANTED}, which the service has now",
            said.get(CLONE, "").startswith("exit 0: ") and pushed,
        ),
        Claim(
            f"git was refused {REFUSED} in its own words, and {REFUSED} did not move",
            pushed
            and _rejected(said, REFUSED)
            and unmoved in before.objects
            and after.refs.get(demorepository.MAIN) == unmoved,
        ),
        Claim(
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


def holds_key(shown: Shown, data: bytes) -> bool:
    """Whether the real key is in there, as it is, in hex or in base64."""
    return any(spelling in data for spelling in _spellings(shown.key.encode("ascii")))


def _spellings(key: bytes) -> list[bytes]:
    """Made apart from those that answers are searched for, since that search is what is judged."""
    found = [key, key.hex().encode(), key.hex().upper().encode()]
    for before in range(3):
        # Bytes before and after the key have a part in the characters at its ends.
        aligned = key[-before % 3 :]
        whole = aligned[: len(aligned) // 3 * 3]
        found += [base64.b64encode(whole), base64.urlsafe_b64encode(whole)]
    return found


def _event(entry: Entry) -> _Expected:
    record = entry.record
    if record is None:
        return ("", "", "", "", "")
    path = str(record.details.get("path", record.details.get("ref", "")))
    return (record.kind, record.verdict, record.reason, record.host, path)
