"""Searches this host for secrets, in raw and in every encoded form that answers are searched for.

Done from outside, by whoever runs the suite; only root reads the memory of others.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from keyhole.inject.renderings import renderings

CHUNK = 1 << 20


class Search:
    """Texts in every form, and where they are found."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._forms = {r.needle for text in texts for r in renderings(text, "stand-in")}

    def holds(self, data: bytes) -> bool:
        return any(form in data for form in self._forms)

    def in_files(self, *roots: Path) -> list[str]:
        paths = (path for root in roots for path in root.rglob("*") if path.is_file())
        return [str(path) for path in paths if self.holds(path.read_bytes())]

    def in_proc(self, *pids: int) -> list[str]:
        """What /proc tells everybody or the owner of processes, their open and their mapped files.

        A file that several of them have, such as a library, is read once.
        """
        found = []
        read: dict[tuple[int, int], bool] = {}
        for proc in (Path(f"/proc/{pid}") for pid in pids):
            for name in ("environ", "cmdline", "status", "maps", "comm", "mountinfo", "stat"):
                with contextlib.suppress(OSError):
                    if self.holds((proc / name).read_bytes()):
                        found.append(f"{proc.name}/{name}")
            for path in (*_links(proc / "fd"), *_links(proc / "map_files")):
                with contextlib.suppress(OSError):
                    if path.is_file() and self._in_file(path, read):
                        found.append(f"{proc.name}/{path.parent.name}")
        return found

    def _in_file(self, path: Path, read: dict[tuple[int, int], bool]) -> bool:
        status = path.stat()
        file = (status.st_dev, status.st_ino)
        if file not in read:
            read[file] = self.holds(path.read_bytes())
        return read[file]

    def in_memory(self, pid: int) -> bool:
        """Every page that is written to, where it may be read."""
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for begin, end in re.findall(r"^(\w+)-(\w+) rw", maps.read(), re.MULTILINE):
                if self._in_range(memory.fileno(), int(begin, 16), int(end, 16)):
                    return True
        return False

    def _in_range(self, memory: int, begin: int, end: int) -> bool:
        before = b""
        for at in range(begin, end, CHUNK):
            try:
                data = os.pread(memory, min(CHUNK, end - at), at)
            except OSError:
                break
            if self.holds(before + data):
                return True
            before = data[-1024:]
        return False


def _links(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def family(pid: int) -> list[int]:
    """The processes below one, at this moment."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found
