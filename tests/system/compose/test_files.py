"""The shipped files against the code, without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from keyhole.app.containers import sandbox_files
from keyhole.confine.seccomp import profile
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.containers import composed, container_spec, entrypoint, holder, holder_image
from keyhole.sandbox.containers.holder import HELD
from keyhole.sandbox.containers.program_volume import fill_program_volume
from keyhole.sandbox.containers.registration import (
    NAME,
    DoorRegistration,
    cookie_of,
    refuse_other_network,
)
from keyhole.sandbox.files.generated_files import NAMESERVER
from keyhole.sandbox.programs import find_programs
from tests.rigs.compose import publish
from tests.rigs.compose.image import PACKAGING
from tests.system.compose.conftest import service


def listed(text: str, key: str) -> list[str]:
    """The words of a list that is written in one, as YAML's flow style has it."""
    found = re.search(rf"^    {key}: \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert found
    words = re.findall(r'"([^"]*)"|([^\s,][^,\n]*)', found[1])
    return [quoted or plain for quoted, plain in words]


def test_the_sandbox_is_entered_by_our_program_and_the_door_is_the_holders() -> None:
    words = holder_image.program_command("keyhole.sandbox.containers.composed", composed.TERMS)
    assert listed(service("sandbox"), "entrypoint") == words
    door = service("door")
    assert listed(door, "cap_add") == list(container_spec._HOLDER_CAPABILITIES)
    assert listed(door, "command")[0].endswith(f"/{NAME}")
    assert HELD in door
    assert listed(door, "dns") == [NAMESERVER]
    for name, value in container_spec._SYSCTLS.items():
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
    assert f"{sandbox_files.HOME}:" in sandbox


def test_the_filter_for_engines_is_the_codes_for_every_machine() -> None:
    made = json.loads(publish.text())
    assert made["syscalls"] == json.loads(profile())["syscalls"]
    assert "architectures" not in made
    assert publish.PLACE.read_text("utf-8") == publish.text()


def test_the_kit_is_unpacked_once_runs_and_is_replaced_when_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nft = str(find_programs(contained=True).nft)
    (tmp_path / "left").write_text("of another version")
    fill_program_volume(tmp_path, nft)
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
    fill_program_volume(tmp_path, nft)
    assert python.stat().st_mtime_ns == made
    # As where a later image brings another of its libraries, and the same interpreter and nft.
    pack = holder_image.build_holder_image
    monkeypatch.setattr(
        holder_image,
        "build_holder_image",
        lambda *given: pack(*given) + bytes(tarfile.BLOCKSIZE),
    )
    fill_program_volume(tmp_path, nft)
    assert python.stat().st_mtime_ns != made


def test_the_holders_image_is_another_with_another_c_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = holder_image.HolderPrograms.of(str(find_programs(contained=True).nft))
    before = holder_image.holder_image_key(programs)
    assert holder_image.holder_image_key(programs) == before
    monkeypatch.setattr(holder_image, "loader_of", lambda _: __file__)
    assert holder_image.holder_image_key(programs) != before


def test_what_an_image_would_preload_is_not_in_the_process_that_asserts(tmp_path: Path) -> None:
    """I2: nothing of an image has run by then. Control: this host's loader heeds the image's list,
    and says of what is not there that it is not."""
    nft = str(find_programs(contained=True).nft)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ld.so.preload").write_text("/of-the-image.so\n")
    (tmp_path / ".keyhole").mkdir()
    fill_program_volume(tmp_path / ".keyhole", nft)
    loader = holder_image.loader_of(holder_image.HolderPrograms.of(nft).interpreter)
    shutil.copy(loader, tmp_path / "loader")
    words = (
        "--library-path",
        holder_image.LIBRARIES,
        holder_image.PYTHON,
        "-I",
        "-S",
        "-c",
        "print(1)",
    )
    said = {}
    for each in (holder_image.LOADER, "/loader"):
        inside = ["bwrap", "--unshare-user", "--ro-bind", str(tmp_path), "/", each, *words]
        done = subprocess.run(inside, capture_output=True, text=True, check=True)
        assert done.stdout == "1\n"
        said[each] = done.stderr
    assert "/of-the-image.so" in said["/loader"]
    assert said[holder_image.LOADER] == ""


def test_a_holder_that_no_gateway_hears_says_so_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.argv", ["holder", str(tmp_path / NAME), "/usr/sbin/nft"])
    assert holder.main() == 1
    said = "keyhole: no gateway takes a door here: No such file or directory\n"
    assert capfd.readouterr().err == said


def test_the_credential_that_the_guide_has_written_is_never_committed() -> None:
    place = (PACKAGING / "credential").relative_to(PACKAGING.parents[1])
    assert "KEYHOLE_CREDENTIAL:-./credential" in (PACKAGING / "compose.yaml").read_text("utf-8")
    assert f"/{place}" in (PACKAGING.parents[1] / ".gitignore").read_text("utf-8").splitlines()


def test_who_registers_a_door_of_another_network_is_refused(tmp_path: Path) -> None:
    """I5. Control: one of the same network is not."""

    async def connected() -> tuple[socket.socket, socket.socket]:
        (tmp_path / NAME).write_text("of one that was killed")
        registration = DoorRegistration(tmp_path)
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(registration.path))
        return client, await registration.accept()

    client, control = asyncio.run(connected())
    with client, control, socket.socket() as own:
        refuse_other_network(control, [own])  # control
        with _elsewhere() as other, pytest.raises(SetupFailed, match="is not in the network"):
            refuse_other_network(control, [other])


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
    ours = {"LD_PRELOAD": "", "LC_ALL": "C"}
    seen = composed.surrounding(ours | {"LD_X": "set", "EMPTY": "", "A": "b"})
    assert seen == {"LD_X": "set", "EMPTY": "", "A": "b"}
    assert composed.surrounding({"LC_ALL": "de_DE.UTF-8"}) == {"LC_ALL": "de_DE.UTF-8"}


