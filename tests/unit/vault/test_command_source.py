"""`exec:`: a program of the host, bounded, without a shell, and told of only by its complaint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.system.child import Children
from keyhole.vault.command_source import MAX_SHOWN, SEARCH_PATH, CommandSource
from keyhole.vault.custody import MAX_SIZE, admit_reading
from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.source_paths import trusted_paths
from tests.rigs.vault.rig import SHELL, VALUE, World, ref, shell, told

if TYPE_CHECKING:
    from keyhole.model.secret import SecretRef

LIMIT = 1.0
"""Seconds that a program has which is there to be ended."""

PATIENCE = 10.0
"""Seconds after which a test says that it hangs."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def source(world: World, command: SecretRef, children: Children | None = None) -> CommandSource:
    programs = {command: SHELL}
    children = children or Children(LIMIT)
    return CommandSource(programs, world.project, world.home, world.env, children)


def value(world: World, script: str) -> str:
    given = world.vault().fetch(shell(script))
    assert given.warning == ""
    return given.secret.reveal()


def refusal(world: World, script: str, seconds: float = PATIENCE) -> str:
    command = shell(script)
    started = time.monotonic()
    with pytest.raises(SecretUnavailable) as error:
        admit_reading(command, source(world, command, Children(seconds)).read(command))
    assert time.monotonic() - started < 2 * PATIENCE
    # The script itself is the policy's text; what it printed is not.
    assert VALUE not in told(error.value).replace(script, "").replace(repr(script)[1:-1], "")
    return str(error.value)


SAY = "printf tok-5f2c9d417ab0-; printf correct-horse"
"""Prints VALUE, which does not stand in the script."""


def test_what_a_command_prints_is_the_secret(world: World) -> None:
    assert value(world, SAY) == VALUE
    assert value(world, f"{SAY}; echo; echo") == VALUE
    assert value(world, f"{SAY}; echo; echo second-line-0123456789") == (
        f"{VALUE}\nsecond-line-0123456789"
    )


def test_what_a_command_says_beside_a_secret_is_no_part_of_it(world: World) -> None:
    assert value(world, f"echo a newer version is here >&2; {SAY}") == VALUE


def test_no_shell_reads_the_words(world: World, tmp_path: Path) -> None:
    """I11: the words of the policy are words."""
    program = world.write("bin/words", '#!/bin/sh\nprintf "%s|" "$@"\n', 0o755)
    mark = tmp_path / "mark"
    command = ref(f"exec:words $(touch {mark}) ; `id` $HOME '*'")
    given = world.vault(words=program).fetch(command)
    assert given.secret.reveal() == f"$(touch|{mark})|;|`id`|$HOME|*|"
    assert not mark.exists()


def test_the_program_is_the_one_that_was_accepted_and_not_the_first_on_a_path(world: World) -> None:
    """I11: `sh` of the PATH would print another secret."""
    world.write("evil/sh", "#!/bin/sh\necho attackers-own-0123456789\n", 0o755)
    world.env = {"PATH": str(world.root / "evil")}
    assert value(world, SAY) == VALUE
    other = world.write("good/sh", f"#!/bin/sh\necho {VALUE}-two\n", 0o755)
    assert world.vault(sh=other).fetch(shell("x")).secret.reveal() == f"{VALUE}-two"


def test_a_life_that_the_policy_says_holds_where_the_command_says_none(world: World) -> None:
    program = world.write(
        "bin/count", "#!/bin/sh\necho x >> ~/runs; echo secret-0123456789abcdef\n", 0o755
    )
    says = world.write(
        "bin/says",
        '#!/bin/sh\necho \'{"secret": "secret-0123456789abcdef", "expires_in": 9}\'\n',
        0o755,
    )
    plain, own = ref("exec:count"), ref("exec:says")
    programs = {plain: program, own: says}
    source = CommandSource(
        programs, world.project, world.home, {}, Children(LIMIT), {plain: 3600.0, own: 3600.0}
    )
    life = source.read(plain).life
    assert life is not None
    assert life.ends - life.begins == pytest.approx(3600.0)
    assert source.read(plain).life == life  # it is not run again meanwhile
    assert (world.home / "runs").read_text() == "x\n"
    said = source.read(own).life
    assert said is not None
    assert said.ends - said.begins == pytest.approx(9.0)
    unsaid = CommandSource(programs, world.project, world.home, {}, Children(LIMIT))
    assert unsaid.read(plain).life is None


