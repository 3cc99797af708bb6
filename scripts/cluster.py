"""A real Kubernetes on this machine, for `make cluster`, `make test-cluster` and CI.

It has namespaces of its own: nothing of this host is reachable from it, or changed by it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.rigs.kube.binaries import build, lacking
from tests.rigs.kube.cluster import Cluster

EXIT_LACKING = 3


def main() -> int:
    """Do what was named; without a word, start a cluster."""
    parser = argparse.ArgumentParser(prog="scripts.cluster", allow_abbrev=False)
    parser.add_argument(
        "action", nargs="?", choices=("start", "build", "lacking"), default="start",
        help="start one and keep it until Ctrl-C; build what one is made of;"
        f" or say what this machine lacks for one and exit with {EXIT_LACKING}",
    )  # fmt: skip
    match parser.parse_args().action:
        case "build":
            build()
            return 0
        case "lacking":
            why = lacking()
            print(why or "nothing")
            return EXIT_LACKING if why else 0
        case _:
            return _start()


def _start() -> int:
    with tempfile.TemporaryDirectory(prefix="keyhole-cluster-") as made:
        cluster = Cluster(Path(made) / Path(made).name)
        cluster.start()
        print(f"a cluster runs; its settings are in {cluster.kubeconfig}, for its own network:")
        print(f"  nsenter --net --target {cluster.pid} env KUBECONFIG={cluster.kubeconfig} …")
        print("Ctrl-C ends it", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("ending it", file=sys.stderr)
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
