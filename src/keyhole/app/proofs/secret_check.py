"""Checks a secret with its service's cheapest request, through a sandbox and the gateway.

Called by `keyhole secret test` under a policy that was accepted. The policy is narrowed to one host
and one path of the service, nothing of the project is inside, and the client is Keyhole's own. The
result is read from the audit log; no byte of the response leaves the sandbox.
"""

from __future__ import annotations

import enum
import json
import os
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.run.own_gateway_setup import prepare_own_gateway
from keyhole.app.run.run import Run, execute_run
from keyhole.app.selftest.wall_trial import WallTrial
from keyhole.app.session.session_events import new_session
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_file import PolicyWithPresets
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogFilter, LogReader
from keyhole.model.errors import Refused
from keyhole.model.event import EventKind
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.rule import AccessRule
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.policy.policy import RankedRule, Tier
from keyhole.policy.schema import RuntimeName
from keyhole.sandbox import programs
from keyhole.sandbox.bwrap.bwrap_runtime import BubblewrapRuntime
from keyhole.sandbox.bwrap.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.inject.catalogue import Catalogue
    from keyhole.model.host import HostPattern
    from keyhole.policy.policy import Policy, Service, ServiceHost
    from keyhole.vault.store_source import PassphrasePrompt

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
"""It reads no body, follows no redirect, and prints nothing: the result is in the log."""

AGENT = "keyhole-secret-test"


class SecretVerdict(enum.StrEnum):
    """The service's reaction to the secret."""

    UNREACHED = "not reached"
    UNCLEAR = "unclear"
    REFUSED = "refused"
    ACCEPTED = "accepted"


class SecretProbe(Struct, frozen=True):
    """The request of a check, and its host."""

    service: Service
    host: ServiceHost
    pattern: HostPattern
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """The URL, for people."""
        port = "" if self.pattern.port == DEFAULT_PORT else f":{self.pattern.port}"
        return f"https://{self.pattern.name}{port}{self.path}"


class ProbeResult(Struct, frozen=True):
    """How a probe ended."""

    probe: SecretProbe
    verdict: SecretVerdict
    status: int | None
    reason: str
    """The reason in the gateway's log."""
    session: str
    warnings: tuple[str, ...] = ()


def find_probes(
    policy: Policy, catalogue: Catalogue, name: str, path: str
) -> tuple[SecretProbe, ...]:
    """The requests for each service that uses `store:NAME` or `login:NAME`, or is called NAME.

    `path` is requested instead of the catalogue's path. Raises Refused.
    """
    refs = (SecretRef(SecretScheme.STORE, name), SecretRef(SecretScheme.LOGIN, name))
    using = [s for s in policy.services if s.secret in refs]
    using = using or [s for s in policy.services if s.name == name and s.secret is not None]
    if not using:
        raise Refused("no service of this policy uses it; write one that does, and try again")
    return tuple(_probe(service, catalogue, path) for service in using)


def _probe(service: Service, catalogue: Catalogue, path: str) -> SecretProbe:
    entries = catalogue[service.template].hosts if service.template else ()
    for host, entry in zip(service.hosts, (*entries, *[None] * len(service.hosts)), strict=False):
        exact = [pattern for pattern in host.patterns if not pattern.subdomains]
        known = entry.probe if entry else None
        if not (host.inject and exact and (path or known)):
            continue
        asked = path or (known.text.partition(" ")[2] if known else "")
        return SecretProbe(service, host, exact[0], asked, entry.probe_headers if entry else ())
    raise Refused(
        f"what to ask {service.rule} is not known; --path /… names a page of it that needs the "
        "secret and changes nothing"
    )


def check_secret(
    probe: SecretProbe,
    examined: ExaminedPolicy,
    places: HostPaths,
    env: Mapping[str, str],
    directory: Path,
    ask: PassphrasePrompt | None,
) -> ProbeResult:
    """Send the request; `directory` is empty and for the trial alone.

    Raises a KeyholeError.
    """
    directory.chmod(0o755)  # nothing is in it, and the client may be another user
    policy = _narrowed(examined.file.loaded.policy, probe, directory)
    words = (probe.pattern.name, probe.pattern.port, probe.path, _headers(probe))
    command = (programs.find_programs().python, "-I", "-S", "-c", CLIENT, json.dumps(words))
    session = new_session()
    intent = RunRequest(
        examined, PolicyWithPresets(policy, (), ()), places, env, command, directory
    )
    own_run = prepare_own_gateway(intent, session, ask)
    if own_run.provision.closed:
        own_run.plane.close()
        raise Refused("; ".join(own_run.provision.notes))
    with open(os.devnull, "r+b") as nothing:
        execute_run(
            Run(
                policy=policy,
                session=session,
                runtime=BubblewrapRuntime(
                    own_run.prepared.launch(interactive=False),
                    Terminal(*[nothing.fileno()] * 3),
                    WallTrial(policy, places.tried).in_bubblewrap,
                ),
                post=own_run.post(_ignore),
                report=_ignore,
            )
        )
    status, reason = _outcome(places, session)
    return ProbeResult(probe, _judge(status), status, reason, session, own_run.provision.notes)


def _narrowed(policy: Policy, probe: SecretProbe, directory: Path) -> Policy:
    """The policy with one host, one path and an empty working directory; the rest is unchanged."""
    rule = RankedRule(AccessRule.parse(f"GET {probe.path}"), Tier.ALLOW, "secret-test")
    host = replace(probe.host, patterns=(probe.pattern,), rules=(rule,), git=False)
    service = replace(
        probe.service, hosts=(host,), env=(), placeholders=(), passthrough=(), git=None
    )
    sandbox = replace(
        policy.sandbox,
        runtime=RuntimeName.BWRAP,
        image=None,
        writable=(),
        readable=(str(directory),),
        unsafe_paths=(),
        env=(),
        pass_env=(),
    )
    return replace(policy, sandbox=sandbox, allow=(), presets=(), services=(service,))


def _headers(probe: SecretProbe) -> dict[str, str]:
    return {"User-Agent": AGENT, "Accept": "*/*"} | dict(probe.headers)


def _outcome(places: HostPaths, session: str) -> tuple[int | None, str]:
    """The log's entry for the request, or the reason why there was none."""
    wanted, reason = LogFilter(session), "no request was made"
    for entry in LogReader(LogDirectory.open(places.audit)).read():
        record = entry.record
        if record is None or not wanted.takes(entry):
            continue
        if record.kind == EventKind.REQUEST:
            status = record.details.get("status")
            return status if isinstance(status, int) else None, record.reason
        if record.kind in (EventKind.CONNECT, EventKind.DNS) and record.denied:
            reason = record.reason
    return None, reason


def _judge(status: int | None) -> SecretVerdict:
    if status is None:
        return SecretVerdict.UNREACHED
    if 200 <= status < 300:
        return SecretVerdict.ACCEPTED
    return SecretVerdict.REFUSED if status in (401, 403) else SecretVerdict.UNCLEAR


def _ignore(_: str) -> None:
    """Print nothing: the verdict has the result."""
