"""`keyhole kube`: the agent of a Kubernetes node, and what a cluster needs for it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.daemon.workers import DEFAULT_MOST
from keyhole.app.kube.node_settings import NodeSettings
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.up_foreground import serve_foreground
from keyhole.cli.verb_context import find_host_paths

if TYPE_CHECKING:
    import argparse

MISSING = (
    "keyhole kube needs Python packages that are not installed here: pip install 'keyhole[kube]'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="agent|admission", dest="action", required=True)
    text = "be the agent of this node: serve the doors and volumes of its pods"
    agent = actions.add_parser("agent", help=text, description=text)
    agent.add_argument("--node", metavar="NAME", required=True, help="the node's name")
    agent.add_argument(
        "--kubelet", metavar="DIR", type=Path, default=Path("/var/lib/kubelet"),
        help="the kubelet's directory (default: /var/lib/kubelet)",
    )  # fmt: skip
    agent.add_argument(
        "--cni-socket", metavar="FILE", type=Path, default=Path("/run/keyhole/cni.sock"),
        help="where the CNI plugin finds the agent (default: /run/keyhole/cni.sock)",
    )  # fmt: skip
    text = "answer the API server about pods and policies, before it stores them"
    admission = actions.add_parser("admission", help=text, description=text)
    admission.add_argument(
        "--namespace", metavar="NAME", default="keyhole-system",
        help="the namespace of Keyhole's own objects (default: keyhole-system)",
    )  # fmt: skip
    admission.add_argument(
        "--name", metavar="NAME", action="append", dest="names",
        help="a name or address by which the API server knows it; repeatable"
        " (default: keyhole-admission.NAMESPACE.svc)",
    )  # fmt: skip
    admission.add_argument(
        "--port", type=int, default=8443, help="the port to listen on (default: 8443)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the part that was named."""
    if importlib.util.find_spec("lightkube") is None:
        raise CliError(MISSING)
    return _admission(options) if options.action == "admission" else _agent(options)


def _agent(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise CliError("the agent enters pods' networks, so it is root on its node")
    settings = NodeSettings(options.node, options.kubelet, options.cni_socket)
    workers = min(DEFAULT_MOST, len(os.sched_getaffinity(0)))
    return serve_foreground(find_host_paths(), None, settings, workers)


def _admission(options: argparse.Namespace) -> int:
    from keyhole.app.kube.admission_server import AdmissionSettings, serve_admission

    names = tuple(options.names or (f"keyhole-admission.{options.namespace}.svc",))
    settings = AdmissionSettings(options.namespace, names, options.port)
    asyncio.run(serve_admission(settings, find_host_paths()))
    return EXIT_OK
