"""The first process of a sandbox's container: asserts that the walls stand, becomes the command.

It runs on our own interpreter, which is mounted read-only, so nothing of the image runs before the
assertions; if one fails, nothing ever will (I2). It asserts the properties that the engine was
asked for and might not provide, and that each mount is the file that was judged: an engine follows
links when it mounts, and may run as root (I11).
"""

# Runs at every start, so it imports no `json`, `socket` or `typing`; nor does `sandbox_init.py`.
import marshal
import os
import resource
import stat
import sys

from keyhole.sandbox import sandbox_init
from keyhole.sandbox.containers.guarded_main import GuardedMain
from keyhole.system import syscalls

ENGINES = ("/proc", "/dev", "/sys")
"""The trees that engines mount in every container."""
_PODMANS = "/run/.containerenv"
"""A file by which Podman marks a container."""

PLAIN = {"LC_ALL": "C"}
"""Variables of this process alone. With any other locale, the C library would load the image's own
code to convert characters (gconv)."""

MAX_SETTINGS = 16 << 20
"""Bytes of a client's settings: Claude Code keeps its history there."""


class EntrypointConfig:
    """The assertions, and the command to become."""

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
        """Mount points that the engine may have moved because of a link of the image. Nothing that
        must stay covered lies under them."""
        self.read_only = read_only
        self.same = same
        """The device and inode of the judged file, by mount point."""
        self.seeds = seeds
        """Files to write for the sandbox: path, content, mode."""
        self.program = program
        """The system-call filter."""
        self.open_files = open_files
        self.memory = memory
        self.owned = owned
        """Targets that belong to the user on the host, and must belong to the user here: an engine
        may map ids."""
        self.processes = processes
        """The limit on processes of this user in this user namespace; 0 when the engine bounds
        them."""
        self.trees = trees
        """Trees of the host, which may contain mounts of their own; nothing else may. Attack: an
        engine is configured to mount its host's secrets, or a socket, in every container's /run."""

    def packed(self) -> bytes:
        """Serialise it for `main`, which runs on the same interpreter."""
        return marshal.dumps(vars(self))


@GuardedMain
def main() -> int:
    """Run as `entry CONFIG`, a file. For a command that joins, see `_join`."""
    with open(sys.argv[1], "rb") as file:
        config = EntrypointConfig(**marshal.load(file))  # noqa: S302 - written outside, mounted read-only
    joining = sys.argv[2:]
    if not joining:
        return enter(config, failures(config))
    _join(config, joining)
    return enter(config, _own_failures(config))


def enter(config: EntrypointConfig, broken: list[str]) -> int:
    """Become the command, unless a wall is broken."""
    if broken:
        sys.stderr.write(f"keyhole: nothing was run: a wall does not stand: {'; '.join(broken)}\n")
        return sandbox_init.FAILED
    _plant(config.seeds)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        os.chdir(config.directory)
    except OSError as error:
        sys.stderr.write(f"keyhole: nothing was run: {config.directory}: {error.strerror}\n")
        return sandbox_init.FAILED
    # These limits are for each process; the engine limits processes and memory of all together
    # (I9).
    sandbox_init.lower_resource_limit(resource.RLIMIT_CORE, 0)
    sandbox_init.lower_resource_limit(resource.RLIMIT_NOFILE, config.open_files)
    sandbox_init.lower_resource_limit(resource.RLIMIT_DATA, config.memory)
    if config.processes:
        sandbox_init.lower_resource_limit(resource.RLIMIT_NPROC, config.processes)
    # Our exact filter: an engine leaves out system calls that its libseccomp has no name for.
    syscalls.load_filter(config.program)
    return sandbox_init.exec_command(config.command, config.environment)


def _join(config: EntrypointConfig, words: list[str]) -> None:
    """Become a further command, `DIRECTORY [NAME=VALUE…] -- CMD…`, in a sandbox whose mounts were
    asserted and are watched. No process inside can trace us before we load our filter, because the
    loader's file is not readable."""
    at = words.index("--")
    config.seeds = ()  # the home has these files, and the person may have changed them
    config.directory = words[0]
    config.command = tuple(words[at + 1 :])
    told = dict(word.split("=", 1) for word in words[1:at])
    config.environment = config.environment | told | {"PWD": words[0]}


def _own_failures(config: EntrypointConfig) -> list[str]:
    """Every wall around this process itself that does not stand."""
    found = sandbox_init.wall_failures(config.namespace)
    if (os.getuid(), os.getgid()) != (config.uid, config.gid):
        found.append(f"the user is {os.getuid()}:{os.getgid()}")
    if set(os.getgroups()) - {config.gid}:
        found.append(f"the user is in the groups {os.getgroups()}")
    return found


def failures(config: EntrypointConfig) -> list[str]:
    """Every wall that does not stand."""
    found = _own_failures(config)
    led = {target: os.path.realpath(target) for target in config.linked}
    mounts = (*config.mounts, *led.values())
    fixed = tuple(led.get(target, target) for target in config.read_only)
    trees = (led.get(target, target) for target in config.trees)
    found += sandbox_init.mount_failures(mounts, fixed, (*ENGINES, _PODMANS, *trees))
    for target, expected in config.same.items():
        status = os.stat(target)
        if (status.st_dev, status.st_ino) != expected:
            found.append(f"{target} is not what was judged: it was replaced meanwhile")
    for target in config.owned:
        if os.stat(target).st_uid != config.uid:
            found.append(f"{target} is not the user's: the engine maps users")
    return found


def _merged(target: str, content: str) -> str:
    """The content merged into the settings that a client keeps in a lasting home."""
    if not os.path.lexists(target):
        return content
    import json  # not needed at a start with an empty home

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
    """Overwrite files of the last session, whose placeholders are void, in a lasting home.

    It has no more rights than the code that filled that home: a link there leads only to files
    which that code could write itself, and an obstacle costs a client its settings, not us the
    start.
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
