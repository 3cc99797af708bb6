"""`keyhole up` and `down`: a gateway in the background, by a fake one; and the systemd unit."""

from __future__ import annotations

import configparser
import io
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.app.processes.heartbeat import STUCK_SECONDS
from keyhole.cli import gateway_log, up_foreground
from keyhole.cli.gateway_log import LogWriter, last_lines, open_log
from keyhole.cli.notify import Notifier
from keyhole.cli.parser import build_parser
from keyhole.control.client import ControlClient
from keyhole.control.socket_directory import HELD, claim_socket
from keyhole.model.errors import ResourceUnusable
from tests.rigs.cli.terminals import on_terminal
from tests.rigs.waiting import until
from tests.system.cli.conftest import Keyhole, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "packaging" / "systemd" / "keyhole.service"
SYSTEMD = shutil.which("systemd-analyze")
PROGRAM = (sys.executable, "-I", str(ROOT / "tests/rigs/cli/gatewayprogram.py"))


class Upping:
    """Runs the program with the fake gateway; what it started is ended with the test."""

    def __init__(self, keyhole: Keyhole, runtime: Path) -> None:
        self.keyhole = keyhole
        self.env = keyhole.env | {"XDG_RUNTIME_DIR": str(runtime)}
        self.runtime = runtime
        self.client = ControlClient(runtime / "keyhole")
        self.log = keyhole.home / ".local" / "state" / "keyhole" / "gateway.log"

    def __call__(self, *words: str, manner: str = "") -> Ran:
        done = subprocess.run(
            [*PROGRAM, *words],
            cwd=self.keyhole.project,
            env=self.env | {"FAKE_GATEWAY": manner},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,  # /dev/tty leads nowhere
        )
        assert "Traceback" not in done.stderr.partition("no gateway")[2]
        return Ran(done.returncode, done.stdout, done.stderr)

    def pid(self) -> int:
        return self.client.status().pid


@pytest.fixture
def upping(keyhole: Keyhole, tmp_path: Path) -> Iterator[Upping]:
    os.chmod(tmp_path, 0o700)
    (tmp_path / "runtime").mkdir(mode=0o700)
    made = Upping(keyhole, tmp_path / "runtime")
    yield made
    made("down")


pytestmark = pytest.mark.outside


def test_up_returns_when_the_gateway_is_ready_and_down_when_it_is_gone(upping: Upping) -> None:
    ran = upping("up")
    assert (ran.code, ran.err) == (0, "")
    pid = upping.pid()
    assert ran.out == (
        f"the gateway is up, process {pid}; `keyhole run` uses it, `keyhole down` ends it\n"
    )
    # A session of its own, no terminal, no directory that it keeps, nothing of ours open.
    assert os.getsid(pid) == pid
    proc = Path(f"/proc/{pid}")
    assert os.readlink(proc / "cwd") == "/"
    assert os.readlink(proc / "fd" / "0") == os.devnull
    assert os.readlink(proc / "fd" / "1") == os.readlink(proc / "fd" / "2") == str(upping.log)
    assert "Umask:\t0077" in (proc / "status").read_text()
    assert stat.S_IMODE(upping.log.stat().st_mode) == 0o600
    until(lambda: "after it was ready" in upping.log.read_text())

    again = upping("up")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith(f"a gateway is up already, process {pid}; `keyhole status`")

    down = upping("down")
    assert (down.code, down.err) == (0, "")
    assert down.out == "the gateway has ended, and 1 session with it\n"
    assert not proc.exists() or "\nState:\tZ" in (proc / "status").read_text()
    assert upping.log.read_text().rstrip().endswith("ended")
    nothing = upping("down")
    assert (nothing.code, nothing.out) == (0, "no gateway is running, so there is nothing to end\n")


@pytest.mark.parametrize("words", [("up",), ("up", "--foreground")])
def test_a_runtime_directory_that_cannot_be_made_is_one_clear_line(
    keyhole: Keyhole, words: tuple[str, ...]
) -> None:
    ran = replace(keyhole, env=keyhole.env | {"XDG_RUNTIME_DIR": "/proc/nope"})(*words)
    said = "keyhole: no gateway was started: /proc/nope: there is no such directory\n"
    assert (ran.code, ran.out, ran.err) == (2, "", said)


