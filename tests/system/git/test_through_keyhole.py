"""An unmodified git in a sandbox, a real git server outside, and the installed command between.

The policy is the one of the README: one repository, one pattern of branches. What is refused never
arrives at the server, and git says so in its own words (I3, I10).
"""

from __future__ import annotations

import concurrent.futures
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.git.errands import HELD, OTHERS, PUSHES, READS, REFUSED, furnish
from tests.rigs.git.repositories import newer_git
from tests.rigs.git.sandboxed import Desk, Outcome, script
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.git.server import GitServer

pytestmark = pytest.mark.outside

GRANT = 'repos = ["acme/widgets"]\npush = ["agent/*"]\n'
ZERO = "0" * 40


class Story:
    """One run with errands, and what acme/widgets had before and after it.

    The repository itself is another test's as soon as that furnishes it anew.
    """

    def __init__(self, desk: Desk, grant: str, errands: dict[str, str]) -> None:
        bare = furnish(desk.server)
        self.before = bare.refs()
        had = bare.objects()
        desk.policy(grant)
        self.secret = desk.server.secret
        self.outcome: Outcome = desk.run(errands)
        self.ended = self.outcome.ended
        self.after = bare.refs()
        self.arrived = bare.objects() - had
        reachable = bare.git("rev-list", "--objects", "--all").splitlines()
        self.reachable = {line.split(" ")[0] for line in reachable}

    def branch(self, name: str) -> str | None:
        """Where a branch was after the run."""
        return self.after.get(f"refs/heads/{name}")


@pytest.fixture(scope="module")
def story(git_server: GitServer, git_ground: Path) -> Story:
    scripts = {name: each.script for name, each in (PUSHES | REFUSED).items()}
    return Story(desk(git_server, git_ground, "story"), GRANT, READS | scripts | OTHERS)


def desk(server: GitServer, ground: Path, name: str, git: Path | None = None) -> Desk:
    """A project of whoever runs the suite."""
    directory = ground / name
    directory.mkdir()
    return Desk(Project.make(this_person(directory), 0), server, git)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_git_clones_what_is_granted(story: Story) -> None:
    """I1: and nothing of the token is in the clone."""
    done = story.ended["clone"]
    assert done.code == 0, done.err
    assert done.out.startswith("three\n")
    assert done.oid == story.before["refs/heads/main"]
    assert story.secret not in done.out + done.err
    assert {e.user for e in story.outcome.asked if e.path.endswith("/info/refs")} == {
        "x-access-token"
    }


@pytest.mark.parametrize("name", ["v0", "v1", "v2", "clone-bare-name"])
def test_git_clones_in_each_protocol_and_by_each_spelling(story: Story, name: str) -> None:
    done = story.ended[name]
    assert (done.code, done.out.strip()) == (0, story.before["refs/heads/main"]), done.err


def test_the_protocol_that_was_asked_for_arrives(story: Story) -> None:
    fetches = [each for each in story.outcome.asked if each.path.endswith("git-upload-pack")]
    assert {each.protocol for each in fetches} >= {"", "version=1", "version=2"}


def test_git_fetches_one_branch(story: Story) -> None:
    for name, branch in (("fetch", "side"), ("long-request", "late")):
        done = story.ended[name]
        wanted = story.before[f"refs/heads/{branch}"]
        assert (done.code, done.out.strip()) == (0, wanted), (name, done.err)


def test_shallow_clones_deepen(story: Story) -> None:
    done = story.ended["shallow"]
    assert (done.code, done.out.split()) == (0, ["1", "3"]), done.err


def test_partial_clones_fetch_what_they_lack(story: Story) -> None:
    for name in ("partial", "tree-less"):
        done = story.ended[name]
        assert done.code == 0, done.err
        assert done.out.split()[-1] == "three"
    assert int(story.ended["partial"].out.split()[0]) > 0


def test_the_default_branch_is_told(story: Story) -> None:
    assert "ref: refs/heads/main\tHEAD\n" in story.ended["ls-remote"].out


