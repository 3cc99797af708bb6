"""What a sandbox does that was given no command: nothing, until it is ended.

A program of the kit, so that it is there in any image. A terminal that is attached to it does not
end it by its keys.
"""

import _signal as signal  # type: ignore[import-not-found]

from keyhole.sandbox.containers.guarded import Guarded


@Guarded
def main() -> int:
    """Wait for SIGTERM, or for the end of the holder."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()
