"""Marks names that a person may take for another one that the policy knows.

Used where a person is asked about a host. A mark never decides anything.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from keyhole.model.text import runs_backwards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.policy import Policy

_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "5": "s", "-": "", "_": ""})
"""Characters that are read as another one in most fonts."""
_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))
"""Letters that are read as one."""

MAX_COMPARED = 2000
"""Known names that one is compared with (I9)."""

MIN_LETTERS = 6
"""Letters from which on a name is compared: short ones are one letter from everything."""


def host_marks(host: str, policy: Policy) -> tuple[str, ...]:
    """What a person should look at twice in this name, in words."""
    found = []
    if any(label.startswith("xn--") for label in host.split(".")):
        found.append("the name has letters of another script")
    spellings = _Spellings(host)
    similar = next((known for known in _known(policy) if spellings.are_close_to(known)), None)
    if similar is not None:
        found.append(f"the name looks like {similar}")
    return tuple(found)


def text_marks(*texts: str) -> tuple[str, ...]:
    """The same of a path or a ref."""
    if any(map(runs_backwards, texts)):
        return ("letters that are written from right to left are shown as codes",)
    if not all(map(str.isascii, texts)):
        return ("it has letters of another script, which may look like others",)
    return ()


def _known(policy: Policy) -> Iterable[str]:
    names = [pattern.name for pattern in policy.allow]
    names += [pattern.name for service in policy.services for pattern in service.patterns]
    return dict.fromkeys(name.removeprefix("*.") for name in names[:MAX_COMPARED])


class _Spellings:
    """A name and the ends of it, each with how it reads. They are made once, and compared with many
    names: a sandbox chooses how often (I12)."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._labels = host.split(".")
        self._ends: dict[int, tuple[str, str]] = {}
        self._whole = (host, _reading(host))

    def are_close_to(self, known: str) -> bool:
        """Whether the two differ, and by a letter or by letters that look alike; also where the
        known one is the end or the beginning of a longer name that its owner does not have, and
        where the name is below one that is close."""
        host = self._host
        if host == known or host.endswith("." + known) or len(known) < MIN_LETTERS:
            return False
        if host.endswith(known) or host.startswith((known + ".", known + "-")):
            return True
        return _is_like(*self._whole, known) or _is_like(*self._end(known.count(".") + 1), known)

    def _end(self, count: int) -> tuple[str, str]:
        """The last labels: the name above, if it is longer."""
        if count not in self._ends:
            name = ".".join(self._labels[-count:])
            self._ends[count] = (name, _reading(name))
        return self._ends[count]


def _is_like(name: str, reading: str, known: str) -> bool:
    if reading == _known_reading(known):
        return True
    return -1 <= len(name) - len(known) <= 1 and _within_one_edit(name, known)


def _reading(name: str) -> str:
    """The name in letters that stand for all that look like them."""
    name = name.translate(_ALIKE)
    for pair, letter in _PAIRS:
        name = name.replace(pair, letter)
    return name


_known_reading = lru_cache(2 * MAX_COMPARED)(_reading)


def _within_one_edit(one: str, two: str) -> bool:
    """Whether a letter was exchanged, added, left out, or swapped with its neighbour; their lengths
    differ by one at most."""
    if len(one) > len(two):
        one, two = two, one
    at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    if len(one) != len(two):
        return one[at:] == two[at + 1 :]
    swapped = one[at : at + 2] == two[at : at + 2][::-1] and one[at + 2 :] == two[at + 2 :]
    return one[at + 1 :] == two[at + 1 :] or swapped
