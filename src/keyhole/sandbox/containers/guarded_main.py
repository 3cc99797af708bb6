"""Prints one line instead of a traceback, for our programs in a container, whose output is the
user's.

It imports next to nothing, since everything that it imports is in the sandbox.
"""

import sys

FAILED = 125
"""Exit code of one of our programs after a bug of its own."""


class GuardedMain:
    """A `main` that reports an unexpected exception by type and lines, without its message."""

    def __init__(self, main) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typing is large
        self._main = main

    def __call__(self) -> int:
        """Run it, and return its exit code."""
        try:
            return int(self._main())
        except Exception as error:  # noqa: BLE001 - the last frame of the process
            lines, trace = [], error.__traceback__
            while trace is not None:
                lines.append(str(trace.tb_lineno))
                trace = trace.tb_next
            place = f"{self._main.__module__}, lines {' '.join(lines[1:])}"
            what = f"{type(error).__name__} in {place}"
            sys.stderr.write(f"keyhole: an error in Keyhole itself: {what}\n")
            return FAILED