def test_up_says_for_scripts_what_it_did(upping: Upping) -> None:
    first = json.loads(upping("up", "--json", manner="speak").out)
    assert first == {
        "running": True,
        "started": True,
        "pid": upping.pid(),
        "socket": str(upping.runtime / "keyhole" / "control.sock"),
        "log": str(upping.log),
        "notes": ["session 5e55104d0123 was left by a gateway that died; it is ended"],
    }
    assert json.loads(upping("up", "--json").out) == first | {"started": False, "notes": []}


def test_what_a_gateway_found_at_its_start_is_told_to_the_person(upping: Upping) -> None:
    ran = upping("up", manner="speak")
    assert ran.err == (
        "keyhole: session 5e55104d0123 was left by a gateway that died; it is ended\n"
    )
    assert "after it was ready" not in ran.out + ran.err
    assert "5e55104d0123 was left" in upping.log.read_text()


def test_a_gateway_that_another_is_just_starting_is_waited_for(upping: Upping) -> None:
    """Who has the lock need not answer yet."""
    place = claim_socket(upping.runtime / "keyhole")
    with subprocess.Popen(
        [*PROGRAM, "up"],
        env=upping.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        until(lambda: upping.log.exists() and HELD in upping.log.read_text())
        assert process.poll() is None
        place.release()
        assert upping("up").code == 0
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert out.decode().startswith(f"a gateway is up already, process {upping.pid()};")


def test_a_gateway_that_cannot_start_says_why(upping: Upping) -> None:
    ran = upping("up", manner="fail")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "keyhole: no gateway was started: the audit log cannot be written: no room; `df` says"
        " more\n"
    )
    foreground = upping("up", "--foreground", manner="fail")
    assert (foreground.code, foreground.err) == (2, ran.err)
    strange = upping("up", "--foreground", "--line", "0")
    assert (strange.code, strange.out) == (2, "")
    assert "type `keyhole up`" in strange.err


def test_a_gateway_that_dies_has_its_last_words_shown(upping: Upping) -> None:
    """I8: and no byte of them moves the cursor."""
    ran = upping("up", manner="die")
    assert (ran.code, ran.out) == (2, "")
    assert r"its last \x1b[2Jline" in ran.err
    assert "an error in Keyhole itself: ZeroDivisionError at " in ran.err
    assert "words that may quote a secret" not in ran.err + upping.log.read_text()
    assert "it ended before it was ready; its log is" in ran.err
    assert "\x1b" not in ran.err + upping.log.read_text()


