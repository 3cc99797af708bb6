"""git over HTTP/2 to a forge that offers it, with the installed command between (I3, I10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rigs.git.errands import furnish
from tests.rigs.git.sandboxed import Desk, Outcome
from tests.rigs.git.server import GitServer, missing
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.outside

ERRANDS = {
    "clone": "GIT_TRACE_CURL=1 git clone -q $U copy; cd copy; oid",
    "push": "clone; change one; GIT_TRACE_CURL=1 git push -q origin HEAD:agent/one; oid",
    "large": "clone; git checkout -qb big; head -c 3000000 /dev/urandom >big; change big;"
    " GIT_TRACE_CURL=1 git push -q origin HEAD:agent/big; oid",
    "refused": "clone; change two; GIT_TRACE_CURL=1 git push -q origin HEAD:main",
}


def test_git_clones_and_pushes_over_http2(git_ground: Path) -> None:
    """Both sides speak it: git says so, and the server's log does."""
    lacking = missing()
    if lacking:
        give_up(lacking)
    server = GitServer(git_ground / "server-http2", "github.com", http2=True)
    try:
        outcome, before, after = _run(server, git_ground)
    finally:
        server.close()
    for name, each in outcome.ended.items():
        assert "ALPN: server accepted h2" in each.err, (name, each.err[-2000:])
        assert server.secret not in each.out + each.err
    for name, branch in (("clone", "main"), ("push", "agent/one"), ("large", "agent/big")):
        done = outcome.ended[name]
        assert (done.code, done.oid) == (0, after[f"refs/heads/{branch}"]), done.err[-2000:]
    assert outcome.ended["refused"].code != 0
    assert "keyhole: " in outcome.ended["refused"].err
    assert after["refs/heads/main"] == before["refs/heads/main"]
    assert {each.version for each in outcome.asked} == {"HTTP/2.0"}
    assert {each.user for each in outcome.asked} == {"x-access-token"}


def _run(server: GitServer, ground: Path) -> tuple[Outcome, dict[str, str], dict[str, str]]:
    bare = furnish(server)
    before = bare.refs()
    directory = ground / "http2"
    directory.mkdir()
    desk = Desk(Project.make(this_person(directory), 0), server)
    desk.policy('repos = ["acme/widgets"]\npush = ["agent/*"]\n')
    return desk.run(ERRANDS), before, bare.refs()
