"""`keyhole kube`: the parts of Keyhole in a Kubernetes cluster, and what an administrator asks."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.daemon.workers import default_workers
from keyhole.app.kube.node_settings import OWN_NETWORK, NodeSettings
from keyhole.app.kube.permissions import ADMISSION, EXEMPT, all_roles, secret_role
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, duration_between
from keyhole.cli.up_foreground import serve_foreground
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.quantity import MAX_DURATION
from keyhole.system.event_loop import run_on_loop

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING = (
    "keyhole kube needs Python packages that are not installed here: pip install 'keyhole[kube]'"
)
OWN_NAMESPACE = "keyhole-system"
MIN_LIFETIME = 10.0
"""Seconds that a certificate lasts: one of less could end before it is renewed."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""An object's name: RFC 1123."""

Subparsers = argparse._SubParsersAction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        metavar="status|rbac|agent|admission|reports", dest="action", required=True
    )
    _add_status(actions)
    _add_rbac(actions)
    _add_agent(actions)
    _add_admission(actions)
    _add_reports(actions)


def _add_status(actions: Subparsers[argparse.ArgumentParser]) -> None:
    text = "show the agents, policies and pods of a cluster, with your own kubeconfig"
    status = actions.add_parser(
        "status", help=text, description=f"{text}; exit 1 when something is not well"
    )
    status.add_argument(
        "-n", "--namespace", metavar="NAME", type=_name,
        help="only policies and pods of this namespace",
    )  # fmt: skip
    add_json_flag(status)


def _add_rbac(actions: Subparsers[argparse.ArgumentParser]) -> None:
    text = "print the least roles of Keyhole's accounts, for `kubectl apply -f -`"
    rbac = actions.add_parser(
        "rbac", help=text,
        description=f"{text}; with --secret, the role by which the agents use these Secrets of a"
        " namespace, which they may not read otherwise",
    )  # fmt: skip
    rbac.add_argument(
        "-n", "--namespace", metavar="NAME", type=_name,
        help="the namespace of the Secrets",
    )  # fmt: skip
    rbac.add_argument(
        "--secret", metavar="NAME", action="append", default=[], type=_name,
        help="a Secret that policies of the namespace may use; repeatable",
    )  # fmt: skip
    _add_own_namespace(rbac, "--keyhole-namespace")


def _add_agent(actions: Subparsers[argparse.ArgumentParser]) -> None:
    text = "run the agent of this node, which serves the doors and volumes of its pods"
    agent = actions.add_parser("agent", help=text, description=text)
    agent.add_argument("--node", metavar="NAME", required=True, help="the node's name")
    agent.add_argument(
        "--kubelet", metavar="DIR", type=Path, default=Path("/var/lib/kubelet"),
        help="the kubelet's directory (default: /var/lib/kubelet)",
    )  # fmt: skip
    agent.add_argument(
        "--cni-socket", metavar="FILE", type=Path, default=Path("/run/keyhole/cni.sock"),
        help="socket on which the agent waits for the CNI plugin (default: /run/keyhole/cni.sock)",
    )  # fmt: skip
    agent.add_argument(
        "--node-network", metavar="FILE", type=Path, default=OWN_NETWORK,
        help="the network of the node, where the kubelet's probes come from (default: its own)",
    )  # fmt: skip
    agent.add_argument(
        "--metrics-file", metavar="FILE", type=Path,
        help="write metrics there every ten seconds, for `keyhole kube reports`",
    )  # fmt: skip


def _add_admission(actions: Subparsers[argparse.ArgumentParser]) -> None:
    text = "run admission, which checks pods and policies before the API server stores them"
    admission = actions.add_parser("admission", help=text, description=text)
    _add_own_namespace(admission, "--namespace")
    admission.add_argument(
        "--name", metavar="NAME", action="append", dest="names",
        help="a name or address by which the API server connects to it; repeatable"
        " (default: keyhole-admission.NAMESPACE.svc)",
    )  # fmt: skip
    admission.add_argument(
        "--port", type=int, default=8443, help="the port to listen on (default: 8443)"
    )
    admission.add_argument(
        "--exempt", metavar="NAME", action="append", type=_name,
        help="a namespace whose pods its webhooks leave out, for which it refuses policies;"
        f" repeatable; its own is one, too (default: {', '.join(EXEMPT)})",
    )  # fmt: skip
    admission.add_argument(
        "--certificate-lifetime", metavar="TIME", default="365d",
        type=duration_between(MIN_LIFETIME, MAX_DURATION),
        help="how long its certificate is valid, which is renewed when a third of that is left"
        " (default: 365d)",
    )  # fmt: skip