# ── what may be pushed ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PUSHES)
def test_a_push_that_is_granted_arrives(story: Story, name: str) -> None:
    """I8: and it is written down, one event for each ref."""
    push, done = PUSHES[name], story.ended[name]
    ref = f"refs/heads/{push.ref}"
    assert done.code == 0, done.err
    assert story.after.get(ref) == done.oid, done.err
    event, *others = story.outcome.refs(ref)
    assert not others
    assert event["verdict"] == "allow"
    assert event["rule"] == "services.github.push[0]"
    assert event["repository"] == "acme/widgets"
    assert event["old"] == story.before.get(ref, ZERO)
    assert event["new"] == done.oid
    assert event["change"] == push.change
    assert event["size"] > 0
    assert event["host"] == "github.com"


def test_each_granted_push_arrived_once(story: Story) -> None:
    """What the server saw of pushes is what was granted; probes may be answered on the way."""
    arrived = [each for each in story.outcome.asked if each.pushes and each.size > 1000]
    granted = [e for e in story.outcome.events if e["kind"] == "ref" and e["verdict"] == "allow"]
    pushes = {event["new"] for event in granted}
    assert {each.status for each in arrived} <= {200}
    bodies = [each for each in story.outcome.asked if each.pushes]
    assert len(pushes) <= len(bodies) <= 2 * len(PUSHES)
    assert len(PUSHES) >= len(arrived)


# ── what may not ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", REFUSED)
def test_a_push_that_is_not_granted_is_refused_in_gits_own_words(story: Story, name: str) -> None:
    """I3, I8. Control: the pushes above, in the same sandbox and to the same repository."""
    refused, done = REFUSED[name], story.ended[name]
    assert done.code == 1, done.err
    assert refused.line in done.err
    assert "Everything up-to-date" not in done.err
    event, *others = story.outcome.refs(refused.ref, new=done.oid)
    assert not others
    assert (event["verdict"], event["reason"]) == ("deny", refused.reason)
    assert event["repository"] == "acme/widgets"
    assert event["old"] == story.before.get(refused.ref, ZERO)
    assert event["size"] > 0
    assert event["rule"]
    assert story.after.get(refused.ref) == story.before.get(refused.ref)
    if not refused.known:
        assert done.oid not in story.arrived


def test_without_keyhole_each_of_them_would_have_gone_through(
    git_server: GitServer, tmp_path: Path
) -> None:
    """The control: the same scripts and the same server, asked directly by somebody who may."""
    bare = furnish(git_server)
    git_server.root.joinpath("control").mkdir(exist_ok=True)

    def push(name: str) -> tuple[str, int, str]:
        shutil.copytree(bare.path, git_server.root / f"control/{name}.git")
        env = git_server.client()
        env |= {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_1": f"url.{git_server.url(f'control/{name}')}.insteadOf",
            "GIT_CONFIG_VALUE_1": "https://github.com/acme/widgets.git",
        }
        words = script(name, REFUSED[name].script)
        done = subprocess.run(["/bin/sh", "-c", words], cwd=tmp_path, env=env, check=False,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        return name, done.returncode, done.stderr

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(push, REFUSED))
    assert not [each for each in ended if each[1] != 0]


def test_the_words_of_the_issue(story: Story) -> None:
    """I10."""
    line = " ! [remote rejected] main -> main (keyhole: push to main is not allowed; "
    assert f"{line}allowed: agent/*)\n" in story.ended["main"].err
    assert "error: failed to push some refs to 'https://github.com/acme/widgets.git'" in (
        story.ended["main"].err
    )


@pytest.mark.parametrize("name", ["mixed", "atomic-mixed"])
def test_one_refused_ref_refuses_all(story: Story, name: str) -> None:
    """Nothing is sent, and the innocent one is told why."""
    done, ref = story.ended[name], f"refs/heads/agent/{name}"
    assert done.code == 1, done.err
    assert f" ! [remote rejected] HEAD -> agent/{name} ({HELD})\n" in done.err
    assert " ! [remote rejected] HEAD -> main (keyhole: push to main" in done.err
    assert ref not in story.after
    assert done.oid not in story.arrived
    verdicts = {
        event["ref"]: event["verdict"]
        for event in story.outcome.events
        if event["kind"] == "ref" and event.get("new") == done.oid
    }
    assert verdicts == {ref: "deny", "refs/heads/main": "deny"}


def test_a_mirror_push_is_refused_whole(story: Story) -> None:
    done = story.ended["mirror"]
    assert done.code == 1, done.err
    assert re.search(r"! \[remote rejected\] stray -> stray \(keyhole: push to stray", done.err)
    assert "refs/heads/stray" not in story.after
    assert "refs/heads/agent/doomed" in story.after
    assert done.oid not in story.arrived