@pytest.mark.parametrize("found", [Path("missing"), None])
def test_a_program_that_was_not_found_is_not_looked_for_again(
    world: World, found: Path | None
) -> None:
    """I11: not even in `/`, where a relative path would lead."""
    command = ref("exec:gh auth token")
    programs = {command: found} if found else {}
    unfound = CommandSource(programs, world.project, world.home, {}, Children(LIMIT))
    with pytest.raises(SecretUnavailable, match="gh was not found"):
        unfound.read(command)


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o644, "#!/bin/sh\n", "permission denied"), (0o755, "no program", "exec format error")],
)
def test_what_cannot_be_started_is_said(world: World, mode: int, text: str, why: str) -> None:
    program = world.write("bin/gh", text, mode)
    with pytest.raises(SecretUnavailable, match=why):
        world.vault(gh=program).fetch(ref("exec:gh auth token"))


def test_a_file_that_a_word_names_is_the_one_beside_the_policy(world: World) -> None:
    """I11: that is the one whose content was accepted; the command itself runs in `/`."""
    path = world.write("project/token.sh", f"echo {VALUE}-beside\n")
    world.write("home/own.sh", f"echo {VALUE}-home\n")
    for words, expected in (("./token.sh", "beside"), (f"{path}", "beside"), ("~/own.sh", "home")):
        given = world.vault().fetch(ref(f"exec:sh {words}"))
        assert given.secret.reveal() == f"{VALUE}-{expected}"


def test_a_word_that_is_no_path_stays_as_it_is(world: World) -> None:
    """I11: a file called `token` that a run left in the project changes no command."""
    world.write("project/token")
    given = world.vault().fetch(ref("exec:sh -c 'echo $0 $1 0123456789abcdef' token op://a/b"))
    assert given.secret.reveal() == "token op://a/b 0123456789abcdef"


# ── what a program sees ───────────────────────────────────────────────────────────────────────────


def test_a_program_sees_a_small_environment_of_its_own(world: World) -> None:
    world.env = {
        "PATH": "/tmp/evil",  # noqa: S108 - a directory that anyone can write is the point
        "HOME": "/elsewhere",
        "GH_TOKEN": VALUE,
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/x",
        "BASH_ENV": "/x",
        "USER": "ann",
        "GNUPGHOME": "/home/ann/.gnupg",
        "XDG_CONFIG_HOME": "relative",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1/bus",
    }
    found = dict(line.split("=", 1) for line in value(world, "env").split("\n"))
    for name in ("PWD", "SHLVL", "_", "OLDPWD"):
        found.pop(name, None)  # the shell's own
    assert found == {
        "PATH": SEARCH_PATH,
        "HOME": str(world.home),
        "LANG": "C.UTF-8",
        "USER": "ann",
        "GNUPGHOME": "/home/ann/.gnupg",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1/bus",
    }


def test_directories_that_programs_believe_are_told_to_who_judges_them() -> None:
    """I11: GNUPGHOME in the project would be a gpg.conf that the sandbox wrote."""
    env = {
        "HOME": "/home/a",
        "GNUPGHOME": "/p/x",
        "XDG_DATA_HOME": "rel",
        "USER": "/no",
        "LANG": "",
    }
    assert trusted_paths(env) == (Path("/home/a"), Path("/p/x"))


