"""Starts a real Kubernetes on this machine, and keeps it until Ctrl-C: `make cluster`.

It has namespaces of its own: nothing of this host is reachable from it, or changed by it.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.rigs.kube.cluster import Cluster


def main() -> int:
    """Start it, say how to talk to it, and wait."""
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