def test_a_delete_is_refused(story: Story) -> None:
    done = story.ended["delete"]
    assert done.code == 1, done.err
    words = r"! \[remote rejected\] +agent/doomed \(keyhole: deleting agent/doomed is not allowed\)"
    assert re.search(words, done.err), done.err
    assert story.after["refs/heads/agent/doomed"] == story.before["refs/heads/agent/doomed"]


def test_push_options_are_not_on_offer(story: Story) -> None:
    done = story.ended["option"]
    assert done.code != 0
    assert "the receiving end does not support push options" in done.err
    assert "refs/heads/agent/option" not in story.after


def test_a_branch_is_a_commit(story: Story) -> None:
    done = story.ended["tree"]
    assert done.code == 1, done.err
    assert "refs/heads/agent/tree" not in story.after


def test_what_is_refused_never_arrives(story: Story) -> None:
    """I3: no ref moved and no object came but those of granted pushes."""
    granted = {f"refs/heads/{each.ref}" for each in PUSHES.values()} | {"refs/heads/agent/atomic"}
    moved = {ref for ref in story.after if story.after[ref] != story.before.get(ref)}
    assert moved <= granted
    assert story.before.keys() <= story.after.keys()
    assert story.arrived <= story.reachable


# ── other repositories ────────────────────────────────────────────────────────────────────────────


def test_another_repository_does_not_exist(story: Story) -> None:
    """I3: it is answered as one that is not there; what is true is in the log alone."""
    for name, repository in (
        ("vault", "vault"),
        ("nowhere", "nowhere"),
        ("renamed", "old-widgets"),
    ):
        done = story.ended[name]
        assert done.code == 128
        url = f"https://github.com/acme/{repository}.git/"
        assert f"fatal: repository '{url}' not found\n" in done.err
    push = story.ended["vault-push"]
    assert push.code == 128
    assert "not found" in push.err
    assert not [each for each in story.outcome.asked if "widgets" not in each.path.lower()]
    reasons = {
        event["reason"]
        for event in story.outcome.events
        if event["kind"] == "request" and "/acme/vault" in str(event.get("path"))
    }
    assert reasons == {"repository-not-granted"}


def test_another_forge_does_not_exist(story: Story) -> None:
    done = story.ended["elsewhere"]
    assert done.code == 128
    assert "Could not resolve host: gitlab.com" in done.err


def test_the_token_is_nowhere_inside(story: Story) -> None:
    """I1: a stand-in is in the environment, and the real one arrives."""
    assert story.ended["token"].code == 1  # of grep, which found none in .git
    told = "".join(each.out + each.err for each in story.ended.values())
    assert story.secret not in told
    assert story.secret not in story.outcome.ran.err
    assert {e.user for e in story.outcome.asked if e.status == 200} == {"x-access-token"}


# ── wider grants ──────────────────────────────────────────────────────────────────────────────────

WIDE = """
repos = ["acme/widgets", "acme/old-widgets", "acme/stray", "acme/hashed", "acme/plain",
         "acme/trunk", "acme/lib", "acme/outer"]
push = ["agent/*", "release"]
force = true
delete = true
tags = ["v*"]
push_options = ["ci.skip"]
"""

_ELSEWHERE = "U=https://github.com/acme/{0}.git; clone"

WIDE_ERRANDS = {
    "force": "clone; git checkout -q agent/forced; git commit -q --amend -m other; oid; "
    "exec git push -f origin agent/forced",
    "force-workflow": "clone; git checkout -q agent/leased; echo x >>.github/workflows/ci.yml; "
    "git commit -q -a --amend -m other; oid; exec git push -f origin agent/leased",
    "delete": "clone; exec git push origin :agent/doomed",
    "delete-main": "clone; exec git push origin :main",
    "tag": "clone; git tag -am x v2; oid v2; exec git push origin v2",
    "tag-move": "clone; git tag -f v1; oid; exec git push -f origin v1",
    "tag-delete": "clone; exec git push origin :refs/tags/v1",
    "tag-workflow": "clone; echo x >>.github/workflows/ci.yml; change w; git tag -am x v3; "
    "oid v3; exec git push origin v3",
    "option": "clone; change option; oid; "
    "exec git push -o ci.skip origin HEAD:refs/heads/agent/option",
    "other-option": "clone; change other; oid; "
    "exec git push -o ci.skip -o merge_request.create origin HEAD:refs/heads/agent/other",
    "renamed": "exec git clone https://github.com/acme/old-widgets.git copy",
    "stray": "exec git clone https://github.com/acme/stray.git copy",
    "hashed": f"{_ELSEWHERE.format('hashed')}; change h; oid; "
    "exec git push origin HEAD:refs/heads/agent/hashed",
    "hashed-workflow": f"{_ELSEWHERE.format('hashed')}; mkdir -p .github/workflows; "
    "echo x >.github/workflows/e.yml; change h; oid; exec git push origin HEAD:refs/heads/agent/wf",
    "plain": f"{_ELSEWHERE.format('plain')}; oid; exec git push origin main:agent/behind",
    "trunk": f"{_ELSEWHERE.format('trunk')}; change t; oid; exec git push origin agent/trunk",
    "submodule": f"{_ELSEWHERE.format('outer')}; git submodule update -q --init; cat lib/readme",
}


