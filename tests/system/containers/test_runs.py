"""`keyhole run` with containers: commands, streams, files, refusals, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.identity import UNPRIVILEGED
from tests.rigs.cli.terminals import on_terminal
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import line_of, until_nobody_is_in
from tests.rigs.sandbox.screens import on_a_terminal
from tests.rigs.waiting import PATIENCE, until
from tests.system.containers.conftest import Boxed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.containers.engines import OwnEngine

pytestmark = pytest.mark.outside


def test_a_command_has_its_streams_its_exit_code_and_files_that_belong_to_the_person(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    """And nothing of it is left in the engine."""
    script = "cat; echo complaint >&2; id -un; echo $IMAGE $HOME; echo kept >made; exit 7"
    done = plain.run("sh", "-c", script, text=b"typed\n", flags=("--quiet",))
    who = plain.person
    assert (done.code, done.err) == (7, "complaint\n")
    assert done.lines[0] == "typed"
    assert done.lines[2] == str(plain.home)
    made = plain.directory / "made"
    assert (made.stat().st_uid, made.stat().st_gid) == (who.uid, who.gid)
    until(lambda: dockerd.left() == [])  # the engine removes the holder by itself
    assert not [each for each in (plain.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


@pytest.mark.parametrize(
    ("command", "code"), [(("nowhere",), 127), (("sh", "-c", "kill -TERM $$"), 143)]
)
def test_it_ends_as_a_shell_says(plain: Boxed, command: tuple[str, ...], code: int) -> None:
    assert plain.run(*command).code == code


def test_who_reads_no_longer_ends_the_command(plain: Boxed) -> None:
    process = plain.start("run", "--trust", "-q", "--", "sh", "-c", "while :; do echo y; done")
    assert line_of(process.stdout) == "y"
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert process.stderr is not None
    process.stderr.close()


def test_root_runs_it_for_the_projects_owner_and_a_terminal_is_the_containers_own(
    plain: Boxed, tmp_path: Path
) -> None:
    places = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    env = plain.env | places | {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    words = [str(this_person(tmp_path).program), "run", "--trust", "-q", "--", "sh"]
    typed = [("$ ", "test -t 0 && test -t 2 && ls /dev/pts; id -u\n"), ("$ ", "exit 5\n")]
    code, text = on_terminal(words, env, plain.directory, typed)
    assert code == 5, text
    assert {"0", "ptmx"} <= set(text.split())
    assert str(plain.person.uid) in text.split()


def test_a_project_of_roots_is_its_users_inside_and_stays_roots(
    dockerd: OwnEngine, image: str, ground: Path
) -> None:
    """By a mount that is gone when the command runs: what is removed after a run is not in it."""
    directory = ground / "root"
    directory.mkdir()
    project = Boxed.make(this_person(directory), 0)
    os.symlink(dockerd.socket, project.home.parent / "engine.sock")
    project.write("sub/kept", "kept\n")
    project.write("sub/.env", "TOKEN=hunter2hunter2hunter2\n")
    flags = ("--runtime", "docker", "--image", image, "-q")
    done = project.shell("id -u; cat sub/.env sub/kept; echo new >sub/made; exit 3", flags=flags)
    assert (done.code, done.lines) == (3, [str(UNPRIVILEGED), "kept"]), done
    assert (project.directory / "sub/made").stat().st_uid == 0
    assert (project.directory / "sub/kept").read_text() == "kept\n"
    assert "mapped-" not in Path("/proc/self/mountinfo").read_text()
    until(lambda: dockerd.left() == [])


def test_signals_are_the_commands(plain: Boxed) -> None:
    script = 'trap "echo heard; exit 9" USR1; echo ready; while :; do sleep 0.1; done'
    with plain.running("sh", "-c", script) as process:
        assert line_of(process.stdout) == "ready"
        process.send_signal(signal.SIGUSR1)
        assert line_of(process.stdout) == "heard"
        assert process.wait(PATIENCE) == 9


def test_a_run_that_is_killed_leaves_nobody_and_prune_removes_the_rest(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    """I2: with whoever held the door everything ends. Control: it lived before."""
    code = "import os,time; print(os.readlink('/proc/self/ns/net'), flush=True); time.sleep(300)"
    script = 'trap "" TERM HUP; (sleep 300 &) ; exec python3 -c "$0"'
    with plain.running("sh", "-c", script, code) as process:
        namespace = line_of(process.stdout)
        assert sorted(dockerd.left()) == ["holder", "sandbox"]
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    until_nobody_is_in(namespace)
    until(lambda: dockerd.left() == ["sandbox"])
    removed = json.loads(plain("prune", "--json").out)
    assert {each["what"] for each in removed} >= {"sandbox", "files"}
    assert dockerd.left() == []
    assert plain("prune").out == "nothing is left behind\n"


@pytest.mark.parametrize("seen", ["holder", "sandbox"])
def test_a_run_that_is_interrupted_while_it_is_made_leaves_nothing(
    plain: Boxed, dockerd: OwnEngine, seen: str
) -> None:
    """I2: whatever is there by then, of what is made one beside the other."""
    process = plain.start("run", "--trust", "-q", "--", "sleep", "300")
    until(lambda: seen in dockerd.left())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    until(lambda: dockerd.left() == [])
    assert not [each for each in (plain.home / "state/keyhole/boxes").iterdir() if each.is_dir()]


def test_a_run_whose_secret_cannot_be_used_leaves_nothing(
    new_project: Callable[..., Boxed], dockerd: OwnEngine
) -> None:
    """Its holder was begun by then. Control: with the secret the command runs."""
    service = '[services.a]\nhosts = ["a.example"]\nallow = ["GET /**"]\nsecret = "file:~/key"\n'
    project = new_project(service + 'inject = { header = "X-Key", value = "{secret:2}" }\n')
    project.write("../home/key", "s3cr3t-of-the-service").chmod(0o600)
    refused = project.run("sleep", "60")
    assert refused.code == 125, refused
    assert "the secret has no line 2" in refused.err
    until(lambda: dockerd.left() == [])
    boxes = project.home / "state/keyhole/boxes"
    assert not [each for each in boxes.iterdir() if each.is_dir()]
    project.write("../home/key", "one-line\ns3cr3t-of-the-service").chmod(0o600)
    assert project.run("id").code == 0


def test_the_policy_and_what_holds_credentials_stay_covered_in_a_project(
    new_project: Callable[..., Boxed],
) -> None:
    """I1, I11: the same rules as for bubblewrap. Control: other files are there."""
    project = new_project()
    project.write(".env", "TOKEN=hunter2hunter2hunter2\n")
    project.write("readme", "hello\n")
    script = "cat readme .env; echo x >>keyhole.toml || echo kept; rm .env || echo kept"
    done = project.shell(script)
    assert done.lines == ["hello", "kept", "kept"], done


def test_what_the_host_may_execute_is_guarded_and_told_as_with_bubblewrap(
    new_project: Callable[..., Boxed],
) -> None:
    """I11: links, an agent's directory, and findings that are kept. Control: new files are made."""
    project = new_project()
    script = project.write("env/common.sh", "echo mine\n")
    project.write(".claude/settings.json", "{}\n")
    (project.directory / ".envrc").symlink_to("env/common.sh")
    for name in (".claude/plans/old", "new/old", "sub/old"):
        project.write(name, "old\n")
    (project.directory / ".nextagent").symlink_to("new")
    done = project.shell(
        "echo evil > env/common.sh || echo kept; echo evil > .claude/settings.json || echo kept; "
        "echo x > .claude/settings.local.json; echo x > .claude/plans/x; echo x > new/mcp.json; "
        "echo 'gitdir: new' > sub/.git"
    )
    assert done.lines == ["kept", "kept"], done
    assert script.read_text() == "echo mine\n"
    names = (".claude/settings.local.json", ".claude/plans/x", "new/mcp.json", "sub/.git")
    for name in names:
        assert f"new: {project.directory / name} (" in done.err
    assert f"{len(names)} findings are open" in project.shell("true").err
    listed = json.loads(project("findings", "--json").out)
    assert {row["path"] for row in listed} == {str(project.directory / name) for name in names}


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (("-q", "--image", "127.0.0.1:1/has:this"), {}, "has no image 127.0.0.1:1/has:this"),
        ((), {"DOCKER_HOST": "tcp://192.0.2.1:2375"}, "needs the engine's Unix socket"),
        ((), {"DOCKER_HOST": "unix:///nowhere.sock"}, "No such file or directory"),
        (("--runtime", "bwrap", "--image", "x"), {}, "--image is for containers"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    plain: Boxed, flags: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    done = plain.run("true", flags=flags, env=env)
    assert done.code == 125
    assert words in done.err
    assert done.err.count("\n") == 1, done.err


def test_an_engine_whose_socket_the_sandbox_could_replace_is_not_asked(plain: Boxed) -> None:
    """I11. Control: every other test."""
    where = plain.directory / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(where))
        os.chmod(where, 0o777)  # noqa: S103 - whoever connects finds nobody
        done = plain.run("true", env={"DOCKER_HOST": f"unix://{where}"}, flags=())
    where.unlink()
    assert done.code == 125


FULL_SCREEN = """
import os, socket, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"\\x1b[?1049hready")
while os.read(0, 1) != b"q":
    for _ in range(2):
        try:
            socket.getaddrinfo("evil.example", 443)
        except OSError:
            pass
    os.write(1, b"asked")
os.write(1, b"\\x1b[?1049l")
termios.tcsetattr(0, termios.TCSANOW, before)
"""


def test_a_line_waits_for_the_end_of_a_full_screen_program(plain: Boxed) -> None:
    """The engine has the pty, so only the program's output tells."""
    with on_a_terminal(plain, "python3", "-I", "-c", FULL_SCREEN) as screen:
        screen.until("ready")
        screen.type("a")
        screen.until("asked")
        until(lambda: "evil.example" in plain("log", "--denied").out)
        screen.drain()
        assert "evil.example" not in screen.seen
        screen.type("q")
        assert screen.wait() == 0
    assert "while a program had the terminal:" in screen.seen
    assert "denied evil.example" in screen.seen
