"""The files and variables of a pod: certificates, placeholders, and `policy.json`.

The counterpart of `app/containers/sandbox_files.py` for pods. Files go into the volume that the
kubelet mounts at /etc/keyhole. Admission has added the variables to the pod; it reads their names
from the same policy. The pod can read all of it; none of it is a secret or a key (I1).
"""

from __future__ import annotations

import os
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.run.daemon_gateway import open_session
from keyhole.app.session.session_trust import ca_lifetime
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
from keyhole.certs.kept_authority import kept_certificate
from keyhole.sandbox.files.mount_plan import MountPlan, TextFile, Tmpfs, entry_bytes
from keyhole.sandbox.files.trust_paths import TrustStorePaths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyhole.app.kube.pod_authorities import PodAuthorities
    from keyhole.app.kube.resources import PodIdentity
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_acceptance import ExaminedPolicy
    from keyhole.app.setup.policy_file import PolicyWithPresets
    from keyhole.control.client import ControlClient
    from keyhole.control.values import OpenedSession
    from keyhole.policy.policy import Policy

PLACE = "/etc/keyhole"
HOME = "/home/sandbox"
GIT = f"{PLACE}/gitconfig"


class PodSetup(Struct, frozen=True):
    """A pod under its policy: the contents of its volume, and the request for its session."""

    pod: PodIdentity
    examined: ExaminedPolicy
    joined: PolicyWithPresets
    stand_ins: SessionPlaceholders
    places: HostPaths
    authority: bytes
    """Its CA with the key, in PEM."""

    @classmethod
    def prepare(
        cls,
        pod: PodIdentity,
        noise: Callable[[int], bytes],
        examined: ExaminedPolicy,
        places: HostPaths,
        authorities: PodAuthorities,
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> PodSetup:
        """Read the policy of a pod. Its placeholders are made from `noise`, or are `given` in its
        environment already."""
        joined = with_presets(examined.file, {}, places)
        kept = authorities.open(pod.uid, ca_lifetime(joined.policy))
        stand_ins = SessionPlaceholders(joined.policy, noise, given)
        return cls(pod, examined, joined, stand_ins, places, kept)

    @property
    def policy(self) -> Policy:
        """Its policy."""
        return self.joined.policy

    def open_session(self, client: ControlClient) -> OpenedSession:
        """Ask the gateway for a session. Raises Refused."""
        intent = RunRequest(
            self.examined, self.joined, self.places, {}, ("pod",), self.examined.file.directory,
            name=str(self.pod),
        )  # fmt: skip
        authority = self.authority.decode("ascii")
        return open_session(client, intent, self.stand_ins, (), authority=authority)

    def write(self, volume: Path) -> None:
        """Write the files into a volume, each in one step. Raises Refused, ResourceUnusable."""
        for name, content in self._files().items():
            path = volume / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            beside.write_bytes(content)
            beside.chmod(0o444)
            beside.replace(path)

    def write_again(self, volume: Path) -> None:
        """Write the files of a running pod, unless its volume is no longer mounted."""
        if os.path.ismount(volume):
            self.write(volume)

    def _files(self) -> Mapping[str, bytes]:
        """The files by their paths below the volume."""
        policy, home = self.policy, Path(HOME)
        certificates = None
        if inspects_tls(policy):
            authority = kept_certificate(self.authority, timedelta())
            bundle = sandbox_bundle(open_roots(policy, self.examined), authority)
            certificates = SandboxCertificates(authority, bundle, lambda: b"")
        kit = build_client_setup(
            policy,
            certificates,
            (Tmpfs(HOME, 0),),
            home,
            self.stand_ins,
            date.today().isoformat(),
            git=git_settings(policy, MountPlan((), ()), GitHostSettings({}, home, home)),
            stores=TrustStorePaths((), ()),
        )
        files = {}
        for entry in kit.entries:
            if isinstance(entry, TextFile) and not entry.target.startswith(f"{HOME}/"):
                target = GIT if entry.target == SYSTEM else entry.target
                files[os.path.relpath(target, PLACE)] = entry_bytes(entry)
        return files


def pod_variables(policy: Policy, stand_ins: SessionPlaceholders) -> Mapping[str, str]:
    """The variables of a pod under a policy: placeholders, and the paths of the certificates."""
    variables = dict(stand_ins.environment)
    if inspects_tls(policy):
        variables |= dict.fromkeys(BUNDLE_VARIABLES, BUNDLE) | dict.fromkeys(CA_VARIABLES, CA)
    return variables | dict(policy.sandbox.env) | {"GIT_CONFIG_SYSTEM": GIT}
