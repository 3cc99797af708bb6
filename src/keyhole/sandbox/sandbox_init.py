"""The first process in the sandbox: asserts that the walls stand, then starts the command.

It runs on a bare interpreter (`-I -S`) from a descriptor, so it imports nothing of Keyhole's. Until
it has written `ok`, nothing untrusted has run; if an assertion fails, nothing ever will (I2).

It stays as process 1, whose end is the end of every other process inside. It is not dumpable:
otherwise code of the same user could trace it, hold it at its exit and so outlive the run, or take
its descriptors and memory.

It also starts the commands of `keyhole exec`, which the run's process outside sends over a socket
pair. They are its children, so they have its namespaces, filter, control group and lack of
privileges without joining anything from outside. No code inside can reach the socket: it has no
name, no child inherits it, and signals from inside do not end process 1.
"""

# The C module, because `signal` imports `enum` and this runs at every start. For the same reason
# there is no `json`, `socket` or `typing` here.
import _signal as signal  # type: ignore[import-not-found]
import _socket
import ctypes
import fcntl
import marshal
import os
import resource
import sys
import termios

STATUS_DESCRIPTOR = 3
CONFIG_DESCRIPTOR = 7
COMMANDS_DESCRIPTOR = 8
"""The socket over which further commands arrive."""

EXEC_DESCRIPTORS = 6
"""Descriptors of one further command: an `ExecConfig`, the three streams, the socket for its exit
code, and the gate."""
EXEC_WORD, READY, GO, NO_PROCESS = b"exec", b"ready", b"go", b"no process"
MAX_EXEC = 4 << 20
"""Bytes of an `ExecConfig`; the kernel accepts 2 MiB of words and variables."""

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4

_MOUNT_OPTIONS = 5
"""Index of the options in a line of `mountinfo`; the mount point is before them."""
_ESCAPED_IN_MOUNTS = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))
_libc = ctypes.CDLL(None)

NOT_FOUND, NOT_EXECUTABLE, FAILED = 127, 126, 125
_SECCOMP_FILTER = "2"
_OWN_MOUNTS = ("/", "/proc", "/dev", "/tmp")  # noqa: S108 - mount points that bubblewrap makes


class InitConfig:
    """The assertions, and the command to start."""

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
        links: tuple[str, ...],
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
        self.links = links

    def packed(self) -> bytes:
        """Serialise it for `main`, which runs on the same interpreter."""
        return marshal.dumps(vars(self))


class ExecConfig:
    """A further command, which shares the sandbox with the first one."""

    def __init__(
        self,
        *,
        command: tuple[str, ...],
        directory: str,
        environment: dict[str, str],
        interactive: bool,
    ) -> None:
        self.command = command
        self.directory = directory
        """The working directory; that of the first command if it cannot be entered."""
        self.environment = environment
        """Variables that differ from those of the first command."""
        self.interactive = interactive

    def packed(self) -> bytes:
        """Serialise it for the first process, which runs on the same interpreter."""
        return marshal.dumps(vars(self))


def failures(config: InitConfig) -> list[str]:
    """Every wall that does not stand."""
    found = wall_failures(config.namespace)
    if os.getpid() != 1:
        found.append("this is not the first process")
    if _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        found.append("the first process can be traced")
    if _terminal_number() != 0:
        found.append("the first process has a terminal of the host")
    found += [f"{p} is not covered by a link" for p in config.links if not os.path.islink(p)]
    known = (*_OWN_MOUNTS[1:], *config.targets)
    return found + mount_failures(config.targets, config.read_only, known)


def wall_failures(namespace: str) -> list[str]:
    """Failures of walls that every sandbox has: privileges, filter, user, network."""
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
    """Check that every target is mounted, read-only where it must be, and that every other mount is
    known."""
    seen = mount_table(read_mounts())
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


def read_mounts() -> str:
    """This process's mounts. Only a newline ends a line: a path may hold a carriage return, which
    the kernel leaves as it is."""
    with open(
        "/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n"
    ) as file:
        return file.read()


def mount_table(mounts: str) -> dict[str, list[str]]:
    """The options of each mount point in the text of a `mountinfo`.

    The kernel writes space, tab, newline and backslash in octal.
    """
    found = {}
    for line in mounts.rstrip("\n").split("\n"):
        words = line.split(" ")
        if len(words) > _MOUNT_OPTIONS:
            point = words[_MOUNT_OPTIONS - 1]
            for octal, plain in _ESCAPED_IN_MOUNTS:
                point = point.replace(octal, plain)
            found[point] = words[_MOUNT_OPTIONS].split(",")
    return found


def supervise_command(config: InitConfig) -> int:
    """Start the command, and reap every process inside until it ends."""
    os.setsid()
    if config.interactive:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    job = os.fork()
    if job == 0:
        os.close(COMMANDS_DESCRIPTOR)
        if config.interactive:
            _take_foreground()
        else:
            os.setsid()
        set_resource_limits(config)
        os._exit(exec_command(config.command, config.environment))
    _let_go_of_streams()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the command decides what a lost terminal means
    # Without a handler, the kernel drops what code inside sends to process 1.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Blocked signals wait until `sigwait` takes them, so none is lost between two looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
    further = FurtherCommands(config)
    while True:
        for ended, status in _ended_children():
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            if ended == job:
                return code
            further.ended(ended, code)
        further.start_waiting()
        signal.sigwait(_WAKING)


_WAKING = (signal.SIGCHLD, signal.SIGIO)


def _ended_children() -> list[tuple[int, int]]:
    """Reap every child that has ended, orphans too; returns their numbers and statuses."""
    found = []
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    except ChildProcessError:
        pass
    return found