def test_a_program_runs_in_the_root_without_input_terminal_or_our_descriptors(world: World) -> None:
    """I1: and what it starts is in a session of its own."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    script = (
        "pwd; readlink /proc/self/fd/0; ls /proc/self/fd | wc -w; cut -d' ' -f6,7 /proc/self/stat"
    )
    given = world.vault().fetch(ref(f'exec:sh -c "{script}"'), unsafe_short=True)
    printed = given.secret.reveal().split("\n")
    os.close(read)
    os.close(write)
    session, terminal = printed[3].split()
    assert printed[:2] == ["/", "/dev/null"]
    assert int(printed[2]) == 4  # three, and the one by which `ls` looks
    assert int(session) != os.getsid(0)
    assert terminal == "0"


# ── how it can end ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", "the command printed nothing"),
        ("echo not logged in >&2", "the command printed nothing and said: not logged in"),
        ("echo", "the secret is empty"),
        ("exit 3", "the command ended with 3"),
        ("echo no entry >&2; exit 1", "the command ended with 1 and said: no entry"),
        ("kill -9 $$", "the command was ended by signal 9"),
        (f"{SAY}; exit 1", "the command ended with 1"),
        (f"{SAY}; echo locked >&2; exit 1", "ended with 1 and said: locked"),
        (f"({SAY}) | tee /dev/stderr; exit 1", "repeats what it printed, so it is not shown"),
        (f"{SAY} | tee /dev/stderr; exit 1", "repeats what it printed, so it is not shown"),
        (f"set -x; x=$({SAY}); echo $x; exit 1", "repeats what it printed"),
        (f"echo >&2 a; {SAY}; echo; printf " + r'"X-Evil: 1\r\n\r"', "control"),
        (f"{SAY};" + r'printf "\000"', "control"),
        (f"{SAY};" + r'printf "\377\376"', "not UTF-8"),
        ("echo short", "shorter than 16"),
    ],
)
def test_a_command_that_gives_no_secret_is_told_of_without_what_it_printed(
    world: World, script: str, why: str
) -> None:
    """I8: standard error is shown, standard output never."""
    assert why in refusal(world, script)


def test_a_complaint_cannot_move_the_cursor_and_is_short(world: World) -> None:
    """I8, I9."""
    said = refusal(world, r'printf "\033[2Jhidden\nsecond\n" >&2; exit 1')
    assert said.endswith(r"\x1b[2Jhidden | second")
    said = refusal(world, "head -c 300000 /dev/zero | tr \\\\0 x >&2; echo the end >&2; exit 1")
    assert said.endswith("xxxthe end")
    assert len(said) < MAX_SHOWN + 300


def test_a_command_that_prints_for_ever_is_ended(world: World) -> None:
    """I9: by its size, long before its time."""
    assert f"printed more than {MAX_SIZE} bytes" in refusal(world, "yes", seconds=600)
    big = f"head -c {MAX_SIZE} /dev/zero | tr \\\\0 x"
    assert len(value(world, big)) == MAX_SIZE


def test_a_command_that_complains_for_ever_is_ended_by_its_time(world: World) -> None:
    assert "was ended after" in refusal(world, "yes >&2", LIMIT)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    world: World, tmp_path: Path
) -> None:
    """I9: the whole group, children included."""
    note = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {note}; {SAY}; wait"
    assert "was ended after" in refusal(world, script, LIMIT)
    for pid in note.read_text().split():
        assert eventually_gone(int(pid))


def eventually_gone(pid: int) -> bool:
    """Whether a process that was killed is gone, or only not yet waited for by its parent."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        os.sched_yield()
    return False


def test_a_daemon_that_holds_the_output_open_holds_nothing_up(world: World, tmp_path: Path) -> None:
    """I9: the secret is here when the program ends; an agent that it started lives on."""
    note = tmp_path / "pid"
    started = time.monotonic()
    assert value(world, f"setsid sleep 600 & {SAY}; echo $! > {note}") == VALUE
    assert time.monotonic() - started < PATIENCE
    daemon = int(note.read_text())
    assert Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    os.kill(daemon, signal.SIGKILL)


def test_a_daemon_that_goes_on_printing_is_not_listened_to_for_ever(
    world: World, tmp_path: Path
) -> None:
    """I9: there is an answer, whichever, at once, and the writer meets a closed pipe."""
    note = tmp_path / "pid"
    command = shell(f"yes & echo $! > {note}; exit 0")
    started = time.monotonic()
    with contextlib.suppress(SecretUnavailable):
        source(world, command, Children(600)).read(command)
    assert time.monotonic() - started < PATIENCE
    assert eventually_gone(int(note.read_text()))


def test_a_program_that_closes_its_outputs_and_stays_is_ended_by_its_time(world: World) -> None:
    assert "was ended after" in refusal(world, f"{SAY}; exec >&- 2>&-; sleep 600", LIMIT)


def test_the_time_limit_is_the_one_that_is_said(world: World) -> None:
    assert "was ended after 1 seconds" in refusal(world, "sleep 600", 1.0)


def test_who_gives_up_does_not_wait(world: World, tmp_path: Path) -> None:
    """What runs is ended, and what would still start is, too."""
    note = tmp_path / "started"
    os.mkfifo(note)
    children = Children(600)
    command = shell(f"echo > {note}; sleep 600")
    ended: list[str] = []

    def read() -> None:
        try:
            source(world, command, children).read(command)
        except SecretUnavailable as error:
            ended.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    note.read_text()  # it runs by now
    children.close()
    thread.join(PATIENCE)
    read()
    assert len(ended) == 2
    assert all("ended by signal 9" in text for text in ended)


def test_nothing_stays_open_and_nobody_stays_unwaited_for(world: World) -> None:
    value(world, SAY)
    before, others = len(os.listdir("/proc/self/fd")), children()
    for script in (SAY, "exit 1", "yes", "sleep 600", "setsid sleep 1 & echo"):
        command = shell(script)
        try:
            source(world, command).read(command)
        except SecretUnavailable:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
    assert children() == others


def children() -> set[str]:
    """Processes that wait to be waited for, or run; servers of other tests may be among them."""
    threads = Path("/proc/self/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}
