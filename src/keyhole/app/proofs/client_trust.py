"""Checks which clients of this host trust a session's CA: runs each in a sandbox, watches its
requests.

Called by `doctor.py`. The sandbox, its client setup, its door and the gateway are those of `keyhole
run`; the policy is the trial's own, and nothing is kept. A client trusts the CA if one of its
requests reached the service with the real key, which only the gateway can have written after the
client accepted the gateway's certificate. The control is a second, tunnelled host with an unknown
authority: a client that sends a request there verifies nothing, so its first request proves nothing
(I4). The output of clients is only used to show a reason.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.proofs.client_programs import (
    ABSENT,
    CLIENTS,
    INSIDE,
    JAVA,
    JAVA_FILE,
    ClientProgram,
    ProbedUrl,
)
from keyhole.app.proofs.demo_service import NAME, serve_demo
from keyhole.app.proofs.runtime_choice import RuntimeChoice, unattended_runtime
from keyhole.app.proofs.untrusted_server import serve_untrusted
from keyhole.app.run.own_gateway_setup import prepare_own_gateway
from keyhole.app.run.run import Run, execute_run
from keyhole.app.session.session_events import new_session
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import POLICY_NAME, HostPaths
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_acceptance import examine_policy
from keyhole.app.setup.policy_file import PolicyWithPresets, open_policy
from keyhole.model.errors import SetupFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.proofs.demo_service import DemoService
    from keyhole.app.proofs.untrusted_server import UntrustedServer

PATIENCE = 20
"""Seconds for all clients together; alone they take three, most of it a JVM's."""

MAX_WORDS = 200
"""Characters of a client's output that are shown."""

_POLICY = """\
version = 1

[egress]
allow = {strangers}

[services.doctor]
hosts  = ["{service}"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:~/key"
allow  = ["GET /**"]

[upstream]
ca_file = "~/service-ca.pem"

[upstream.connect]
{connect}

[sandbox.env]
{variables}
"""


class ClientTrust(Struct, frozen=True):
    """One client: whether it trusts the session's CA but no unknown one, and the observations."""

    client: ClientProgram
    trusts: bool
    seen: str
    control: str
    advice: str


class _ClientResult(Struct, frozen=True):
    """A client that was found: its program, the results of its calls, and their output."""

    program: str
    codes: list[int]
    said: str


def check_clients(
    directory: Path,
    variables: Mapping[str, str] | None = None,
    choice: RuntimeChoice | None = None,
    tried: Path | None = None,
) -> list[ClientTrust]:
    """Run every client that is installed; the directory is for the trial alone.

    `tried` remembers set-ups whose walls have held.

    Tests use `variables`, which win over Keyhole's own, and files in `project` to break a client's
    trust. Raises a KeyholeError.
    """
    key = secrets.token_hex(16)
    names = [_untrusted_of(client).host for client in CLIENTS]
    with serve_demo(key) as service, serve_untrusted(names) as untrusted:
        ended = _run(
            directory, key, (service, untrusted), variables or {}, choice or RuntimeChoice(), tried
        )
        return [
            _judge(client, ended[client.name], service, untrusted)
            for client in sorted(CLIENTS, key=lambda client: client.name)
            if client.name in ended and ABSENT not in ended[client.name].codes
        ]


def _judge(
    client: ClientProgram, ended: _ClientResult, service: DemoService, untrusted: UntrustedServer
) -> ClientTrust:
    """Judge a client by the requests that arrived. Without an observed request it does not hold;
    nor does it without one of its control."""
    own, name = _service_of(client).path, _untrusted_of(client).host
    arrived = [one for one in service.received if one.path.startswith(own)]
    believed, met = name in untrusted.believed, name in untrusted.met
    control = f"stranger: {'believed' if believed else 'refused' if met else 'not met'}"
    advice = ""
    if believed:
        seen = "trusts anybody: it verifies no certificate"
        advice = "a setting switches the check off; what it says to tunnelled hosts can be read"
    elif -signal.SIGKILL in ended.codes:
        seen = f"did not end within {PATIENCE} seconds"
        advice = "try again when the host is less busy"
    elif not arrived:
        seen = f"does not trust: no request of it arrived ({_reason(ended)})"
        advice = f"it reads {client.reads}; else list the host in unsafe_passthrough"
    elif not all(one.real_key for one in arrived):
        seen = "its request arrived without the key"
        advice = "no setting does this: please report it"
    elif not met:
        seen = f"its request arrived, but its control did not ({_reason(ended)})"
    else:
        seen = "trusts: its request arrived, with the key"
        return ClientTrust(client, True, f"{ended.program} {seen}", control, advice)
    return ClientTrust(client, False, f"{ended.program} {seen}", control, advice)


