"""Writes what installs Keyhole in a cluster, from its sources: `make manifests`.

The rules of RBAC go from `app/kube/permissions.py` into files of the chart. The chart, rendered by
Helm with its own values, is `packaging/kubernetes/keyhole.yaml`, for people who do not use Helm.
Tests compare both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from keyhole.app.kube.permissions import (
    ADMISSION_OWN_RULES,
    ADMISSION_RULES,
    AGENT_RULES,
    AGENT_SANDBOX_RULES,
    AGENT_SECRETS,
    rules,
)
from tests.rigs.kube.binaries import build

KUBERNETES = Path(__file__).resolve().parent.parent / "packaging/kubernetes"
CHART = KUBERNETES / "chart"
PLAIN = KUBERNETES / "keyhole.yaml"

RULES = {
    "agent-rules.yaml": (*AGENT_RULES, *AGENT_SANDBOX_RULES),
    "agent-secrets-rules.yaml": (AGENT_SECRETS,),
    "admission-rules.yaml": ADMISSION_RULES,
    "admission-own-rules.yaml": ADMISSION_OWN_RULES,
}
"""Files of the chart, by their names in `files`."""

_WRITTEN = "# Written by `make manifests`"


def rules_file(name: str) -> str:
    """The text of one of them."""
    return f"{_WRITTEN} from src/keyhole/app/kube/permissions.py.\n{rules(RULES[name])}"


def plain_manifests(helm: Path) -> str:
    """The chart as Helm renders it with the chart's own values."""
    rendered = subprocess.run(  # noqa: S603 - Helm, built by us
        [helm, "template", "keyhole", CHART], check=True, capture_output=True, text=True
    ).stdout
    return f"{_WRITTEN} from chart/, for `kubectl apply --server-side -f`.\n{rendered}"


def main() -> int:
    """Write all of them."""
    for name in RULES:
        (CHART / "files" / name).write_text(rules_file(name), "utf-8")
    PLAIN.write_text(plain_manifests(build() / "helm"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
