"""A project with every service that the tests know, and errands that are run in one sandbox."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from tests.rigs.clients.services import PROGRAMS, keep
from tests.rigs.sandbox.projects import Ran

if TYPE_CHECKING:
    from tests.rigs.clients.services import Services
    from tests.rigs.sandbox.projects import Project
    from tests.system.clients.conftest import Inside

POLICY = """
[egress]
allow = ["plain.example"]
[services.anthropic]
secret = "store:anthropic"
[services.openai]
secret = "exec:KEY_PROGRAM --for openai"
[services.billing]
hosts = ["billing.example", "pinned.example", "untrusted.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:~/secrets/billing"
allow = ["GET,POST /v1/**", "WEBSOCKET /v1/talk"]
unsafe_passthrough = ["pinned.example"]
[services.forge]
hosts = ["git.example"]
forge = "generic"
inject = { basic_user = "robot" }
secret = "file:~/secrets/git"
repos = ["acme/widgets"]
[services.bucket]
use = "aws-s3"
hosts = ["widgets.s3.eu-west-1.amazonaws.com"]
secret = "file:~/secrets/aws"
allow = ["GET,PUT /**"]
[services.bedrock]
hosts = ["bedrock-runtime.eu-west-1.amazonaws.com"]
secret = "file:~/secrets/aws"
"""
"""A secret of each kind of source but `unsafe-env:`, which is refused where tests run in a
container; the variable is there all the same, and must not come in."""

LONG_PATIENCE = 90.0
"""Seconds for all clients at once on a host that is busy; alone they take eight."""

_PROGRAM = """#!/bin/sh
test "$1 $2" = "--for openai" || exit 1
cat "$(dirname "$0")/openai"
"""

DRIVER = """
import json, subprocess, time
def start(words):
    return subprocess.Popen(["sh", "-c", words], stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
with open("errands.json") as file:
    started = {name: start(words) for name, words in json.load(file).items()}
ended, deadline = {}, time.monotonic() + 75
for name, process in started.items():
    try:
        out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = "", "it did not end"
    ended[name] = {"code": process.returncode, "out": out, "err": err}
print(json.dumps(ended))
"""


class Household:
    """Somebody's project, and the variables that `keyhole run` is started with."""

    def __init__(self, project: Project, services: Services, inside: Inside) -> None:
        self.project = project
        self.services = services
        self.inside = inside
        keys = services.keys
        keep(project, "secrets/openai", keys.openai + "\n")
        keep(project, "secrets/git", keys.git + "\n")
        keep(project, "secrets/billing", keys.billing + "\n")
        keep(project, "secrets/aws", f"{keys.aws_id}\n{keys.aws_secret}\n")
        program = keep(project, "secrets/key-program", _PROGRAM)
        program.chmod(0o700)
        kept = project("secret", "set", "anthropic", "--plain", text=keys.anthropic.encode())
        assert kept.code == 0, kept
        self.policy(POLICY.replace("KEY_PROGRAM", str(program)))
        self.env = {"BILLING_KEY": keys.billing}

    def policy(self, text: str, more: str = "") -> None:
        """Write the policy, with what leads to the services and shows the clients."""
        self.services.equip(self.project, text, self.inside.policy + more)

    def place(self, *names: str) -> None:
        """Copy programs into the project."""
        for name in names:
            path = self.project.directory / name
            shutil.copy(PROGRAMS / name, path)
            self.project.person.own(path)

    def run(self, *words: str, **more: Any) -> Ran:  # noqa: ANN401 - subprocess's own
        """`keyhole run` with the variable that a policy reads; many clients may take a while."""
        with self.project.running(*words, env=self.env, **more) as process:
            out, err = process.communicate(timeout=LONG_PATIENCE)
        said = Ran(process.returncode, out.decode(), err.decode())
        assert "Traceback" not in said.err, said.err
        return said

    def errands(self, errands: dict[str, str]) -> tuple[dict[str, Any], Ran]:
        """Run shell scripts side by side in one sandbox: how each ended, and the run itself."""
        self.project.write("errands.json", json.dumps(errands))
        done = self.run("python3", "-I", "-S", "-c", DRIVER)
        assert done.code == 0, done
        return json.loads(done.out), done
