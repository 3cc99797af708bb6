"""The one error that parsing into the vocabulary raises.

Raised by `parse` functions of this room, caught by whoever holds the position of the text
(the policy reader, the command line, the door).
"""


class Unparsable(ValueError):
    """A text that is not the canonical form of what it claims to be.

    `hint` is what to write instead, where that can be said.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
