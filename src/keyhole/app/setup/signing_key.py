"""The public key of `sandbox.sign`, and the program inside that git runs to sign with it.

Used when a run is prepared, and by the process that signs. The private key is not read here, nor
anywhere in Keyhole: `ssh-keygen` finds it (I1).
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
    from collections.abc import Sequence

    from keyhole.policy.policy import Policy

MAX_KEY = 16 * 1024
"""Bytes of a public key or a signature: one by RSA with 16,384 bits has 6 KiB."""

_PROGRAM = """\
#!{python} -IS
# Stands in for ssh-keygen: has Keyhole sign a commit. The key is not in this sandbox.
import os, socket, sys

words = sys.argv[1:]
if "sign" not in words:
    os.execv("/usr/bin/ssh-keygen", ["ssh-keygen", *words])
with open(words[-1], "rb") as file:
    commit = file.read()
answer = b""
try:
    with socket.create_connection({address!r}, 90) as door:
        door.sendall(len(commit).to_bytes(4, "big") + commit)
        while piece := door.recv(65536):
            answer += piece
except OSError as error:
    answer = answer or b"no\\n" + str(error).encode()
said, _, rest = answer.partition(b"\\n")
if said != b"ok":
    sys.exit("keyhole: not signed: " + rest.decode("utf-8", "replace"))
with open(words[-1] + ".sig", "wb") as file:
    file.write(rest)
"""


def signing_program(python: str) -> str:
    """The program, for this interpreter inside."""
    return _PROGRAM.format(python=python, address=SIGNING_ADDRESS)


def find_key(policy: Policy, home: Path, writable: Sequence[Path]) -> Path:
    """The public key file that the policy names. Raises Refused.

    Attack: the sandbox exchanges the file, or a link on the way to it, for another key of the
    person's (I11).
    """
    text = policy.sandbox.sign or ""
    path = home / text[2:] if text.startswith("~/") else Path(text)
    trees = [os.path.realpath(tree) for tree in writable]
    try:
        passed = follow(str(path)).entries
    except LinkInPath as error:
        raise Refused(f"{visible(str(path))} of sandbox.sign: {error}") from None
    if any(Path(entry).is_relative_to(tree) for entry in passed for tree in trees):
        raise Refused(f"{visible(str(path))} of sandbox.sign is where the sandbox can write")
    return path


def read_public_key(path: Path) -> str:
    """The key's type and value, as git's `user.signingkey` takes them. Raises Refused."""
    try:
        words = read_bounded(path).decode("ascii").split()
    except (OSError, ValueError):
        words = []
    if len(words) < 2 or not all(word.isprintable() for word in words[:2]):
        raise Refused(
            f"{visible(str(path))} of sandbox.sign is no public key; `ssh-keygen -t ed25519 -f"
            f" {visible(str(path.with_suffix('')))}` makes one"
        )
    return f"{words[0]} {words[1]}"


def read_bounded(path: Path) -> bytes:
    """The content of a short file. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(MAX_KEY + 1)
    if len(data) > MAX_KEY:
        raise OSError("it is too long")
    return data
