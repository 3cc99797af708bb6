"""One line instead of a traceback, for our programs in a container: their output is the person's.

It imports next to nothing, since all that it imports is in the sandbox.
"""

import sys

FAILED = 125
"""Exit code of a program of ours that failed by a fault of its own."""


class Guarded:
    """A `main` that tells an exception nothing expected by its type and lines, not its words."""

    def __init__(self, main) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typing is large
        self._main = main

    def __call__(self) -> int:
        """Run it; its exit code."""
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
