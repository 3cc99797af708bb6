"""The first process of a sandbox that a compose file describes: asserts, then becomes the command.

Like `entrypoint.py`, for a container that the compose file defines with its user, limits, mounts
and command. The gateway writes its part (the network, placeholders, the filter) to a file that this
program reads, and removes the file when the door is closed. So a sandbox that is started too early,
or again behind another door, runs nothing (I2).
"""

# Runs at every start, so it imports no `json`, `socket` or `typing`; nor does `sandbox_init.py`.
import _socket
import marshal
import os
import stat
import sys

from keyhole.sandbox import sandbox_init
from keyhole.sandbox.containers import entrypoint
from keyhole.sandbox.containers.guarded_main import GuardedMain

TREE, PLACE = "/.keyhole", "/etc/keyhole"
"""The mount points of our programs, and of the gateway's files."""
TERMS = f"{PLACE}/entry"

_SO_NETNS_COOKIE = 71
_OF_THE_LOADER = ("LD_", "GLIBC_TUNABLES")


class ComposeTerms:
    """The gateway's facts about the sandbox."""

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
        """The cookie of the network namespace, which the kernel does not reuse before the next
        boot."""
        self.boot = boot
        """The boot id: cookies are counted from the start again after a boot."""
        self.holder = holder
        """The uid of the first process in this process namespace. When that process ends, all
        others end."""
        self.environment = environment
        self.seeds = seeds
        """Files to write for the sandbox: path, content, mode."""
        self.program = program
        """The system-call filter."""
        self.open_files = open_files
        self.memory = memory
        self.kept = kept
        """Device and inode of files that belong to the gateway and must not be mounted here."""

    def packed(self) -> bytes:
        """Serialise it for `main`, which runs on the same interpreter."""
        return marshal.dumps(vars(self))


@GuardedMain
def main() -> int:
    """Run as `composed TERMS COMMAND…`; TERMS is a file."""
    try:
        with open(sys.argv[1], "rb") as file:
            terms = ComposeTerms(**marshal.load(file))  # noqa: S302 - the gateway's, mounted read-only
    except OSError as error:
        return _refuse(f"the gateway has no open door for this sandbox ({error.strerror})")
    command = tuple(sys.argv[2:])
    if not command:
        return _refuse("the service names no command, and that of its image is not taken")
    config = entrypoint.EntrypointConfig(
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
    return entrypoint.enter(config, failures(terms))


def failures(terms: ComposeTerms) -> list[str]:
    """Every wall that does not stand."""
    found = sandbox_init.wall_failures(terms.namespace)
    if (_cookie(), boot()) != (terms.cookie, terms.boot):
        found.append("the network is not the one whose door is open")
    if _first_users() != {terms.holder}:
        found.append("the processes are not the door's, with which they are to end")
    # The author of the file chose the other mounts, so every mount point is known.
    found += sandbox_init.mount_failures((TREE, PLACE), ("/", TREE, PLACE), ("",))
    for point in sandbox_init.mount_table(sandbox_init.read_mounts()):
        try:
            status = os.stat(point)
        except OSError:
            continue  # covered by another
        if (status.st_dev, status.st_ino) in terms.kept:
            found.append(f"{point} is mounted and is the gateway's alone")
        elif stat.S_ISSOCK(status.st_mode):
            found.append(f"{point} is mounted and is a socket of the host")
    return found


def boot() -> str:
    """The kernel's boot id."""
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
    """The container's own variables, without those that were emptied to protect our loader and
    those of our own process."""
    return {
        name: value
        for name, value in environment.items()
        if (value or not name.startswith(_OF_THE_LOADER)) and entrypoint.PLAIN.get(name) != value
    }


def _refuse(why: str) -> int:
    sys.stderr.write(f"keyhole: nothing was run: {why}\n")
    return sandbox_init.FAILED