class FurtherCommands:
    """Starts the commands that arrive over the socket, and reports their exit codes."""

    def __init__(self, config: InitConfig) -> None:
        self._config = config
        self._lines: dict[int, int] = {}
        """The sockets on which the callers wait for exit codes, by the number of the process."""
        self._channel: _socket.socket | None = None
        try:
            # The kernel sends SIGIO when something has arrived.
            fcntl.fcntl(COMMANDS_DESCRIPTOR, fcntl.F_SETOWN, os.getpid())
            flags = fcntl.fcntl(COMMANDS_DESCRIPTOR, fcntl.F_GETFL)
            fcntl.fcntl(COMMANDS_DESCRIPTOR, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
        except OSError:
            return  # there is none
        self._channel = _socket.socket(fileno=COMMANDS_DESCRIPTOR)

    def start_waiting(self) -> None:
        """Start every command that has arrived."""
        while self._channel is not None:
            try:
                word, given, _, _ = self._channel.recvmsg(
                    len(EXEC_WORD), _socket.CMSG_LEN(EXEC_DESCRIPTORS * 4), _socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return  # nothing waits, or no descriptor is left for it
            descriptors = [n for _, _, data in given for n in memoryview(data).cast("i")]
            if not word:
                self._channel.close()  # the run's process has ended, and so will this one
                self._channel = None
            elif len(descriptors) == EXEC_DESCRIPTORS:
                self._start(descriptors)
            for descriptor in descriptors:
                if descriptor not in self._lines.values():
                    os.close(descriptor)

    def _start(self, descriptors: list[int]) -> None:
        line, gate = descriptors[4:]
        try:
            child = os.fork()
        except OSError:
            # Attack: code inside that uses up all processes. The caller gets an answer.
            os.write(gate, NO_PROCESS)
            return
        if child == 0:
            code = FAILED
            try:
                code = _enter_further(self._config, descriptors)
            finally:
                os._exit(code)
        self._lines[child] = line

    def ended(self, process: int, code: int) -> None:
        """Report the exit code, if the process is one that was started here."""
        line = self._lines.pop(process, -1)
        if line >= 0:
            try:
                os.write(line, b"%d" % code)
            except OSError:
                pass  # the caller has gone
            finally:
                os.close(line)


def _enter_further(config: InitConfig, descriptors: list[int]) -> int:
    """Run a further command in a child of the first process; returns its exit code if this process
    is not the one that becomes the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    memory, gate = descriptors[0], descriptors[5]
    for number, descriptor in enumerate(descriptors[1:4]):
        os.dup2(descriptor, number)
    further = ExecConfig(**marshal.loads(os.pread(memory, MAX_EXEC, 0)))  # noqa: S302 - from the run's own process
    # The socket of the commands, and the lines of others.
    os.closerange(3, gate)
    os.closerange(gate + 1, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    if further.interactive:
        # A leader beside the command, as for the first one: see `_take_foreground`.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        job = os.fork()
        if job:
            os.close(gate)
            _let_go_of_streams()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
            return 128 - code if code < 0 else code
        _take_foreground()
    set_resource_limits(config)
    os.write(gate, READY)
    # The run's process looks at this one from outside, and only then lets it go on.
    if os.read(gate, len(GO)) != GO:
        return FAILED
    os.close(gate)
    variables = config.environment | further.environment
    try:
        os.chdir(further.directory)
        variables["PWD"] = further.directory
    except OSError:
        pass  # that of the first command
    return exec_command(further.command, variables)


def _take_foreground() -> None:
    """Become a job in the foreground. The command cannot lead the session itself: Ctrl-Z does not
    stop a job without a parent in its session (POSIX: an orphaned process group)."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we are not in the foreground yet
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    # A shell that starts Keyhole in the background ignores these; a terminal's job must not.
    for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _let_go_of_streams() -> None:
    """Close our copies, so that a reader sees the end of file when the command closes its
    output."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def set_resource_limits(config: InitConfig) -> None:
    """Set the limits of this process and its children (I9)."""
    lower_resource_limit(resource.RLIMIT_CORE, 0)
    lower_resource_limit(resource.RLIMIT_NPROC, config.processes)
    lower_resource_limit(resource.RLIMIT_NOFILE, config.open_files)
    lower_resource_limit(resource.RLIMIT_DATA, config.memory)


def lower_resource_limit(limit: int, value: int) -> None:
    """Lower a resource limit, never raise it."""
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def exec_command(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Execute the command; if that fails, print why, as a shell would."""
    name = command[0]
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # Python ignores them, and exec would pass that on
    try:
        # The policy's environment is for the command alone: an LD_PRELOAD in it must not reach the
        # process that asserts.
        os.execvpe(name, list(command), environment)  # noqa: S606 - the point
    except FileNotFoundError:
        sys.stderr.write(f"keyhole: {name}: not found in the sandbox\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"keyhole: {name}: {error.strerror}\n")
        return NOT_EXECUTABLE


def main() -> int:
    """Assert the walls, report, and supervise the command."""
    with os.fdopen(CONFIG_DESCRIPTOR, "rb") as file:
        config = InitConfig(**marshal.load(file))  # noqa: S302 - from the helper that made this process
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    broken = failures(config)
    report = "\n".join(broken).encode("ascii", "backslashreplace") if broken else b"ok"
    try:
        os.write(STATUS_DESCRIPTOR, report)
    except OSError:
        return FAILED  # the gateway is gone: nothing would record what the command does (I8)
    if broken:
        return FAILED
    os.closerange(3, COMMANDS_DESCRIPTOR)
    os.closerange(COMMANDS_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
    return supervise_command(config)


def _main() -> int:
    """Run `main`, with one line instead of a traceback on the person's terminal."""
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
    sys.exit(_main())
