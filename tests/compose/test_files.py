"""The shipped files against the code, without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.app import furniture
from keyhole.sandbox.containers import closure, composed, spec
from keyhole.sandbox.containers.holder import HELD
from keyhole.sandbox.containers.kitvolume import fill_kit
from keyhole.sandbox.containers.registration import NAME, Registration, refuse_elsewhere
from keyhole.sandbox.files.generated import NAMESERVER
from keyhole.sandbox.helper import SetupFailed
from keyhole.sandbox.programs import find
from keyhole.sandbox.seccomp import profile
from tests.compose import publish
from tests.compose.conftest import service

if TYPE_CHECKING:
    from pathlib import Path


def listed(text: str, key: str) -> list[str]:
    """The words of a list that is written in one, as YAML's flow style has it."""
    found = re.search(rf"^    {key}: \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert found
    words = re.findall(r'"([^"]*)"|([^\s,][^,\n]*)', found[1])
    return [quoted or plain for quoted, plain in words]


def test_the_sandbox_is_entered_by_our_program_and_the_door_is_the_holders() -> None:
    words = closure.words("keyhole.sandbox.containers.composed", composed.TERMS)
    assert listed(service("sandbox"), "entrypoint") == words
    door = service("door")
    assert listed(door, "cap_add") == list(spec._HOLDER_CAPABILITIES)
    assert listed(door, "command")[0].endswith(f"/{NAME}")
    assert HELD in door
    assert listed(door, "dns") == [NAMESERVER]
    for name, value in spec._SYSCTLS.items():
        assert f'{name}: "{value}"' in door


def test_every_container_is_without_capabilities_and_what_only_some_may_mount_is_theirs() -> None:
    """I1, I2: of the file as it is shipped; what the engine makes of it is asserted inside."""
    for name in ("gateway", "door", "sandbox"):
        assert listed(service(name), "cap_drop") == ["ALL"]
        assert "read_only: true" in service(name)
        assert "no-new-privileges:true" in service(name)
    gateway, sandbox = service("gateway"), service("sandbox")
    assert "network_mode: none" in service("door")
    assert "network_mode: service:door" in sandbox
    assert "pid: service:door" in sandbox
    assert sandbox.count("condition: service_healthy") == 2
    for text in ("door:/", "state:", "secrets:", "docker.sock"):
        assert text not in sandbox
    assert "secrets:" in gateway  # control
    assert "environment:" not in gateway
    assert f"{furniture.HOME}:" in sandbox


def test_the_filter_for_engines_is_the_codes_for_every_machine() -> None:
    made = json.loads(publish.text())
    assert made["syscalls"] == json.loads(profile())["syscalls"]
    assert "architectures" not in made
    assert publish.PLACE.read_text("utf-8") == publish.text()


def test_the_kit_is_unpacked_once_runs_and_is_replaced_when_it_is_another(tmp_path: Path) -> None:
    nft = str(find(contained=True).nft)
    (tmp_path / "left").write_text("of another version")
    fill_kit(tmp_path, nft)
    assert not (tmp_path / "left").exists()
    python = tmp_path / "python" / "bin" / "python"
    loader = [str(tmp_path / "loader"), "--library-path", str(tmp_path / "lib"), str(python)]
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'own')!r})\n"
    code += "from keyhole.sandbox.containers import composed; print(composed.TERMS)"
    done = subprocess.run(
        [*loader, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "/etc/keyhole/entry\n"
    made = python.stat().st_mtime_ns
    fill_kit(tmp_path, nft)
    assert python.stat().st_mtime_ns == made
    (tmp_path / "key").unlink()
    fill_kit(tmp_path, nft)
    assert python.stat().st_mtime_ns != made


def test_who_registers_a_door_of_another_network_is_refused(tmp_path: Path) -> None:
    """I5. Control: one of the same network is not."""

    async def connected() -> tuple[socket.socket, socket.socket]:
        (tmp_path / NAME).write_text("of one that was killed")
        registration = Registration(tmp_path)
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(registration.path))
        return client, await registration.accept()

    client, control = asyncio.run(connected())
    with client, control, socket.socket() as own:
        refuse_elsewhere(control, [own])  # control
        with _elsewhere() as other, pytest.raises(SetupFailed, match="is not in the network"):
            refuse_elsewhere(control, [other])


def _elsewhere() -> socket.socket:
    """A socket of a network that another process made."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = (
            "import socket, sys; end = socket.socket(fileno=int(sys.argv[1]));"
            "own = socket.socket(); socket.send_fds(end, [b'x'], [own.fileno()])"
        )
        words = ["unshare", "-rn", "/usr/bin/python3", "-c", code, str(theirs.fileno())]
        subprocess.run(words, pass_fds=[theirs.fileno()], check=True)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=descriptors[0])


def test_what_was_emptied_for_our_loader_is_not_the_commands() -> None:
    seen = composed.surrounding(
        {"LD_PRELOAD": "", "LD_X": "set", "EMPTY": "", "A": "b", "LC_ALL": "C"}
    )
    assert seen == {"LD_X": "set", "EMPTY": "", "A": "b"}


def test_no_command_is_started_without_what_the_gateway_wrote(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Without a door there is nothing to read."""
    monkeypatch.setattr("sys.argv", ["composed", str(tmp_path / "entry"), "id"])
    assert composed.main() == 125
    assert (
        "nothing was run: the gateway has no open door for this sandbox" in capfd.readouterr().err
    )
    terms = composed.Terms(
        namespace=os.readlink("/proc/self/ns/net"), cookie=b"another", environment={}, seeds=(),
        program=b"", open_files=64, memory=1 << 30, kept=((tmp_path.stat().st_dev, 0),),
    )  # fmt: skip
    (tmp_path / "entry").write_bytes(terms.packed())
    assert composed.main() == 125
    said = capfd.readouterr().err
    assert "the network is not the one whose door is open" in said
    assert "/.keyhole is not mounted" in said
    monkeypatch.setattr("sys.argv", ["composed", str(tmp_path / "entry")])
    assert composed.main() == 125
    assert "the service names no command" in capfd.readouterr().err