def test_an_images_locale_is_not_that_of_the_process_that_asserts(tmp_path: Path) -> None:
    """I2: by a locale's files the C library loads code. Control: without what we set, it is."""
    place = Path("/usr/lib/locale/C.utf8")
    if not place.is_dir():
        pytest.skip("no locale here that an image could have")
    shutil.copytree(place, tmp_path / place.relative_to("/"))
    (tmp_path / ".keyhole").mkdir()
    fill_program_volume(tmp_path / ".keyhole", str(find_programs(contained=True).nft))
    code = "import _locale; print(_locale.setlocale(_locale.LC_CTYPE))"
    words = holder_image.interpreter_command("-I", "-S", "-c", code)
    inside = ["bwrap", "--unshare-user", "--clearenv", "--ro-bind", str(tmp_path), "/"]
    said = []
    for environment in ({"LANG": "C.utf8"}, {"LANG": "C.utf8"} | entrypoint.PLAIN):
        set_ = [word for pair in environment.items() for word in ("--setenv", *pair)]
        done = subprocess.run([*inside, *set_, *words], capture_output=True, text=True, check=True)
        said.append(done.stdout.strip())
    assert said == ["C.utf8", "C"]
    for name, value in entrypoint.PLAIN.items():
        assert f"{name}: {value}}}" in service("sandbox")


def test_no_command_is_started_without_what_the_gateway_wrote(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2. Without a door there is nothing to read."""
    monkeypatch.setattr("sys.argv", ["composed", str(tmp_path / "entry"), "id"])
    assert composed.main() == 125
    assert (
        "nothing was run: the gateway has no open door for this sandbox" in capfd.readouterr().err
    )
    with socket.socket() as own:
        cookie = cookie_of(own)
    first = next(iter(composed._first_users()))
    right: dict[str, Any] = {"cookie": cookie, "boot": composed.boot(), "holder": first}
    network, processes = "not the one whose door is open", "the processes are not the door's"
    wrong: list[tuple[dict[str, Any], set[str]]] = [
        ({}, set()),  # control
        ({"cookie": b"another"}, {network}),
        ({"boot": "one before, in which the same numbers were given"}, {network}),
        ({"holder": first + 1}, {processes}),
    ]
    for changed, why in wrong:
        terms = composed.ComposeTerms(
            namespace=os.readlink("/proc/self/ns/net"), environment={}, seeds=(), program=b"",
            open_files=64, memory=1 << 30, kept=((tmp_path.stat().st_dev, 0),), **right | changed,
        )  # fmt: skip
        (tmp_path / "entry").write_bytes(terms.packed())
        assert composed.main() == 125
        said = capfd.readouterr().err
        assert {text for text in (network, processes) if text in said} == why
        assert "/.keyhole is not mounted" in said
    monkeypatch.setattr("sys.argv", ["composed", str(tmp_path / "entry")])
    assert composed.main() == 125
    assert "the service names no command" in capfd.readouterr().err
