"""An unmodified git-lfs in a sandbox, a forge and its storage host outside, and the installed
command between.

The storage host's name is in no rule of the policy: the gateway makes the transfers, and neither
the address nor what opens it comes inside (I1, I2).
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.git.lfsforge import ELSEWHERE, STORAGE, LfsForge
from tests.rigs.git.lfsserver import Seen
from tests.rigs.git.repositories import Bare, random_bytes
from tests.rigs.git.sandboxed import HOST, Desk, Ended, Outcome
from tests.rigs.git.server import missing
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.outside

CONTENT = random_bytes(1_500_000)
OID = hashlib.sha256(CONTENT).hexdigest()
OWN = "of-the-client-0123456789abcdef"
"""A password of its own, which goes nowhere."""

REPOS = "widgets moved failing lying brief locked-out docs locks forced".split()
GRANT = f"""
repos = [{", ".join(f'"acme/{name}"' for name in REPOS)}]
push = ["agent/*"]
"""
READING = 'repos = ["acme/widgets"]\n'

_TYPE = "application/vnd.git-lfs+json"
_LOUD = "export GIT_TRACE=1 GIT_CURL_VERBOSE=1 GIT_TRACE_CURL=1"
_SLIM = "GIT_LFS_SKIP_SMUDGE=1 git clone -q https://github.com/acme/{0}.git {0}; cd {0}"
_NEW = "head -c 700000 /dev/urandom >new.bin; cp new.bin large.bin; git add -A; git commit -qm new"

_TOOLS = f"""
ask() {{ curl -sS -o answer -w '%{{http_code}}\\n' "$@"; }}
batch() {{
    ask -H 'Content-Type: {_TYPE}' -H 'Accept: {_TYPE}' \\
        -d "{{\\"operation\\":\\"$2\\",\\"objects\\":[{{\\"oid\\":\\"$3\\",\\"size\\":$4}}]}}" \\
        https://github.com/acme/$1.git/info/lfs/objects/batch
}}
place() {{
    python3 -c 'import json,sys; o = json.load(open("answer"))["objects"][0]
print(o["actions"][sys.argv[1]]["href"])' "$1"
}}
"""

_ONE = f"download {OID} {len(CONTENT)}"
_FAILS = "git -c lfs.transfer.maxretries=1 clone https://github.com/acme/{0}.git x"

ERRANDS = {
    "clone": f"{_LOUD}; git clone $U copy >&2; sha256sum copy/large.bin",
    "pull": f"{_SLIM.format('widgets')}; head -c 7 large.bin; echo; "
    f"{_LOUD}; git lfs pull; sha256sum large.bin",
    "moved": "git clone -q https://github.com/acme/moved.git copy; sha256sum copy/large.bin",
    "push": f"{_SLIM.format('widgets')}; {_NEW}; sha256sum new.bin; oid; {_LOUD}; "
    "exec git push origin HEAD:refs/heads/agent/large",
    "lfs-push": f"{_SLIM.format('widgets')}; {_NEW}; sha256sum new.bin; {_LOUD}; "
    "exec git lfs push origin HEAD",
    "refused-branch": f"{_SLIM.format('widgets')}; {_NEW}; oid; exec git push origin HEAD:main",
    "locks": f"{_SLIM.format('locks')}; git lfs lock large.bin; git lfs locks; "
    "git lfs unlock large.bin; git lfs locks | wc -l",
    "force-unlock": f"{_SLIM.format('forced')}; git lfs lock large.bin; "
    "exec git lfs unlock --force large.bin",
    "failing": _FAILS.format("failing"),
    "lying": _FAILS.format("lying"),
    "locked-out": _FAILS.format("locked-out"),
    "elsewhere": f"{_SLIM.format('widgets')}; git config lfs.url https://{STORAGE}/x; "
    "exec git lfs pull",
    "lfsconfig": f"{_SLIM.format('widgets')}; "
    f"git config -f .lfsconfig lfs.url https://{STORAGE}/x; exec git lfs pull",
    "other-repository": f"{_SLIM.format('widgets')}; "
    "git config lfs.url https://github.com/acme/vault.git/info/lfs; exec git lfs pull",
    "own-credential": f"{_SLIM.format('widgets')}; git config lfs.url "
    f"https://me:{OWN}@github.com/acme/widgets.git/info/lfs; git lfs pull; sha256sum large.bin",
    "names": f"for name in {STORAGE} {ELSEWHERE} {HOST}; do "
    "getent ahosts $name >/dev/null && echo $name; done; "
    f"curl -sS https://{STORAGE}/ || echo none",
    "twice": f"{_TOOLS} batch widgets {_ONE}; P=$(place download); "
    "ask $P; sha256sum answer; ask $P; sha256sum answer",
    "upload-twice": f"{_TOOLS} printf twice-twice >b; S=$(sha256sum b | cut -c -64); "
    "batch widgets upload $S 11; P=$(place upload); ask -T b $P; ask -T b $P; cat answer",
    "other-method": f"{_TOOLS} batch widgets {_ONE}; P=$(place download); "
    "printf x >b; ask -T b $P; ask -X DELETE $P; ask -I $P; ask $P",
    "from-another": f"{_TOOLS} batch widgets {_ONE}; P=$(place download); "
    "ask $(echo $P | sed s/widgets/docs/); cat answer; echo; ask $P",
    "expiry": f"{_TOOLS} batch brief {_ONE}; P=$(place download); "
    "while ask $P >code && grep -q 200 code; do :; done; cat code answer",
    "verbose": f"{_TOOLS} batch widgets {_ONE}; cat answer; curl -v -o got $(place download) 2>&1",
    # What was lent has these words; they are written so that this script itself is not found.
    "search": f"{_LOUD}; git clone $U copy 2>told; cd copy; git lfs pull; "
    "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline >../processes 2>/dev/null || true; cd ..; "
    "grep -rlE 'info/lfs/[k]eyhole/' . | sort; echo; "
    "grep -raoE '[R]emoteAuth|[X]-Amz-Signature' . $HOME /tmp /etc/keyhole || echo none",
}


@dataclass(frozen=True)
class Story:
    """One run with all errands, and what each of the two saw."""

    outcome: Outcome
    forge: LfsForge
    seen: list[Seen]
    project: Project

    def __getitem__(self, name: str) -> Ended:
        return self.outcome.ended[name]

    @property
    def bare(self) -> Bare:
        """The repository that is pushed to."""
        return Bare(self.forge.root / "acme/widgets.git")

    def transfers(self, oid: str) -> list[str]:
        """By which methods the storage host was asked for an object."""
        return [e.method for e in self.seen if e.where == "storage" and oid in e.path]

    def transfer(self, oid: str, method: str) -> dict[str, Any]:
        """What is written down of a transfer."""
        events = self.outcome.events
        found = [e for e in events if e.get("oid") == oid and e.get("method") == method]
        assert found, events
        return found[0]


@pytest.fixture(scope="module")
def forge(git_ground: Path) -> Iterator[LfsForge]:
    """A forge of these tests' own."""
    lacking = missing() or ("not installed: git-lfs" if shutil.which("git-lfs") is None else None)
    if lacking:
        give_up(lacking)
    made = LfsForge(git_ground / "lfs-server", HOST)
    for name in (*REPOS, "vault"):
        made.furnish(f"acme/{name}", CONTENT)
    yield made
    made.close()


