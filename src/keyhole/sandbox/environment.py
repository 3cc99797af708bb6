"""The sandbox's environment: built from scratch, with the variables that the policy names (I1).
Pure.

Called by `app`, which adds the placeholders of services afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.files.credential_patterns import name_looks_secret, value_looks_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.policy.policy import Sandbox

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PASSED = frozenset(
    """TERM COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION LANG LANGUAGE TZ COLUMNS LINES NO_COLOR
    FORCE_COLOR CLICOLOR CLICOLOR_FORCE COLORFGBG CI""".split()
)
MAX_PLAIN = 256
"""Characters of a variable that is passed without being asked for: none of them needs more."""


def build_environment(
    sandbox: Sandbox,
    outer: Mapping[str, str],
    home: str,
    user: str,
    path: str = PATH,
    shell: str = "/bin/sh",
) -> dict[str, str]:
    """The command's environment. Raises Refused if the policy would hand it a credential."""
    found = {
        name: value
        for name, value in outer.items()
        if (name in _PASSED or name.startswith("LC_"))
        and len(value) <= MAX_PLAIN
        and value.isprintable()
        and not value_looks_secret(value)
    }
    for name in sandbox.pass_env:
        if name in outer:
            _refuse_credential(name, outer[name], "sandbox.pass_env")
            found[name] = outer[name]
    for name, value in sandbox.env:
        _refuse_credential(name, value, "sandbox.env")
        found[name] = _with_home(value, home)
    # The policy may set PATH inside; it may not set the user or the home.
    found.setdefault("PATH", path)
    return found | {"HOME": home, "USER": user, "LOGNAME": user, "SHELL": shell}


def _with_home(value: str, home: str) -> str:
    """The value with `~` replaced at its start and after a colon, as a shell assigns it."""
    parts = value.split(":")
    return ":".join(home + p[1:] if p == "~" or p.startswith("~/") else p for p in parts)


def _refuse_credential(name: str, value: str, key: str) -> None:
    shown = f"{key} {visible(name)}"
    advice = (
        "a credential inside the sandbox can be taken. Name its service under [services] instead: "
        "the gateway adds it to requests outside"
    )
    if name_looks_secret(name):
        raise Refused(f"{shown} looks like a credential by its name; {advice}")
    # The value is never shown: standard error may be a log.
    if what := value_looks_secret(value):
        raise Refused(f"{shown} holds {what}; {advice}")
