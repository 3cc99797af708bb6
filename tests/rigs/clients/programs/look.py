"""Inside: look for texts in all that a sandbox can see. `project_survey.py SPEC`, JSON on standard
output.

SPEC has the texts by group, masked with a pad, for a file that named them would be what is found.
`since` is when the texts were made: a file that has not changed since cannot hold them, which
spares reading the host's programs (nobody can set a change time). `client` is a command that says a
line and waits: its memory is looked at too.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK = 1 << 20
OVERLAP = 4096
"""Bytes that each block repeats of the one before: more than any text has."""

UNREADABLE = frozenset({"kmsg", "kcore", "mem", "pagemap", "clear_refs", "kpagecount", "kpageflags",
                        "kpagecgroup", "sysrq-trigger", "kallsyms", "trace_pipe"})  # fmt: skip
"""Of /proc: endless, or not text; memory is looked at apart."""


def texts_of(spec: dict[str, object]) -> dict[str, re.Pattern[bytes]]:
    """What to look for, by group."""
    pad = base64.b64decode(str(spec["pad"]))
    groups: dict[str, re.Pattern[bytes]] = {}
    masked: dict[str, list[str]] = spec["texts"]  # type: ignore[assignment]
    for group, values in masked.items():
        clear = [unmasked(base64.b64decode(value), pad) for value in values]
        groups[group] = re.compile(b"|".join(map(re.escape, clear)))
    return groups


def unmasked(data: bytes, pad: bytes) -> bytes:
    """The text itself."""
    return bytes(one ^ other for one, other in zip(data, pad, strict=False))


def blocks(descriptor: int) -> Iterator[bytes]:
    """All of an open file, each block with the end of the one before."""
    kept = b""
    while data := os.read(descriptor, BLOCK):
        yield kept + data
        kept = data[-OVERLAP:]


class Search:
    """What was found where, and how much was looked at."""

    def __init__(self, spec: dict[str, object]) -> None:
        self._groups = texts_of(spec)
        self._since = float(str(spec["since"]))
        self.found: dict[str, list[str]] = {group: [] for group in self._groups}
        self.looked = {"files": 0, "older": 0, "closed": 0, "processes": 0, "memory": 0}

    def text(self, where: str, data: bytes) -> None:
        """Look at these bytes."""
        for group, pattern in self._groups.items():
            if pattern.search(data) and where not in self.found[group]:
                self.found[group].append(where)

    def file(self, path: str) -> None:
        """Look at what is in a file."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.looked["closed"] += 1
            return
        self.looked["files"] += 1
        self.descriptor(path, descriptor)

    def descriptor(self, where: str, descriptor: int) -> None:
        """Look at an open file, and close it."""
        try:
            for block in blocks(descriptor):
                self.text(where, block)
        except OSError:
            self.looked["closed"] += 1
        finally:
            os.close(descriptor)

    def tree(self, root: str, but: Iterable[str] = ()) -> None:
        """Look at a directory and all below it: names, links, and files that are not too old."""
        waiting = [root]
        while waiting:
            directory = waiting.pop()
            try:
                entries = list(os.scandir(directory))
            except OSError:
                self.looked["closed"] += 1
                continue
            self.text(f"names in {directory}", os.fsencode("\n".join(e.name for e in entries)))
            for entry in entries:
                if entry.is_symlink():
                    self.text(entry.path, os.fsencode(os.readlink(entry.path)))
                elif entry.is_dir():
                    waiting += [] if entry.path in but else [entry.path]
                elif entry.is_file():
                    if entry.stat().st_ctime < self._since:
                        self.looked["older"] += 1
                    else:
                        self.file(entry.path)

    def processes(self) -> None:
        """What /proc says of each process: its words, variables, maps, and what it holds open."""
        for name in os.listdir("/proc"):
            if name.isdigit():
                self.looked["processes"] += 1
                self.process(f"/proc/{name}")
            elif name not in UNREADABLE and os.path.isfile(f"/proc/{name}"):
                self.file(f"/proc/{name}")
        self.tree("/proc/sys")

    def process(self, root: str) -> None:
        try:
            for name in os.listdir(root):
                if name not in UNREADABLE and os.path.isfile(f"{root}/{name}"):
                    self.file(f"{root}/{name}")
            for number in os.listdir(f"{root}/fd"):
                self.open_file(f"{root}/fd/{number}")
        except OSError:
            self.looked["closed"] += 1

    def open_file(self, path: str) -> None:
        """Also one that has no name any more."""
        self.text(path, os.fsencode(os.readlink(path)))
        if stat.S_ISREG(os.stat(path).st_mode):
            self.descriptor(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def memory(self, pid: int) -> None:
        """All that a process wrote; what it only reads of a file is looked at as that file."""
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, rights, *rest = line.split()
                if not rights.startswith("rw"):
                    continue
                start, end = (int(each, 16) for each in span.split("-"))
                at, kept = start, b""
                while at < end:
                    try:
                        data = os.pread(memory.fileno(), min(BLOCK, end - at), at)
                    except OSError:
                        break
                    self.text(f"memory of the client {' '.join(rest[3:])}", kept + data)
                    kept, at = data[-OVERLAP:], at + len(data)
                    self.looked["memory"] += len(data)


def main() -> None:
    """Look everywhere while the client lives."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    search = Search(spec)
    with subprocess.Popen(
        spec["client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        said = client.stdout.readline()
        for name, value in os.environ.items():
            search.text("environment", os.fsencode(f"{name}={value}"))
        search.processes()
        search.memory(client.pid)
        client.stdin.close()
    search.tree("/", but=("/proc",))
    json.dump({"said": said, "found": search.found, "looked": search.looked}, sys.stdout)


if __name__ == "__main__":
    main()
