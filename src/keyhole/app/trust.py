"""Which policies a person accepted on this host.

A policy can name commands and files of the host, so a cloned one is hostile until accepted, and
again after each change of it or of a file that it refers to. What is kept is the digest and the
accepted text (for a diff), never a secret.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.policyfile import PolicyFile, Unreadable, read_bounded
from keyhole.model.secret import Source
from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef

MAX_REFERRED_SIZE = 16 * 1024 * 1024
"""Bytes of a file that a policy refers to: certificate bundles and scripts are far smaller."""

_PREFIX = "sha256:"
_MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Referred:
    """A file that a policy refers to. `data` is what was hashed, for whoever uses it later."""

    role: str
    path: Path
    data: bytes | None
    hashes_content: bool = True

    @property
    def digest(self) -> str:
        """Of the content; for a program found by name, of where it was found."""
        if not self.hashes_content:
            return hashlib.sha256(os.fsencode(self.path)).hexdigest()
        return hashlib.sha256(self.data).hexdigest() if self.data is not None else _MISSING


@dataclass(frozen=True, slots=True)
class Dossier:
    """A policy and all that it refers to, read once."""

    file: PolicyFile
    referred: tuple[Referred, ...]

    @property
    def digest(self) -> str:
        """`sha256:` of the policy's bytes, or, where it refers to files, of it and of theirs."""
        own = hashlib.sha256(self.file.data)
        if not self.referred:
            return _PREFIX + own.hexdigest()
        lines = [own.hexdigest(), *(f"{r.role} {r.digest}" for r in self.referred)]
        return _PREFIX + hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was accepted."""

    digest: str
    text: str
    referred: dict[str, str]


def examine(file: PolicyFile, home: Path, search_path: str) -> Dossier:
    """Read what the policy refers to: certificates, and programs that it names by path."""
    policy = file.loaded.policy
    found: list[Referred] = []
    if policy.upstream.ca_file:
        found.append(_content("upstream.ca_file", _locate(policy.upstream.ca_file, file, home)))
    for service in policy.services:
        secret = service.secret
        if secret is None or secret.source is not Source.EXEC:
            continue
        found += _command(f"{service.rule}.secret", secret.argv, file, home, search_path)
    return Dossier(file, tuple(found))


def _command(
    role: str, argv: tuple[str, ...], file: PolicyFile, home: Path, search_path: str
) -> list[Referred]:
    """The program, and every file that it is given by name (`exec:python3 ./token.py`)."""
    if "/" in argv[0]:
        found = [_content(role, _locate(argv[0], file, home))]
    else:
        # An upgrade of the host's own program is no change of the policy; another place is.
        where = shutil.which(argv[0], path=search_path)
        found = [Referred(role, Path(where or _MISSING), None, hashes_content=False)]
    for number, word in enumerate(argv[1:], 1):
        path = _locate(word, file, home)
        if os.path.isfile(path):  # not the path's own, which raises for what cannot be a name
            found.append(_content(f"{role}[{number}]", path))
    return found


def find_changed(dossier: Dossier, home: Path, ref: SecretRef) -> Path | None:
    """A file of an `exec:` secret that is not as it was when this was examined; None: all are.

    For whoever runs the command again later: what was accepted is what runs (I11).
    """
    file = dossier.file
    known = {each.role: each for each in dossier.referred}
    for service in file.loaded.policy.services:
        if service.secret != ref:
            continue
        role = f"{service.rule}.secret"
        for now in _command(role, ref.argv, file, home, ""):
            before = known.get(now.role)
            named = before is not None and not before.hashes_content
            if not named and (before is None or before.digest != now.digest):
                return now.path
    return None


def _locate(text: str, file: PolicyFile, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return file.directory / text


def _content(role: str, path: Path) -> Referred:
    try:
        data = read_bounded(path, MAX_REFERRED_SIZE)
    except Unreadable:
        return Referred(role, path, None)
    if len(data) > MAX_REFERRED_SIZE:
        raise Unreadable(f"{path}: larger than {MAX_REFERRED_SIZE} bytes")
    return Referred(role, path, data)


class TrustStore:
    """Acceptances on disk, one small file for each policy's path."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, policy: Path) -> Acceptance | None:
        """What was last accepted for this path; anything unreadable counts as nothing."""
        try:
            record = json.loads(self.file(policy).read_text("utf-8"))
            return Acceptance(str(record["digest"]), str(record["text"]), dict(record["referred"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def accept(self, dossier: Dossier) -> None:
        """Remember this dossier as accepted."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = {
            "policy": str(dossier.file.path),
            "digest": dossier.digest,
            "text": dossier.file.data.decode("utf-8"),
            "referred": {r.role: r.digest for r in dossier.referred},
        }
        target = self.file(dossier.file.path)
        import tempfile  # only an acceptance is written

        descriptor, name = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        Path(name).replace(target)

    def file(self, policy: Path) -> Path:
        """Where the acceptance of a policy is kept."""
        return self._directory / (hashlib.sha256(os.fsencode(policy)).hexdigest()[:32] + ".json")


def changes(dossier: Dossier, before: Acceptance) -> list[str]:
    """What changed since it was accepted, as lines that are safe to show."""
    now = dossier.file.data.decode("utf-8")
    import difflib  # only a changed policy needs it

    diff = difflib.unified_diff(
        before.text.split("\n"), now.split("\n"), "accepted", "now", lineterm="", n=2
    )
    lines = [visible(line) for line in diff]
    lines += [
        f"changed: {r.role} ({visible(str(r.path))})"
        for r in dossier.referred
        if before.referred.get(r.role) != r.digest
    ]
    return lines
