"""The command of a sandbox that was given none: it waits until it is ended.

It is one of our programs, so every image has it. Keys on an attached terminal do not end it.
"""

import _signal as signal  # type: ignore[import-not-found]

from keyhole.sandbox.containers.guarded_main import GuardedMain


@GuardedMain
def main() -> int:
    """Wait for SIGTERM, or for the end of the holder."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()
