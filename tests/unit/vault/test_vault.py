"""The vault as `app` uses it: all sources behind one door, and nothing secret in what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keyhole.model.secret import Secret, SecretRef, SecretScheme
from keyhole.vault import container_detection
from keyhole.vault.custody import seal_secret
from keyhole.vault.envelope import COSTS, make_key
from keyhole.vault.interface import FetchedSecret, SecretUnavailable
from keyhole.vault.keyrings import Keyrings
from keyhole.vault.store import Store
from keyhole.vault.variable_source import VariableSource
from tests.rigs.vault.desktop import FakeKeyring
from tests.rigs.vault.rig import VALUE, Programs, World, forms, ref, shell, told
from tests.rigs.waiting import PATIENCE


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, env={"TOKEN": VALUE, "EMPTY": "", "HOME": "/nowhere"})


@pytest.fixture(autouse=True)
def on_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests run; what containers refuse is in test_container.py."""
    monkeypatch.setattr(
        container_detection,
        "detect_container",
        lambda _: container_detection.ContainerSigns(apart=False),
    )


def test_every_source_is_there(world: World) -> None:
    world.write("home/key")
    Store(world.store).keep_plain("a", seal_secret(VALUE.encode()))
    fake = FakeKeyring()
    fake.entries["a", "b"] = VALUE
    world.keyrings = Keyrings(lambda: fake)
    printed = f"exec:sh -c 'cat {world.home}/key'"
    world.write(
        "home/.claude/.credentials.json", f'{{"claudeAiOauth": {{"accessToken": "{VALUE}"}}}}'
    )
    world.write("project/secrets/a/token")
    texts = [
        "file:~/key", "store:a", "unsafe-env:TOKEN", "keyring:a/b", printed, "login:claude",
        "kube:a/token",
    ]  # fmt: skip
    vault = world.vault()
    for text in texts:
        assert vault.fetch(ref(text)).secret.reveal() == VALUE
    # What a token is minted for, test_github_app.py has.
    assert {ref(t).source for t in texts} == set(SecretScheme) - {SecretScheme.GITHUB_APP}
    with pytest.raises(SecretUnavailable, match="github-app-1"):
        vault.fetch(ref("github-app:1"))


# ── unsafe-env ────────────────────────────────────────────────────────────────────────────────────


def test_a_variable_is_given_with_a_warning(world: World) -> None:
    given = world.vault().fetch(ref("unsafe-env:TOKEN"))
    assert given.secret.reveal() == VALUE
    assert given.warning.startswith("unsafe-env:TOKEN can be read in /proc by every process")


def test_a_variable_is_read_from_what_was_handed_in_at_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = world.vault()
    monkeypatch.setenv("LATER", VALUE)
    world.env["TOKEN"] = "another-0123456789"
    world.env["LATER"] = VALUE
    assert vault.fetch(ref("unsafe-env:TOKEN")).secret.reveal() == VALUE
    with pytest.raises(SecretUnavailable):
        vault.fetch(ref("unsafe-env:LATER"))


@pytest.mark.parametrize("name", ["UNSET", "EMPTY"])
def test_a_variable_that_is_not_set_gives_nothing(world: World, name: str) -> None:
    """I3."""
    with pytest.raises(SecretUnavailable, match="not set, or is empty"):
        world.vault().fetch(ref(f"unsafe-env:{name}"))


def test_a_variable_with_bytes_that_are_no_text_is_refused() -> None:
    source = VariableSource({"X": VALUE + "\udcff"})
    assert "not UTF-8" in source.read(ref("unsafe-env:X")).flaw


# ── all at once ───────────────────────────────────────────────────────────────────────────────────


def test_each_is_fetched_once(world: World, tmp_path: Path) -> None:
    note = tmp_path / "runs"
    command = shell(f"echo run >> {note}; echo 0123456789-abcdef")
    world.write("home/key")
    found = world.vault().fetch_all([command, ref("file:~/key"), command, ref("file:~/key")])
    assert list(found) == [command, ref("file:~/key")]
    assert [given.secret.reveal() for given in found.values()] == ["0123456789-abcdef", VALUE]
    assert note.read_text() == "run\n"
    assert world.vault().fetch_all([]) == {}


def test_commands_run_at_the_same_time(world: World, tmp_path: Path) -> None:
    """Each waits for the other: one after the other they would wait for ever."""
    one, two = tmp_path / "one", tmp_path / "two"
    os.mkfifo(one)
    os.mkfifo(two)
    first = shell(f"echo > {one}; cat {two}; echo first-0123456789")
    second = shell(f"cat {one}; echo > {two}; echo second-0123456789")
    found = world.vault().fetch_all([first, second])
    assert [g.secret.reveal() for g in found.values()] == ["first-0123456789", "second-0123456789"]


def test_all_that_is_missing_is_told_at_once(world: World) -> None:
    world.write("home/key")
    with pytest.raises(SecretUnavailable) as error:
        world.vault().fetch_all(
            [ref("file:~/none"), ref("file:~/key"), shell("exit 3"), ref("store:b")]
        )
    said = str(error.value)
    assert "file:~/none: " in said
    assert "ended with 3; store:b: " in said
    assert "~/key" not in said
    with pytest.raises(SecretUnavailable) as single:
        world.vault().fetch_all([ref("file:~/none")])
    assert str(single.value).startswith("file:~/none: ")