def run(forge: LfsForge, ground: Path, name: str, grant: str, errands: dict[str, str]) -> Story:
    """Run errands in the sandbox of a new project."""
    directory = ground / name
    directory.mkdir()
    desk = Desk(Project.make(this_person(directory), 0), forge)
    desk.policy(grant)
    policy = desk.project.directory / "keyhole.toml"
    policy.write_text(policy.read_text() + forge.connect)
    before = len(forge.large.seen)
    outcome = desk.run(errands)
    return Story(outcome, forge, forge.large.seen[before:], desk.project)


@pytest.fixture(scope="module")
def story(forge: LfsForge, git_ground: Path) -> Story:
    return run(forge, git_ground, "lfs-story", GRANT, ERRANDS)


# ── what works ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["clone", "pull", "moved"])
def test_git_lfs_downloads_what_is_granted(story: Story, name: str) -> None:
    """Also where the storage host sends it on to another, which the client never learns."""
    done = story[name]
    assert done.code == 0, done.err
    assert done.out.split()[-2] == OID


@pytest.mark.parametrize("name", ["push", "lfs-push"])
def test_git_lfs_uploads_and_verifies_where_a_push_is_granted(story: Story, name: str) -> None:
    """A plain `git push` does it, before the commits that name the object."""
    done = story[name]
    assert done.code == 0, done.err
    oid = done.out.split()[0]
    assert story.transfers(oid) == ["PUT", "POST"]
    content = story.forge.large.objects["acme/widgets", oid]
    assert hashlib.sha256(content).hexdigest() == oid
    assert ("acme/widgets", oid) in story.forge.large.verified
    if name == "push":
        assert story.bare.branch("agent/large") == done.out.split()[2]