@pytest.fixture(scope="module")
def wide(git_server: GitServer, git_ground: Path) -> Story:
    """A policy that grants nearly all that can be granted."""
    git_server.create("acme/hashed", object_format="sha256").commit("main", {"readme": b"h\n"})
    plain = git_server.create("acme/plain", filters=False)
    first = plain.commit("main", {"readme": b"1\n"})
    plain.commit("main", {"readme": b"2\n"})
    plain.point("refs/heads/agent/behind", first)
    trunk = git_server.create("acme/trunk")
    trunk.commit("agent/trunk", {"readme": b"t\n"})
    trunk.alias("HEAD", "refs/heads/agent/trunk")
    lib = git_server.create("acme/lib").commit("main", {"readme": b"of the library\n"})
    outer = git_server.create("acme/outer")
    modules = b'[submodule "lib"]\n\tpath = lib\n\turl = ../lib.git\n'
    outer.commit("main", {".gitmodules": modules}, links={"lib": lib})
    return Story(desk(git_server, git_ground, "wide"), WIDE, WIDE_ERRANDS)


def test_force_and_delete_pass_where_they_are_granted(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["force"]
    assert done.code == 0, done.err
    assert wide.branch("agent/forced") == done.oid
    assert outcome.refs("refs/heads/agent/forced")[0]["change"] == "force"
    assert outcome.ended["delete"].code == 0, outcome.ended["delete"].err
    assert wide.branch("agent/doomed") is None
    event = outcome.refs("refs/heads/agent/doomed")[0]
    assert (event["change"], event["new"], event["verdict"]) == ("delete", ZERO, "allow")


def test_denied_paths_hold_for_forced_pushes_too(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["force-workflow"]
    assert done.code == 1, done.err
    assert "would change .github/workflows/ci.yml" in done.err
    assert done.oid not in wide.arrived


def test_the_default_branch_is_protected_under_any_name(wide: Story, git_server: GitServer) -> None:
    outcome = wide.outcome
    assert outcome.ended["delete-main"].code == 1
    assert wide.branch("main")
    done = outcome.ended["trunk"]
    assert done.code == 1, done.err
    assert "(keyhole: agent/trunk is protected" in done.err
    assert outcome.refs("refs/heads/agent/trunk")[0]["reason"] == "ref-protected"


def test_a_tag_is_made_once(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["tag"]
    assert done.code == 0, done.err
    assert wide.after["refs/tags/v2"] == done.oid
    for name in ("tag-move", "tag-delete", "tag-workflow"):
        assert outcome.ended[name].code == 1, outcome.ended[name].err
    assert "(keyhole: a tag is never moved" in outcome.ended["tag-move"].err
    assert wide.after["refs/tags/v1"] == wide.before["refs/tags/v1"]
    assert "refs/tags/v3" not in wide.after
    assert "would change .github/workflows/ci.yml" in outcome.ended["tag-workflow"].err


def test_only_push_options_that_the_policy_spells_pass(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["option"]
    assert done.code == 0, done.err
    assert wide.branch("agent/option") == done.oid
    other = outcome.ended["other-option"]
    assert other.code == 1, other.err
    assert wide.branch("agent/other") is None
    assert outcome.refs("refs/heads/agent/other")[0]["reason"] == "push-option-refused"


def test_a_redirect_is_followed_into_scope_alone(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["renamed"]
    assert done.code == 0, done.err
    assert "warning: redirecting to https://github.com/acme/widgets.git/" in done.err
    stray = outcome.ended["stray"]
    assert stray.code == 128
    assert not [each for each in outcome.asked if each.path.startswith("/acme/vault")]


def test_the_other_object_format_is_judged_alike(wide: Story, git_server: GitServer) -> None:
    outcome = wide.outcome
    done = outcome.ended["hashed"]
    assert done.code == 0, done.err
    assert len(done.oid) == 64
    event = outcome.refs("refs/heads/agent/hashed")[0]
    assert (event["old"], event["new"]) == ("0" * 64, done.oid)
    refused = outcome.ended["hashed-workflow"]
    assert refused.code == 1, refused.err
    assert "would change .github/workflows/e.yml" in refused.err


def test_a_server_without_filters_is_asked_whole(wide: Story) -> None:
    outcome = wide.outcome
    done = outcome.ended["plain"]
    assert done.code == 0, done.err
    event = outcome.refs("refs/heads/agent/behind", repository="acme/plain")[0]
    assert event["change"] == "fast-forward"


def test_submodules_are_judged_by_their_own_address(wide: Story) -> None:
    done = wide.ended["submodule"]
    assert (done.code, done.out) == (0, "of the library\n"), done.err


# ── the narrowest and the unjudged ────────────────────────────────────────────────────────────────


def test_without_a_push_pattern_a_repository_is_for_reading(
    git_server: GitServer, git_ground: Path
) -> None:
    """I3: not even what can be pushed is told. Control: the clone in the same errand."""
    bare = furnish(git_server)
    reading = desk(git_server, git_ground, "reading")
    reading.policy('repos = ["acme/widgets"]\n')
    push = "clone; change x; oid; exec git push origin HEAD:refs/heads/agent/x"
    outcome = reading.run({"push": push})
    done = outcome.ended["push"]
    assert done.code == 128, done.err
    assert len(done.oid) == 40
    assert not [each for each in outcome.asked if "receive-pack" in each.path + each.query]
    assert bare.branch("agent/x") is None
    assert "Username" not in done.err


def test_a_push_that_needs_no_judging_streams_through_with_its_names_judged(
    git_server: GitServer, git_ground: Path
) -> None:
    bare = furnish(git_server)
    streaming = desk(git_server, git_ground, "streaming")
    streaming.policy(GRANT + "force = true\ndeny_paths = []\n")
    workflow = "clone; echo x >>.github/workflows/ci.yml; change w; oid; "
    outcome = streaming.run(
        {
            "push": f"{workflow} exec git push origin HEAD:refs/heads/agent/w",
            "large": "clone; head -c 3000000 /dev/urandom >big; change large; oid; "
            "exec git push origin HEAD:refs/heads/agent/large",
            "main": "clone; change main; oid; exec git push origin main",
        }
    )
    for name, branch in (("push", "agent/w"), ("large", "agent/large")):
        done = outcome.ended[name]
        assert done.code == 0, done.err
        assert bare.branch(branch) == done.oid
    assert outcome.ended["main"].code == 1
    assert REFUSED["main"].line in outcome.ended["main"].err
    assert not bare.has(outcome.ended["main"].oid)


# ── another git ───────────────────────────────────────────────────────────────────────────────────


def test_a_newer_git_is_served_and_refused_alike(git_server: GitServer, git_ground: Path) -> None:
    """Where somebody installed one; its own defaults and requests are not the system's."""
    git = newer_git()
    if git is None:
        pytest.skip("no newer git under /opt")
    bare = furnish(git_server)
    newer = desk(git_server, git_ground, "newer", git)
    newer.policy(GRANT)
    chosen = "new forward behind large from-partial from-shallow negotiated many-deltas".split()
    pushes = {name: PUSHES[name] for name in chosen}
    refused = {name: REFUSED[name] for name in ("main", "force", "tag", "workflow", "notes")}
    scripts = {name: each.script for name, each in (pushes | refused).items()}
    outcome = newer.run(READS | scripts)
    for name in READS | pushes:
        assert outcome.ended[name].code == 0, (name, outcome.ended[name].err)
    after = bare.refs()
    for name, push in pushes.items():
        assert after[f"refs/heads/{push.ref}"] == outcome.ended[name].oid
    for name, each in refused.items():
        assert outcome.ended[name].code == 1, outcome.ended[name].err
        assert each.line in outcome.ended[name].err
        assert not bare.has(outcome.ended[name].oid)
