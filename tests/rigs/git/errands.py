"""What git does in the sandboxes of these tests: one table of what works, one of what is refused.

Each script sets something up, says the oid that matters, and ends in the command it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.rigs.git.repositories import random_bytes

if TYPE_CHECKING:
    from tests.rigs.git.repositories import Bare
    from tests.rigs.git.server import GitServer

WORKFLOW = ".github/workflows/ci.yml"

READS = {
    "clone": "git clone $U copy >&2; cd copy; cat readme; git config --list --local; oid",
    "clone-bare-name": "git clone -q https://github.com/Acme/Widgets copy; cd copy; oid",
    "fetch": "clone --single-branch; git fetch -q origin side:side; oid side",
    "shallow": "clone --depth 1; git rev-list --count HEAD; git fetch -q --unshallow; "
    "git rev-list --count HEAD",
    "partial": "clone --filter=blob:none --no-checkout; "
    "git rev-list --objects --missing=print HEAD | grep -c '^?'; "
    "git checkout -q main; cat readme",
    "tree-less": "clone --filter=tree:0 --no-checkout; git checkout -q main; cat readme",
    "v0": "git -c protocol.version=0 clone -q $U copy; cd copy; oid",
    "v1": "git -c protocol.version=1 clone -q $U copy; cd copy; oid",
    "v2": "git -c protocol.version=2 clone -q $U copy; cd copy; oid",
    "ls-remote": "git ls-remote --symref $U",
    "long-request": "clone --single-branch; many long 60 :; "
    "git fetch -q origin refs/heads/late:late; oid late",
}
"""Reading. `long-request` has so many commits of its own that the request is compressed."""


@dataclass(frozen=True)
class Pushed:
    """A push that goes through: to which ref, and as which kind of change."""

    script: str
    ref: str
    change: str = "create"


PUSHES = {
    "new": Pushed("clone; change new; oid; exec git push origin HEAD:refs/heads/agent/new",
                  "agent/new"),
    "forward": Pushed("clone; git checkout -q agent/forward; change forward; oid; exec git push",
                      "agent/forward", "fast-forward"),
    "behind": Pushed("clone; oid; exec git push origin main:agent/behind",
                     "agent/behind", "fast-forward"),
    "at-main": Pushed("clone; oid; exec git push origin main:refs/heads/agent/at-main",
                      "agent/at-main"),
    "large": Pushed("clone; head -c 3000000 /dev/urandom >big; change large; oid; "
                    "exec git push origin HEAD:refs/heads/agent/large", "agent/large"),
    "small-buffer": Pushed("clone; head -c 300000 /dev/urandom >big; change small-buffer; oid; "
                           "exec git -c http.postBuffer=1024 push origin "
                           "HEAD:refs/heads/agent/small-buffer", "agent/small-buffer"),
    "expect": Pushed("clone; change expect; oid; "
                     "exec git -c http.extraHeader='Expect: 100-continue' push origin "
                     "HEAD:refs/heads/agent/expect", "agent/expect"),
    "v0-push": Pushed("clone; change v0; oid; exec git -c protocol.version=0 push origin "
                      "HEAD:refs/heads/agent/v0", "agent/v0"),
    "v1-push": Pushed("clone; change v1; oid; exec git -c protocol.version=1 push origin "
                      "HEAD:refs/heads/agent/v1", "agent/v1"),
    "negotiated": Pushed("clone; change negotiated; oid; exec git -c push.negotiate=true push "
                         "origin HEAD:refs/heads/agent/negotiated", "agent/negotiated"),
    "from-shallow": Pushed("clone --depth 1; change shallow; oid; "
                           "exec git push origin HEAD:refs/heads/agent/from-shallow",
                           "agent/from-shallow"),
    "from-partial": Pushed("clone --filter=blob:none; change partial; oid; "
                           "exec git push origin HEAD:refs/heads/agent/from-partial",
                           "agent/from-partial"),
    "merge": Pushed("clone; git checkout -q agent/merge; git merge -q --no-ff -m m origin/side; "
                    "oid; exec git push", "agent/merge", "fast-forward"),
    "merge-main": Pushed("clone; git checkout -q agent/old; change old; "
                         "git merge -q -m m origin/main; oid; exec git push",
                         "agent/old", "fast-forward"),
    "orphan": Pushed("clone; git checkout -q --orphan o; git rm -rqf .; change orphan; oid; "
                     "exec git push origin HEAD:refs/heads/agent/orphan", "agent/orphan"),
    "atomic": Pushed("clone; change atomic; oid; exec git push --atomic origin "
                     "HEAD:refs/heads/agent/atomic HEAD:refs/heads/agent/atomic-two",
                     "agent/atomic-two"),
    "many-deltas": Pushed("clone; many deltas 40 seq; git repack -qad; oid deltas; "
                          "exec git push origin deltas:refs/heads/agent/deltas", "agent/deltas"),
}  # fmt: skip


@dataclass(frozen=True)
class Refused:
    """A push that does not: its ref, the reason in the log, and git's words of it."""

    script: str
    ref: str
    reason: str
    words: str
    source: str = "HEAD"
    known: bool = False
    """Whether the oid that is said was the server's before."""

    @property
    def line(self) -> str:
        short = self.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
        return f" ! [remote rejected] {self.source} -> {short} (keyhole: {self.words}"


