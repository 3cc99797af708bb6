"""What a run of the demo must show, each claim judged by what was seen (I10).

Called by `cli/demo.py`. It looks at what others wrote down and touches nothing: the client cannot
know the real key and the service cannot know the placeholder, so neither is asked whether it saw
the other's. What was not seen does not hold.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from keyhole.app.demo import DECODED, DENIED_ADDRESS, DENIED_HOST, DENIED_PATH, VARIABLE
from keyhole.app.demoservice import ASK, ECHO, NAME, RIGHT
from keyhole.gateway.refusal import SECRET_SCRUBBED
from keyhole.model.decision import Reason
from keyhole.model.event import EventKind
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.app.demo import Shown
    from keyhole.audit.read import Entry

_REFUSED = "refused: "

_EVENTS = (
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ASK),
    (EventKind.REQUEST, "allow", Reason.RULE, NAME, ECHO),
    (EventKind.REQUEST, "allow", SECRET_SCRUBBED, NAME, ECHO),
    (EventKind.REQUEST, "deny", Reason.NO_RULE, NAME, DENIED_PATH),
    (EventKind.DNS, "deny", Reason.NO_RULE, DENIED_HOST, ""),
    (EventKind.CONNECT, "deny", Reason.LITERAL_ADDRESS, DENIED_ADDRESS, ""),
)
"""What the log must have: kind, verdict, reason, host and, of a request, its path."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that the demo says, and whether it was so."""

    text: str
    held: bool


def judge(shown: Shown) -> tuple[Claim, ...]:
    """Every claim of the demo, in the order in which the client came by them."""
    said = dict(line.split("\t", 1) for line in shown.transcript.splitlines() if "\t" in line)
    asked = said.get(f"GET https://{NAME}{ASK}", "")
    echoed = said.get(f"GET https://{NAME}{ECHO}", "")
    denied = said.get(f"GET https://{NAME}{DENIED_PATH}", "")
    stand_in = f"Bearer {shown.placeholder}"
    reached = {one.path for one in shown.received}
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
        Claim(
            "nothing that the client printed holds the key, as it is or encoded",
            shown.placeholder in shown.transcript
            and not holds_key(shown, shown.transcript.encode()),
        ),
        Claim(
            "the audit log is whole, has each of these requests and refusals, and not the key",
            shown.log_whole
            and set(_EVENTS) <= set(map(_event, shown.entries))
            and not any(holds_key(shown, entry.data) for entry in shown.entries),
        ),
    )


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


def _event(entry: Entry) -> tuple[str, str, str, str, str]:
    record = entry.record
    if record is None:
        return ("", "", "", "", "")
    path = str(record.details.get("path", ""))
    return (record.kind, record.verdict, record.reason, record.host, path)
