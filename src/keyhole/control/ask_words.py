"""A question of a sandbox in words, for every list, screen and message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.text import in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.control.values import AskView

_PERIODS = {"session": "in this session", "day": "today", "month": "in this month"}

MAX_SHOWN = 160
"""Characters of a path, ref or rule where lines are short."""


def ask_words(ask: AskView) -> str:
    """All that a yes allows; it begins with a verb of ours, never with a text of the sandbox (I8).

    Attack: a path whose first part is harmless, and whose end, which is not shown, is not. A person
    decides by these words; `ask_summary` is for what was decided, and for tables beside them.
    """
    return _words(ask, in_order)


def ask_summary(ask: AskView) -> str:
    """The same with long texts cut in their middle."""
    return _words(ask, lambda text: shorten(in_order(text)))


def shorten(text: str) -> str:
    """The beginning and the end of a long text, and between them how much is left out."""
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]}… ({len(text) - 2 * half} characters more) …{text[-half:]}"


def _words(ask: AskView, show: Callable[[str], str]) -> str:
    host = in_order(ask.host)
    if ask.kind == "hosts":
        return f"connect to {host}:{ask.port}"
    if ask.kind == "requests":
        by = f", with the credential of {in_order(ask.service)}" if ask.service else ""
        return f"request {show(ask.rule)} of {host}{by}"
    if ask.kind == "budgets":
        period = _PERIODS.get(ask.method, "")
        return f"spend more than {show(ask.path)} {period} at {in_order(ask.service)}"
    return f"push ({in_order(ask.method)}) {show(ask.ref)} to {host}/{show(ask.path)}"