def test_ctrl_c_while_it_starts_ends_the_gateway(upping: Upping) -> None:
    """Positive control: one that is not interrupted is there."""
    process = subprocess.Popen(
        [*PROGRAM, "up"],
        env=upping.env | {"FAKE_GATEWAY": "hang"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        until(lambda: upping.log.exists() and "starts as process" in upping.log.read_text())
        pid = int(upping.log.read_text().split("starts as process ")[1].split()[0])
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 130
    assert not Path(f"/proc/{pid}").exists()
    assert upping("up").code == 0


def test_two_that_are_started_at_once_end_as_one(upping: Upping) -> None:
    started = [
        subprocess.Popen(
            [*PROGRAM, "up"],
            env=upping.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=30) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    pid = upping.pid()
    assert all(f"process {pid};" in out for out, _ in said)


def test_a_gateway_that_does_not_end_is_named(upping: Upping) -> None:
    assert upping("up", manner="stay").code == 0
    pid = upping.pid()
    program = (
        "import sys; from keyhole.cli import down, main; down.END_SECONDS = 0.2;"
        "sys.argv = ['keyhole', 'down']; sys.exit(main.main())"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program],
            env=upping.env,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.kill(pid, signal.SIGKILL)
    assert done.returncode == 2
    assert f"process {pid}, did not end within 0.2 s; `kill -9 {pid}` ends it" in done.stderr


# the passphrase


def test_the_passphrase_is_asked_for_on_the_terminal_and_goes_down_the_line(upping: Upping) -> None:
    """I1: it is in no argument, no variable and no log; positive control: the gateway has it."""
    passphrase = "correct horse battery"
    code, shown = on_terminal(
        [*PROGRAM, "up"],
        upping.env | {"FAKE_GATEWAY": "ask"},
        upping.keyhole.project,
        [("once more: ", passphrase + "\r")],
    )
    assert code == 0, shown
    assert f"it was asked and got {len(passphrase)} characters: cor…" in shown
    proc = Path(f"/proc/{upping.pid()}")
    places = [proc / "cmdline", proc / "environ", upping.log]
    assert passphrase not in shown
    assert not any(passphrase.encode() in place.read_bytes() for place in places)


def test_without_a_terminal_nobody_is_asked(upping: Upping) -> None:
    ran = upping("up", manner="ask")
    assert ran.code == 0
    assert "it was asked and got 7 characters: not…" in ran.err


# the log


def test_the_log_never_grows_past_its_bound_and_ends_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9."""
    monkeypatch.setattr(gateway_log, "MAX_BYTES", 4000)
    monkeypatch.setattr(gateway_log, "_KEPT", 2000)
    path = tmp_path / "state" / "gateway.log"
    log = open_log(path)
    try:
        writer = LogWriter(log)
        for number in range(500):
            print(f"line {number}", file=writer)
            assert path.stat().st_size <= 4100
        lines = path.read_text().splitlines()
        assert lines[-1] == "line 499"
        assert all(line.startswith("line ") for line in lines)
        assert last_lines(log, 0, 2) == ["line 498", "line 499"]
    finally:
        os.close(log)


def test_the_log_is_a_file_of_ones_own(tmp_path: Path) -> None:
    """I11: no link is followed, and nothing but a file is written."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ResourceUnusable):
            open_log(tmp_path / name)
    os.close(open_log(tmp_path / "fine"))


# service managers


def test_a_service_manager_is_told_when_it_is_ready(upping: Upping, tmp_path: Path) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(30)
        with subprocess.Popen(
            [*PROGRAM, "up", "--foreground"],
            env=upping.env | {"NOTIFY_SOCKET": place, "FAKE_GATEWAY": "speak"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert manager.recv(1000) == b"READY=1"
            assert upping.pid() == process.pid
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0
    assert said.startswith(b"keyhole: session 5e55104d0123 was left")
    assert b"keyhole: after it was ready\n" in said
    assert not upping.log.exists()


def test_a_notification_also_goes_to_abstract_names_and_never_fails() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0keyhole-test-{os.getpid()}")
        manager.settimeout(30)
        Notifier({"NOTIFY_SOCKET": f"@keyhole-test-{os.getpid()}"}).ready()
        assert manager.recv(1000) == b"READY=1"
    for name in ("", "relative", "@nobody-is-there", "/nonexistent/socket", "vsock:2:1"):
        notifier = Notifier({"NOTIFY_SOCKET": name})
        notifier.ready()
        notifier.ready()


def test_the_unit_starts_what_there_is_and_leaves_namespaces_alone() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    service = unit["Service"]
    assert service["Type"] == "notify"
    # The gateway ends and replaces a data plane that is stuck long before it is itself restarted.
    assert float(service["WatchdogSec"]) > 2 * STUCK_SECONDS
    for key, verb in (("ExecStart", "up"), ("ExecReload", "reload")):
        program, *words = shlex.split(service[key])
        assert program.endswith("/keyhole")
        assert build_parser().parse_args(words).verb == verb
    # In a user's manager these need a user namespace, in which root's files are nobody's: no
    # place would be fit for the control socket, and no owner of a file could be told.
    assert not {key for key in service if key.startswith(("Private", "Protect", "ReadOnly"))}
    assert not {"RestrictNamespaces", "RootDirectory", "DynamicUser"} & set(service)


@pytest.mark.skipif(SYSTEMD is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8")
    unit = tmp_path / "keyhole.service"

    def verify(text: str) -> str:
        unit.write_text(text.replace("%h/.local/bin/keyhole", "/bin/true"), "utf-8")
        done = subprocess.run(
            [SYSTEMD or "", "--user", "verify", str(unit)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path)},
        )
        return "\n".join(line for line in done.stderr.splitlines() if "keyhole.service" in line)

    if not verify(text.replace("Type=notify", "Type=nonsense")):
        pytest.skip("systemd-analyze says nothing of units here")
    assert verify(text) == ""


def test_a_gateway_goes_on_when_nobody_reads_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: `keyhole up --foreground 2>&1 | head`: it replaces a lost data plane after that, too."""

    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    up_foreground._report("a line")
