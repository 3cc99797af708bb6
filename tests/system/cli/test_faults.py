"""An exception that nothing expects, in each layer: one line, a report, 125, never a traceback.

The launcher below changes one function of a real process and then is `keyhole`. The exception's
words stand for a secret: they are in no output and in no report (I1).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from keyhole.cli import faults as told
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.guarded_main import GuardedMain
from keyhole.system import faults
from tests.rigs.cli.terminals import on_terminal
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

WORDS = "quoted-by-an-exception-5f2c9d"
QUOTED = f'"{WORDS}"'
LINE = re.compile(r"keyhole: [^\n]*an error in Keyhole itself[^\r\n]*")
REPORT = re.compile(r"please report it with (\S+\.txt), which holds no secret")

LAUNCHER = f"""\
import sys
def fail(*_, **__):
    raise ValueError({WORDS!r})
{{change}}
from keyhole.cli.main import entry
entry()
"""

RUN = ("run", "--trust", "-q", "--", "true")
LAYERS = {
    "the parser": ("import keyhole.cli.parser as m; m.parser_for = fail", ("check",)),
    "a verb": ("import keyhole.cli.check as m; m.run = fail", ("check",)),
    "the policy": ("import keyhole.policy.load as m; m.load.__code__ = fail.__code__", ("check",)),
    "the mount plan": ("import keyhole.app.setup.launch_preparation as m; m.plan_mounts = fail",
                       RUN),
    "the run": ("import keyhole.app.run.run as m; m._wait = fail", RUN),
    "the audit log": ("import keyhole.audit.log as m; m.AuditLog.__init__ = fail", RUN),
    "the control client": ("import keyhole.control.client as m; m.ControlClient.status = fail",
                           ("status",)),
    "the store": ("import keyhole.vault.store as m; m.Store.entries = fail",
                  ("secret", "list")),
}  # fmt: skip


def launched(change: str, *words: str) -> list[str]:
    return [sys.executable, "-I", "-c", LAUNCHER.format(change=change), *words]


def only_report(home: Path) -> str:
    """The one report there is, which only its owner may read."""
    (found,) = (home / ".local/state/keyhole/faults").iterdir()
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    return found.read_text()


@pytest.mark.parametrize("layer", LAYERS)
def test_an_exception_in_a_layer_is_one_line_and_a_report(keyhole: Keyhole, layer: str) -> None:
    change, words = LAYERS[layer]
    keyhole.policy("")
    done = subprocess.run(
        launched(change, *words), cwd=keyhole.project, env=keyhole.env, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == faults.EXIT_FAULT, said
    assert "Traceback" not in said
    assert WORDS not in said
    assert len(LINE.findall(said)) == 1, said
    assert "ValueError at " in said
    report = only_report(keyhole.home)
    assert REPORT.search(said)
    assert "in fail" in report
    assert WORDS not in report


@pytest.mark.parametrize("layer", LAYERS)
def test_an_exception_on_a_terminal_is_one_line_too(keyhole: Keyhole, layer: str) -> None:
    change, words = LAYERS[layer]
    keyhole.policy("")
    code, said = on_terminal(launched(change, *words), keyhole.env, keyhole.project)
    assert code == faults.EXIT_FAULT, said
    assert "Traceback" not in said
    assert WORDS not in said
    assert len(LINE.findall(said)) == 1, said


def test_the_launcher_without_a_change_is_the_command(keyhole: Keyhole) -> None:
    """Control: what the tests above start works as it is."""
    keyhole.policy("")
    for words in (("check",), RUN, ("secret", "list")):
        code, said = on_terminal(launched("", *words), keyhole.env, keyhole.project)
        assert code == 0, said
        assert not LINE.search(said)


HELPER = (
    "import keyhole.sandbox.bwrap.helper as h; "
    "h._PROGRAM = h._PROGRAM.replace('sys.exit', {broken!r} + '\\nsys.exit')"
)
CHILDREN = {
    "the helper": f"def fail(*_): raise ValueError({QUOTED})\n"
    "import keyhole.sandbox.bwrap.helper_main as e; e._enter = fail",
    "the first process": "import keyhole.sandbox.bwrap.helper_main as e, tempfile\n"
    "source = open(e.sandbox_init.__file__).read().replace("
    "'def supervise_command(config: InitConfig) -> int:\\n',"
    f" 'def supervise_command(config: InitConfig) -> int:\\n    raise ValueError({QUOTED})\\n')\n"
    "file = tempfile.NamedTemporaryFile('w', delete=False); file.write(source); file.close()\n"
    "e.sandbox_init.__file__ = file.name",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_an_exception_in_a_process_of_the_sandbox_is_one_line(keyhole: Keyhole, child: str) -> None:
    keyhole.policy("")
    assert keyhole(*RUN).code == 0
    change = HELPER.format(broken=CHILDREN[child])
    code, said = on_terminal(launched(change, *RUN), keyhole.env, keyhole.project)
    assert code == faults.EXIT_FAULT, said
    assert "Traceback" not in said
    assert WORDS not in said
    assert len(LINE.findall(said)) == 1, said
    assert "ValueError" in said


THREADS = {
    "a copying thread": "import keyhole.sandbox.bwrap.terminal as m; m.Terminal._copy = fail",
    "a callback of the loop": "import keyhole.app.run.run as m, asyncio\n"
    "before = m._wait\n"
    "async def wait(*a):\n"
    "    asyncio.get_running_loop().call_soon(fail)\n"
    "    return await before(*a)\n"
    "m._wait = wait",
    "a task that nothing awaits": "import keyhole.app.run.run as m, asyncio, gc\n"
    "before = m._wait\n"
    "async def broken(): fail()\n"
    "async def wait(*a):\n"
    "    asyncio.ensure_future(broken())\n"
    "    await asyncio.sleep(0); await asyncio.sleep(0); gc.collect()\n"
    "    return await before(*a)\n"
    "m._wait = wait",
}


@pytest.mark.parametrize("place", THREADS)
def test_an_exception_beside_the_command_is_told_and_the_command_goes_on(
    keyhole: Keyhole, place: str
) -> None:
    keyhole.policy("")
    words = ("run", "--trust", "-q", "--", "sh", "-c", "exit 7")
    code, said = on_terminal(launched(THREADS[place], *words), keyhole.env, keyhole.project)
    assert code == 7, said
    assert "Traceback" not in said
    assert WORDS not in said
    assert len(LINE.findall(said)) == 1, said


COMPANION = """\
import keyhole.app.processes.child as c
c._PROGRAM = c._PROGRAM.replace('run_guarded(', {broken!r} + '\\nrun_guarded(')
"""
"""Changes a process beside a run or a gateway, by what it is started with."""

FAIL = f"def fail(*_, **__): raise ValueError({QUOTED})\n"
# A resolver that gets no answer gives up soon.
ASKS = (
    "run", "--trust", "--",
    "sh", "-c", "RES_OPTIONS='timeout:1 attempts:1' getent hosts ok.example; exit 7",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code"),
    [
        # A fault in one connection or question is told, and the rest goes on.
        ("import keyhole.gateway.door.nameserver as m; m.NameServer.answer = fail", 7),
        # A data plane that cannot serve ends the run: its command would only meet silence.
        ("import keyhole.app.session.live_session as m; m.LiveSession.__init__ = fail", 125),
    ],
)
def test_an_exception_in_the_data_plane_of_a_run_is_one_line(
    keyhole: Keyhole, change: str, code: int
) -> None:
    keyhole.policy('[egress]\nallow = ["ok.example"]\n')
    program = COMPANION.format(broken=FAIL + change)
    ended, said = on_terminal(launched(program, *ASKS), keyhole.env, keyhole.project)
    assert ended == code, said
    assert "Traceback" not in said
    assert WORDS not in said
    assert "an error in Keyhole itself" in said, said
    assert "ValueError at " in said


@pytest.mark.parametrize(
    "change",
    [
        "import keyhole.app.daemon.gateway_operations as m; m.GatewayOperations.status = fail",
        COMPANION.format(
            broken=FAIL
            + "import keyhole.app.daemon.served_sessions as m; m.ServedSessions.__init__ = fail"
        ),
    ],
    ids=["control process", "data plane"],
)
def test_an_exception_in_a_gateway_is_words_to_the_person_and_a_line_in_its_log(
    keyhole: Keyhole, change: str
) -> None:
    keyhole.home.chmod(0o700)
    env = keyhole.env | {"XDG_RUNTIME_DIR": str(keyhole.home)}
    gateway = subprocess.Popen(
        launched(change, "up", "--foreground"), cwd=keyhole.project, env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        socket = keyhole.home / "keyhole/control.sock"
        until(lambda: socket.exists() or gateway.poll() is not None)
        asked = subprocess.run(
            launched("", "status"), env=env, capture_output=True, text=True, check=False
        )
    finally:
        gateway.terminate()
        said = gateway.communicate(timeout=30)[0].decode()
    assert asked.returncode in (1, 2), asked
    for text in (said, asked.stdout + asked.stderr):
        assert "Traceback" not in text
        assert WORDS not in text
    assert "ValueError at " in said, said


def test_an_exception_in_the_keeper_is_one_line(keyhole: Keyhole) -> None:
    """It ends with its line on the standard error of the gateway, which goes on without it."""
    change = (
        "import keyhole.app.processes.child as c\n"
        "c._PROGRAM = c._PROGRAM.replace('run_guarded(', "
        f"'def fail(*_): raise ValueError({QUOTED})\\n"
        "import keyhole.app.daemon.keeper as k; k.Keeper.serve = fail\\nrun_guarded(')"
    )
    env = keyhole.env | {"XDG_RUNTIME_DIR": str(keyhole.home)}
    keyhole.home.chmod(0o700)
    gateway = subprocess.Popen(
        launched(change, "up", "--foreground"), cwd=keyhole.project, env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert gateway.stdout is not None
        said = b""
        while b"an error in Keyhole itself" not in said:
            piece = os.read(gateway.stdout.fileno(), 65536)
            assert piece, said
            said += piece
    finally:
        gateway.terminate()
        rest, _ = gateway.communicate(timeout=30)
    text = (said + rest).decode()
    assert "Traceback" not in text
    assert WORDS not in text
    assert "in keyhole.app.daemon.keeper: ValueError at " in text


def test_an_exception_in_a_program_of_a_container_is_one_line() -> None:
    def broken() -> int:
        raise ValueError(WORDS)

    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert GuardedMain(broken)() == faults.EXIT_FAULT
    assert re.fullmatch(
        r"keyhole: an error in Keyhole itself: ValueError in \S+, lines \d+\n", said.getvalue()
    )
    assert GuardedMain(lambda: 3)() == 3
    for name in holder_image._PROGRAMS:
        module = importlib.import_module(f"keyhole.sandbox.containers.{name}")
        assert isinstance(module.main, GuardedMain), name


# ── what a report holds ─────────────────────────────────────────────────────────────────────────


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


def test_a_report_has_types_places_and_causes_and_no_value() -> None:
    def cause() -> None:
        raise KeyError(WORDS)

    try:
        try:
            cause()
        except KeyError as error:
            raise OSError(2, WORDS) from error
    except OSError as error:
        report = faults.explain(error)
    assert WORDS not in report
    assert report.index("FileNotFoundError: No such file") < report.index("KeyError")
    assert ", in cause" in report


def test_words_that_can_only_name_code_are_kept() -> None:
    assert "has no attribute" in faults.explain(raised(AttributeError("x has no attribute y")))


def test_a_recursion_and_a_circle_of_causes_have_an_end() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    assert len(faults.explain(caught.value).splitlines()) < faults.MAX_FRAMES + 10
    first, second = raised(ValueError()), raised(KeyError())
    first.__cause__, second.__cause__ = second, first
    assert faults.explain(first).count("\nafter\n") == 2


def test_reports_are_bounded(keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: neither the directory nor the terminal is filled by a fault that comes again."""
    monkeypatch.setenv("HOME", str(keyhole.home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for number in range(told.MAX_REPORTS + 5):
        monkeypatch.setattr(told, "_told", number)
        told._keep("details")
    directory = keyhole.home / ".local/state/keyhole/faults"
    assert len(list(directory.iterdir())) == told.MAX_REPORTS


def test_a_fault_is_told_also_where_no_report_can_be_kept(keyhole: Keyhole) -> None:
    env = keyhole.env | {"XDG_STATE_HOME": "/proc/nowhere"}
    keyhole.policy("")
    code, said = on_terminal(launched(*_flat(LAYERS["a verb"])), env, keyhole.project)
    assert code == faults.EXIT_FAULT
    assert "the details could not be written" in said


def _flat(layer: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    return (layer[0], *layer[1])
