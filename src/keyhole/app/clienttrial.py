"""Which clients of this host trust a session's CA: each is run in a sandbox and seen to ask.

Called by `doctor.py`. The sandbox, its kit, its door and the gateway are those of `keyhole run`;
the policy is the trial's own, and nothing is kept. A client trusts the CA when a request of it
reached the service with the real key, which only the gateway can have written after the client
took the gateway's certificate. The control is a second host, tunnelled, whose certificate nobody
can verify: who asks there too verifies nothing, and its first request shows nothing (I4). Clients
are not believed, they only say why.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.clients import ABSENT, CLIENTS, INSIDE, JAVA, JAVA_FILE, Asked, Client
from keyhole.app.demoservice import NAME, serve
from keyhole.app.furnish import furnish
from keyhole.app.places import POLICY_NAME, Places
from keyhole.app.policyfile import Joined, open_policy
from keyhole.app.prepare import Intent
from keyhole.app.run import Run, execute
from keyhole.app.runtimes import Choice, unattended
from keyhole.app.session import new_session
from keyhole.app.stranger import serve_unvouched
from keyhole.app.trust import examine
from keyhole.model.value import dataclass
from keyhole.sandbox.helper import SetupFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.demoservice import Service
    from keyhole.app.stranger import Stranger

PATIENCE = 20
"""Seconds for all clients together; alone they take three, most of it a JVM's."""

MAX_WORDS = 200
"""Characters of what a client said that are shown."""

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


@dataclass(frozen=True, slots=True)
class Trial:
    """One client: whether it trusts the session's CA and not just anybody, and what was seen."""

    client: Client
    trusts: bool
    seen: str
    control: str
    advice: str


@dataclass(frozen=True, slots=True)
class _Ended:
    """A client that was there: its program, how its calls ended, and all that they said."""

    program: str
    codes: list[int]
    said: str


def try_clients(
    directory: Path,
    variables: Mapping[str, str] | None = None,
    choice: Choice | None = None,
    tried: Path | None = None,
) -> list[Trial]:
    """Run every client that is there; the directory is for the trial alone.

    `tried` remembers set-ups whose walls have held.

    `variables` win over the kit's and are for tests, which spoil it, as is what they left in
    `project`. Raises Missing, Refused, Unavailable, SetupFailed or AuditUnusable.
    """
    key = secrets.token_hex(16)
    names = [_stranger_of(client).host for client in CLIENTS]
    with serve(key) as service, serve_unvouched(names) as stranger:
        ended = _run(
            directory, key, (service, stranger), variables or {}, choice or Choice(), tried
        )
        return [
            _judge(client, ended[client.name], service, stranger)
            for client in sorted(CLIENTS, key=lambda client: client.name)
            if client.name in ended and ABSENT not in ended[client.name].codes
        ]


def _judge(client: Client, ended: _Ended, service: Service, stranger: Stranger) -> Trial:
    """What was not seen does not hold, of the client or of its control."""
    own, name = _service_of(client).path, _stranger_of(client).host
    arrived = [one for one in service.received if one.path.startswith(own)]
    believed, met = name in stranger.believed, name in stranger.met
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
        return Trial(client, True, f"{ended.program} {seen}", control, advice)
    return Trial(client, False, f"{ended.program} {seen}", control, advice)


def _reason(ended: _Ended) -> str:
    """What the client said of it: of its lines the first that speaks of trust, else the last."""
    lines = [line.strip() for line in ended.said.splitlines() if line.strip()]
    telling = (line for line in lines if re.search("certificate|verif|issuer|PKIX", line, re.I))
    said = next(telling, lines[-1] if lines else "it said nothing")
    return said if len(said) <= MAX_WORDS else f"{said[:MAX_WORDS]}…"


def _service_of(client: Client) -> Asked:
    return Asked(NAME, f"/{client.name}/")


def _stranger_of(client: Client) -> Asked:
    """A name for each client: of a handshake that fails, the name is all that is seen."""
    return Asked(f"{client.name}.stranger.keyhole.example", f"/{client.name}/")


def _run(
    directory: Path,
    key: str,
    asked: tuple[Service, Stranger],
    variables: Mapping[str, str],
    choice: Choice,
    tried: Path | None,
) -> dict[str, _Ended]:
    service, stranger = asked
    project, home = directory / "project", directory / "home"
    project.mkdir(exist_ok=True)
    home.mkdir(mode=0o700)
    kept = home / "key"
    kept.touch(mode=0o600)
    kept.write_text(key, "ascii")
    (home / "service-ca.pem").write_bytes(service.ca_pem)
    (project / JAVA_FILE).write_text(JAVA, "ascii")
    path = project / POLICY_NAME
    text = _policy(service.port, stranger.port, variables) + choice.section
    path.write_text(text, "utf-8")
    places = Places(home, *(directory / each for each in ("config", "state", "run")))
    file = open_policy(path, places, FileCatalogue())
    policy = file.loaded.policy
    command = (*choice.python, "-I", "-S", "-c", INSIDE, _plan(own=not choice.contained))
    session = new_session()
    dossier, env = examine(file, home, ""), choice.variables
    furnished = furnish(
        Intent(dossier, Joined(policy, (), ()), places, env, command, project), session
    )
    transcript = directory / "transcript"
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        execute(
            Run(
                policy=policy,
                session=session,
                runtime=unattended(
                    furnished.prepared,
                    policy,
                    tried or places.tried,
                    session,
                    (nothing.fileno(), output.fileno()),
                ),
                post=furnished.post(_ignore),
                report=_ignore,
            )
        )
    return _read(transcript.read_bytes())


def _policy(service: int, stranger: int, variables: Mapping[str, str]) -> str:
    names = [_stranger_of(client).host for client in CLIENTS]
    ports = {NAME: service} | dict.fromkeys(names, stranger)
    # A JSON string of these characters is one of TOML, too.
    return _POLICY.format(
        strangers=json.dumps(names),
        service=NAME,
        connect="\n".join(f'"{name}:443" = "127.0.0.1:{port}"' for name, port in ports.items()),
        variables="\n".join(f"{name} = {json.dumps(value)}" for name, value in variables.items()),
    )


def _plan(*, own: bool) -> str:
    """`own`: where no python3 is installed, the interpreter that runs it stands for it."""
    calls = {
        client.name: (
            client.programs,
            [(c.words, c.said) for c in client.calls(_service_of(client), _stranger_of(client))],
        )
        for client in CLIENTS
    }
    return json.dumps((calls, PATIENCE, own))


def _read(transcript: bytes) -> dict[str, _Ended]:
    try:
        return {name: _Ended(**each) for name, each in json.loads(transcript).items()}
    except (ValueError, TypeError, AttributeError):
        raise SetupFailed("what was to try the clients said nothing that can be read") from None


def _ignore(_: str) -> None:
    """What a run would tell a person meanwhile is in the rows."""
