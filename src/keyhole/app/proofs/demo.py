"""The demo's real part: a service that wants a key, and clients in a sandbox that never have it.

Called by `cli/demo.py`. The sandbox, its door and the gateway are those of `keyhole run`; only the
person's consent is left out, since the policy is the demo's own. It needs no internet, writes no
file outside a temporary directory, and ends by itself. `demo_claims.py` judges the results.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.proofs import demo_repository
from keyhole.app.proofs.demo_calls import CALLS
from keyhole.app.proofs.demo_client import CLIENT, GIT_CLIENT, VARIABLE
from keyhole.app.proofs.demo_repository import make_repository
from keyhole.app.proofs.demo_service import CALL, NAME, ReceivedRequest, serve_demo
from keyhole.app.proofs.runtime_choice import RuntimeChoice, unattended_runtime
from keyhole.app.run.own_gateway_setup import prepare_own_gateway
from keyhole.app.run.run import Run, execute_run
from keyhole.app.session.session_events import new_session
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import POLICY_NAME, HostPaths
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_acceptance import examine_policy
from keyhole.app.setup.policy_file import PolicyWithPresets, open_policy
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogEntry, LogFilter, LogReader
from keyhole.audit.verify import verify_log
from keyhole.model.errors import Refused
from keyhole.model.redacted import redacted_repr
from keyhole.sandbox import programs
from keyhole.sandbox.containers.container_target import programs_in

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.proofs.demo_repository import DemoRepository, RepositoryState
    from keyhole.app.proofs.demo_service import DemoService

SERVICE = "hello"

POLICY = """\
version = 1

[services.{service}]
hosts       = ["{name}", "{calls}"]
inject      = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret      = "file:~/.secrets/{service}"
env         = ["{variable}"]
placeholder = "{service}-{{alnum:32}}"
allow       = ["GET /v1/**", "GRPC {call}"]

{forge}{sandbox}[upstream]
ca_file = "~/service-ca.pem"

[upstream.connect]
"{name}:443" = "127.0.0.1:{port}"
"{calls}:443" = "127.0.0.1:{port}"
"""

FORGE = f"""\
[services.forge]
hosts  = ["{demo_repository.HOST}"]
forge  = "generic"
secret = "file:~/.secrets/{SERVICE}"
repos  = ["{demo_repository.NAME}"]
push   = ["agent/*"]

"""
"""The same key opens the service's repository."""

GIT_USER = 'git_user = "Agent <agent@keyhole.example>"\n'


class DemoRun(Struct, frozen=True):
    """A run as it was seen from inside, by the service, by the person and by the audit log."""

    policy: str
    key: str
    """The real key."""
    placeholder: str
    code: int
    transcript: str
    """Everything that the client printed."""
    received: tuple[ReceivedRequest, ...]
    reported: tuple[str, ...]
    """Lines that Keyhole would have shown to a person."""
    entries: tuple[LogEntry, ...]
    log_whole: bool
    """Whether the audit log is whole up to the digest that the run ended with."""
    before: RepositoryState | None = None
    """The service's repository before; None if this host has no git that serves one."""
    after: RepositoryState | None = None

    __repr__ = redacted_repr("key")


def new_key() -> str:
    """A key that was never used for anything, in the shape that the demo's policy names."""
    return f"{SERVICE}-{secrets.token_hex(16)}"


def run_client(directory: Path, key: str, choice: RuntimeChoice | None = None) -> DemoRun:
    """Serve, run the client in a sandbox, and collect the records.

    Raises a KeyholeError.
    """
    choice = choice or RuntimeChoice()
    git = programs.find_programs(contained=choice.contained).git
    if choice.contained and not _has_git(choice):
        git = None
    repository = make_repository(git, directory / "repositories")
    with serve_demo(key, repository) as service:
        return _run(directory, key, service, repository, choice)


def _has_git(choice: RuntimeChoice) -> bool:
    """Whether the image has git. Raises Refused if it lacks the programs that the client needs."""
    found = programs_in(choice.runtime, choice.image, choice.variables, ("python3", "git"))
    if "python3" not in found:
        raise Refused("the demo's client is written in Python, and the image has no python3")
    return "git" in found


def _run(
    directory: Path,
    key: str,
    service: DemoService,
    repository: DemoRepository | None,
    choice: RuntimeChoice,
) -> DemoRun:
    before = repository.state() if repository else None
    project = directory / "project"
    project.mkdir()
    places = HostPaths(*(directory / each for each in ("home", "config", "state", "run")))
    _write_home(places.home, key, service.ca_pem)
    text = _policy(service.port, choice, forge=repository is not None)
    (project / POLICY_NAME).write_text(text, "utf-8")
    file = open_policy(project / POLICY_NAME, places, FileCatalogue())
    policy = file.loaded.policy
    python = "python3" if choice.contained else programs.find_programs().python
    command = (python, "-I", "-c", CLIENT + (GIT_CLIENT if repository else ""))
    examined, joined = examine_policy(file, places.home, ""), PolicyWithPresets(policy, (), ())
    session = new_session()
    intent = RunRequest(examined, joined, places, choice.variables, command, project)
    own_run = prepare_own_gateway(intent, session)
    reported: list[str] = []
    transcript = directory / "transcript"
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        outcome = execute_run(
            Run(
                policy=policy,
                session=session,
                runtime=unattended_runtime(
                    own_run.prepared,
                    policy,
                    places.tried,
                    session,
                    (nothing.fileno(), output.fileno()),
                ),
                post=own_run.post(reported.append),
                report=reported.append,
            )
        )
    log, wanted = LogDirectory.open(places.audit), LogFilter(session)
    return DemoRun(
        policy=text,
        key=key,
        placeholder=own_run.stand_ins[SERVICE][0],
        code=outcome.code,
        transcript=transcript.read_text("utf-8", "backslashreplace"),
        received=tuple(service.received),
        reported=tuple(reported),
        entries=tuple(entry for entry in LogReader(log).read() if wanted.takes(entry)),
        log_whole=verify_log(log, outcome.head).whole,
        before=before,
        after=repository.state() if repository else None,
    )


def _policy(port: int, choice: RuntimeChoice, *, forge: bool) -> str:
    sandbox = choice.settings + (GIT_USER if forge else "")
    text = POLICY.format(
        service=SERVICE,
        name=NAME,
        calls=CALLS,
        variable=VARIABLE,
        call=CALL.removeprefix("/"),
        port=port,
        forge=FORGE if forge else "",
        sandbox=f"[sandbox]\n{sandbox}\n" if sandbox else "",
    )
    return text + f'"{demo_repository.HOST}:443" = "127.0.0.1:{port}"\n' if forge else text


def _write_home(home: Path, key: str, ca_pem: bytes) -> None:
    """A home with the key in a file that only its owner can read, and the trusted CA."""
    kept = home / ".secrets"
    kept.mkdir(mode=0o700, parents=True)
    file = kept / SERVICE
    file.touch(mode=0o600)
    file.write_text(key, "utf-8")
    (home / "service-ca.pem").write_bytes(ca_pem)
