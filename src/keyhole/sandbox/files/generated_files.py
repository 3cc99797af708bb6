"""The few files of /etc that are generated for the sandbox. Pure.

The host's own files would reveal its accounts and networks.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.errors import Refused
from keyhole.sandbox.files.mount_plan import TextFile

NAMESERVER = "192.0.2.53"
"""Every address answers DNS inside. Not loopback, whose TCP the door does not capture; not one of
198.18.0.0/15, which stand for names; a documentation address belongs to no host (RFC 5737)."""

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\Z", re.IGNORECASE)
_OVERFLOW = 65534
"""The uid and gid by which the kernel shows unmapped owners."""


class Account(Struct, frozen=True):
    """The account of the sandboxed code, inside."""

    user: str
    uid: int
    gid: int
    home: str
    shell: str = "/bin/sh"


class ImageAccounts(Struct, frozen=True):
    """An image's own passwd and group files, as texts."""

    passwd: str
    group: str


def generated_files(account: Account, hostname: str) -> tuple[TextFile, ...]:
    """Accounts, name service and host name."""
    _refuse_unfit(account)
    return (
        TextFile("/etc/passwd", _passwd(account)),
        TextFile("/etc/group", _group(account)),
        TextFile("/etc/nsswitch.conf", _NSSWITCH),
        *_network_files(hostname),
    )


def image_files(account: Account, hostname: str, known: ImageAccounts) -> tuple[TextFile, ...]:
    """The same on top of an image: its own accounts stay, except one with the same number."""
    _refuse_unfit(account)
    own = f"{account.user}:x:{account.uid}:{account.gid}::{account.home}:{account.shell}"
    others = [line for line in known.passwd.splitlines() if _number(line) != str(account.uid)]
    groups = known.group.splitlines()
    if not any(_number(line) == str(account.gid) for line in groups):
        groups.append(f"{account.user}:x:{account.gid}:")
    # First, so that a lookup of this name finds it before an account of the image.
    files = (
        TextFile("/etc/passwd", "".join(f"{line}\n" for line in (own, *others))),
        TextFile("/etc/group", "".join(f"{line}\n" for line in groups)),
        *_network_files(hostname),
    )
    return tuple(replace(file, guards=False) for file in files)  # they cover no secret


def _number(line: str) -> str:
    return line.split(":")[2] if line.count(":") >= 2 else ""


def _refuse_unfit(account: Account) -> None:
    # A colon or a line break would write an account of its own.
    if not _NAME.match(account.user) or re.search(r"[:\n]", account.home + account.shell):
        raise Refused(f"the user {account.user!r} with home {account.home!r} fits no passwd file")


def _network_files(hostname: str) -> tuple[TextFile, ...]:
    return (
        TextFile("/etc/resolv.conf", f"nameserver {NAMESERVER}\n"),
        TextFile("/etc/hosts", f"127.0.0.1 localhost {hostname}\n::1 localhost\n"),
        TextFile("/etc/hostname", f"{hostname}\n"),
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