def test_a_fault_of_our_own_denies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: an exception that no one expected is no secret."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("keyhole.vault.command_source.CommandSource.read", lambda *_: 1 / 0)
    with pytest.raises(SecretUnavailable, match="it was not read"):
        world.vault().fetch_all([shell("true")])


def test_short_ones_are_taken_only_if_one_insists(world: World) -> None:
    """I7."""
    command = shell("echo hunter2")
    with pytest.raises(SecretUnavailable, match="shorter than 16"):
        world.vault().fetch_all([command])
    given = world.vault().fetch_all([command], unsafe_short=True)[command]
    assert given.unscrubbed
    assert "not removed from answers" in given.warning


def test_a_person_who_gives_up_does_not_wait_for_the_time_limit(world: World) -> None:
    """^C at the passphrase while a command runs: the command is ended, and so are we."""
    note = world.root / "started"
    os.mkfifo(note)

    def give_up(again: bool) -> Secret | None:
        note.read_text()  # the command runs by now
        raise KeyboardInterrupt

    store = Store(world.store)
    key, file = make_key(Secret("a passphrase of some length"), COSTS[0])
    store.keep_key_file(file)
    store.keep_encrypted("a", seal_secret(VALUE.encode()), key)
    world.ask = give_up
    started, before = time.monotonic(), set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        world.vault().fetch_all([shell(f"echo > {note}; sleep 600"), ref("store:a")])
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert time.monotonic() - started < 15.0


# ── custody ───────────────────────────────────────────────────────────────────────────────────────


def leak(data: bytes) -> None:
    text = data.decode()
    raise SecretUnavailable(ref("store:x"), "no" if text else "")


def test_what_an_error_tells_is_looked_at_with_the_locals_of_every_frame() -> None:
    """The control of every test that uses `told`."""
    with pytest.raises(SecretUnavailable) as error:
        leak(VALUE.encode())
    assert VALUE in told(error.value)


@pytest.mark.parametrize(
    "unusable", [VALUE + "\0", VALUE + " ", VALUE + "\r\n\r", VALUE + "\xa0", "shrt-v4lue"]
)
@pytest.mark.parametrize("source", ["file", "unsafe-env", "exec", "store"])
def test_no_error_of_any_source_holds_what_was_read(
    world: World, source: str, unusable: str
) -> None:
    """I8: text, repr, arguments, chained errors, and the locals of every frame."""
    world.write("home/key", unusable)
    world.env["TOKEN"] = unusable
    store = Store(world.store)
    store.keep_plain("a", seal_secret(VALUE.encode()))
    path = world.store / "a.secret"
    path.write_text(path.read_text().partition("\n")[0] + "\n" + unusable, newline="")
    typed = {
        "file": "file:~/key",
        "unsafe-env": "unsafe-env:TOKEN",
        "exec": f"exec:sh -c 'cat {world.home}/key; cat {world.home}/key >&2; exit 1'",
        "store": "store:a",
    }[source]
    vault = world.vault()
    with pytest.raises(SecretUnavailable) as error:
        vault.fetch(ref(typed))
    shown = told(error.value) + repr(vault) + repr(vars(vault))
    assert not any(form in shown for form in (*forms(unusable), unusable.strip()))


def test_the_ground_does_not_show_the_environment(world: World) -> None:
    """I8: variables hold tokens."""
    assert VALUE not in repr(world.ground(Programs({})))
    given = FetchedSecret(Secret(VALUE))
    assert VALUE not in repr(given)
    with pytest.raises(TypeError):
        str(given.secret)


def test_a_reference_in_an_error_cannot_move_the_cursor() -> None:
    """I8."""
    hostile = SecretRef(SecretScheme.FILE, "x\u202ey\x1b[2J")
    assert str(SecretUnavailable(hostile, "no")) == r"file:x\u202ey\x1b[2J: no"


def test_a_secret_is_in_no_command_line_and_no_environment(world: World, tmp_path: Path) -> None:
    """I1: while a source runs, /proc shows nothing of what others gave."""
    world.write("home/key")
    note = tmp_path / "seen"
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"
    command = shell(f"({look}) 2>/dev/null > {note}; echo 0123456789-abcdef")
    # In a process of its own, which knows the value by the vault alone.
    program = (
        "import sys; from pathlib import Path; from tests.rigs.vault.rig import World, ref\n"
        "vault = World(Path(sys.argv[1])).vault(); vault.fetch(ref('file:~/key'))\n"
        "vault.fetch(ref(sys.argv[2])); print(vault.fetch(ref('file:~/key')))\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program, str(world.root), str(command)],
        capture_output=True,
        cwd=root,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = note.read_bytes()
    assert str(world.root).encode() in seen  # the control: it did look
    assert VALUE.encode() not in seen
    assert VALUE not in done.stdout + done.stderr