def _workflow(name: str, script: str, path: str) -> Refused:
    """A push to a granted branch that changes what runs with the repository's secrets."""
    return Refused(
        f"clone; {script}; oid; exec git push origin HEAD:refs/heads/agent/{name}",
        f"refs/heads/agent/{name}",
        "denied-path",
        f"agent/{name} would change {path}",
    )


REFUSED = {
    "main": Refused(
        "clone; change main; oid; exec git push origin main",
        "refs/heads/main", "ref-not-granted",
        "push to main is not allowed; allowed: agent/*)", "main",
    ),
    "main-in-chunks": Refused(
        "clone; head -c 3000000 /dev/urandom >big; change chunks; oid; exec git push origin main",
        "refs/heads/main", "ref-not-granted",
        "push to main is not allowed; allowed: agent/*)", "main",
    ),
    "force": Refused(
        "clone; git checkout -q agent/forced; git commit -q --amend -m other; oid; "
        "exec git push -f origin agent/forced",
        "refs/heads/agent/forced", "force-not-granted",
        "rewriting agent/forced is not allowed", "agent/forced",
    ),
    "lease": Refused(
        "clone; git checkout -q agent/leased; git commit -q --amend -m other; oid; "
        "exec git push --force-with-lease origin agent/leased",
        "refs/heads/agent/leased", "force-not-granted",
        "rewriting agent/leased is not allowed", "agent/leased",
    ),
    "rewind": Refused(
        "clone; oid origin/agent/rewind~1; "
        "exec git push -f origin origin/agent/rewind~1:agent/rewind",
        "refs/heads/agent/rewind", "force-not-granted",
        "rewriting agent/rewind is not allowed", "origin/agent/rewind~1", known=True,
    ),
    "tag": Refused(
        "clone; change tag; git tag v9; oid; exec git push origin v9",
        "refs/tags/v9", "tag-not-granted", "no tag pattern covers v9", "v9",
    ),
    "annotated": Refused(
        "clone; git tag -am x v8; oid v8; exec git push origin v8",
        "refs/tags/v8", "tag-not-granted", "no tag pattern covers v8", "v8",
    ),
    "nested": Refused(
        "clone; change nested; oid; exec git push origin HEAD:refs/heads/agent/a/b",
        "refs/heads/agent/a/b", "ref-not-granted", "push to agent/a/b is not allowed",
    ),
    "capital": Refused(
        "clone; change capital; oid; exec git push origin HEAD:refs/heads/Main",
        "refs/heads/Main", "ref-not-granted", "push to Main is not allowed",
    ),
    "alias": Refused(
        "clone; change alias; oid; exec git push origin HEAD:agent/alias",
        "refs/heads/agent/alias", "ref-symbolic", "agent/alias stands for another branch",
    ),
    "notes": Refused(
        "clone; git notes add -m x; oid refs/notes/commits; "
        "exec git push origin refs/notes/commits",
        "refs/notes/commits", "ref-namespace", "only branches and tags", "refs/notes/commits",
    ),
    "review": Refused(
        "clone; change review; oid; exec git push origin HEAD:refs/for/main",
        "refs/for/main", "ref-namespace", "only branches and tags",
    ),
    "workflow": _workflow(
        "wf-added", "echo x >.github/workflows/evil.yml; change w", ".github/workflows/evil.yml"
    ),
    "action-of-the-root": _workflow("wf-action", "echo x >action.yml; change w", "action.yml"),
    "preview-build": _workflow("wf-preview", "echo x >netlify.toml; change w", "netlify.toml"),
    "workflow-changed": _workflow("wf-changed", f"echo x >>{WORKFLOW}; change w", WORKFLOW),
    "workflow-removed": _workflow("wf-removed", f"git rm -q {WORKFLOW}; change w", WORKFLOW),
    "workflow-mode": _workflow("wf-mode", f"chmod +x {WORKFLOW}; change w", WORKFLOW),
    "workflow-in-between": _workflow(
        "wf-between", f"echo x >>{WORKFLOW}; change w; git checkout -q HEAD~1 {WORKFLOW}; change v",
        WORKFLOW,
    ),
    "workflow-case": _workflow(
        "wf-case", "mkdir -p .GitHub/Workflows; echo x >.GitHub/Workflows/e.yml; change w",
        ".GitHub/Workflows/e.yml",
    ),
    "workflow-orphan": _workflow(
        "wf-orphan", "git checkout -q --orphan o; change w", WORKFLOW
    ),
    "workflow-link": _workflow(
        "wf-link",
        "git rm -rqf .github; mkdir other; echo x >other/ci.yml; ln -s other .github; change w",
        ".github",
    ),
    "workflow-gitlink": _workflow(
        "wf-gitlink",
        "git rm -rqf .github; git update-index --add --cacheinfo 160000,$(oid),.github; "
        "git commit -qm w",
        ".github",
    ),
    "workflow-merge": _workflow(
        "wf-merge",
        f"git merge -q --no-ff --no-commit origin/side; echo x >>{WORKFLOW}; change w",
        WORKFLOW,
    ),
    "workflow-in-a-tag-along": Refused(
        "clone; echo x >>.github/workflows/ci.yml; change w; git checkout -qb clean origin/main; "
        "change c; oid main; exec git push origin clean:agent/clean main:agent/dirty",
        "refs/heads/agent/dirty", "denied-path", "agent/dirty would change", "main",
    ),
}  # fmt: skip

