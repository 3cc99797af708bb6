"""A secret, tried: its service's cheapest request, through a sandbox, its door and the gateway.

Called by `keyhole secret test` under a policy that was accepted. The policy is narrowed to one host
and one path of the service, nothing of the project is inside, and the client is Keyhole's own. What
came back is read in the audit log; no byte of the answer leaves the sandbox.
"""

from __future__ import annotations

import enum
import json
import os
from typing import TYPE_CHECKING

from keyhole.app.bubblewrap import Bubblewrap
from keyhole.app.furnish import furnish
from keyhole.app.policyfile import Joined
from keyhole.app.prepare import Intent
from keyhole.app.run import Run, execute
from keyhole.app.session import new_session
from keyhole.app.tried import Remembered
from keyhole.audit.directory import Directory
from keyhole.audit.read import Story, Wanted
from keyhole.model.event import EventKind
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.rule import AccessRule
from keyhole.model.secret import SecretRef, Source
from keyhole.model.value import dataclass, replace
from keyhole.policy.policy import RankedRule, Tier
from keyhole.policy.schema import Runtime
from keyhole.sandbox import programs
from keyhole.sandbox.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.places import Places
    from keyhole.app.trust import Dossier
    from keyhole.inject.catalogue import Catalogue
    from keyhole.model.host import HostPattern
    from keyhole.policy.policy import Policy, Service, ServiceHost
    from keyhole.vault.stored import Ask

PATIENCE = 30
"""Seconds for the client: name, connection, TLS and the first line of an answer."""

CLIENT = f"""
import http.client, json, ssl, sys
host, port, path, headers = json.loads(sys.argv[1])
connection = http.client.HTTPSConnection(
    host, port, timeout={PATIENCE}, context=ssl.create_default_context()
)
connection.request("GET", path, headers=headers)
connection.getresponse()
"""
"""It reads no body, follows nothing, and says nothing: the log knows."""

AGENT = "keyhole-secret-test"


class Untestable(Exception):
    """There is nothing to try; the message says why and what to do."""


class Verdict(enum.StrEnum):
    """What the service made of the secret."""

    UNREACHED = "not reached"
    UNCLEAR = "unclear"
    REFUSED = "refused"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked of whom."""

    service: Service
    host: ServiceHost
    pattern: HostPattern
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """For people."""
        port = "" if self.pattern.port == DEFAULT_PORT else f":{self.pattern.port}"
        return f"https://{self.pattern.name}{port}{self.path}"


@dataclass(frozen=True, slots=True)
class Tried:
    """How a probe ended."""

    probe: Probe
    verdict: Verdict
    status: int | None
    reason: str
    """The gateway's word for it, in the log."""
    session: str
    warnings: tuple[str, ...] = ()


def find_probes(policy: Policy, catalogue: Catalogue, name: str, path: str) -> tuple[Probe, ...]:
    """What to ask for each service that uses `store:NAME` or `login:NAME`, or is called NAME.

    `path` is asked instead of what the catalogue knows. Raises Untestable.
    """
    refs = (SecretRef(Source.STORE, name), SecretRef(Source.LOGIN, name))
    using = [s for s in policy.services if s.secret in refs]
    using = using or [s for s in policy.services if s.name == name and s.secret is not None]
    if not using:
        raise Untestable("no service of this policy uses it; write one that does, and try again")
    return tuple(_probe(service, catalogue, path) for service in using)


def _probe(service: Service, catalogue: Catalogue, path: str) -> Probe:
    entries = catalogue[service.template].hosts if service.template else ()
    for host, entry in zip(service.hosts, (*entries, *[None] * len(service.hosts)), strict=False):
        exact = [pattern for pattern in host.patterns if not pattern.subdomains]
        known = entry.probe if entry else None
        if not (host.inject and exact and (path or known)):
            continue
        asked = path or (known.text.partition(" ")[2] if known else "")
        return Probe(service, host, exact[0], asked, entry.probe_headers if entry else ())
    raise Untestable(
        f"what to ask {service.rule} is not known; --path /… names a page of it that needs the "
        "secret and changes nothing"
    )


def try_secret(
    probe: Probe,
    dossier: Dossier,
    places: Places,
    env: Mapping[str, str],
    directory: Path,
    ask: Ask | None,
) -> Tried:
    """Ask; `directory` is empty and for the trial alone.

    Raises Missing, Refused, Unavailable, SetupFailed or AuditUnusable.
    """
    directory.chmod(0o755)  # nothing is in it, and the client may be another user
    policy = _narrowed(dossier.file.loaded.policy, probe, directory)
    words = (probe.pattern.name, probe.pattern.port, probe.path, _headers(probe))
    command = (programs.find().python, "-I", "-S", "-c", CLIENT, json.dumps(words))
    session = new_session()
    intent = Intent(dossier, Joined(policy, (), ()), places, env, command, directory)
    furnished = furnish(intent, session, ask)
    with open(os.devnull, "r+b") as nothing:
        execute(
            Run(
                policy=policy,
                session=session,
                runtime=Bubblewrap(
                    furnished.prepared.launch(interactive=False),
                    Terminal(*[nothing.fileno()] * 3),
                    policy,
                    Remembered(places.tried),
                ),
                post=furnished.post(_ignore),
                report=_ignore,
            )
        )
    status, reason = _outcome(places, session)
    return Tried(probe, _judge(status), status, reason, session, furnished.provision.notes)


def _narrowed(policy: Policy, probe: Probe, directory: Path) -> Policy:
    """One host, one path, an empty directory to stand in; the rest is as the policy says."""
    rule = RankedRule(AccessRule.parse(f"GET {probe.path}"), Tier.ALLOW, "secret-test")
    host = replace(probe.host, patterns=(probe.pattern,), rules=(rule,), git=False)
    service = replace(
        probe.service, hosts=(host,), env=(), placeholders=(), passthrough=(), git=None
    )
    sandbox = replace(
        policy.sandbox,
        runtime=Runtime.BWRAP,
        image=None,
        writable=(),
        readable=(str(directory),),
        unsafe_paths=(),
        env=(),
        pass_env=(),
    )
    return replace(policy, sandbox=sandbox, allow=(), presets=(), services=(service,))


def _headers(probe: Probe) -> dict[str, str]:
    return {"User-Agent": AGENT, "Accept": "*/*"} | dict(probe.headers)


def _outcome(places: Places, session: str) -> tuple[int | None, str]:
    """What the log says of the request, or of why there was none."""
    wanted, reason = Wanted(session), "no request was made"
    for entry in Story(Directory.open(places.audit)).read():
        record = entry.record
        if record is None or not wanted.takes(entry):
            continue
        if record.kind == EventKind.REQUEST:
            status = record.details.get("status")
            return status if isinstance(status, int) else None, record.reason
        if record.kind in (EventKind.CONNECT, EventKind.DNS) and record.denied:
            reason = record.reason
    return None, reason


def _judge(status: int | None) -> Verdict:
    if status is None:
        return Verdict.UNREACHED
    if 200 <= status < 300:
        return Verdict.ACCEPTED
    return Verdict.REFUSED if status in (401, 403) else Verdict.UNCLEAR


def _ignore(_: str) -> None:
    """What a run would tell a person meanwhile is in the verdict."""
