"""`glab` in a sandbox works for a granted project by GitLab's REST, and for nothing else (I3, I10).

A current glab, built from source, and a fake of GitLab that would do whatever arrives.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.git.clients import find_built
from tests.rigs.git.forges import RUNNERS_TOKEN, Forges
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.outside, pytest.mark.attack]

TOKEN = "tok-real-77b2c81d04e7b49a6a1c3b8d7"
W = "-R acme/widgets"
MAKE = f"glab mr create {W} --target-branch main --title t --description d --yes --source-branch"

GRANTED = {
    "auth status": "Logged in to gitlab.com as ann",
    f"mr list {W}": "acme/widgets!1",
    f"mr view 1 {W}": "first",
    f"mr diff 1 {W}": "plain diff",
    f"{MAKE.removeprefix('glab ')} agent/x": "/merge_requests",
    f"mr note 1 {W} -m hello": "note_",
    f"mr update 1 {W} --title t2": "t2",
    f"mr close 1 {W}": "Closed merge request !1",
    f"issue list {W}": "first issue",
    f"issue view 1 {W}": "first issue",
    f"issue create {W} --title t --description d --yes": "/issues",
    f"issue note 1 {W} -m hello": "note_",
    f"issue update 1 {W} --title t3": "t3",
    f"issue close 1 {W}": "Closed issue #1",
    "repo view acme/widgets": "acme / widgets",
    f"ci list {W}": "#11",
    f"release list {W}": "v1",
    f"label list {W}": "bug",
    "api projects/acme%2Fwidgets": "acme/widgets",
}
"""What is typed behind `glab`, and what it prints."""

REFUSED = {
    f"{MAKE.removeprefix('glab ')} other": "'push' grants",
    f"{MAKE.removeprefix('glab ')} agent/x --label bug": "'labels' is closed",
    f"mr merge 1 {W} --yes": "keyhole: ",
    f"mr approve 1 {W}": "keyhole: ",
    f"mr note 1 {W} -m /merge": "as a command does",
    f"issue create {W} --title t --description /close --yes": "as a command does",
    "mr list -R acme/vault": "404",
    "repo view acme/vault": "404",
    "api projects/1": "404",
    "api projects/acme%2Fwidgets/variables": "keyhole: ",
    "api graphql -f query={currentUser{username}}": "GraphQL is closed at every level",
}

DRIVER = """
import json, subprocess
def run(words):
    done = subprocess.run(["sh", "-c", "glab " + words], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    return {"code": done.returncode, "out": " ".join((done.stdout + done.stderr).split())}
with open("errands.json") as file:
    print(json.dumps({words: run(words) for words in json.load(file)}))
"""


@dataclass(frozen=True)
class Said:
    """How each errand ended, and what arrived at the forge."""

    ended: dict[str, Any]
    forges: Forges


@pytest.fixture(scope="module")
def said(git_ground: Path) -> Said:
    glab = find_built("glab")
    directory = git_ground / "glab"
    directory.mkdir()
    directory.chmod(0o755)
    project = Project.make(this_person(directory), 0)
    programs = directory / "programs"
    programs.mkdir()
    shutil.copy(glab, programs / "glab")
    authority = trustme.CA()
    (project.home / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (project.home / "token").touch(0o600)
    (project.home / "token").write_text(TOKEN)
    project.write("errands.json", json.dumps([*GRANTED, *REFUSED]))
    forges = Forges(authority, TOKEN, {"gitlab.com": "gitlab"})
    project.policy(f"""
[sandbox]
readable = ["{programs}"]
[sandbox.env]
PATH = "{programs}:/usr/bin:/bin"
GLAB_NO_PROMPT = "1"
GLAB_CHECK_UPDATE = "false"
GLAB_SEND_TELEMETRY = "false"
[services.gitlab]
secret = "file:~/token"
repos = ["acme/widgets"]
push = ["agent/*"]
api = "pull-requests"
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"gitlab.com:443" = "{forges.address}"
""")
    try:
        with project.running("python3", "-I", "-S", "-c", DRIVER) as process:
            out, err = process.communicate(timeout=300)
    finally:
        forges.close()
    assert process.returncode == 0, err
    return Said(json.loads(out), forges)


@pytest.mark.parametrize("words", GRANTED)
def test_glab_works_for_a_granted_project(said: Said, words: str) -> None:
    ended = said.ended[words]
    assert ended["code"] == 0, ended
    assert GRANTED[words] in ended["out"]


@pytest.mark.parametrize("words", REFUSED)
def test_the_rest_of_glab_is_refused_in_words_that_it_prints_i3(said: Said, words: str) -> None:
    """The controls are above."""
    ended = said.ended[words]
    assert ended["code"] != 0, ended
    assert REFUSED[words] in ended["out"]


def test_the_forge_was_asked_about_the_granted_project_alone_i3(said: Said) -> None:
    arrived = [
        f"{each.method} {each.target.partition('?')[0]}" for each in said.forges.service.seen
    ]
    project = "/api/v4/projects/acme%2Fwidgets"
    assert {line for line in arrived if project not in line} <= {"GET /api/v4/user"}
    writes = sorted(line for line in arrived if not line.startswith("GET "))
    assert writes == sorted(
        [
            f"POST {project}/issues",
            f"POST {project}/issues/1/notes",
            f"POST {project}/merge_requests",
            f"POST {project}/merge_requests/1/notes",
            *[f"PUT {project}/issues/1"] * 2,
            *[f"PUT {project}/merge_requests/1"] * 2,
        ]
    )


def test_no_token_of_the_project_or_of_the_person_came_in_i1(said: Said) -> None:
    """The control: the page itself was shown."""
    told = json.dumps(said.ended)
    assert "acme / widgets" in told
    for secret in (TOKEN, RUNNERS_TOKEN, "mirror-password"):
        assert secret not in told
