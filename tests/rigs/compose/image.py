"""The image, built for real from the Dockerfile, in an own engine.

No registry is asked: bases are this host's packages, wheels come through this host's own pip, once
for each lock file, and the build has no network. The address of an index is in nothing of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rigs.compose.bases import BUILDER, RUNTIME, base
from tests.rigs.containers.engines import NoEngine

if TYPE_CHECKING:
    from tests.rigs.containers.engines import OwnEngine

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging" / "container"
LOCK = ROOT / "requirements" / "runtime.lock"
SECONDS = 180
"""For one command of an engine's, on a host that is busy."""
PYTHON = "/usr/bin/python3"


def engine_client(engine: OwnEngine, *words: str, cwd: Path, check: bool = True) -> str:
    """Run a client of the engine; what it said."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "DOCKER_HOST": f"unix://{engine.socket}",
        "DOCKER_BUILDKIT": "0",
        "SANDBOX_IMAGE": "base:1",
    }
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=SECONDS, text=True, errors="replace", check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout[-4000:]
    return done.stdout


def _wheels() -> Path:
    """The packages of the lock file, by this host's own pip; kept from one run to the next."""
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    place = ROOT / ".pytest_cache" / "wheels" / key
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent))
        pip = [PYTHON, "-m", "pip", "download", "-qq", "--no-input", "--no-deps"]
        words = [*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK), "-d"]
        done = subprocess.run([*words, str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(made)
            raise NoEngine(str(done.stderr.strip().splitlines()[-1:]))
        made.chmod(0o755)
        with contextlib.suppress(OSError):  # another was quicker
            made.rename(place)
    return place


def build_image(engine: OwnEngine, ground: Path, name: str = "keyhole") -> str:
    """Build it in a directory that everybody may enter; its base is `base:1`. Raises NoEngine."""
    wheels = _wheels()
    engine.engine.import_image(base(RUNTIME), "base:1", {})
    more = ground / "builder"
    more.mkdir()
    (more / "more.tar").write_bytes(base(BUILDER, RUNTIME))
    (more / "Dockerfile").write_text("FROM base:1\nADD more.tar /\n")
    engine_client(engine, "docker", "build", "-q", "-t", "builder:1", ".", cwd=more)
    context = ground / "context"
    shutil.copytree(ROOT / "src", context / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", context / "requirements")
    shutil.copytree(wheels, context / "wheels")
    arguments = ("BASE=base:1", "BUILDER=builder:1", "PIP_NO_INDEX=1")
    engine_client(
        engine, "docker", "build", "--network", "none", "-t", name,
        "-f", str(PACKAGING / "Dockerfile"),
        *(word for each in arguments for word in ("--build-arg", each)), ".",
        cwd=context,
    )  # fmt: skip
    return name