def _reason(ended: _ClientResult) -> str:
    """The client's reason: the first line of output about trust, else the last line."""
    lines = [line.strip() for line in ended.said.splitlines() if line.strip()]
    telling = (line for line in lines if re.search("certificate|verif|issuer|PKIX", line, re.I))
    said = next(telling, lines[-1] if lines else "it said nothing")
    return said if len(said) <= MAX_WORDS else f"{said[:MAX_WORDS]}…"


def _service_of(client: ClientProgram) -> ProbedUrl:
    return ProbedUrl(NAME, f"/{client.name}/")


def _untrusted_of(client: ClientProgram) -> ProbedUrl:
    """A name for each client: of a failed handshake, only the name is seen."""
    return ProbedUrl(f"{client.name}.stranger.keyhole.example", f"/{client.name}/")


def _run(
    directory: Path,
    key: str,
    asked: tuple[DemoService, UntrustedServer],
    variables: Mapping[str, str],
    choice: RuntimeChoice,
    tried: Path | None,
) -> dict[str, _ClientResult]:
    service, untrusted = asked
    project, home = directory / "project", directory / "home"
    project.mkdir(exist_ok=True)
    home.mkdir(mode=0o700)
    kept = home / "key"
    kept.touch(mode=0o600)
    kept.write_text(key, "ascii")
    (home / "service-ca.pem").write_bytes(service.ca_pem)
    (project / JAVA_FILE).write_text(JAVA, "ascii")
    path = project / POLICY_NAME
    text = _policy(service.port, untrusted.port, variables) + choice.section
    path.write_text(text, "utf-8")
    places = HostPaths(home, *(directory / each for each in ("config", "state", "run")))
    file = open_policy(path, places, FileCatalogue())
    policy = file.loaded.policy
    command = (*choice.python, "-I", "-S", "-c", INSIDE, _plan(own=not choice.contained))
    session = new_session()
    examined, env = examine_policy(file, home, ""), choice.variables
    own_run = prepare_own_gateway(
        RunRequest(examined, PolicyWithPresets(policy, (), ()), places, env, command, project),
        session,
    )
    transcript = directory / "transcript"
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        execute_run(
            Run(
                policy=policy,
                session=session,
                runtime=unattended_runtime(
                    own_run.prepared,
                    policy,
                    tried or places.tried,
                    session,
                    (nothing.fileno(), output.fileno()),
                ),
                post=own_run.post(_ignore),
                report=_ignore,
            )
        )
    return _read(transcript.read_bytes())


def _policy(service: int, untrusted: int, variables: Mapping[str, str]) -> str:
    names = [_untrusted_of(client).host for client in CLIENTS]
    ports = {NAME: service} | dict.fromkeys(names, untrusted)
    # These characters are written alike in a JSON string and in one of TOML.
    return _POLICY.format(
        strangers=json.dumps(names),
        service=NAME,
        connect="\n".join(f'"{name}:443" = "127.0.0.1:{port}"' for name, port in ports.items()),
        variables="\n".join(f"{name} = {json.dumps(value)}" for name, value in variables.items()),
    )


def _plan(*, own: bool) -> str:
    """`own`: if no python3 is installed, the interpreter that runs this stands for it."""
    calls = {
        client.name: (
            client.programs,
            [(c.words, c.said) for c in client.calls(_service_of(client), _untrusted_of(client))],
        )
        for client in CLIENTS
    }
    return json.dumps((calls, PATIENCE, own))


def _read(transcript: bytes) -> dict[str, _ClientResult]:
    try:
        return {name: _ClientResult(**each) for name, each in json.loads(transcript).items()}
    except (ValueError, TypeError, AttributeError):
        raise SetupFailed("what was to try the clients said nothing that can be read") from None


def _ignore(_: str) -> None:
    """Print nothing: the rows have the result."""
