"""Signs commits with a key of the person's, in a process that may run programs.

Used by a run with its own gateway and by the keeper, never by a data plane. The bytes come from a
data plane, which reads hostile bytes, so they are judged here by the policy in force, and the bytes
that are signed are written from what was read. `ssh-keygen` or `gpg` uses the person's agent or key
file; no key is read here (I1).
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.signing_key import (
    MAX_KEY,
    find_key,
    read_short_file,
    refuse_writable_keyring,
)
from keyhole.model.errors import Refused
from keyhole.policy.limit import TokenBucket
from keyhole.policy.signing import (
    MAX_SIGNATURES,
    SIGNATURE_BURST,
    SIGNATURES_PER_SECOND,
    decide_signature,
    openpgp_key,
)
from keyhole.system.child import Children
from keyhole.system.programs import SEARCH, find_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.policy.policy import Policy

SIGNING_PROGRAM = "ssh-keygen"
NAMESPACE = "git"
"""The purpose of the signature, which a verifier asks for: never one that the sandbox chose."""

_SSH_FRAME = b"-----BEGIN SSH SIGNATURE-----\n", b"\n-----END SSH SIGNATURE-----\n"

GPG = "gpg"
_GPG_WORDS = ("--no-options", "--batch", "--no-tty", "--quiet", "--armor", "--detach-sign")
"""Without gpg.conf, which can name programs (I11)."""
_PGP_FRAME = b"-----BEGIN PGP SIGNATURE-----\n", b"\n-----END PGP SIGNATURE-----\n"

_VARIABLES = (
    "SSH_AUTH_SOCK", "GNUPGHOME", "USER", "LOGNAME", "DISPLAY", "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
)  # fmt: skip


class SigningProgram(Struct, frozen=True):
    """The program of the host that signs a file, and the lines around its signature."""

    name: str
    words: tuple[str, ...]
    frame: tuple[bytes, bytes]

    @property
    def suffix(self) -> str:
        """The name's end of the file that it writes."""
        return ".asc" if self.name == GPG else ".sig"


class CommitSigner:
    """Signs for one session, one commit at a time."""

    def __init__(
        self,
        places: HostPaths,
        env: Mapping[str, str],
        writable: Sequence[Path],
        turns: AbstractContextManager[object] | None = None,
    ) -> None:
        """`writable` are the trees that the sandbox can write. `turns` bounds the programs of all
        sessions; a session takes one at most (I12)."""
        self._turns = turns or contextlib.nullcontext()
        self._places = places
        self._writable = writable
        found = {name: env[name] for name in _VARIABLES if name in env}
        self._env = found | {"HOME": str(places.home), "PATH": ":".join(SEARCH), "LC_ALL": "C"}
        self._lock = threading.Lock()
        self._rate = TokenBucket.full(
            "sign", SIGNATURES_PER_SECOND, time.monotonic(), SIGNATURE_BURST
        )
        self._left = MAX_SIGNATURES
        self._children = Children()

    def sign(self, policy: Policy, content: bytes) -> bytes:
        """The signature. This takes a while. Raises Refused."""
        _, commit, why = decide_signature(policy, content)
        if commit is None:
            raise Refused(why)
        with self._lock:
            # A data plane that was taken over asks as often as it likes.
            if not self._left or not self._rate.take(time.monotonic()).allowed:
                raise Refused("too many signatures are asked for; try again")
            self._left -= 1
            program = self._program(policy)
            with self._turns:
                return self._run(program, commit.to_bytes())

    def close(self) -> None:
        """End a program that runs."""
        self._children.close()

    def _program(self, policy: Policy) -> SigningProgram:
        home = self._places.home
        if openpgp := openpgp_key(policy):
            refuse_writable_keyring(self._env, home, self._writable)
            return SigningProgram(GPG, (*_GPG_WORDS, "--local-user", openpgp), _PGP_FRAME)
        key = find_key(policy, home, self._writable)
        words = ("-Y", "sign", "-n", NAMESPACE, "-f", str(key))
        return SigningProgram(SIGNING_PROGRAM, words, _SSH_FRAME)

    def _run(self, signing: SigningProgram, content: bytes) -> bytes:
        program = find_program(signing.name)
        if program is None:
            raise Refused(f"{signing.name} is not installed on the host")
        # Not in /tmp, which a policy may let the sandbox write: the bytes would be exchanged (I11).
        self._places.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sign-", dir=self._places.runtime) as directory:
            file = Path(directory) / "commit"
            file.write_bytes(content)
            words = [str(program), *signing.words, str(file)]
            try:
                ended = self._children.run(words, self._env, MAX_KEY)
                if ended.stopped or ended.status:
                    raise Refused(NOT_SIGNED[signing.name])
                signature = read_short_file(file.with_suffix(signing.suffix))
            except OSError:
                raise Refused(NOT_SIGNED[signing.name]) from None
        begin, end = signing.frame
        if not signature.startswith(begin) or not signature.endswith(end):
            raise Refused(NOT_SIGNED[signing.name])
        return signature


NOT_SIGNED = {
    SIGNING_PROGRAM: "the host's ssh-keygen did not sign; on the host, `ssh-add -l` shows whether "
    "the agent has the key of sandbox.sign",
    GPG: "the host's gpg did not sign; on the host, `gpg --list-secret-keys` shows whether it has "
    "the key of sandbox.sign, and `gpg --sign` once has the agent ask for its passphrase",
}
"""Without the program's own words: they may name paths of the host."""
