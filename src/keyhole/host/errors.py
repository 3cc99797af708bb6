"""The one error of this room: a preset that the host's own settings cannot fill.

Raised by the learners, caught by `app`, which shows the message: it says what to do instead.
"""


class NotFound(Exception):
    """The host does not say which hosts this preset stands for."""

    def __init__(self, preset: str, message: str) -> None:
        super().__init__(message)
        self.preset = preset
        self.message = message
