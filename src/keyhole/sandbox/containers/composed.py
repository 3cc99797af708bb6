"""The first process of a sandbox that another file describes, as compose does: asserts, becomes.

As `entry.py`, for a container that Keyhole did not ask an engine for: user, limits, mounts and the
command are in that file. What the gateway knows (the network, what stands for secrets, the filter)
it wrote where this reads it, and takes away when the door is closed, so that a sandbox which is
started too early, or again behind another door, runs nothing (I2).
"""

# On the way of every start: it imports no `json`, `socket` or `typing`, as `inside.py` does not.
import _socket
import marshal
import os
import stat
import sys

from keyhole.sandbox import inside
from keyhole.sandbox.containers import entry
from keyhole.sandbox.containers.guarded import Guarded

TREE, PLACE = "/.keyhole", "/etc/keyhole"
"""Where our programs are mounted, and what the gateway wrote."""
TERMS = f"{PLACE}/entry"

_SO_NETNS_COOKIE = 71
_OF_THE_LOADER = ("LD_", "GLIBC_TUNABLES")


class Terms:
    """What the gateway knows of the sandbox."""

    def __init__(
        self,
        *,
        namespace: str,
        cookie: bytes,
        boot: str,
        holder: int,
        environment: dict[str, str],
        seeds: tuple[tuple[str, str, int], ...],
        program: bytes,
        open_files: int,
        memory: int,
        kept: tuple[tuple[int, int], ...],
    ) -> None:
        self.namespace = namespace
        self.cookie = cookie
        """The same, by what the kernel gives to no other one until the next boot."""
        self.boot = boot
        """Of the kernel: the next one begins to count anew."""
        self.holder = holder
        """The user whom the first process here is, whose end is the end of all others."""
        self.environment = environment
        self.seeds = seeds
        """Files of the sandbox's own: path, content, mode."""
        self.program = program
        """The filter."""
        self.open_files = open_files
        self.memory = memory
        self.kept = kept
        """By device and inode: what is the gateway's alone, and must not be mounted here."""

    def packed(self) -> bytes:
        """As `main` reads it, in the same interpreter."""
        return marshal.dumps(vars(self))


@Guarded
def main() -> int:
    """Run it: `composed TERMS COMMAND…`; the first is a file."""
    try:
        with open(sys.argv[1], "rb") as file:
            terms = Terms(**marshal.load(file))  # noqa: S302 - the gateway's, mounted read-only
    except OSError as error:
        return _refuse(f"the gateway has no open door for this sandbox ({error.strerror})")
    command = tuple(sys.argv[2:])
    if not command:
        return _refuse("the service names no command, and that of its image is not taken")
    config = entry.Config(
        namespace=terms.namespace,
        command=command,
        directory=os.getcwd(),
        environment=surrounding(dict(os.environ)) | terms.environment,
        uid=os.getuid(),
        gid=os.getgid(),
        mounts=(),
        linked=(),
        read_only=(),
        same={},
        seeds=terms.seeds,
        program=terms.program,
        open_files=terms.open_files,
        memory=terms.memory,
    )
    return entry.enter(config, failures(terms))


def failures(terms: Terms) -> list[str]:
    """Every wall that does not stand."""
    found = inside.wall_failures(terms.namespace)
    if (_cookie(), boot()) != (terms.cookie, terms.boot):
        found.append("the network is not the one whose door is open")
    if _first_users() != {terms.holder}:
        found.append("the processes are not the door's, with which they are to end")
    # What else is mounted is whoever's wrote the file, so every point is known.
    found += inside.mount_failures((TREE, PLACE), ("/", TREE, PLACE), ("",))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    for point in points:
        try:
            status = os.stat(point.encode().decode("unicode_escape") if "\\" in point else point)
        except OSError:
            continue  # covered by another
        if (status.st_dev, status.st_ino) in terms.kept:
            found.append(f"{point} is mounted and is the gateway's alone")
        elif stat.S_ISSOCK(status.st_mode):
            found.append(f"{point} is mounted and is a socket of the host")
    return found


def boot() -> str:
    """Which boot of the kernel this is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()


def _first_users() -> set[int]:
    with open("/proc/1/status", encoding="ascii", errors="replace") as file:
        return {int(n) for line in file if line.startswith("Uid:") for n in line.split()[1:]}


def _cookie() -> bytes:
    own = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        return own.getsockopt(_socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    finally:
        own.close()


def surrounding(environment: dict[str, str]) -> dict[str, str]:
    """The container's own variables, without what was emptied to keep it from our loader, and what
    is ours alone."""
    return {
        name: value
        for name, value in environment.items()
        if (value or not name.startswith(_OF_THE_LOADER)) and entry.PLAIN.get(name) != value
    }


def _refuse(why: str) -> int:
    sys.stderr.write(f"keyhole: nothing was run: {why}\n")
    return inside.FAILED
