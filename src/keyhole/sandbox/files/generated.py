"""The few files of /etc that are written for the sandbox rather than shown from the host. Pure.

The host's own would tell who has accounts here and which networks it belongs to.
"""

from __future__ import annotations

import re

from keyhole.model.value import dataclass, replace
from keyhole.sandbox.files.fileplan import Refused, Text

NAMESERVER = "192.0.2.53"
"""Every address answers DNS inside. Not loopback, whose TCP the door does not capture; not one of
198.18.0.0/15, which stand for names; a documentation address is nobody's (RFC 5737)."""

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\Z", re.IGNORECASE)
_OVERFLOW = 65534
"""What files of unmapped owners seem to belong to."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who the sandboxed code is, inside."""

    user: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Accounts:
    """An image's own passwd and group files, as texts."""

    passwd: str
    group: str


def generated_files(account: Account, hostname: str) -> tuple[Text, ...]:
    """Accounts, name service and host name."""
    _refuse_unfit(account)
    return (
        Text("/etc/passwd", _passwd(account)),
        Text("/etc/group", _group(account)),
        Text("/etc/nsswitch.conf", _NSSWITCH),
        *_network_files(hostname),
    )


def image_files(account: Account, hostname: str, known: Accounts) -> tuple[Text, ...]:
    """The same over an image, whose own accounts stay, but for one of the same number."""
    _refuse_unfit(account)
    own = f"{account.user}:x:{account.uid}:{account.gid}::{account.home}:{account.shell}"
    others = [line for line in known.passwd.splitlines() if _number(line) != str(account.uid)]
    groups = known.group.splitlines()
    if not any(_number(line) == str(account.gid) for line in groups):
        groups.append(f"{account.user}:x:{account.gid}:")
    # First, so that a name which the image gives to another finds this one.
    files = (
        Text("/etc/passwd", "".join(f"{line}\n" for line in (own, *others))),
        Text("/etc/group", "".join(f"{line}\n" for line in groups)),
        *_network_files(hostname),
    )
    return tuple(replace(file, guards=False) for file in files)  # what is under them is no secret


def _number(line: str) -> str:
    return line.split(":")[2] if line.count(":") >= 2 else ""


def _refuse_unfit(account: Account) -> None:
    # A colon or a line break would write an account of its own.
    if not _NAME.match(account.user) or re.search(r"[:\n]", account.home + account.shell):
        raise Refused(f"the user {account.user!r} with home {account.home!r} fits no passwd file")


def _network_files(hostname: str) -> tuple[Text, ...]:
    return (
        Text("/etc/resolv.conf", f"nameserver {NAMESERVER}\n"),
        Text("/etc/hosts", f"127.0.0.1 localhost {hostname}\n::1 localhost\n"),
        Text("/etc/hostname", f"{hostname}\n"),
    )


_NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
"""


def _passwd(account: Account) -> str:
    people = {
        0: "root:x:0:0:root:/root:/usr/sbin/nologin",
        _OVERFLOW: "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    }
    own = (account.user, "x", str(account.uid), str(account.gid), "", account.home, account.shell)
    people[account.uid] = ":".join(own)
    return "".join(f"{line}\n" for _, line in sorted(people.items()))


def _group(account: Account) -> str:
    groups = {0: "root:x:0:", _OVERFLOW: "nogroup:x:65534:"}
    groups.setdefault(account.gid, f"{account.user}:x:{account.gid}:")
    return "".join(f"{line}\n" for _, line in sorted(groups.items()))
