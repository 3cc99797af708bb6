"""The files and variables of a pod: certificates, placeholders, what it may do.

The counterpart of `app/containers/sandbox_files.py` for pods. Files go into the volume that the
kubelet mounts at /etc/keyhole; variables were added to the pod by admission, which reads their
names from the same policy. The pod can read all of it; it contains no secret and no key (I1).
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.run.daemon_gateway import open_session
from keyhole.app.setup.client_setup import (
    BUNDLE,
    BUNDLE_VARIABLES,
    CA,
    CA_VARIABLES,
    SandboxCertificates,
    SessionPlaceholders,
    build_client_setup,
    inspects_tls,
)
from keyhole.app.setup.git_settings import SYSTEM, GitHostSettings, git_settings
from keyhole.app.setup.launch_preparation import RunRequest
from keyhole.app.setup.policy_file import with_presets
from keyhole.app.setup.root_reader import open_roots, sandbox_bundle
from keyhole.sandbox.files.mount_plan import MountPlan, TextFile, Tmpfs, entry_bytes
from keyhole.sandbox.files.trust_paths import TrustStorePaths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.kube.resources import PodIdentity
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.control.client import ControlClient
    from keyhole.control.values import OpenedSession
    from keyhole.policy.policy import Policy

PLACE = "/etc/keyhole"
HOME = "/home/sandbox"
GIT = f"{PLACE}/gitconfig"


class PreparedPod(Struct, frozen=True):
    """A session for a pod, and the files for its volume."""

    opened: OpenedSession
    ttl: float
    files: Mapping[str, bytes]
    """By their paths below the volume."""

    def write(self, volume: Path) -> None:
        """Write the files into a volume, each in one step."""
        for name, content in self.files.items():
            path = volume / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            beside.write_bytes(content)
            beside.chmod(0o444)
            beside.replace(path)

    def write_again(self, volume: Path) -> None:
        """The same after another agent: a volume that is not mounted any more is left alone."""
        if os.path.ismount(volume):
            self.write(volume)


def prepare_pod(
    pod: PodIdentity,
    noise: Callable[[int], bytes],
    examined: ExaminedPolicy,
    places: HostPaths,
    client: ControlClient,
) -> PreparedPod:
    """Open a session for a pod, whose placeholders are made of `noise`. Raises Refused,
    ResourceUnusable."""
    env = dict[str, str]()
    joined = with_presets(examined.file, env, places)
    intent = RunRequest(
        examined, joined, places, env, ("pod",), examined.file.directory, name=str(pod)
    )
    policy = joined.policy
    stand_ins = SessionPlaceholders(policy, noise)
    opened = open_session(client, intent, stand_ins, ())
    certificates = None
    if inspects_tls(policy):
        authority = opened.ca.encode("ascii")
        bundle = sandbox_bundle(open_roots(policy, examined), authority)
        certificates = SandboxCertificates(authority, bundle, lambda: b"")
    home = Path(HOME)
    kit = build_client_setup(
        policy,
        certificates,
        (Tmpfs(HOME, 0),),
        home,
        stand_ins,
        datetime.date.today().isoformat(),
        git=git_settings(policy, MountPlan((), ()), GitHostSettings({}, home, home)),
        stores=TrustStorePaths((), ()),
    )
    files = {}
    for entry in kit.entries:
        if isinstance(entry, TextFile) and not entry.target.startswith(f"{HOME}/"):
            target = GIT if entry.target == SYSTEM else entry.target
            files[os.path.relpath(target, PLACE)] = entry_bytes(entry)
    return PreparedPod(opened, policy.limits.ttl, files)


def pod_variables(policy: Policy, stand_ins: SessionPlaceholders) -> Mapping[str, str]:
    """The variables of a pod under a policy: placeholders, and where the certificates are."""
    variables = dict(stand_ins.environment)
    if inspects_tls(policy):
        variables |= dict.fromkeys(BUNDLE_VARIABLES, BUNDLE) | dict.fromkeys(CA_VARIABLES, CA)
    return variables | dict(policy.sandbox.env) | {"GIT_CONFIG_SYSTEM": GIT}
