"""Unexpected exceptions: described for a person and for a report, never shown as a traceback.

`cli` installs a handler for its process; `app/processes/child.py` guards the processes beside a
gateway. An exception's message may quote a request or a secret, so a description leaves it out,
except for types whose message names code and nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from keyhole.system.startup import leave

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

EXIT_FAULT = 125
"""The exit code of a process of Keyhole that failed by a fault of its own."""

MAX_FRAMES = 60
"""Frames of one exception that a report lists: a recursion has a thousand alike."""

_NAMING_CODE = (NameError, AttributeError, ImportError, NotImplementedError, RecursionError)
"""Types whose message names code, never a value. KeyError and ValueError quote values."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_handler: Callable[[BaseException], object] | None = None


_Frame: TypeAlias = tuple[str, int, str]
"""The file, line and function of a frame."""


def describe(error: BaseException) -> str:
    """The type, and the place in Keyhole's own code where it came from."""
    frames = _frames(error)
    own = [frame for frame in frames if frame[0].startswith(_PACKAGE)]
    if not frames:
        return type(error).__name__
    frame = (own or frames)[-1]
    return f"{type(error).__name__} at {_place(frame)}"


def mention(error: BaseException) -> str:
    """The same within a longer message."""
    return f"an error in Keyhole itself, {describe(error)}"


def explain(error: BaseException) -> str:
    """All that a developer needs, and no value: types, files, lines and functions of the chain."""
    told: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        told.append(f"{type(link).__module__}.{type(link).__qualname__}{_words(link)}")
        frames = _frames(link)
        left_out = len(frames) - MAX_FRAMES
        if left_out > 0:
            told.append(f"  ({left_out} outer frames are left out)")
        told += [f"  {_place(frame)}, in {frame[2]}" for frame in frames[-MAX_FRAMES:]]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if link is not None:
            told.append("after")
    return "\n".join(told) + "\n"


def install(handler: Callable[[BaseException], object]) -> None:
    """Have `handler` called for every unexpected exception of this process."""
    global _handler
    _handler = handler
    sys.excepthook = lambda _, error, __: handler(error)
    sys.unraisablehook = lambda caught: _unless_ended(caught.exc_value)
    threading.excepthook = lambda caught: _unless_ended(caught.exc_value)


def report(error: BaseException) -> None:
    """Hand an unexpected exception to the handler; without one, print it as Python does."""
    if _handler is not None:
        _handler(error)
    else:
        sys.__excepthook__(type(error), error, error.__traceback__)


def describe_loop_fault(context: dict[str, Any]) -> str:
    """An event loop's complaint, without the message of the exception."""
    error = context.get("exception")
    what = describe(error) if isinstance(error, BaseException) else "unknown"
    return f"an error in Keyhole itself: {context.get('message')}: {what}"


def report_loop_fault(_: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an event loop's complaint; set it as the loop's exception handler."""
    error = context.get("exception")
    report(error if error is not None else RuntimeError(context.get("message", "")))


def run_guarded(main: Callable[[], int | None], name: str) -> NoReturn:
    """Run `main`; report an unexpected exception in one line on standard error."""

    def say(error: BaseException) -> None:
        line = f"keyhole: an error in Keyhole itself, in {name}: {describe(error)}\n"
        os.write(2, line.encode("ascii", "backslashreplace"))

    install(say)
    try:
        code = main() or 0
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        say(error)
        code = EXIT_FAULT
    leave(code)


def _unless_ended(error: BaseException | None) -> None:
    if error is not None and not isinstance(error, SystemExit):
        report(error)


def _frames(error: BaseException) -> list[_Frame]:
    # Not by `traceback`, which reads source lines: files may have changed under a long-lived
    # process.
    found: list[_Frame] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return found


def _place(frame: _Frame) -> str:
    path, line, _ = frame
    if path.startswith(_PACKAGE):
        path = os.path.relpath(path, os.path.dirname(_PACKAGE))
    else:
        path = os.path.join(*path.split(os.sep)[-2:])
    return f"{path}:{line}"


def _words(error: BaseException) -> str:
    if isinstance(error, _NAMING_CODE):
        return f": {error}"
    if isinstance(error, OSError) and error.errno:
        return f": {os.strerror(error.errno)}"
    return ": (its words are left out, since they may quote a value)"
