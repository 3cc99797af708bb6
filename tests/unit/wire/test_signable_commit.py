"""A commit is read in one spelling; all else is not signed."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import Malformed
from keyhole.wire.signable_commit import MAX_SIGNABLE, parse_signable

if TYPE_CHECKING:
    from pathlib import Path

GIT = shutil.which("git") or ""
TREE = b"4b825dc642cb6eb9a060e54bf8d69288fbee4904"
ADA = b"Ada <ada@corp.example> 1794949222 +0000"
HEAD = b"tree %b\nauthor %b\ncommitter %b\n" % (TREE, ADA, ADA)
PARENT = b"parent %b\n" % TREE


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b"\n",
        HEAD + b"\nhello\n",
        HEAD + b"\ngpgsig x\n\ncommitter Eve <e@x.example> 1 +0000\n",
        HEAD + b"encoding ISO-8859-1\n\n\xe4\n",
        HEAD.replace(b"author", PARENT * 256 + b"author") + b"\nmerge\n",
        HEAD.replace(TREE, b"a" * 64).replace(b"author", b"parent " + b"b" * 64 + b"\nauthor")
        + b"\nsha256\n",
        HEAD.replace(b"author Ada", b"author Zo\xc3\xab O'B. (x)") + b"\nx",
        HEAD + b"\n" + b"x" * (MAX_SIGNABLE - len(HEAD) - 1),
    ],
)
def test_a_commit_is_written_as_it_was_read(content: bytes) -> None:
    assert parse_signable(content).to_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"tree ",
        b"\n",
        HEAD,  # without the empty line
        b"object %b\ntype commit\ntag v1\ntagger %b\n\nv1\n" % (TREE, ADA),
        b"certificate version 0.1\npusher Ada 1 +0000\nnonce x\n\n0 1 refs/heads/main\n",
        b"\n" + HEAD + b"\n",
        b" " + HEAD + b"\n",
        HEAD.upper() + b"\n",
        HEAD + b"committer %b\n\n" % ADA,
        HEAD + b"author %b\n\n" % ADA,
        HEAD + PARENT + b"\n",
        HEAD + b"tree %b\n\n" % TREE,
        HEAD + b"gpgsig x\n\n",
        HEAD + b"mergetag object %b\n type commit\n tag v1\n\n" % TREE,
        HEAD + b" more of the committer\n\n",
        HEAD + b"encoding \n\n",
        HEAD + b"encoding a b\n\n",
        HEAD + b"\r\n",
        HEAD.replace(b"\n", b"\r\n") + b"\r\n",
        HEAD + b"\nmessage\x00tree\n",
        HEAD.replace(b"Ada <", b"Ada\x00 <") + b"\n",
        HEAD.replace(b"Ada <", b"Ada <x> <") + b"\n",
        HEAD.replace(b"Ada <", b"<") + b"\n",
        HEAD.replace(b"Ada <", b"A\x1b[2Kda <") + b"\n",
        HEAD.replace(b"1794949222", b"-1") + b"\n",
        HEAD.replace(b"+0000", b"0000") + b"\n",
        HEAD.replace(TREE, TREE[:-1]) + b"\n",
        HEAD.replace(TREE, TREE.upper()) + b"\n",
        HEAD.replace(b"author", b"parent " + b"b" * 64 + b"\nauthor") + b"\n",
        HEAD.replace(b"author", PARENT * 257 + b"author") + b"\n",
        HEAD + b"\n" + b"x" * MAX_SIGNABLE,
    ],
)
def test_all_else_is_refused(content: bytes) -> None:
    """Control: the test above."""
    with pytest.raises(Malformed):
        parse_signable(content)


@pytest.mark.skipif(not GIT, reason="needs git")
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_the_signed_commit_has_the_name_that_git_gives_it(tmp_path: Path, form: str) -> None:
    def git(*words: str, text: bytes = b"") -> bytes:
        done = subprocess.run(
            [GIT, "-C", tmp_path, *words], input=text, capture_output=True, check=True
        )
        return done.stdout

    git("init", "-q", f"--object-format={form}")
    tree = git("hash-object", "-t", "tree", "-w", "--stdin").strip()
    content = HEAD.replace(TREE, tree) + b"\nhello\n"
    signature = b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"
    field = b"gpgsig" if form == "sha1" else b"gpgsig-sha256"
    folded = signature.rstrip(b"\n").replace(b"\n", b"\n ")
    signed = content.replace(b"\n\n", b"\n%b %b\n\n" % (field, folded), 1)
    named = git("hash-object", "-t", "commit", "--stdin", text=signed).decode().strip()
    assert parse_signable(content).signed_id(signature) == named