def _add_reports(actions: Subparsers[argparse.ArgumentParser]) -> None:
    text = "serve the metrics of an agent, and ship its audit log with the pod of each event"
    reports = actions.add_parser("reports", help=text, description=text)
    reports.add_argument("--node", metavar="NAME", required=True, help="the node's name")
    reports.add_argument(
        "--metrics-file", metavar="FILE", type=Path, required=True,
        help="the file that the agent writes",
    )  # fmt: skip
    reports.add_argument(
        "--port", type=int, default=9464, help="the port for Prometheus (default: 9464)"
    )
    reports.add_argument(
        "--place", metavar="DIR", type=Path, default=Path("/var/lib/keyhole-reports"),
        help="directory that records how far it has shipped (default: /var/lib/keyhole-reports)",
    )  # fmt: skip
    reports.add_argument(
        "--audit", metavar="DIR", type=Path, help="the audit log (default: that of this user)"
    )
    reports.add_argument("--stdout", action="store_true", help="ship as JSON lines to stdout")
    reports.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="ship as JSON lines to a file, 64 MiB and four older",
    )
    reports.add_argument(
        "--otlp", metavar="URL", default="",
        help="ship to a collector of OpenTelemetry by gRPC; http:// is without TLS",
    )  # fmt: skip


def _add_own_namespace(parser: argparse.ArgumentParser, flag: str) -> None:
    parser.add_argument(
        flag, metavar="NAME", dest="own_namespace", default=OWN_NAMESPACE, type=_name,
        help=f"the namespace of Keyhole's own objects (default: {OWN_NAMESPACE})",
    )  # fmt: skip


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("a name has small letters, digits, '-' and '.'")
    return text


def run(options: argparse.Namespace) -> int:
    """Run the part that was named."""
    if options.action == "rbac":
        return _rbac(options)
    if importlib.util.find_spec("lightkube") is None:
        raise CliError(MISSING)
    parts: dict[str, Callable[[argparse.Namespace], int]] = {
        "status": _status,
        "agent": _agent,
        "admission": _admission,
        "reports": _reports,
    }
    return parts[options.action](options)


def _status(options: argparse.Namespace) -> int:
    from keyhole.app.kube.cluster_status import read_cluster_status
    from keyhole.cli.kube_status import show_cluster

    return show_cluster(read_cluster_status(options.namespace), as_json=options.json)


def _rbac(options: argparse.Namespace) -> int:
    if bool(options.secret) != bool(options.namespace):
        raise CliError("--namespace and --secret go together: whose Secrets, and which")
    if options.secret:
        print(secret_role(options.namespace, options.secret, options.own_namespace), end="")
    else:
        print(all_roles(options.own_namespace), end="")
    return EXIT_OK


def _agent(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise CliError("the agent enters pods' networks, so it is root on its node")
    settings = NodeSettings(
        options.node,
        options.kubelet,
        options.cni_socket,
        options.metrics_file,
        options.node_network,
    )
    return serve_foreground(find_host_paths(), None, settings, default_workers())


def _admission(options: argparse.Namespace) -> int:
    from keyhole.app.kube.admission_server import AdmissionSettings, serve_admission

    names = tuple(options.names or (f"{ADMISSION}.{options.own_namespace}.svc",))
    lifetime = timedelta(seconds=options.certificate_lifetime)
    exempt = (*(options.exempt or EXEMPT), options.own_namespace)
    settings = AdmissionSettings(options.own_namespace, names, options.port, lifetime, exempt)
    run_on_loop(lambda: serve_admission(settings, find_host_paths()))
    return EXIT_OK


def _reports(options: argparse.Namespace) -> int:
    from keyhole.app.kube.reports_server import ReportSettings, serve_reports

    serve_reports(
        ReportSettings(
            node=options.node,
            audit=options.audit or find_host_paths().audit,
            place=options.place,
            metrics=options.metrics_file,
            port=options.port,
            stdout=sys.stdout if options.stdout else None,
            file=options.file,
            otlp=options.otlp,
        ),
        lambda text: print(f"keyhole: {text}", file=sys.stderr, flush=True),
    )
    return EXIT_OK
