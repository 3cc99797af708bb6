"""Sandboxes that have a name: made, stopped, started, entered, attached to, destroyed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.cli.terminals import on_terminal
from tests.rigs.sandbox.projects import line_of, until_nobody_is_in
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.containers.engines import OwnEngine
    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside


def listed(project: Boxed, **env: str) -> dict[str, dict[str, Any]]:
    """What `ps` says of each sandbox that has a name."""
    said = project("ps", "--json", env=env)
    assert said.code == 0, said
    return {each["name"]: each for each in json.loads(said.out)}


@contextlib.contextmanager
def made(project: Boxed, name: str, *words: str, **more: Any) -> Iterator[None]:  # noqa: ANN401
    """A sandbox while the block lasts."""
    try:
        said = project("new", name, "--trust", *words, **more)
        assert said.code == 0, said
        yield
    finally:
        project("destroy", name, **more)


def homes(dockerd: OwnEngine) -> list[str]:
    """The homes that the engine keeps."""
    found = dockerd.engine._client.volumes()["Volumes"] or ()
    return [v["Name"] for v in found if v["Name"].startswith("keyhole-home-")]


def test_a_sandbox_keeps_its_home_from_one_start_to_the_next_and_nothing_else(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    """And `destroy` leaves nothing of it; `prune` leaves it alone."""
    with made(plain, "box"):
        first = listed(plain)["box"]
        assert first["state"] == "running"
        script = "echo kept >~/kept; echo lost >/var/tmp/lost; cat; echo said >&2; exit 7"
        done = plain("exec", "box", "--", "sh", "-c", script, text=b"typed\n")
        assert (done.code, done.out, done.err) == (7, "typed\n", "said\n")
        taken = plain("new", "box")
        assert (taken.code, "already" in taken.err) == (2, True)
        said = plain("stop", "box")
        assert (said.code, said.out) == (0, "box ended; `keyhole start box` starts it again\n")
        until(lambda: dockerd.left() == [])
        assert "nothing was run: box is stopped" in plain("exec", "box", "--", "id").err
        assert plain("prune").out == "nothing is left behind\n"
        said = plain("start", "box")
        assert (said.code, said.out) == (0, "box runs\n"), said
        assert "runs already" in plain("start", "box").err
        assert listed(plain)["box"]["id"] != first["id"]
        done = plain("exec", "box", "--", "sh", "-c", "cat ~/kept; id -u; ls /var/tmp")
        assert done.lines == ["kept", str(plain.person.uid)]
        gone = plain("destroy", "box")
        assert (gone.code, gone.lines[-1]) == (0, "box is gone, with its home")
    until(lambda: dockerd.left() == [])
    assert homes(dockerd) == []
    assert "no sandbox 'box'" in plain("start", "box").err


LOOK = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
own = [p for p in os.listdir("/proc") if p.isdigit() and p != "1" and int(p) != os.getpid()]
def traced(pid):
    try:
        open(f"/proc/{pid}/mem", "rb").close()
    except OSError as error:
        return error.strerror
    return "opened"
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(), "net": os.readlink("/proc/self/ns/net"),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev")][2:],
    "walls": {n: status[n].strip() for n in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")},
    "filters": int(status["Seccomp_filters"]), "cwd": os.getcwd(), "key": os.environ.get("A"),
    "reach": {p: traced(p) for p in own if os.stat(f"/proc/{p}").st_uid == os.getuid()},
    "cores": __import__("resource").getrlimit(__import__("resource").RLIMIT_CORE)[1],
}))
"""


def test_what_joins_a_sandbox_stands_behind_the_same_walls(
    new_project: Callable[..., Boxed], dockerd: OwnEngine
) -> None:
    """I2: by `keyhole exec`, and, but for the exact filter, by the engine's own `exec`.

    Nothing inside reaches into what joins before it has its filter: as of every program that our
    loader starts, its memory is out of reach (control: that of another program is not)."""
    project = new_project(more='env = { A = "b" }')
    with made(project, "box"):
        words = ("python3", "-I", "-S", "-c", LOOK)
        ours = json.loads(project("exec", "box", "--", *words).out)
        client = dockerd.engine._client
        (sandbox,) = [c for c in dockerd.engine.containers() if c.labels["keyhole"] == "sandbox"]
        raw = json.loads(client.exec_start(client.exec_create(sandbox.id, list(words))["Id"]))
        control = project("exec", "box", "--", "sh", "-c", 'sleep 30 & exec "$@"', "sh", *words)
        check_signals(project)
    for seen in (ours, raw):
        assert seen["walls"] == {
            "CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2",
        }  # fmt: skip
        assert (seen["uid"], seen["interfaces"]) == (project.person.uid, ["lo"])
        assert seen["net"] == ours["net"]
    assert (ours["filters"], ours["cores"]) == (2, 0)
    assert (ours["cwd"], ours["key"]) == (str(project.directory), "b")
    assert set(ours["reach"].values()) == {"Permission denied"}
    assert "opened" in json.loads(control.out)["reach"].values()