def test_locks_are_taken_listed_and_given_back(story: Story) -> None:
    done = story["locks"]
    assert done.code == 0, done.err
    assert "Locked large.bin" in done.out
    assert "Unlocked large.bin" in done.out
    assert done.out.split()[-1] == "0"
    assert story.forge.large.locks["acme/locks"] == []


def test_another_s_lock_is_not_broken(story: Story) -> None:
    """I3: the control is the lock that is given back."""
    done = story["force-unlock"]
    assert done.code == 2
    assert "keyhole: " in done.err
    assert len(story.forge.large.locks["acme/forced"]) == 1


# ── what is written down ──────────────────────────────────────────────────────────────────────────


def test_the_audit_has_the_storage_host_the_object_and_its_size(story: Story) -> None:
    """I8: of a redirect, where it ended."""
    down = story.transfer(OID, "GET")
    assert (down["storage"], down["size"], down["host"]) == (STORAGE, len(CONTENT), HOST)
    assert (down["verdict"], down["status"], down["service"]) == ("allow", 200, "github")
    oid = story["push"].out.split()[0]
    for method in ("PUT", "POST"):
        up = story.transfer(oid, method)
        assert (up["storage"], up["size"], up["status"]) == (STORAGE, 700_000, 200)
    places = {e["storage"] for e in story.outcome.events if "/acme/moved.git" in e.get("path", "")
              and "storage" in e}  # fmt: skip
    assert places == {ELSEWHERE}


# ── nothing of it is inside ───────────────────────────────────────────────────────────────────────


def test_what_was_lent_is_nowhere_inside(story: Story) -> None:
    """I1: neither in what git, git-lfs and curl show of their requests, nor in a file or process.

    The control is what they do show: the opaque addresses.
    """
    shown = "".join(each.out + each.err for each in story.outcome.ended.values())
    assert shown.count("/info/lfs/keyhole/") > 10
    kept, found = story["search"].out.split("\n\n")
    assert "./told" in kept.split()
    assert found.split() == ["none"], found
    lent = [*story.forge.large.secrets, story.forge.secret, story.forge.large.authorization or ""]
    assert len(lent) > 20
    assert not [each for each in lent if each in shown + story.outcome.ran.err]


def test_what_was_lent_is_in_no_file_of_this_host(story: Story) -> None:
    """I1, I8: neither what the sandbox left nor the log. The control is the token's own file."""
    lent = [each.encode() for each in (*story.forge.large.secrets, story.forge.secret)]
    holding = set()
    for path in story.project.directory.parent.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            holding |= {path.name for each in lent if each in data}
    assert holding == {"token"}


def test_no_storage_host_has_a_name_inside(story: Story) -> None:
    """I2: the control is the forge's own."""
    done = story["names"]
    assert done.out.split() == [HOST, "none"], done
    assert f"Could not resolve host: {STORAGE}" in done.err


def test_the_forge_gets_the_service_s_credential_and_no_other(story: Story) -> None:
    """I6: not even where the client has one of its own."""
    assert story["own-credential"].out.split()[0] == OID, story["own-credential"].err
    sent = {e.headers.get("authorization") for e in story.seen if e.where == "forge"}
    assert sent == {story.forge.large.authorization}
    assert not any(OWN in str(each) for each in story.seen)


