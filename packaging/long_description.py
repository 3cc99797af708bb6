"""Makes the package's long description from README.md, without links that need the repository.

Hatchling calls it when a wheel or source distribution is built (`[tool.hatch.metadata.hooks]`). A
package index shows the text alone. The documents are published nowhere yet, so the text names their
places in the source distribution, which has them all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^\]\n]*\]\((?![a-z]+:)[^)\s]+\)\n\n", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?![a-z]+:)(?P<file>[^)\s#]+)(?:#[^)\s]*)?\)")
"""A link to a file of the repository."""

_NOTE = "\nFiles that this text names are in the source distribution.\n"


def without_local_links(text: str) -> str:
    """The text with each link to a file of the repository as its words and the file's name."""
    text = _PICTURE.sub("", text)
    return _LINK.sub(_named, text) + _NOTE


def _named(link: re.Match[str]) -> str:
    # `LICENSE` and the like say it already.
    same = link["text"] == link["file"].removesuffix(".md")
    return f"`{link['file']}`" if same else f"{link['text']} (`{link['file']}`)"


class LongDescription(MetadataHookInterface):
    """Sets `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by Hatchling with the `[project]` table."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_local_links(text)}