HELD = "keyhole: held back, another ref was refused"

OTHERS = {
    "mixed": "clone; change mixed; oid; exec git push origin HEAD:refs/heads/agent/mixed HEAD:main",
    "atomic-mixed": "clone; change atomic-mixed; oid; exec git push --atomic origin "
    "HEAD:refs/heads/agent/atomic-mixed HEAD:main",
    "mirror": "git clone -q --mirror $U copy.git; cd copy.git; "
    "git update-ref refs/heads/agent/mirrored $(git commit-tree -m m -p main main^{tree}); "
    "git update-ref refs/heads/stray main; git update-ref -d refs/heads/agent/doomed; "
    "oid agent/mirrored; exec git push --mirror origin",
    "delete": "clone; exec git push origin :agent/doomed",
    "option": "clone; change option; oid; exec git push -o ci.skip origin "
    "HEAD:refs/heads/agent/option",
    "vault": "exec git clone https://github.com/acme/vault.git copy",
    "nowhere": "exec git clone https://github.com/acme/nowhere.git copy",
    "vault-push": "clone; change vault; oid; "
    "exec git push https://github.com/acme/vault.git HEAD:refs/heads/agent/x",
    "renamed": "exec git clone https://github.com/acme/old-widgets.git copy",
    "elsewhere": "exec git clone https://gitlab.com/acme/widgets.git copy",
    "tree": "clone; oid HEAD^{tree}; exec git push origin HEAD^{tree}:refs/heads/agent/tree",
    "token": "env | grep -i -e token -e ghp_; cat /proc/self/environ | tr '\\0' '\\n'; "
    "clone; git config --list; exec grep -r ghp_ .git",
}


def furnish(server: GitServer) -> Bare:
    """acme/widgets, with a branch for each errand that moves one, and acme/vault beside it."""
    bare = server.create("acme/widgets")
    server.also("Acme/Widgets", "acme/widgets")
    bare.configure({"receive.advertisePushOptions": "true"})
    first = bare.commit("main", {"readme": b"one\n", "bulk": random_bytes(200_000)})
    second = bare.commit("main", {"readme": b"two\n", WORKFLOW: b"on: push\n"})
    third = bare.commit("main", {"readme": b"three\n", WORKFLOW: b"on: [push]\n"})
    bare.commit("side", {"side": b"side\n"}, base=third)
    bare.commit("late", {"late": b"late\n"}, base=second)
    for name in ("forced", "leased", "rewind"):
        bare.commit(f"agent/{name}", {name: b"x\n"}, base=third)
    for name, at in (("forward", second), ("behind", second), ("merge", third), ("old", first),
                     ("doomed", third)):  # fmt: skip
        bare.point(f"refs/heads/agent/{name}", at)
    bare.point("refs/tags/v1", first)
    bare.alias("refs/heads/agent/alias", "refs/heads/main")
    server.create("acme/vault").commit("main", {"kept": b"to themselves\n"})
    return bare
