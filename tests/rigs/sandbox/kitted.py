"""A sandbox with a kit and without, started as a program of its own: `kitted.py SPEC`.

SPEC is a JSON file with the CA's certificate (`ca`), a script (`script`), whether there is a kit
(`kit`), and the noise (`noise`). Run in a project's directory by whoever is to own the sandbox; it
imports nothing of the tests, since an ordinary user may not be able to read them.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.setup import client_setup
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_file import open_policy
from keyhole.certs.roots import merge_certificates, system_bundle
from keyhole.certs.truststore import java_truststore
from keyhole.confine.seccomp import build_filter
from keyhole.sandbox import identity, programs
from keyhole.sandbox.bwrap.bwrap_start import start_sandbox
from keyhole.sandbox.environment import build_environment
from keyhole.sandbox.files.mount_planning import PlanningFacts, plan_mounts
from keyhole.sandbox.handover import StandardStreams
from keyhole.sandbox.launch import Launch, ResourceLimits

if TYPE_CHECKING:
    import socket

    from keyhole.policy.policy import Policy


def launch_of(spec: dict[str, Any], policy: Policy, project: Path, places: HostPaths) -> Launch:
    """What `keyhole run` would start, and the kit if it is wanted."""
    found = programs.find_programs()
    who = identity.choose_identity(project)
    try:
        user = pwd.getpwuid(who.uid).pw_name
    except KeyError:
        user = "sandbox"
    facts = PlanningFacts(
        project=project,
        policy=project / "keyhole.toml",
        home=places.home,
        user=user,
        uid=who.uid,
        gid=who.gid,
        own=(places.state, places.config),
    )
    files = plan_mounts(policy.sandbox, facts).entries
    environment = build_environment(policy.sandbox, {}, str(places.home), user)
    if spec["kit"]:
        ca = spec["ca"].encode()
        bundle = merge_certificates(system_bundle(), ca)
        certificates = client_setup.SandboxCertificates(ca, bundle, lambda: java_truststore(bundle))
        made = client_setup.build_client_setup(
            policy,
            certificates,
            files,
            places.home,
            client_setup.SessionPlaceholders(
                policy, lambda size: bytes.fromhex(spec["noise"]) * size
            ),
            "2026-07-01",
        )
        files = (*files, *made.entries)
        environment = {**made.environment, **environment}
        sys.stderr.write("".join(f"{line}\n" for line in made.notices))
    return Launch(
        command=(found.python, "-I", "-S", "-c", spec["script"]),
        directory=str(project),
        environment=environment,
        files=(*files, *found.files),
        bounds=ResourceLimits(policy.limits.processes, policy.limits.memory),
        uid=who.uid,
        gid=who.gid,
        maps_root=who.maps_root,
        bwrap=str(found.bwrap),
        nft=str(found.nft),
        python=found.python,
    )


async def run(launch: Launch) -> int:
    """Run it to its end; its door is held and never answered."""
    held: list[socket.socket] = []

    async def program() -> bytes:
        return build_filter()

    running = await start_sandbox(launch, StandardStreams(0, 1, 2), held.extend, program())
    code = await running.wait()
    running.close()
    for each in held:
        each.close()
    return code


def main() -> int:
    """Start what SPEC says."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    home = Path(os.environ["HOME"])
    places = HostPaths(home, *(home / each for each in ("config", "state", "run")))
    file = open_policy(Path.cwd() / "keyhole.toml", places, FileCatalogue())
    launch = launch_of(spec, file.loaded.policy, Path.cwd(), places)
    return asyncio.run(run(Launch.from_json(launch.to_json())))


if __name__ == "__main__":
    sys.exit(main())