def test_the_storage_host_gets_what_was_lent_and_no_other(story: Story) -> None:
    """I4: nor anything by which the client would be known."""
    asked = [each for each in story.seen if each.where == "storage"]
    assert all(each.headers["user-agent"] == "git-lfs" for each in asked)
    held = {each.headers.get("authorization", "RemoteAuth none").split()[0] for each in asked}
    assert held == {"RemoteAuth"}
    onward = [each for each in asked if each.path.startswith("/elsewhere/")]
    assert onward
    assert not any("authorization" in each.headers for each in onward)


# ── other places ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["elsewhere", "lfsconfig"])
def test_an_endpoint_on_another_host_does_not_exist(story: Story, name: str) -> None:
    """I2: a committed `.lfsconfig` may name any."""
    done = story[name]
    assert done.code == 2
    assert f"lookup {STORAGE}" in done.err
    assert "no such host" in done.err


def test_the_large_files_of_another_repository_do_not_exist(story: Story) -> None:
    """I3: they are there, outside."""
    done = story["other-repository"]
    assert done.code == 2
    assert "keyhole: not found" in done.err
    assert ("acme/vault", OID) in story.forge.large.objects
    assert not any("vault" in each.path for each in story.seen)


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────


def test_a_download_may_be_repeated_and_an_upload_not(story: Story) -> None:
    assert story["twice"].out.split()[1:] == ["200", OID, "answer"] * 2
    done = story["upload-twice"]
    assert done.out.split("\n")[:3] == ["200", "200", "403"]
    assert "ask for it again" in done.out
    assert story.transfers(hashlib.sha256(b"twice-twice").hexdigest()) == ["PUT"]


def test_an_address_is_for_one_method_one_repository_and_some_time(story: Story) -> None:
    """I3: what is asked for last in the first two is what it was given for."""
    assert story["other-method"].out.split() == ["200", "403", "403", "403", "200"]
    codes = story["from-another"].out.split("\n")
    assert (codes[0], codes[1], codes[3]) == ("200", "403", "200"), codes
    assert "not known" in codes[2]
    done = story["expiry"]
    assert done.out.split()[:2] == ["200", "403"]
    assert "the address is over" in done.out


# ── what goes wrong outside ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("failing", "the storage host answered 503"),
        ("lying", f"expected OID {OID}, got"),
        ("locked-out", "keyhole: the origin does not accept the credential"),
    ],
)
def test_git_lfs_says_what_went_wrong_and_asks_nobody(story: Story, name: str, words: str) -> None:
    """I7, I10: in its own words, without a secret, and without waiting for a password."""
    done = story[name]
    assert done.code == 128
    assert words in done.err
    assert "Username" not in done.err


def test_a_refused_push_has_sent_its_large_files_before(story: Story) -> None:
    """I10: git-lfs uploads first, so they are there though the branch is refused; docs say so."""
    done = story["refused-branch"]
    assert done.code == 1
    assert "(keyhole: push to main is not allowed" in done.err
    assert not story.bare.has(done.oid)


# ── for reading alone ─────────────────────────────────────────────────────────────────────────────


def test_without_a_push_pattern_nothing_is_uploaded_or_locked(
    forge: LfsForge, git_ground: Path
) -> None:
    """I3: the control is the download in the same session, and the uploads above."""
    reading = run(
        forge,
        git_ground,
        "lfs-reading",
        READING,
        {
            "pull": f"{_SLIM.format('widgets')}; git lfs pull; sha256sum large.bin",
            "push": f"{_SLIM.format('widgets')}; {_NEW}; exec git lfs push origin HEAD",
            "lock": f"{_SLIM.format('widgets')}; exec git lfs lock large.bin",
        },
    )
    assert reading["pull"].out.split()[0] == OID, reading["pull"].err
    for name, done in ((name, reading[name]) for name in ("push", "lock")):
        assert done.code == 2, (name, done)
        assert "the repository is granted for reading alone" in done.err
    assert set(reading.transfers("")) == {"GET"}
    assert not [each for each in reading.seen if each.path.endswith("/locks")]
    reasons = {e["reason"] for e in reading.outcome.events if e["verdict"] == "deny"}
    assert "read-only" in reasons
