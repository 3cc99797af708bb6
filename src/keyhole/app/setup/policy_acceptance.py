"""The policies that a person accepted on this host.

A policy can name commands and files of the host, so a cloned one is hostile until accepted, and
again after each change of it or of a file that it refers to. It stores the digest and the
accepted text (for a diff), never a secret.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.policy_file import PolicyFile, read_bounded
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.secret import SecretScheme
from keyhole.model.text import visible
from keyhole.vault.interface import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.model.secret import SecretRef

MAX_REFERRED_SIZE = 16 * 1024 * 1024
"""Bytes of a file that a policy refers to: certificate bundles and scripts are far smaller."""

COMMAND_ROLE = "approvals.command"
"""The role of the program that answers questions, and of the files that it is given by name."""

_PREFIX = "sha256:"
_MISSING = "missing"


class ReferencedFile(Struct, frozen=True):
    """A file that a policy refers to. `data` has the hashed bytes, for later use."""

    role: str
    path: Path
    data: bytes | None
    hashes_content: bool = True
    mark: object = None
    """The mark from before it was read."""

    @property
    def digest(self) -> str:
        """The digest of the content; for a program found by name, of its path."""
        if not self.hashes_content:
            return hashlib.sha256(os.fsencode(self.path)).hexdigest()
        return hashlib.sha256(self.data).hexdigest() if self.data is not None else _MISSING


class ExaminedPolicy(Struct, frozen=True):
    """A policy and all files that it refers to, read once."""

    file: PolicyFile
    referred: tuple[ReferencedFile, ...]

    @property
    def digest(self) -> str:
        """`sha256:` of the policy's bytes; if it refers to files, of it and of their digests."""
        own = hashlib.sha256(self.file.data)
        if not self.referred:
            return _PREFIX + own.hexdigest()
        lines = [own.hexdigest(), *(f"{r.role} {r.digest}" for r in self.referred)]
        return _PREFIX + hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def marks(self) -> dict[Path, object]:
        """The marks of the files whose content counts, each from before it was read."""
        referred = {each.path: each.mark for each in self.referred if each.hashes_content}
        return {**self.file.marks, **referred}


class Acceptance(Struct, frozen=True):
    """The accepted digests."""

    digest: str
    text: str
    referred: dict[str, str]


def examine_policy(file: PolicyFile, home: Path, search_path: str) -> ExaminedPolicy:
    """Read the files that the policy refers to: certificates, and programs that it names by
    path."""
    policy = file.loaded.policy
    found: list[ReferencedFile] = []
    if policy.upstream.ca_file:
        found.append(_content("upstream.ca_file", _locate(policy.upstream.ca_file, file, home)))
    for service in policy.services:
        secret = service.secret
        if secret is None or secret.source is not SecretScheme.EXEC:
            continue
        found += _command(f"{service.rule}.secret", secret.argv, file, home, search_path)
    if policy.approvals.command:
        found += _command(COMMAND_ROLE, policy.approvals.argv, file, home, search_path)
    return ExaminedPolicy(file, tuple(found))


def _command(
    role: str, argv: tuple[str, ...], file: PolicyFile, home: Path, search_path: str
) -> list[ReferencedFile]:
    """The program, and every file that it is given by name (`exec:python3 ./token.py`)."""
    if "/" in argv[0]:
        found = [_content(role, _locate(argv[0], file, home))]
    else:
        # An upgrade of the host's own program does not change the policy; another path does.
        where = shutil.which(argv[0], path=search_path)
        found = [ReferencedFile(role, Path(where or _MISSING), None, hashes_content=False)]
    for number, word in enumerate(argv[1:], 1):
        path = _locate(word, file, home)
        if os.path.isfile(path):  # not the path's own, which raises for what cannot be a name
            found.append(_content(f"{role}[{number}]", path))
    return found


def find_changed(examined: ExaminedPolicy, home: Path, ref: SecretRef) -> Path | None:
    """A file of an `exec:` secret that has changed since it was examined; None if none has.

    Called before the command runs again: only the accepted program may run (I11).
    """
    for service in examined.file.loaded.policy.services:
        if service.secret != ref:
            continue
        changed = _find_changed(examined, home, f"{service.rule}.secret", ref.argv)
        if changed is not None:
            return changed
    return None


def find_changed_command(examined: ExaminedPolicy, home: Path) -> Path | None:
    """The same for the files of `approvals.command`."""
    argv = examined.file.loaded.policy.approvals.argv
    return _find_changed(examined, home, COMMAND_ROLE, argv)


def _find_changed(
    examined: ExaminedPolicy, home: Path, role: str, argv: tuple[str, ...]
) -> Path | None:
    known = {each.role: each for each in examined.referred}
    for now in _command(role, argv, examined.file, home, ""):
        before = known.get(now.role)
        named = before is not None and not before.hashes_content
        if not named and (before is None or before.digest != now.digest):
            return now.path
    return None


def _locate(text: str, file: PolicyFile, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return file.directory / text


def _content(role: str, path: Path) -> ReferencedFile:
    mark = mark_of(path)
    try:
        data = read_bounded(path, MAX_REFERRED_SIZE)
    except Refused:
        return ReferencedFile(role, path, None, mark=mark)
    if len(data) > MAX_REFERRED_SIZE:
        raise Refused(f"{path}: larger than {MAX_REFERRED_SIZE} bytes")
    return ReferencedFile(role, path, data, mark=mark)


class AcceptanceStore:
    """Acceptances on disk, one small file for each policy's path."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, policy: Path) -> Acceptance | None:
        """The last acceptance for this path; an unreadable one counts as none."""
        try:
            record = json.loads(self.file(policy).read_text("utf-8"))
            return Acceptance(str(record["digest"]), str(record["text"]), dict(record["referred"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def accept(self, examined: ExaminedPolicy) -> None:
        """Record this policy as accepted."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = {
            "policy": str(examined.file.path),
            "digest": examined.digest,
            "text": examined.file.data.decode("utf-8"),
            "referred": {r.role: r.digest for r in examined.referred},
        }
        target = self.file(examined.file.path)
        descriptor, name = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        Path(name).replace(target)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else of this user writes a policy meanwhile. Two answers "always" at the same time
        would otherwise read the same file, and the later one would take back the rule of the other.
        The lock is on this directory, which no sandbox sees: code that could hold it would keep
        every answer waiting (I12). Raises ResourceUnusable."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ResourceUnusable(f"{visible(str(self._directory))}: {error.strerror}") from None
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def file(self, policy: Path) -> Path:
        """The file with the acceptance of a policy."""
        return self._directory / (hashlib.sha256(os.fsencode(policy)).hexdigest()[:32] + ".json")


def describe_changes(examined: ExaminedPolicy, before: Acceptance) -> list[str]:
    """The changes since it was accepted, as lines that are safe to show."""
    now = examined.file.data.decode("utf-8")
    diff = difflib.unified_diff(
        before.text.split("\n"), now.split("\n"), "accepted", "now", lineterm="", n=2
    )
    lines = [visible(line) for line in diff]
    lines += [
        f"changed: {r.role} ({visible(str(r.path))})"
        for r in examined.referred
        if before.referred.get(r.role) != r.digest
    ]
    return lines
