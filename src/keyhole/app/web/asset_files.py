"""The page's own files: HTML, style sheet, ES modules and a picture, from `assets/`.

They are read once, when the server starts; a path of a request is never one of the file system.
"""

from __future__ import annotations

from pathlib import Path

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def read_assets() -> dict[str, tuple[str, bytes]]:
    """Media type and bytes of each file, by the path at which it is served."""
    found = {}
    for file in sorted((Path(__file__).parent / "assets").iterdir()):
        if file.suffix in KINDS:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = KINDS[file.suffix], file.read_bytes()
    return found