def check_signals(project: Boxed) -> None:
    """What is sent to `keyhole exec` is its command's, and the sandbox goes on."""
    script = 'trap "echo heard; exit 9" USR1; echo ready; while :; do sleep 0.1; done'
    process = project.start("exec", "box", "--", "sh", "-c", script)
    assert line_of(process.stdout) == "ready"
    process.send_signal(signal.SIGUSR1)
    assert line_of(process.stdout) == "heard"
    assert process.wait(PATIENCE) == 9
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    assert listed(project)["box"]["state"] == "running"


def test_a_terminal_is_attached_left_and_attached_again(plain: Boxed) -> None:
    """Ctrl-P alone is the program's; with Ctrl-Q it leaves, and the program goes on."""
    become = ["/usr/bin/setpriv", f"--reuid={plain.person.uid}", f"--regid={plain.person.gid}"]
    words = [*become, "--clear-groups", str(plain.person.program)]
    script = "while read line; do echo you said $line; test $line = end && exit 5; done"
    with made(plain, "box", "--", "sh", "-c", script):
        assert "needs a terminal" in plain("attach", "box").err
        typed = [("leaves it", "one\n"), ("said one", "\x10\x11")]
        code, text = on_terminal([*words, "attach", "box"], plain.env, plain.directory, typed)
        assert (code, "left; box goes on" in text) == (0, True), text
        tell = ["exec", "box", "--", "sh", "-c", "test -t 0 && test -t 2 && echo yes; exit 3"]
        code, text = on_terminal([*words, *tell], plain.env, plain.directory)
        assert (code, "yes" in text) == (3, True), text
        typed = [("leaves it", "two\n"), ("said two", "end\n")]
        code, text = on_terminal([*words, "attach", "box"], plain.env, plain.directory, typed)
        assert (code, "box has ended, exit code 5" in text) == (5, True), text
        found = listed(plain)["box"]
        assert (found["state"], found["exit"], found["id"]) == ("stopped", 5, "box")


def supervisor(project: Boxed, name: str) -> int:
    """The process that holds a sandbox."""
    return int(listed(project)[name]["pid"])


