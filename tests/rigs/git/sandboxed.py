"""A project whose policy leads github.com to the tests' server, and errands run in its sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.rigs.clients.services import keep
from tests.rigs.git.server import Asked
from tests.rigs.sandbox.projects import Ran

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.git.server import GitServer
    from tests.rigs.sandbox.projects import Project

HOST = "github.com"
URL = f"https://{HOST}/acme/widgets.git"
LONG_PATIENCE = 100.0
"""Seconds for all errands of a run on a host that is busy; alone they take ten."""

LIMITS = """
[limits]
requests_per_second = 10000
connections_per_second = 10000
connections = 500
body = "4GiB"
upload = "8GiB"
download = "8GiB"
"""
"""Out of the way: a flood of small pushes is what these tests are."""

_PRELUDE = r"""
set -eu
PATH={path}:$PATH
U={url}
mkdir {name}
cd {name}
clone() {{
    if [ $# = 0 ] && [ -e ../template ] && [ $U = {url} ]
    then cp -r ../template copy
    else git clone -q "$@" $U copy
    fi
    cd copy
}}
change() {{ echo "$1" >"file-$1"; git add -A; git commit -qm "$1"; }}
many() {{
    for i in $(seq $2)
    do
        printf 'commit refs/heads/%s\ncommitter A <a@b.example> %s +0000\ndata 0\n' $1 $i
        [ $i != 1 ] || echo from refs/heads/main^0
        printf 'M 100644 inline numbers\ndata <<END\n'
        $3 $i 3000
        echo END
    done | git fast-import --quiet
}}
oid() {{ git rev-parse "${{1:-HEAD}}"; }}
"""

DRIVER = """
import concurrent.futures, json, subprocess
def run(words):
    done = subprocess.run(["sh", "-c", words], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, errors="replace")
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
with open("errands.json") as file:
    errands = json.load(file)
first = run(errands.pop("template"))
if first["code"]:
    raise SystemExit(first["err"])
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(json.dumps(dict(zip(errands, pool.map(run, errands.values())))))
"""


def script(name: str, words: str, git: Path | None = None) -> str:
    """An errand with what it may use: `clone`, `change`, `many` and `oid`."""
    return _PRELUDE.format(path=git.parent if git else "/usr/bin", name=name, url=URL) + words


@dataclass(frozen=True)
class Ended:
    """How an errand ended; what it says of its own comes on `out`, what git says on `err`."""

    code: int
    out: str
    err: str

    @property
    def oid(self) -> str:
        """The last thing that it said."""
        return self.out.split()[-1]


@dataclass(frozen=True)
class Outcome:
    """A run that is over: what each errand said, what was written down, and what arrived."""

    ended: dict[str, Ended]
    ran: Ran
    events: list[dict[str, Any]]
    asked: list[Asked]

    def refs(self, ref: str, **wanted: object) -> list[dict[str, Any]]:
        """The events of updates of a ref, of which all this is true."""
        return [
            event
            for event in self.events
            if event["kind"] == "ref"
            and event.get("ref") == ref
            and all(event.get(key) == value for key, value in wanted.items())
        ]


class Desk:
    """Somebody's project, with a token in their home."""

    def __init__(self, project: Project, server: GitServer, git: Path | None = None) -> None:
        self.project = project
        self.server = server
        self._git = git
        keep(project, "token", server.secret + "\n")
        keep(project, "ca.pem", server.ca)

    def policy(self, grant: str) -> None:
        """`grant` is what stands in `[services.github]` beside the secret."""
        readable = f'readable = ["{self._git.parents[1]}"]' if self._git else ""
        self.project.policy(f"""
[sandbox]
{readable}
[sandbox.env]
GIT_TERMINAL_PROMPT = "0"
GIT_AUTHOR_NAME = "Agent"
GIT_AUTHOR_EMAIL = "agent@tests.example"
GIT_COMMITTER_NAME = "Agent"
GIT_COMMITTER_EMAIL = "agent@tests.example"
[services.github]
secret = "file:~/token"
{grant}
{LIMITS}
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"{HOST}:443" = "{self.server.address}"
""")

    def run(self, errands: dict[str, str]) -> Outcome:
        """Run shell scripts in one sandbox, a few at a time, each in a directory of its own."""
        scripts = {name: script(name, words, self._git) for name, words in errands.items()}
        # Most errands begin with a clone of the same: it is made once, by git all the same.
        scripts["template"] = f"git clone -q {URL} template"
        self.project.write("errands.json", json.dumps(scripts))
        self.server.asked()
        with self.project.running("python3", "-I", "-S", "-c", DRIVER) as process:
            out, err = process.communicate(timeout=LONG_PATIENCE)
        ran = Ran(process.returncode, out.decode(), err.decode())
        assert ran.code == 0, ran
        assert "Traceback" not in ran.err, ran.err
        ended = {name: Ended(**each) for name, each in json.loads(ran.out).items()}
        events = [each | each.get("details", {}) for each in self.project.events()]
        return Outcome(ended, ran, events, self.server.asked())
