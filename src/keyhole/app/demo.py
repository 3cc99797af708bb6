"""The demo's real part: a service that wants a key, and a client in a sandbox that never has it.

Called by `cli/demo.py`. The sandbox, its door and the gateway are those of `keyhole run`; only the
person's consent is left out, since the policy is the demo's own. No internet, no file outside a
temporary directory, and it ends by itself. What was seen is judged in `demoproof.py`.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.demoservice import ASK, ECHO, NAME, Received, serve
from keyhole.app.interception import prepare_with_services
from keyhole.app.places import POLICY_NAME, Places
from keyhole.app.policyfile import Joined, open_policy
from keyhole.app.prepare import Intent
from keyhole.app.run import Run, execute
from keyhole.app.session import new_session
from keyhole.app.tried import Remembered
from keyhole.app.trust import examine
from keyhole.audit.directory import Directory
from keyhole.audit.read import Entry, Story, Wanted
from keyhole.audit.verify import verify
from keyhole.model.value import dataclass, field
from keyhole.sandbox import programs
from keyhole.sandbox.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.demoservice import Service

SERVICE = "hello"
VARIABLE = "HELLO_API_KEY"
DENIED_PATH = "/admin/keys"
DENIED_HOST = "evil.example"
DENIED_ADDRESS = "192.0.2.1"
"""One of those that documents use (RFC 5737): nobody has it."""
DECODED = "    the same, read from base64"
"""The client's word for the echo's second field."""

POLICY = """\
version = 1

[services.{service}]
hosts       = ["{name}"]
inject      = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret      = "file:~/.secrets/{service}"
env         = ["{variable}"]
placeholder = "{service}-{{alnum:32}}"
allow       = ["GET /v1/**"]

[upstream]
ca_file = "~/service-ca.pem"

[upstream.connect]
"{name}:443" = "127.0.0.1:{port}"
"""

CLIENT = f"""
import base64, json, os, socket, urllib.error, urllib.request

def show(what, said):
    print(what, said, sep="\\t", flush=True)

def get(url):
    key = os.environ["{VARIABLE}"]
    request = urllib.request.Request(url, headers={{"Authorization": f"Bearer {{key}}"}})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def attempt(url, *fields):
    try:
        status, answer = get(url)
        show(f"GET {{url}}", " ".join([str(status), *(str(answer[name]) for name in fields)]))
        return answer
    except OSError as error:
        show(f"GET {{url}}", f"refused: {{getattr(error, 'reason', error)}}")

show("network interfaces", " ".join(name for _, name in socket.if_nameindex()))
environment = {{}}
for name, value in os.environ.items():
    environment.setdefault(value, []).append(name)
for value, names in environment.items():
    show(f"env {{names[0]}}" + (f" and {{len(names) - 1}} more" if names[1:] else ""), value)
attempt("https://{NAME}{ASK}", "said")
echoed = attempt("https://{NAME}{ECHO}", "authorization")
show("{DECODED}", base64.b64decode(echoed["base64"]).decode("latin-1"))
attempt("https://{NAME}{DENIED_PATH}", "why")
attempt("https://{DENIED_HOST}/")
attempt("https://{DENIED_ADDRESS}/")
"""
"""An ordinary client: it takes the key from its environment and sends it wherever it asks."""


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


def new_key() -> str:
    """A key that was never used for anything, in the shape that the demo's policy names."""
    return f"{SERVICE}-{secrets.token_hex(16)}"


def run_client(directory: Path, key: str) -> Shown:
    """Serve, run the client in a sandbox, and read back what was written down.

    Raises Missing, Refused, Unavailable, SetupFailed or AuditUnusable.
    """
    with serve(key) as service:
        return _run(directory, key, service)


def _run(directory: Path, key: str, service: Service) -> Shown:
    project = directory / "project"
    project.mkdir()
    places = Places(directory / "home", directory / "config", directory / "state")
    _furnish(places.home, key, service.ca_pem)
    text = POLICY.format(service=SERVICE, name=NAME, variable=VARIABLE, port=service.port)
    (project / POLICY_NAME).write_text(text, "utf-8")
    file = open_policy(project / POLICY_NAME, places, FileCatalogue())
    policy = file.loaded.policy
    command = (programs.find().python, "-I", "-c", CLIENT)
    dossier, joined = examine(file, places.home, ""), Joined(policy, (), ())
    session = new_session()
    services = prepare_with_services(
        Intent(dossier, joined, places, {}, command, project), session, ask=None
    )
    reported: list[str] = []
    transcript = directory / "transcript"
    with transcript.open("wb") as output, open(os.devnull, "rb") as nothing:
        outcome = execute(
            Run(
                policy=policy,
                launch=services.prepared.launch(interactive=False),
                terminal=Terminal(nothing.fileno(), output.fileno(), output.fileno()),
                audit_directory=places.audit,
                tried=Remembered(places.tried),
                force_test=False,
                report=reported.append,
                session=session,
                interception=services.intercept,
            )
        )
    log, wanted = Directory.open(places.audit), Wanted(session)
    return Shown(
        policy=text,
        key=key,
        placeholder=services.prepared.kit.placeholders[SERVICE],
        code=outcome.code,
        transcript=transcript.read_text("utf-8", "backslashreplace"),
        received=tuple(service.received),
        reported=tuple(reported),
        entries=tuple(entry for entry in Story(log).read() if wanted.takes(entry)),
        log_whole=verify(log, outcome.head).whole,
    )


def _furnish(home: Path, key: str, ca_pem: bytes) -> None:
    """A home with the key in a file that only its owner can read, and whom to trust."""
    kept = home / ".secrets"
    kept.mkdir(mode=0o700, parents=True)
    file = kept / SERVICE
    file.touch(mode=0o600)
    file.write_text(key, "utf-8")
    (home / "service-ca.pem").write_bytes(ca_pem)
