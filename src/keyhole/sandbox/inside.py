"""The first process in the sandbox: asserts that the walls stand, then starts the command.

It runs on a bare interpreter (`-I -S`) from a descriptor, so it imports nothing of Keyhole's. Until
it has written `ok`, nothing untrusted has run; if an assertion fails, nothing ever will (I2).

It stays as process 1, whose end is the end of every other process inside. It is not dumpable: were
it, code of the same user could trace it, hold it at its exit and so outlive the run, or take the
descriptors and the memory of the one process that is not the sandbox's own.
"""

# Below its Python face, which takes `enum`: this module is on the way of every start. For the same
# reason there is no `json`, `socket` or `typing` here.
import _signal as signal  # type: ignore[import-not-found]
import ctypes
import marshal
import os
import resource
import sys

STATUS_DESCRIPTOR = 3
CONFIG_DESCRIPTOR = 7

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_libc = ctypes.CDLL(None)

NOT_FOUND, NOT_EXECUTABLE, FAILED = 127, 126, 125
_SECCOMP_FILTER = "2"
_OWN_MOUNTS = ("/", "/proc", "/dev", "/tmp")  # noqa: S108 - mount points that bubblewrap makes


class Config:
    """What to assert and what to become."""

    def __init__(
        self,
        *,
        namespace: str,
        command: tuple[str, ...],
        environment: dict[str, str],
        interactive: bool,
        processes: int,
        memory: int,
        open_files: int,
        targets: tuple[str, ...],
        read_only: tuple[str, ...],
    ) -> None:
        self.namespace = namespace
        self.command = command
        self.environment = environment
        self.interactive = interactive
        self.processes = processes
        self.memory = memory
        self.open_files = open_files
        self.targets = targets
        self.read_only = read_only

    def packed(self) -> bytes:
        """As `main` reads it, in the same interpreter."""
        return marshal.dumps(vars(self))


def failures(config: Config) -> list[str]:
    """Every wall that does not stand."""
    found = wall_failures(config.namespace)
    if os.getpid() != 1:
        found.append("this is not the first process")
    if _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        found.append("the first process can be traced")
    if _terminal_number() != 0:
        found.append("the first process has a terminal of the host")
    known = (*_OWN_MOUNTS[1:], *config.targets)
    return found + mount_failures(config.targets, config.read_only, known)


def wall_failures(namespace: str) -> list[str]:
    """Those of every sandbox, whatever made it: privileges, filter, user, network."""
    status = _proc_status()
    found = [
        f"{name} is {status.get(name)}, not empty"
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        if int(status.get(name, "1"), 16) != 0
    ]
    if status.get("NoNewPrivs") != "1":
        found.append("new privileges can be gained")
    if status.get("Seccomp") != _SECCOMP_FILTER:
        found.append("no system-call filter is in force")
    if os.getuid() == 0 or os.geteuid() == 0:
        found.append("the user is root")
    interfaces = _interfaces()
    if interfaces != ["lo"]:
        found.append(f"the network has {interfaces}, not only lo")
    seen = os.readlink("/proc/self/ns/net")
    if seen != namespace:
        found.append(f"the network namespace is {seen}, not {namespace}")
    return found


def _interfaces() -> list[str]:
    """Every interface of this network namespace: proc(5) lists them below two lines of titles."""
    with open("/proc/self/net/dev", encoding="ascii", errors="replace") as file:
        return [line.partition(":")[0].strip() for line in list(file)[2:]]


def _terminal_number() -> int:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[4])


def _proc_status() -> dict[str, str]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        pairs = (line.split(":", 1) for line in file if ":" in line)
        return {name: value.strip() for name, value in pairs}


def mount_failures(
    targets: tuple[str, ...], read_only: tuple[str, ...], known: tuple[str, ...]
) -> list[str]:
    """Every target is mounted, read-only where it must be; all else is in what is known."""
    seen = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split(" ")
            point = words[4].encode().decode("unicode_escape") if "\\" in words[4] else words[4]
            seen[point] = words[5].split(",")
    found = [f"{target} is not mounted" for target in targets if target not in seen]
    found += [
        f"{target} is not read-only"
        for target in read_only
        if target in seen and "ro" not in seen[target]
    ]
    for point in seen:
        within = any(point == tree or point.startswith(tree + "/") for tree in known)
        if point != "/" and point not in targets and not within:
            found.append(f"{point} is mounted and should not be")
    return found


def attend(config: Config) -> int:
    """Start the command, and see to every process inside until it ends."""
    os.setsid()
    if config.interactive:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    job = os.fork()
    if job == 0:
        if config.interactive:
            _take_foreground()
        else:
            os.setsid()
        bound(config)
        os._exit(become(config.command, config.environment))
    _let_go_of_streams()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the command decides what a lost terminal means
    while True:
        ended, status = os.wait()
        if ended == job:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _take_foreground() -> None:
    """Be a job in the foreground. The command cannot lead the session itself: Ctrl-Z does not stop
    a job that has nobody in its session to continue it (POSIX: an orphaned process group)."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we are not in the foreground yet
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    # Whoever started Keyhole in the background had these ignored; a terminal's job heeds them.
    for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _let_go_of_streams() -> None:
    """Whoever reads the command's output sees its end when the command closes it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def bound(config: Config) -> None:
    """Limits that this process and all after it keep (I9)."""
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_NPROC, config.processes)
    lower(resource.RLIMIT_NOFILE, config.open_files)
    lower(resource.RLIMIT_DATA, config.memory)


def lower(limit: int, value: int) -> None:
    """Bound a resource, by no more than it is bound already."""
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def become(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Exec the command, or say as a shell would why not."""
    name = command[0]
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # Python ignores them, and exec would pass that on
    try:
        # The environment is the policy's, so it is the command's alone: LD_PRELOAD in it must not
        # reach the process that asserts.
        os.execvpe(name, list(command), environment)  # noqa: S606 - the point
    except FileNotFoundError:
        sys.stderr.write(f"keyhole: {name}: not found in the sandbox\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"keyhole: {name}: {error.strerror}\n")
        return NOT_EXECUTABLE


def main() -> int:
    """Assert, report, attend."""
    with os.fdopen(CONFIG_DESCRIPTOR, "rb") as file:
        config = Config(**marshal.load(file))  # noqa: S302 - from the helper that made this process
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    broken = failures(config)
    report = "\n".join(broken).encode("ascii", "backslashreplace") if broken else b"ok"
    try:
        os.write(STATUS_DESCRIPTOR, report)
    except OSError:
        return FAILED  # the gateway is gone: nobody would see what the command does (I8)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    return FAILED if broken else attend(config)


def _main() -> int:
    """`main`, and one line instead of a traceback: the person's terminal is no place for that."""
    try:
        return main()
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        lines = []
        trace = error.__traceback__
        while trace is not None:
            lines.append(str(trace.tb_lineno))
            trace = trace.tb_next
        place = f"{type(error).__name__} in the sandbox's first process, lines {' '.join(lines)}"
        os.write(2, f"keyhole: an error in Keyhole itself: {place}\n".encode())
        return FAILED


if __name__ == "__main__":
    os._exit(_main())  # nothing is buffered, and taking modules apart takes time
