"""The key of `sandbox.sign`, and the program inside that git runs to sign with it.

Used when a run is prepared, and by the process that signs. The private key is not read here, nor
anywhere in Keyhole: `ssh-keygen` or `gpg` finds it (I1).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.policy.signing import SIGNING_ADDRESS
from keyhole.system.symlinks import follow
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.policy.policy import Policy

MAX_KEY = 16 * 1024
"""Bytes of a public key or a signature: one by RSA with 16,384 bits has 6 KiB."""

KEYRING_FILES = (
    "gpg.conf", "gpg-agent.conf", "common.conf", "scdaemon.conf", "keyboxd.conf", "dirmngr.conf",
    "private-keys-v1.d", "pubring.kbx", "pubring.gpg", "public-keys.d", "trustdb.gpg",
)  # fmt: skip
"""What gpg and its agent read in their directory, each of which may be a link of the person's."""

_ASK = """\
def ask(commit):
    answer = b""
    try:
        with socket.socket() as door:
            door.settimeout(90)
            door.connect({address!r})
            door.sendall(len(commit).to_bytes(4, "big") + commit)
            while piece := door.recv(65536):
                answer += piece
    except OSError as error:
        answer = answer or b"no\\n" + str(error).encode()
    said, _, rest = answer.partition(b"\\n")
    if said != b"ok":
        sys.exit("keyhole: not signed: " + rest.decode("utf-8", "replace"))
    return rest
"""

_SSH = """\
# Stands in for ssh-keygen: has Keyhole sign a commit. The key is not in this sandbox.
import os, socket, sys

{ask}
words = sys.argv[1:]
if "sign" not in words:
    os.execvp("ssh-keygen", ["ssh-keygen", *words])
with open(words[-1], "rb") as file:
    commit = file.read()
signature = ask(commit)
with open(words[-1] + ".sig", "wb") as file:
    file.write(signature)
"""

_OPENPGP = """\
# Stands in for gpg: has Keyhole sign a commit. The key is not in this sandbox.
import os, socket, sys

{ask}
words = sys.argv[1:]
if "-bsau" not in words:
    os.execvp("gpg", ["gpg", *words])
signature = ask(sys.stdin.buffer.read())
os.write(1, signature)
os.write(2, b"\\n[GNUPG:] SIG_CREATED \\n")
"""
"""Git looks for that line of status before it believes that there is a signature."""

_THROUGH_SHELL = '#!/bin/sh\nexec {words} {program} "$@"\n'


def signing_programs(path: str, interpreter: Sequence[str], *, openpgp: bool) -> dict[str, str]:
    """The program at this path and what it needs, for this interpreter inside: a path, or in a
    container the words that start it."""
    ask = _ASK.format(address=SIGNING_ADDRESS)
    body = (_OPENPGP if openpgp else _SSH).format(ask=ask)
    if len(interpreter) == 1:
        return {path: f"#!{interpreter[0]} -IS\n{body}"}
    words = " ".join([*interpreter, "-IS"])
    return {
        path: _THROUGH_SHELL.format(words=words, program=f"{path}.py"),
        f"{path}.py": body,
    }


def refuse_writable_keyring(env: Mapping[str, str], home: Path, writable: Sequence[Path]) -> None:
    """Attack: the sandbox writes the settings of the host's gpg, which name programs; also by a
    link, `~/.gnupg/gpg.conf -> ~/dotfiles/gpg.conf` (I11)."""
    directory = Path(env.get("GNUPGHOME") or home / ".gnupg")
    _refuse_written(directory, writable, "the directory of gpg")
    for name in KEYRING_FILES:
        _refuse_written(directory / name, writable, f"{name} in the directory of gpg")


def find_key(policy: Policy, home: Path, writable: Sequence[Path]) -> Path:
    """The public key file that the policy names. Raises Refused.

    Attack: the sandbox exchanges the file, or a link on the way to it, for another key of the
    person's (I11).
    """
    text = policy.sandbox.sign or ""
    path = home / text[2:] if text.startswith("~/") else Path(text)
    _refuse_written(path, writable, visible(str(path)))
    return path


def _refuse_written(path: Path, writable: Sequence[Path], what: str) -> None:
    trees = [os.path.realpath(tree) for tree in writable]
    try:
        passed = follow(str(path)).entries
    except LinkInPath as error:
        raise Refused(f"{what} of sandbox.sign: {error}") from None
    if any(Path(entry).is_relative_to(tree) for entry in passed for tree in trees):
        raise Refused(f"{what} of sandbox.sign is where the sandbox can write")


def read_public_key(path: Path) -> str:
    """The key's type and value, as git's `user.signingkey` takes them. Raises Refused."""
    try:
        words = read_short_file(path).decode("ascii").split()
    except (OSError, ValueError):
        words = []
    if len(words) < 2 or not all(word.isprintable() for word in words[:2]):
        raise Refused(
            f"{visible(str(path))} of sandbox.sign is no public key; `ssh-keygen -t ed25519 -f"
            f" {visible(str(path.with_suffix('')))}` makes one"
        )
    return f"{words[0]} {words[1]}"


def read_short_file(path: Path) -> bytes:
    """The content of a short file. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(MAX_KEY + 1)
    if len(data) > MAX_KEY:
        raise OSError("it is too long")
    return data
