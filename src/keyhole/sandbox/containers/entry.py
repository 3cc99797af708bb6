"""The first process of a sandbox's container: asserts that the walls stand, becomes the command.

It runs on an interpreter of ours that is mounted read-only, whatever the image holds. Until it has
looked, nothing of the image has run; if an assertion fails, nothing ever will (I2). What it asserts
is what the engine was asked for and an engine might not do, and that what is mounted is what was
judged: an engine follows links when it mounts, and may run as root (I11).
"""

# On the way of every start: it imports no `json`, `socket` or `typing`, as `inside.py` does not.
import marshal
import os
import resource
import stat
import sys

from keyhole.sandbox import inside, syscalls
from keyhole.sandbox.containers.guarded import Guarded

ENGINES = ("/proc", "/dev", "/sys")
"""Where engines mount what every container has."""
_PODMANS = "/run/.containerenv"
"""A file by which Podman tells a program that it is in a container."""

PLAIN = {"LC_ALL": "C"}
"""What this process has in its environment, and the command has not: of any other locale the image
has the files, and by them the C library loads code of the image's, which turns characters into
others (gconv)."""

MAX_SETTINGS = 16 << 20
"""Bytes of a client's settings: Claude Code keeps its history there."""


class Config:
    """What to assert and what to become."""

    def __init__(
        self,
        *,
        namespace: str,
        command: tuple[str, ...],
        directory: str,
        environment: dict[str, str],
        uid: int,
        gid: int,
        mounts: tuple[str, ...],
        linked: tuple[str, ...],
        read_only: tuple[str, ...],
        same: dict[str, tuple[int, int]],
        seeds: tuple[tuple[str, str, int], ...],
        program: bytes,
        open_files: int,
        memory: int,
        owned: tuple[str, ...] = (),
        processes: int = 0,
        trees: tuple[str, ...] = (),
    ) -> None:
        self.namespace = namespace
        self.command = command
        self.directory = directory
        self.environment = environment
        self.uid = uid
        self.gid = gid
        self.mounts = mounts
        self.linked = linked
        """Those that an engine may have mounted where a link of the image leads: nothing that must
        stay covered lies under them."""
        self.read_only = read_only
        self.same = same
        """By mount point: the device and inode of what was judged."""
        self.seeds = seeds
        """Files of the sandbox's own: path, content, mode."""
        self.program = program
        """The filter."""
        self.open_files = open_files
        self.memory = memory
        self.owned = owned
        """What is the user's on the host, and must be theirs here: an engine may map users."""
        self.processes = processes
        """Of this user in this user namespace; 0: the engine bounds them."""
        self.trees = trees
        """Of the host, which may have mounts in them; nothing else that is mounted has. Attack: an
        engine is set to mount its host's secrets, or a socket, in every container's /run."""

    def packed(self) -> bytes:
        """As `main` reads it, in the same interpreter."""
        return marshal.dumps(vars(self))


@Guarded
def main() -> int:
    """Run it: `entry CONFIG`, a file; and for a command that joins, what `_join` says."""
    with open(sys.argv[1], "rb") as file:
        config = Config(**marshal.load(file))  # noqa: S302 - written outside, mounted read-only
    joining = sys.argv[2:]
    if not joining:
        return enter(config, failures(config))
    _join(config, joining)
    return enter(config, _own_failures(config))


def enter(config: Config, broken: list[str]) -> int:
    """Become the command, unless something is broken."""
    if broken:
        sys.stderr.write(f"keyhole: nothing was run: a wall does not stand: {'; '.join(broken)}\n")
        return inside.FAILED
    _plant(config.seeds)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        os.chdir(config.directory)
    except OSError as error:
        sys.stderr.write(f"keyhole: nothing was run: {config.directory}: {error.strerror}\n")
        return inside.FAILED
    # For each process; for all together, processes and memory are bounded by the engine (I9).
    inside.lower(resource.RLIMIT_CORE, 0)
    inside.lower(resource.RLIMIT_NOFILE, config.open_files)
    inside.lower(resource.RLIMIT_DATA, config.memory)
    if config.processes:
        inside.lower(resource.RLIMIT_NPROC, config.processes)
    # Number for number: an engine leaves out what its libseccomp has no name for.
    syscalls.load_filter(config.program)
    return inside.become(config.command, config.environment)


def _join(config: Config, words: list[str]) -> None:
    """Become another command, in a sandbox whose mounts were found to stand and are watched:
    `DIRECTORY [NAME=VALUE…] -- CMD…`. That none inside can hold or change us until we have our
    filter is the loader's doing, which cannot be read."""
    at = words.index("--")
    config.seeds = ()  # they are there, and may be the person's own by now
    config.directory = words[0]
    config.command = tuple(words[at + 1 :])
    told = dict(word.split("=", 1) for word in words[1:at])
    config.environment = config.environment | told | {"PWD": words[0]}


def _own_failures(config: Config) -> list[str]:
    """Every wall around this process itself that does not stand."""
    found = inside.wall_failures(config.namespace)
    if (os.getuid(), os.getgid()) != (config.uid, config.gid):
        found.append(f"the user is {os.getuid()}:{os.getgid()}")
    if set(os.getgroups()) - {config.gid}:
        found.append(f"the user is in the groups {os.getgroups()}")
    return found


def failures(config: Config) -> list[str]:
    """Every wall that does not stand."""
    found = _own_failures(config)
    led = {target: os.path.realpath(target) for target in config.linked}
    mounts = (*config.mounts, *led.values())
    fixed = tuple(led.get(target, target) for target in config.read_only)
    trees = (led.get(target, target) for target in config.trees)
    found += inside.mount_failures(mounts, fixed, (*ENGINES, _PODMANS, *trees))
    for target, expected in config.same.items():
        status = os.stat(target)
        if (status.st_dev, status.st_ino) != expected:
            found.append(f"{target} is not what was judged: it was replaced meanwhile")
    for target in config.owned:
        if os.stat(target).st_uid != config.uid:
            found.append(f"{target} is not the user's: the engine maps users")
    return found


def _merged(target: str, content: str) -> str:
    """With what a client keeps in its settings beside what is ours, in a home that is kept."""
    if not os.path.lexists(target):
        return content
    import json  # not on the way of a start with an empty home

    try:
        found = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(found, "rb") as file:
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SETTINGS:
                return content
            table = json.loads(file.read(MAX_SETTINGS))
        return json.dumps(table | json.loads(content), indent=2) + "\n"
    except (OSError, ValueError, TypeError, RecursionError):
        return content


def _plant(seeds: tuple[tuple[str, str, int], ...]) -> None:
    """Over what a home that is kept has from the session before, whose placeholders are void.

    With no more rights than whoever filled that home: a link there leads to nothing they could not
    write themselves, and what is in the way keeps a client from its settings, not us from starting.
    """
    for target, content, mode in seeds:
        try:
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            new = f"{target}.keyhole-new"
            if os.path.lexists(new):
                os.unlink(new)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(new, flags, mode), "w", encoding="utf-8") as file:
                file.write(_merged(target, content))
            os.rename(new, target)
        except OSError as error:
            sys.stderr.write(f"keyhole: {target} is not as it should be: {error.strerror}\n")
