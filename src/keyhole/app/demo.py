"""The demo's real part: a service that wants a key, and clients in a sandbox that never have it.

Called by `cli/demo.py`. The sandbox, its door and the gateway are those of `keyhole run`; only the
person's consent is left out, since the policy is the demo's own. No internet, no file outside a
temporary directory, and it ends by itself. What was seen is judged in `demoproof.py`.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from keyhole.app import demorepository
from keyhole.app.catalogue import FileCatalogue
from keyhole.app.democlient import CLIENT, GIT_CLIENT, VARIABLE
from keyhole.app.demorepository import make_repository
from keyhole.app.demoservice import NAME, Received, serve
from keyhole.app.furnish import furnish
from keyhole.app.places import POLICY_NAME, Places
from keyhole.app.policyfile import Joined, open_policy
from keyhole.app.prepare import Intent
from keyhole.app.run import Run, execute
from keyhole.app.runtimes import Choice, unattended
from keyhole.app.session import new_session
from keyhole.app.trust import examine
from keyhole.audit.directory import Directory
from keyhole.audit.read import Entry, Story, Wanted
from keyhole.audit.verify import verify
from keyhole.model.value import dataclass, field
from keyhole.sandbox import programs
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.demorepository import Repository, State
    from keyhole.app.demoservice import Service

SERVICE = "hello"

POLICY = """\
version = 1

[services.{service}]
hosts       = ["{name}"]
inject      = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret      = "file:~/.secrets/{service}"
env         = ["{variable}"]
placeholder = "{service}-{{alnum:32}}"
allow       = ["GET /v1/**"]

{forge}{sandbox}[upstream]
ca_file = "~/service-ca.pem"

[upstream.connect]
"{name}:443" = "127.0.0.1:{port}"
"""

FORGE = f"""\
[services.forge]
hosts  = ["{demorepository.HOST}"]
forge  = "generic"
secret = "file:~/.secrets/{SERVICE}"
repos  = ["{demorepository.NAME}"]
push   = ["agent/*"]

"""
"""The same key opens the service's repository."""

GIT_USER = 'git_user = "Agent <agent@keyhole.example>"\n'


@dataclass(frozen=True, slots=True)
class Shown:
    """A run as it was seen from inside, by the service, by the person and by the audit log."""

    policy: str
    key: str = field(repr=False)
    """The real one."""
    placeholder: str
    code: int
    transcript: str
    """All that the client printed."""
    received: tuple[Received, ...]
    reported: tuple[str, ...]
    """What Keyhole would have put before a person meanwhile."""
    entries: tuple[Entry, ...]
    log_whole: bool
    """Whether the audit log is whole up to the digest that the run ended with."""
    before: State | None = None
    """What the service's repository had; None where this host has no git that serves one."""
    after: State | None = None


def new_key() -> str:
    """A key that was never used for anything, in the shape that the demo's policy names."""
    return f"{SERVICE}-{secrets.token_hex(16)}"


def run_client(directory: Path, key: str, choice: Choice | None = None) -> Shown:
    """Serve, run the client in a sandbox, and read back what was written down.

    Raises Missing, Refused, Unavailable, SetupFailed or AuditUnusable.
    """
    choice = choice or Choice()
    git = programs.find(contained=choice.contained).git
    if choice.contained and not _has_git(choice):
        git = None
    repository = make_repository(git, directory / "repositories")
    with serve(key, repository) as service:
        return _run(directory, key, service, repository, choice)


def _has_git(choice: Choice) -> bool:
    """Whether the image has git too. Refused when it has not even what the client is written in."""
    from keyhole.app.containers import programs_in

    found = programs_in(choice.runtime, choice.image, choice.variables, ("python3", "git"))
    if "python3" not in found:
        raise Refused("the demo's client is written in Python, and the image has no python3")
    return "git" in found


def _run(
    directory: Path, key: str, service: Service, repository: Repository | None, choice: Choice
) -> Shown:
    before = repository.state() if repository else None
    project = directory / "project"
    project.mkdir()
    places = Places(*(directory / each for each in ("home", "config", "state", "run")))
    _furnish(places.home, key, service.ca_pem)
    text = _policy(service.port, choice, forge=repository is not None)
    (project / POLICY_NAME).write_text(text, "utf-8")
    file = open_policy(project / POLICY_NAME, places, FileCatalogue())
    policy = file.loaded.policy
    python = "python3" if choice.contained else programs.find().python
    command = (python, "-I", "-c", CLIENT + (GIT_CLIENT if repository else ""))
    dossier, joined = examine(file, places.home, ""), Joined(policy, (), ())
    session = new_session()
    intent = Intent(dossier, joined, places, choice.variables, command, project)
    furnished = furnish(intent, session)
    reported: list[str] = []
    transcript = directory / "transcript"
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        outcome = execute(
            Run(
                policy=policy,
                session=session,
                runtime=unattended(
                    furnished.prepared,
                    policy,
                    places.tried,
                    session,
                    (nothing.fileno(), output.fileno()),
                ),
                post=furnished.post(reported.append),
                report=reported.append,
            )
        )
    log, wanted = Directory.open(places.audit), Wanted(session)
    return Shown(
        policy=text,
        key=key,
        placeholder=furnished.stand_ins[SERVICE][0],
        code=outcome.code,
        transcript=transcript.read_text("utf-8", "backslashreplace"),
        received=tuple(service.received),
        reported=tuple(reported),
        entries=tuple(entry for entry in Story(log).read() if wanted.takes(entry)),
        log_whole=verify(log, outcome.head).whole,
        before=before,
        after=repository.state() if repository else None,
    )


def _policy(port: int, choice: Choice, *, forge: bool) -> str:
    sandbox = choice.settings + (GIT_USER if forge else "")
    text = POLICY.format(
        service=SERVICE,
        name=NAME,
        variable=VARIABLE,
        port=port,
        forge=FORGE if forge else "",
        sandbox=f"[sandbox]\n{sandbox}\n" if sandbox else "",
    )
    return text + f'"{demorepository.HOST}:443" = "127.0.0.1:{port}"\n' if forge else text


def _furnish(home: Path, key: str, ca_pem: bytes) -> None:
    """A home with the key in a file that only its owner can read, and whom to trust."""
    kept = home / ".secrets"
    kept.mkdir(mode=0o700, parents=True)
    file = kept / SERVICE
    file.touch(mode=0o600)
    file.write_text(key, "utf-8")
    (home / "service-ca.pem").write_bytes(ca_pem)
