"""Images of this host's own programs, imported into the node's runtime: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def docker_archive(name: str, layer: bytes, command: Sequence[str]) -> bytes:
    """One layer as an archive that `ctr images import` and `docker load` read."""
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()  # fmt: skip
    settings = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": settings, "RepoTags": [name], "Layers": ["layer.tar"]}])
    made = io.BytesIO()
    with tarfile.TarFile(fileobj=made, mode="w") as archive:
        for path, content in (
            (settings, config),
            ("layer.tar", layer),
            ("manifest.json", manifest.encode()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def load(node: int, archive: bytes, beside: Path) -> None:
    """Import an archive into the runtime of the node whose first process this is."""
    beside.write_bytes(archive)
    try:
        subprocess.run(
            ["/usr/bin/nsenter", "--target", str(node), "--mount", "--net", "--pid",
             "/usr/bin/ctr", "--namespace", "k8s.io", "images", "import", str(beside)],
            check=True, capture_output=True,
        )  # fmt: skip
    finally:
        beside.unlink()
