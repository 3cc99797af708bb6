"""Finds passwords in command lines that are behind a short flag of a known program.

Agents note commands that a person has permitted: `Bash(mysql -phunter2 shop:*)`. No name tells what
such a value is, so the programs are listed with their flags. Used by `credential_patterns.py`.
"""

from __future__ import annotations

from msgspec import Struct


class PasswordFlag(Struct, frozen=True):
    """A flag whose value is a password."""

    flag: str
    apart: bool = True
    """Whether the value may be the next word."""
    after: str = ""
    """The character in the value behind which the password begins; empty: all of it is one."""


_MYSQL = (PasswordFlag("-p", apart=False),)
_USER = (PasswordFlag("-u", after=":"), PasswordFlag("--user", after=":"))
_FLAGS = {
    **dict.fromkeys(
        "mysql mysqldump mysqladmin mysqlimport mysqlshow mariadb mariadb-dump mycli".split(),
        _MYSQL,
    ),
    **dict.fromkeys(
        ("sshpass", "docker", "podman", "helm", "mongosh", "mongo", "mongodump"),
        (PasswordFlag("-p"),),
    ),
    **dict.fromkeys(("redis-cli", "valkey-cli"), (PasswordFlag("-a"),)),
    **dict.fromkeys(("curl", "xh"), _USER),
    "http": (PasswordFlag("-a", after=":"),),
    "https": (PasswordFlag("-a", after=":"),),
    "ldapsearch": (PasswordFlag("-w"),),
    "smbclient": (PasswordFlag("-U", after="%"),),
    "sqlcmd": (PasswordFlag("-P"),),
}
_LOGIN_ONLY = frozenset({"docker", "podman", "helm"})
"""Their `-p` is a port or a profile, except in `login`."""
_APART = str.maketrans(dict.fromkeys("()'\"`,;|&", " "))
_REFERENCE = frozenset("$<{%*")


def finds_password(text: str) -> bool:
    """Whether a known program in this text is given a password."""
    words = text.translate(_APART).split()
    program = ""
    logs_in = False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name = word.rpartition("/")[2].removesuffix(":*")
        if name in _FLAGS:
            program, logs_in = name, name not in _LOGIN_ONLY
            continue
        logs_in = logs_in or word == "login"
        if program and logs_in and any(_has(flag, word, following) for flag in _FLAGS[program]):
            return True
    return False


def _has(flag: PasswordFlag, word: str, following: str) -> bool:
    value = ""
    if word == flag.flag:
        value = following if flag.apart else ""
    elif word.startswith(flag.flag):
        value = word.removeprefix(flag.flag).removeprefix("=")
    value = value.removesuffix(":*")
    if flag.after:
        value = value.partition(flag.after)[2]
    return bool(value) and value[0] not in _REFERENCE and not value.startswith("-")
