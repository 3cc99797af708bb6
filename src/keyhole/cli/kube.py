"""`keyhole kube`: the agent of a Kubernetes node, and what a cluster needs for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.kube.node_settings import NodeSettings
from keyhole.cli.errors import CliError
from keyhole.cli.verb_context import find_host_paths

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="agent", dest="action", required=True)
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


def run(options: argparse.Namespace) -> int:
    """Run the part that was named."""
    if os.geteuid() != 0:
        raise CliError("the agent enters pods' networks, so it is root on its node")
    from keyhole.cli.up_foreground import serve_foreground

    settings = NodeSettings(options.node, options.kubelet, options.cni_socket)
    return serve_foreground(find_host_paths(), None, settings)
