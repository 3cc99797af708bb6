"""Reads the documents of `github_escapes.txt`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.rigs.git.github import GithubForge

WIDGETS = 'repository(owner:"acme",name:"widgets")'
VAULT = 'repository(owner:"acme",name:"vault")'


@dataclass(frozen=True)
class Escape:
    """A document that tries to leave the granted repository."""

    document: str
    variables: str

    def body(self, forge: GithubForge) -> dict[str, Any]:
        """The body of its request, with the ids that this forge has."""
        whole = json.dumps({"query": self.document, "variables": json.loads(self.variables)})
        for name, value in sorted(_ids(forge).items(), key=lambda each: -len(each[0])):
            whole = whole.replace(name, value)
        made: dict[str, Any] = json.loads(whole)
        return made


def _ids(forge: GithubForge) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, repository in (("VAULT", forge.vault), ("WIDGETS", forge.widgets)):
        pulls = repository["_pulls"]
        issue = repository["_issues"][0]
        things = {
            "ID": repository,
            "ISSUE": issue,
            "COMMENT": issue["_comments"][0],
            "PULL": pulls[0],
            "FORK_PULL": pulls[1],
            "LABEL": repository["_labels"][0],
            "MILESTONE": repository["_milestones"][0],
            "MAIN": repository["defaultBranchRef"],
        }
        found |= {f"{name}_{kind}": thing["id"] for kind, thing in things.items()}
    return found


def read_escapes() -> tuple[dict[str, Escape], dict[str, Escape]]:
    """Those that read, and those that write, by their names."""
    text = Path(__file__).with_suffix(".txt").read_text()
    _, reads, writes = text.replace("[writes]", "[reads]").split("[reads]")
    return _section(reads), _section(writes)


def _section(text: str) -> dict[str, Escape]:
    found: dict[str, Escape] = {}
    name = ""
    for line in text.splitlines():
        words = line.strip()
        if words and not line.startswith(" "):
            name = words
        elif words and name in found:
            found[name] = Escape(found[name].document, words)
        elif words:
            found[name] = Escape(_document(words), "{}")
    return found


def _document(words: str) -> str:
    for short, long in (("VAULT ", f"{VAULT} "), ("WIDGETS ", f"{WIDGETS} ")):
        words = words.replace(short, long)
    for short, long in (("VAULT{", f"{VAULT}{{"), ("WIDGETS{", f"{WIDGETS}{{")):
        words = words.replace(short, long)
    return words.replace("¶", "\n").replace("‡", "\ufeff")
