"""Builds the documents as a site in dist/site: for reading offline, and with a search.

The pages are those of the repository, in their places, so that their links work as they are; README
is the front page. A page that no part of the navigation lists, a link or an anchor that leads
nowhere, and a block that its highlighter cannot read end the build (`-W`).

Called by `make site` with the Python of .venv-site, which has Sphinx; tests call `stage` alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "packaging" / "site"
SITE = ROOT / "dist" / "site"
KEYHOLE = ROOT / ".venv" / "bin" / "keyhole"
SCHEMA = "policy.schema.json"
"""The place of the JSON Schema of a policy, as `keyhole policy schema` prints it."""

NAVIGATION: dict[str, dict[str, str]] = {
    "Guides": {
        "docs/guides/claude-code.md": "Claude Code",
        "docs/guides/codex.md": "Codex",
        "docs/guides/private-packages.md": "Private packages",
        "docs/guides/signed-commits.md": "Signed commits",
        "docs/guides/ci.md": "CI",
        "docs/guides/dev-server.md": "A dev server",
        "docs/guides/review.md": "Review changes",
        "docs/guides/learn.md": "Learn a policy",
        "docs/guides/watch.md": "Watch and answer",
        "docs/tour.md": "Five-minute tour",
    },
    "Reference": {
        "docs/policy.md": "Policy",
        "docs/policy-reference.md": "Keys of a policy",
        "docs/agents.md": "Agents",
        "docs/approvals.md": "Approvals",
        "docs/mcp.md": "MCP servers",
        "docs/models.md": "Models",
        "docs/cloud.md": "Cloud and SaaS APIs",
        "docs/services.md": "Services",
        "docs/git.md": "Git",
        "docs/github.md": "GitHub",
        "docs/grpc.md": "gRPC",
        "examples/README.md": "Example policies",
        "docs/containers.md": "Containers",
        "docs/compose.md": "Compose",
        "docs/kubernetes.md": "Kubernetes",
        "docs/remote.md": "Remote sandboxes",
        "docs/gateway.md": "Gateway",
        "docs/control-api.md": "Control API",
        "docs/platforms.md": "macOS and WSL2",
        "docs/cli.md": "Command line",
        "docs/reasons.md": "Reasons",
        "docs/troubleshooting.md": "Troubleshooting",
    },
    "Design": {
        "docs/ARCHITECTURE.md": "Architecture",
        "docs/THREATS.md": "Threats",
        "tests/PROMISES.md": "Promises and their tests",
        "docs/performance.md": "Performance",
        "docs/GLOSSARY.md": "Glossary",
        "CONTRIBUTING.md": "Contributing",
        "SECURITY.md": "Security reports",
        "CHANGELOG.md": "Changelog",
    },
}
"""The parts of the navigation: each page and its short name."""

_LINK = re.compile(r"(?<=\]\()(?P<to>[^)\s#]+)(?=[)#])")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_EXCERPT = re.compile(r"^```json excerpt$", re.MULTILINE)
"""Parts of an output, with marks for what is left out: no JSON to a highlighter."""
_FILE = re.compile(r"^```(?P<kind>toml|ini|sh) (?P<name>\S+)$", re.MULTILINE)
"""A block that is a file; a site shows its name."""


def pages() -> list[str]:
    """Every page but the front page, in the order of the navigation."""
    return [page for part in NAVIGATION.values() for page in part]


def stage(into: Path) -> None:
    """Copy the pages, and the files that they link to, as Sphinx reads them."""
    for name in ("README.md", *pages()):
        text = (ROOT / name).read_text("utf-8")
        place = into / ("index.md" if name == "README.md" else name)
        place.parent.mkdir(parents=True, exist_ok=True)
        for target in _linked_files(name, text):
            copy = into / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, copy)
        text = _EXCERPT.sub("```text", _to_front_page(name, text))
        text = _FILE.sub(r"```{code-block} \g<kind>\n:caption: \g<name>\n", text)
        if name == "README.md":
            text += "".join(_tree(*part) for part in NAVIGATION.items())
        place.write_text(text, "utf-8")


def _targets(name: str, text: str) -> list[str]:
    """Paths in the repository that a page links to."""
    found = [link["to"] for link in _LINK.finditer(_FENCE.sub("", text)) if "://" not in link["to"]]
    return [os.path.normpath(Path(name).parent / to) for to in found]


def _linked_files(name: str, text: str) -> list[str]:
    """Those of them that are no page: policies, drawings, the description of the control API."""
    targets = _targets(name, text)
    return [to for to in targets if not to.endswith(".md") and (ROOT / to).is_file()]


def _to_front_page(name: str, text: str) -> str:
    """The text with links to README leading to the front page."""

    def link(found: re.Match[str]) -> str:
        to = found["to"]
        if os.path.normpath(Path(name).parent / to) == "README.md":
            return to.removesuffix("README.md") + "index.md"
        return to

    return _LINK.sub(link, text)


def _tree(part: str, entries: dict[str, str]) -> str:
    rows = "".join(f"{title} <{page}>\n" for page, title in entries.items())
    return f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{rows}```\n"


def build(into: Path) -> int:
    """Build the site; it is replaced only by one that is whole. Returns Sphinx's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        source, built = Path(directory, "source"), Path(directory, "site")
        stage(source)
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
        command += ["-c", str(SETTINGS), "-d", str(Path(directory, "state"))]
        done = subprocess.run([*command, str(source), str(built)], check=False)  # noqa: S603 - ours
        if done.returncode == 0:
            with (built / SCHEMA).open("wb") as schema:
                subprocess.run([KEYHOLE, "policy", "schema"], stdout=schema, check=True)  # noqa: S603 - ours
            shutil.rmtree(into, ignore_errors=True)
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(built, into, ignore=shutil.ignore_patterns(".buildinfo", "objects.inv"))
        return done.returncode


def main() -> int:
    """Build in dist/site, or in the directory that is named."""
    into = Path(sys.argv[1]) if sys.argv[1:] else SITE
    if into.exists() and not (into / "searchindex.js").is_file():
        print(f"{into} is no site, so it is not replaced", file=sys.stderr)
        return 1
    code = build(into)
    if code == 0:
        print(f"wrote {os.path.relpath(into)}/index.html")
    return code


if __name__ == "__main__":
    sys.exit(main())
