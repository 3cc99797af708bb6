"""The base of every error, and the errors that several rooms raise, by whose fault it is.

`cli/errors.py` alone turns an error into words on a terminal and an exit code. An error that only
one room raises is defined in that room and derives from one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.model.decision import Decision


class KeyholeError(Exception):
    """Keyhole did not do what it was asked for. The text is for a person and holds no secret."""

    reason: str = "failed"
    """A stable code, for programs: one of `Reason` where a client reads it. `cli/errors.py` maps it
    to an exit code."""

    def __init__(
        self, message: str = "", hint: str | None = None, *, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """The hint what to type or to write instead, if there is one."""
        if reason is not None:
            self.reason = reason

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @property
    def summary(self) -> str:
        """One line, to be read below the details."""
        return str(self)

    @property
    def details(self) -> tuple[str, ...]:
        """Texts that are shown before the summary, safe for a terminal."""
        return ()


class Unparsable(KeyholeError, ValueError):
    """The author's fault: a text is not the canonical form of what it claims to be.

    Raised by `parse` functions of this room, and caught where the position of the text is known
    (the policy reader, the command line, the door).
    """

    reason = "unparsable"

    def __str__(self) -> str:
        return self.message  # each reader of the text shows the hint in its own place


class Malformed(KeyholeError):
    """The peer's fault: bytes that do not follow their protocol. The message is a sentence without
    any of them."""

    reason = "malformed"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RequestUnfit(KeyholeError):
    """The client's fault: a request that cannot be sent on, though no rule denies it."""

    def __init__(self, reason: str, message: str = "", rule: str = "") -> None:
        super().__init__(message, reason=reason)
        self.rule = rule
        """The limit or grant that decided, if it is not the request's rule."""


class ResponseUnfit(KeyholeError):
    """The origin's fault: a response that must not be passed on."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message, reason=reason)


class Refused(KeyholeError):
    """For the person to change: the policy, the project or the command line asks for something that
    Keyhole does not do."""

    reason = "refused"


class ResourceUnusable(KeyholeError):
    """The host's fault: a program, file or directory that Keyhole needs is missing or unusable."""

    reason = "resource-unusable"


class UpstreamFailed(KeyholeError):
    """The fault of the network or of another host: it cannot be reached or verified, or its answer
    cannot be used. If policy or a share forbids it, `decision` says so."""

    def __init__(self, reason: str, message: str, decision: Decision | None = None) -> None:
        super().__init__(message, reason=reason)
        self.decision = decision


class CredentialUnusable(KeyholeError):
    """The fault of a secret or its issuer: no credential can be made. The message contains nothing
    of it."""

    reason = "credential-unavailable"


class OverLimit(KeyholeError):
    """The session's fault: a limit or a share is used up (I9, I12); `decision` says which."""

    def __init__(self, decision: Decision, message: str = "") -> None:
        super().__init__(message or decision.rule, reason=decision.reason)
        self.decision = decision


class SetupFailed(KeyholeError):
    """The fault of Keyhole or the kernel: a gateway or the walls of a sandbox could not be made, or
    do not stand. Nothing untrusted has run, unless the reason is SANDBOX_LOST."""

    reason = "setup-failed"


SANDBOX_LOST = "sandbox-lost"
"""The sandbox ran, and the process that supervised it is gone: it was ended, and how it ended is
not known."""


class Misuse(Exception):
    """Keyhole's own fault: a step that the code must not make, such as one that a table of states
    does not have. No caller handles it; it ends as a fault, with a report and no message for a
    person."""
