"""Memory of a process that serves sessions: how often Python looks for reference cycles, and what
the C library returns to the kernel.

Called by the data planes when they begin to serve. A verb has its own number of objects
(`startup.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""A judged body of 200 KiB has some 800 objects and arrays. With Python's own number, 700, each
such body starts a collection, which takes a tenth of the time that judging takes. Connections and
requests leave no reference cycles behind, so a collection finds nothing. One of 10,000 objects
holds the loop for a millisecond (I12)."""

LARGEST_ON_HEAP = 1 << 20
"""Bytes of a block that is not mapped for itself: those of a body that is judged in memory."""

FREE_ON_HEAP = 4 << 20
"""Free bytes at the heap's end that the process keeps. By glibc's own number, each judged body
would get its memory from the kernel, which fills it with zeros, and return it."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def prepare_memory() -> None:
    """Set these numbers for this process."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    with contextlib.suppress(AttributeError):  # musl has no such function
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_ON_HEAP)
        mallopt(_M_TRIM_THRESHOLD, FREE_ON_HEAP)
