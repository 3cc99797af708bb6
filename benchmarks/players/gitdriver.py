"""Runs git when it is told to, and tells how long that took; stands alone, inside or outside.

One line of JSON each way. What a measurement needs is laid out before the clock starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

FILE = 1 << 20
_QUIET = ("-c", "gc.auto=0", "-c", "core.fsync=none", "-c", "maintenance.auto=false")


def git(*words: str, where: str = ".") -> float:
    """Run git; seconds that it took."""
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        ["/usr/bin/git", *_QUIET, *words], cwd=where, stdin=subprocess.DEVNULL, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    took = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr}")
    return took


def clone(url: str, name: str = "clone") -> float:
    """A bare clone, so that no work tree is written."""
    shutil.rmtree(name, ignore_errors=True)
    return git("clone", "-q", "--bare", url, name)


def prepare(url: str, name: str, files: str) -> float:
    """A clone with a commit on top, packed as it will be sent."""
    took = git("clone", "-q", url, name)
    for number in range(int(files)):
        with open(os.path.join(name, f"new{number}"), "wb") as file:
            file.write(os.urandom(FILE if int(files) > 1 else 100))
    git("add", ".", where=name)
    git("commit", "-qm", "more", where=name)
    git("repack", "-qad", where=name)
    return took


def fetch(url: str, name: str) -> float:
    """What is new since the clone, each time from the same state."""
    shutil.rmtree("fetching", ignore_errors=True)
    shutil.copytree(name, "fetching")
    return git("fetch", "-q", url, "main", where="fetching")


def push(url: str, name: str, ref: str) -> float:
    """The commit on top."""
    return git("push", "-q", url, f"HEAD:{ref}", where=name)


def main() -> None:
    """Answer until nobody asks any more."""
    verbs = {each.__name__: each for each in (clone, prepare, fetch, push)}
    for line in sys.stdin:
        words = json.loads(line)
        try:
            told: dict[str, object] = {"seconds": verbs[words.pop("verb")](**words)}
        except (RuntimeError, OSError) as error:
            told = {"error": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
