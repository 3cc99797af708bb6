"""Marks names that a person may take for another one that the policy knows.

Used where a person is asked about a host. A mark never decides anything.
"""

from __future__ import annotations

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
    similar = next((known for known in _known(policy) if _is_close(host, known)), None)
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


def _is_close(host: str, known: str) -> bool:
    """Whether the two differ, and by a letter or by letters that look alike; also where the known
    one is the end or the beginning of a longer name that its owner does not have, and where the
    name is below one that is close."""
    if host == known or host.endswith("." + known):
        return False
    if len(known) < MIN_LETTERS:
        return False
    if host.endswith(known) or host.startswith((known + ".", known + "-")):
        return True
    above = ".".join(host.split(".")[-known.count(".") - 1 :])
    return any(_reads_as(name, known) or _within_one_edit(name, known) for name in (host, above))


def _reads_as(one: str, two: str) -> bool:
    one, two = one.translate(_ALIKE), two.translate(_ALIKE)
    for pair, letter in _PAIRS:
        one, two = one.replace(pair, letter), two.replace(pair, letter)
    return one == two


def _within_one_edit(one: str, two: str) -> bool:
    """Whether a letter was exchanged, added, left out, or swapped with its neighbour."""
    if abs(len(one) - len(two)) > 1:
        return False
    if len(one) > len(two):
        one, two = two, one
    at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    if len(one) != len(two):
        return one[at:] == two[at + 1 :]
    swapped = one[at : at + 2] == two[at : at + 2][::-1] and one[at + 2 :] == two[at + 2 :]
    return one[at + 1 :] == two[at + 1 :] or swapped
