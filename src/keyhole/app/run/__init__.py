"""One run: `keyhole run` from the prepared launch to the exit code."""
