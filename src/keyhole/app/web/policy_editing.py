"""A policy file edited in the page: checked, shown as a change, written and accepted.

The page needs what the terminal needs to accept a policy: the person sees what the new text grants
and how it differs from what was accepted, and then says yes. The digest that was shown comes back
with the yes, and is that of the bytes that are written (I11). A file that has changed since the
page read it is not overwritten.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.policy_acceptance import (
    AcceptanceStore,
    describe_changes,
    examine_policy,
)
from keyhole.app.setup.policy_file import parse_policy, read_bounded
from keyhole.app.setup.policy_saving import write_policy
from keyhole.model.errors import KeyholeError, Refused
from keyhole.model.text import visible
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy

CHANGED = "the file has changed since this page read it; read it again"
UNSEEN = "this is not the text that was checked; check it again"

MAX_CHANGED = 400
"""Lines of a difference that are shown; a person cannot judge more at once."""


class PolicyEdit(Struct, frozen=True):
    """A text for a policy file, and the file that it was made from."""

    policy: str
    """The id of one of the page's policies."""
    text: str
    base: str
    """The digest of the bytes that the page read."""


def policy_id(path: str) -> str:
    """How the page names a policy file: paths are texts of others."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class PolicyEditor:
    """Edits the files that the page lists, and no other."""

    def __init__(self, paths: HostPaths, search_path: str) -> None:
        self._paths = paths
        self._search_path = search_path
        self._store = AcceptanceStore(paths.trust)
        self._catalogue = FileCatalogue()

    def read(self, policy: str, listed: Iterable[str]) -> dict[str, Any]:
        """The text of a file, and the digest of its bytes. Raises Refused."""
        data = read_bounded(self._find(policy, listed))
        text = _decode(data)
        plain = text.replace("\n", " ").replace("\t", " ")
        return {"text": text, "base": _digest(data), "hidden": visible(plain) != plain}

    def check(self, edit: PolicyEdit, listed: Iterable[str]) -> dict[str, Any]:
        """What the text would mean. Raises Refused if the file has changed."""
        path, before = self._open(edit, listed)
        data = _encode(edit.text, before)
        shown: dict[str, Any] = {"faults": [], "changes": _diff(before, data, path.name)}
        try:
            examined = self._examine(path, data)
        except PolicyFaults as error:
            return shown | {"faults": [fault.render() for fault in error.faults]}
        except KeyholeError as error:
            return shown | {"faults": [visible(str(error))]}
        accepted = self._store.find(examined.file.path)
        if accepted is not None:
            # Also what was changed in the file before, which nobody has accepted yet.
            shown["changes"] = describe_changes(examined, accepted)[:MAX_CHANGED]
        policy = examined.file.loaded.policy
        return shown | {
            "digest": examined.digest,
            "accepted": accepted is not None and accepted.digest == examined.digest,
            "same": data == before,
            "grants": [
                {
                    "subject": visible(line.subject),
                    "text": visible(line.text),
                    "alarm": visible(line.alarm or ""),
                }
                for line in summarise(policy, self._catalogue.near(policy))
            ],
        }

    def save(self, edit: PolicyEdit, digest: str, listed: Iterable[str]) -> None:
        """Write the text and accept it, if it is what was shown with this digest. Raises Refused,
        PolicyFaults or ResourceUnusable."""
        path, before = self._open(edit, listed)
        examined = self._examine(path, _encode(edit.text, before))
        if examined.digest != digest:
            # The text, or a program that it names, is another one than the person saw.
            raise Refused(UNSEEN)
        with self._store.alone():
            write_policy(before, examined, self._store)

    def _find(self, policy: str, listed: Iterable[str]) -> Path:
        found = next((each for each in listed if policy_id(each) == policy), None)
        if found is None:
            raise Refused("no policy of this page")
        return Path(found)

    def _open(self, edit: PolicyEdit, listed: Iterable[str]) -> tuple[Path, bytes]:
        path = self._find(edit.policy, listed)
        before = read_bounded(path)
        if _digest(before) != edit.base:
            raise Refused(CHANGED)
        return path, before

    def _examine(self, path: Path, data: bytes) -> ExaminedPolicy:
        file = parse_policy(path, data, self._paths, self._catalogue)
        return examine_policy(file, self._paths.home, self._search_path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise Refused("the file is not UTF-8; an editor of this host can mend it") from None


def _encode(text: str, before: bytes) -> bytes:
    """The bytes of a text of the page. Browsers know one line end; a file keeps its own."""
    try:
        data = text.replace("\r\n", "\n").encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("the text is not Unicode") from None
    return data.replace(b"\n", b"\r\n") if b"\r\n" in before else data


def _diff(before: bytes, after: bytes, name: str) -> list[str]:
    old, new = (each.decode("utf-8", "replace").splitlines() for each in (before, after))
    lines = difflib.unified_diff(old, new, name, f"{name} (new)", lineterm="", n=2)
    return [visible(line) for line in lines][:MAX_CHANGED]
