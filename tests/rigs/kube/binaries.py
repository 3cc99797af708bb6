"""The programs of a cluster, and Helm, built from source once; and what a host lacks for them.

`scripts/cluster.py` calls it before the tests, with the caller's own environment: a proxy or a
mirror of Go's modules is the caller's to name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).resolve().parent
VERSION = "1.34.4"
TRIES, PAUSE_SECONDS = 3, 20.0
"""Tries to build a program: a module server that stumbles must not fail a whole run."""


class GoModule(Struct, frozen=True):
    """A go.mod below this directory, and the programs that it pins."""

    directory: str
    programs: dict[str, str]
    """Packages by the names of their programs."""
    variables: dict[str, str] = {}
    """Texts that the linker writes into them."""
    replaced: dict[str, str] = {}
    """Files of other modules that are replaced by one below `directory`."""
    manifests: dict[str, str] = {}
    """Files of a module that are kept, joined: `MODULE PATTERN` by the name of the file."""


_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = VERSION.split(".")

MODULES = (
    GoModule(
        "kubernetes",
        {"etcd": "go.etcd.io/etcd/server/v3"}
        | {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
        },
        {
            f"{_VERSION}.gitVersion": f"v{VERSION}",
            f"{_VERSION}.gitMajor": _MAJOR,
            f"{_VERSION}.gitMinor": _MINOR,
        },
    ),
    GoModule(
        "helm",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        # The release that `helm template` and `helm lint` take for the cluster's.
        {
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": text
            for package in ("chartutil", "lint/rules")
            for part, text in (("Major", _MAJOR), ("Minor", _MINOR))
        },
    ),
    GoModule(
        "agent-sandbox",
        {
            "agent-sandbox-controller": "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller",
        },
        manifests={"agent-sandbox.yaml": "sigs.k8s.io/agent-sandbox k8s/crds/*.yaml"},
    ),
)

GVISOR = GoModule(
    "gvisor",
    {"runsc": "gvisor.dev/gvisor/runsc", "containerd-shim-runsc-v1": "gvisor.dev/gvisor/shim"},
    replaced={"github.com/containerd/containerd/sys/oom_linux.go": "oom_linux.go.txt"},
)
"""Built by the test that needs it: it takes as long as the API server."""


def cache() -> Path:
    """The directory for the binaries, which are built once for each version."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "keyhole-cluster" / VERSION


def missing() -> list[str]:
    """The programs and files that are not there yet."""
    names = (name for each in MODULES for name in (*each.programs, *each.manifests))
    return [name for name in names if not (cache() / name).exists()]


def build() -> Path:
    """Build what is missing; the directory with all. Raises RuntimeError, CalledProcessError."""
    place = cache()
    if not missing():
        return place
    go = _find_go()
    for module in MODULES:
        build_programs(module)
        for name, wanted in module.manifests.items():
            _keep_manifests(go, module, wanted, place / name)
    return place


def build_programs(module: GoModule) -> None:
    """Build the programs of a module that are missing. Raises RuntimeError, CalledProcessError."""
    place = cache()
    for name, package in module.programs.items():
        if not (place / name).exists():
            place.mkdir(parents=True, exist_ok=True)
            _build_one(_find_go(), module, package, place / name)


def _find_go() -> str:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("a cluster is built with Go, which is not installed")
    return go


def _build_one(go: str, module: GoModule, package: str, target: Path) -> None:
    sys.stderr.write(f"building {target.name} for the cluster, once\n")
    named = (f"-X {name}={text}" for name, text in module.variables.items())
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath"}
    directory = HERE / module.directory
    if module.replaced:
        directory = _vendor(go, module)
        env["GOFLAGS"] = "-mod=vendor -trimpath"
    # Two builds at once must not write one file.
    beside = target.with_name(f"{target.name}.{os.getpid()}.new")
    words = [go, "build", "-ldflags", " ".join(["-s -w", *named]), "-o", str(beside), package]
    for count in range(1, TRIES + 1):
        done = subprocess.run(words, cwd=directory, env=env, check=count == TRIES)
        if done.returncode == 0:
            break
        time.sleep(PAUSE_SECONDS)
    beside.replace(target)


def _vendor(go: str, module: GoModule) -> Path:
    """A copy of a module with the source of all that it needs, some of it replaced."""
    own = HERE / module.directory
    copied = cache() / f"{module.directory}.source"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(own, copied)
    subprocess.run([go, "mod", "vendor"], cwd=copied, check=True)
    for path, replacement in module.replaced.items():
        shutil.copyfile(own / replacement, copied / "vendor" / path)
    return copied


def _keep_manifests(go: str, module: GoModule, wanted: str, target: Path) -> None:
    name, pattern = wanted.split()
    done = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", name],
        cwd=HERE / module.directory, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = sorted(Path(done.stdout.strip()).glob(pattern))
    beside = target.with_name(f"{target.name}.{os.getpid()}.new")
    beside.write_text("---\n".join(each.read_text("utf-8") for each in found), "utf-8")
    beside.replace(target)


def lacking() -> str:
    """Why no cluster can be built and started on this machine; empty if one can.

    Debian's packages do not count: `scripts/setup cluster` installs them, or fails.
    """
    if missing() and shutil.which("go") is None:
        return "Go is not installed"
    if os.geteuid() != 0:
        return "only root can start a node"
    tried = subprocess.run(
        ["/usr/bin/unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
         "/bin/mount", "--make-rprivate", "/"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        return f"the system refuses a node its namespaces: {tried.stderr.strip()[-200:]}"
    made = Path("/sys/fs/cgroup/memory") / f"keyhole-try-{os.getpid()}"
    try:
        made.mkdir()
        made.rmdir()
    except OSError as error:
        return f"the node of the tests is made for control groups of version 1: {error}"
    return ""
