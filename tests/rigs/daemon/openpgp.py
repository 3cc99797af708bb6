"""A key of GnuPG's in a person's keyring, and the agent that holds it, ended with the test."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rigs.sandbox.people import Person
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

PERSON = "Ada (agent) <ada@corp.example>"


@dataclass(frozen=True)
class OpenPgpKey:
    """A key without a passphrase, in the keyring of a home."""

    person: Person
    home: Path
    id: str = ""

    @classmethod
    @contextlib.contextmanager
    def make(cls, person: Person, home: Path) -> Iterator[OpenPgpKey]:
        """The key, while the block lasts."""
        keyring = home / ".gnupg"
        keyring.mkdir(mode=0o700)
        person.own(keyring)
        bare = cls(person, home)
        try:
            making = ("--passphrase", "", "--quick-generate-key", PERSON, "ed25519")
            bare.run("gpg", "--batch", *making)
            rows = bare.run("gpg", "--batch", "--with-colons", "--list-secret-keys").split("\n")
            yield cls(person, home, next(r.split(":")[9] for r in rows if r.startswith("fpr")))
        finally:
            bare.run("gpgconf", "--kill", "all")
            shutil.rmtree(keyring)

    def run(self, *words: str) -> str:
        """What a program of the host says to this person, who has the keyring."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd=self.home,
            **self.person.become(),
        )
        return done.stdout + done.stderr
