"""Standard input, output and error, whatever they are; and nothing else of the host's (I2)."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.attempts import DESCRIPTORS
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

LARGE = 24 << 20


def test_pipes_carry_much_and_the_streams_stay_apart(plain: Project) -> None:
    data = os.urandom(1 << 20) * (LARGE >> 20)
    done = plain.shell("sha256sum; echo problem >&2; exit 3", text=data, flags=("-q",))
    assert done.out.split()[0] == hashlib.sha256(data).hexdigest()
    assert done.err == "problem\n"
    assert done.code == 3


def test_files_and_the_null_device_serve_as_streams(plain: Project) -> None:
    base = plain.directory.parent
    (base / "in").write_bytes(b"given\n")
    with (base / "in").open("rb") as given, (base / "out").open("wb") as out:
        done = plain.shell("cat; echo problem >&2", stdin=given, stdout=out, flags=("-q",))
    assert (base / "out").read_text() == "given\n"
    assert done.err == "problem\n"
    done = plain.shell("cat; echo seen; echo unseen >&2", stderr=subprocess.DEVNULL)
    assert done.out == "seen\n"
    assert done.code == 0


def test_a_command_that_outlives_its_reader_ends_as_in_any_pipe(plain: Project) -> None:
    with plain.running("yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        process.stdout = None
        assert process.wait(PATIENCE) == 128 + 13


def test_a_socket_is_relayed_and_none_of_the_hosts_is_inside(plain: Project) -> None:
    """I2: a socket belongs to the namespace of its birth, so one from outside would be a way out.

    Control: a program that is started without Keyhole sees the socket.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    control = subprocess.run(
        [sys.executable, "-c", "import os; print(os.readlink('/proc/self/fd/0'))"],
        stdin=theirs.fileno(), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert control.stdout.startswith("socket:")

    with ours, theirs:
        # The size of what is given is beyond every buffer, so it must flow while it is answered.
        given = os.urandom(1 << 20)
        code = DESCRIPTORS + "import hashlib, sys\n" + (
            "print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        )  # fmt: skip
        process = plain.start(
            "run", "--trust", "-q", "--", "python3", "-I", "-S", "-c", code,
            stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=theirs.fileno(),
        )  # fmt: skip
        theirs.close()

        def give() -> None:
            ours.sendall(given)
            ours.shutdown(socket.SHUT_WR)

        giving = threading.Thread(target=give)
        giving.start()
        said = b""
        while more := ours.recv(65536):
            said += more
        giving.join(PATIENCE)
        assert process.wait(PATIENCE) == 0
    table, digest = said.decode().splitlines()
    assert digest == hashlib.sha256(given).hexdigest()
    seen = json.loads(table)
    assert sorted(seen["own"]) == ["0", "1", "2"]
    assert all(what.startswith("pipe:") for what in seen["own"].values()), seen
    everything = [what for each in seen["others"].values() for what in each.values()]
    assert not [what for what in everything if what.startswith("socket:")]


def test_descriptors_above_two_do_not_come_in(plain: Project) -> None:
    """I2: an inherited socket or directory of the host would be a way out.

    Control: a program that is started the same way without Keyhole has them.
    """
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        inherited = (directory, server.fileno())
        shown = subprocess.run(
            [sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"],
            pass_fds=inherited, capture_output=True, text=True, timeout=PATIENCE, check=True,
        ).stdout  # fmt: skip
        assert all(f"'{number}'" in shown for number in inherited)
        seen = plain.python(DESCRIPTORS, pass_fds=inherited)
    os.close(directory)
    assert sorted(seen["own"]) == ["0", "1", "2"]
    everything = [what for each in seen["others"].values() for what in each.values()]
    assert "/" not in everything
    assert not [what for what in everything if what.startswith("socket:")]


def test_a_directory_as_standard_input_is_no_way_to_the_hosts_files(plain: Project) -> None:
    """I2: `openat` on it would reach what is not bound. Control: without Keyhole it does."""
    words = ("sh", "-c", "test -d /proc/self/fd/0 && ls /proc/self/fd/0/")
    directory = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    control = subprocess.run(
        words, stdin=directory, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "passwd" in control.stdout
    done = plain.run(*words, stdin=directory)
    os.close(directory)
    assert (done.code, done.out) == (1, "")


def test_a_set_up_that_fails_is_told_in_one_line_where_output_is_a_file(
    plain: Project, tmp_path: Path
) -> None:
    """Output that is not a pipe has a thread that copies it, which was never started here."""
    with (tmp_path / "out").open("wb") as file:
        failed = plain.run("true", stdout=file, env={"KEYHOLE_UNSAFE_FAULT": "identity"})
        assert failed.code == 125
        assert failed.err.count("\n") == 1, failed.err
        assert plain.run("true", stdout=file).code == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_nothing_of_ours(plain: Project, closed: str) -> None:
    """I2: else the next descriptor that Keyhole opens has its number, and the command writes there.

    Control: what is not closed arrives.
    """
    script = "for n in 0 1 2; do readlink /proc/self/fd/$n; done > told; echo out; exit 7"
    words = (str(plain.person.program), "run", "--trust", "-q", "--", "sh", "-c", script)
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *words],
        cwd=plain.directory,
        env=plain.env,
        input=b"",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        **plain.person.become(),
    )
    streams = closed.split()
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout == (b"" if ">&-" in streams else b"out\n")
    # The second is the file that is written here.
    inside = (plain.directory / "told").read_text().splitlines()
    assert [inside[n] == "/dev/null" for n in (0, 2)] == ["<&-" in streams, "2>&-" in streams]


def test_the_exit_code_is_the_command_s_when_nobody_reads_what_keyhole_says(plain: Project) -> None:
    """`keyhole run -- make 2>&1 | head`: its last line finds no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = plain.start("run", "--trust", "--", "sh", "-c", "exit 7", stderr=writing)
    finally:
        os.close(writing)
    with process:
        assert process.wait(PATIENCE) == 7