def test_a_supervisor_that_is_killed_takes_all_along_and_the_sandbox_starts_again(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    """I2: nothing goes on without whoever holds the door; what it left is gone at the next start.

    And of two who start it at once, one does."""
    with made(plain, "box"):
        script = 'echo kept >~/kept; cat /proc/self/net/dev >/dev/null; exec python3 -c "$0"'
        code = "import os; print(os.readlink('/proc/self/ns/net'))"
        namespace = plain("exec", "box", "--", "sh", "-c", script, code).out.strip()
        os.kill(supervisor(plain, "box"), signal.SIGKILL)
        until_nobody_is_in(namespace)
        until(lambda: listed(plain)["box"]["state"] == "stopped")
        starting = [plain.start("start", "box") for _ in range(2)]
        said = [each.communicate(timeout=PATIENCE) for each in starting]
        assert sorted(each.returncode for each in starting) == [0, 2], said
        until(lambda: sorted(dockerd.left()) == ["holder", "sandbox"])
        assert plain("exec", "box", "--", "sh", "-c", "cat ~/kept").out == "kept\n"


def test_a_home_that_hostile_code_filled_leads_nothing_elsewhere_at_the_next_start(
    new_project: Callable[..., Boxed],
) -> None:
    """I11: links where the next start mounts, over our own programs for one, and where it writes.

    Control: before, and without them, the same is there."""
    project = new_project(SERVICE, more='writable = [".", "~/src/python"]')
    project.write("../home/key", "sk-s3cr3t-of-the-service-s3cr3t").chmod(0o600)
    for path in (project.home / "src", project.home / "src/python"):
        path.mkdir()
        project.person.own(path)
    victim = project.write("victim", "{}")
    look = "cat ~/.codex/auth.json; echo; test -L ~/.codex/auth.json || echo file; ls ~/src/python"
    with made(project, "box"):
        first = project("exec", "box", "--", "sh", "-c", f"echo >~/src/python/mine; {look}")
        assert first.lines[-2:] == ["file", "mine"], first
        hostile = project("exec", "box", "--", "python3", "-I", "-S", "-c", HOSTILE)
        assert hostile.err == ""
        assert project("stop", "box").code == 0
        again = project("start", "box")
        assert again.code == 0, again
        second = project("exec", "box", "--", "sh", "-c", look)
        assert second.lines[-2:] == ["file", "mine"], second
        assert second.out != first.out, "placeholders are one session's alone"
        assert victim.read_text() == "{}"


HOSTILE = """
import os
home, victim = os.environ["HOME"], os.path.abspath("victim")
os.rename(f"{home}/src", f"{home}/was")
os.symlink("/.keyhole", f"{home}/src")
os.unlink(f"{home}/.codex/auth.json")
os.symlink(victim, f"{home}/.codex/auth.json")
"""
SERVICE = """
[services.openai]
secret = "file:~/key"
"""


def test_a_new_sandbox_that_cannot_be_or_is_given_up_leaves_nothing(
    plain: Boxed, dockerd: OwnEngine
) -> None:
    for words, why in (
        (("box", "--", "nowhere"), "nowhere: not found in the sandbox"),
        (("Box", "--image", "127.0.0.1:1/has:this"), "is no name"),
        (("0123456789ab",), "is no name"),
    ):
        said = plain("new", *words[:1], "--trust", *words[1:])
        assert (said.code, said.err.count("\n"), why in said.err) == (2, 1, True), said
    process = plain.start("new", "box", "--trust", start_new_session=True)
    until(lambda: dockerd.left() != [])
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    until(lambda: dockerd.left() == [])
    assert homes(dockerd) == []
    assert not list((plain.home / "state/keyhole/sandboxes").iterdir())


def test_a_sandbox_is_closed_when_its_gateway_dies_and_open_after_a_start(
    new_project: Callable[..., Boxed], origin: GitAndWeb
) -> None:
    """I2: the door is the gateway's; without it nothing is reached, and nothing else changes."""
    project = new_project(origin.policy("origin.example"))
    shared = {"XDG_RUNTIME_DIR": str(project.home)}
    ask = (
        "import socket\n"
        "try: print(socket.create_connection(('origin.example', 443), 10).getpeername()[0])\n"
        "except OSError as error: print(type(error).__name__)"
    )
    words = ("exec", "box", "--", "python3", "-I", "-S", "-c", ask)
    assert project("up", env=shared).code == 0
    try:
        with made(project, "box", env=shared):
            assert project(*words, env=shared).out == "198.18.0.1\n"
            status = json.loads(project("status", "--json", env=shared).out)
            assert listed(project, **shared)["box"]["state"] == "open"
            os.kill(status["pid"], signal.SIGKILL)
            until(lambda: listed(project, **shared)["box"]["state"] == "closed")
            closed = project(*words, env=shared)
            assert closed.out in ("gaierror\n", "TimeoutError\n", "ConnectionRefusedError\n")
            assert "box is closed" in closed.err
            assert project("stop", "box", env=shared).code == 0
            assert project("start", "box", env=shared).code == 0
            assert project(*words, env=shared).out == "198.18.0.1\n"
    finally:
        project("down", env=shared)


def test_volumes_are_kept_from_one_run_to_the_next_and_are_the_users_own(
    new_project: Callable[..., Boxed], dockerd: OwnEngine
) -> None:
    """I11: one of the name that Keyhole did not make is not taken; `prune` leaves them alone."""
    project = new_project(more='volumes = { "/cache" = "cache", "~/.npm" = "npm" }')
    done = project.shell("echo 1 >/cache/one; echo 2 >~/.npm/two; ls -ld /cache")
    assert done.code == 0, done
    project("prune")
    other = new_project(more='volumes = { "/elsewhere" = "cache", "~/.npm" = "npm" }')
    assert other.shell("cat /elsewhere/one ~/.npm/two").lines == ["1", "2"]
    dockerd.engine.create_volume(f"keyhole-{project.person.uid}-foreign", {})
    third = new_project(more='volumes = { "/cache" = "foreign" }')
    refused = third.run("id")
    assert (refused.code, "that Keyhole did not make" in refused.err) == (125, True), refused


def test_a_plain_run_in_a_container_is_entered_by_its_id(plain: Boxed) -> None:
    """I2: behind the same walls. After a revocation it is not entered."""
    show = "import os, sys; print(os.readlink('/proc/self/ns/net'), flush=True); sys.stdin.read()"
    words = ("python3", "-I", "-S", "-c", show)
    with plain.running(*words, stdin=subprocess.PIPE) as process:
        namespace = line_of(process.stdout)
        (session,) = (each["id"] for each in json.loads(plain("ps", "--json").out))
        done = plain("exec", session[:6], "--", *words)
        assert (done.code, done.out) == (0, f"{namespace}\n")
        assert plain("exec", session, "--", "sh", "-c", "exit 6").code == 6
        assert plain("revoke", session).code == 0
        done = plain("exec", session, "--", "true")
        assert (done.code, "its session is closed" in done.err) == (125, True)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
