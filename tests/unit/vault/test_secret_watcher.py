"""A changed secret reaches those who use it, within a second and without a question (I9, I11)."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from keyhole.model.secret import Secret, SecretRef
from keyhole.vault import secret_watcher as watching
from keyhole.vault.custody import seal_secret
from keyhole.vault.envelope import COSTS, make_key
from keyhole.vault.secret_lifetime import FRESH
from keyhole.vault.secret_watcher import (
    INTERVAL,
    MAX_PATIENCE,
    PATIENCE,
    SecretListener,
    SecretWatcher,
)
from keyhole.vault.store import Store
from keyhole.vault.vault import Vault
from tests.rigs.vault.rig import VALUE, World, ref, shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyhole.vault.interface import FetchedSecret

OTHER = "tok-another-one-0123456789"
LONG = 30.0
"""Seconds after which a test says that it hangs."""


@dataclass
class Heard:
    """What followers are told, in order."""

    changes: queue.Queue[tuple[SecretRef, str]] = field(default_factory=queue.Queue)
    failures: queue.Queue[tuple[str, bool]] = field(default_factory=queue.Queue)

    def followers(self) -> SecretListener:
        def changed(one: SecretRef, given: FetchedSecret) -> None:
            self.changes.put((one, given.secret.reveal()))

        def failed(one: SecretRef, why: str, over: bool) -> None:
            self.failures.put((why, over))

        return SecretListener(changed, failed)


@dataclass
class Watched:
    """A watch that is driven by hand, on a clock of the test's."""

    vault: Vault
    watch: SecretWatcher
    heard: Heard
    clock: list[float]

    def look(self, times: int = 2) -> None:
        """Look, and wait until what was begun is done."""
        for _ in range(times):
            before = set(threading.enumerate())
            self.watch.look()
            for thread in set(threading.enumerate()) - before:
                thread.join(LONG)

    def change(self) -> str:
        return self.heard.changes.get(timeout=LONG)[1]

    def failure(self) -> tuple[str, bool]:
        return self.heard.failures.get(timeout=LONG)

    @property
    def silent(self) -> bool:
        return self.heard.changes.empty() and self.heard.failures.empty()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr("keyhole.system.clock.now", lambda: moment[0])
    return moment


def follow(world: World, clock: list[float], *refs: SecretRef) -> Watched:
    vault, heard = world.vault(), Heard()
    given = vault.fetch_all(refs)
    return Watched(
        vault, SecretWatcher(vault, given, heard.followers(), lambda: clock[0]), heard, clock
    )


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_written_is_read_again(world: World, clock: list[float]) -> None:
    path = world.write("home/key")
    watched = follow(world, clock, ref("file:~/key"))
    watched.look(3)
    assert watched.silent
    path.write_text(OTHER)
    watched.look()
    assert watched.change() == OTHER
    watched.look(3)
    assert watched.silent


def test_a_change_between_reading_and_watching_is_seen(world: World, clock: list[float]) -> None:
    path = world.write("home/key")
    vault, heard = world.vault(), Heard()
    given = vault.fetch_all([ref("file:~/key")])
    path.write_text(OTHER)
    watch = SecretWatcher(vault, given, heard.followers(), lambda: clock[0])
    Watched(vault, watch, heard, clock).look()
    assert heard.changes.get(timeout=LONG)[1] == OTHER


def test_a_file_that_is_replaced_by_a_rename_is_read_again(
    world: World, clock: list[float]
) -> None:
    world.write("home/key")
    watched = follow(world, clock, ref("file:~/key"))
    world.write("home/new", OTHER).rename(world.home / "key")
    watched.look()
    assert watched.change() == OTHER


def test_kubernetes_swaps_a_directory_by_a_link(world: World, clock: list[float]) -> None:
    """`key` → `..data/key`, `..data` → a directory with a time in its name, replaced at once."""
    mount = world.home / "mount"
    world.write("home/mount/..2026_01/key")
    (mount / "..data").symlink_to("..2026_01")
    (mount / "key").symlink_to("..data/key")
    watched = follow(world, clock, ref("file:~/mount/key"))
    world.write("home/mount/..2026_02/key", OTHER)
    (mount / "..data_tmp").symlink_to("..2026_02")
    (mount / "..data_tmp").rename(mount / "..data")
    watched.look()
    assert watched.change() == OTHER


def test_what_is_still_being_written_is_left_alone(world: World, clock: list[float]) -> None:
    """A change is acted on when two looks saw the same."""
    path = world.write("home/key")
    watched = follow(world, clock, ref("file:~/key"))
    for size in (4, 8, 12):
        path.write_text(OTHER[:size])
        watched.look(1)
    assert watched.silent
    path.write_text(OTHER)
    watched.look()
    assert watched.change() == OTHER


@pytest.mark.parametrize("how", ["removed", "opened to others", "emptied", "short"])
def test_what_cannot_be_read_again_leaves_the_old_one(
    world: World, clock: list[float], how: str
) -> None:
    """I3: it is said once, and healed when the file is."""
    path = world.write("home/key")
    watched = follow(world, clock, ref("file:~/key"))
    match how:
        case "removed":
            path.unlink()
        case "opened to others":
            path.chmod(0o644)
        case _:
            path.write_text("" if how == "emptied" else "hunter2")
    watched.look(8)
    why, over = watched.failure()
    assert why.startswith("file:~/key: ")
    assert not over
    assert watched.silent
    world.write("home/key", OTHER)
    watched.look()
    assert watched.change() == OTHER


def test_a_link_that_a_sandbox_left_is_not_followed(world: World, clock: list[float]) -> None:
    """I11: a session could have any file of the user's sent to its service."""
    world.writable = (world.project,)
    path = world.write("project/key")
    secret = world.write("home/other", OTHER)
    watched = follow(world, clock, ref("file:key"))
    path.unlink()
    path.symlink_to(secret)
    watched.look()
    assert "a link in a tree that the sandbox can write" in watched.failure()[0]
    assert watched.silent
    path.unlink()
    world.write("project/key", OTHER)  # the control: a file in its place is taken
    watched.look()
    assert watched.change() == OTHER


def test_one_that_was_insisted_on_may_be_short_again(world: World, clock: list[float]) -> None:
    store = Store(world.store)
    store.keep_plain("a", seal_secret(b"hunter2"), unsafe_short=True)
    watched = follow(world, clock, ref("store:a"))
    store.keep_plain("a", seal_secret(b"hunter3"), unsafe_short=True)
    watched.look()
    assert watched.change() == "hunter3"


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def test_a_stored_secret_that_is_set_again_is_read_again(world: World, clock: list[float]) -> None:
    store = Store(world.store)
    store.keep_plain("a", seal_secret(VALUE.encode()))
    watched = follow(world, clock, ref("store:a"))
    store.keep_plain("a", seal_secret(OTHER.encode()))
    watched.look()
    assert watched.change() == OTHER


def test_nobody_is_asked_for_a_passphrase_while_a_command_runs(
    world: World, clock: list[float]
) -> None:
    """The key is at hand if the session opened it; else the new secret is not to be had."""
    asked: list[bool] = []

    def ask(again: bool) -> Secret | None:
        asked.append(again)
        return Secret("a passphrase of some length")

    world.ask = ask
    store = Store(world.store)
    store.keep_plain("plain", seal_secret(VALUE.encode()))
    watched = follow(world, clock, ref("store:plain"))
    key, file = make_key(Secret("a passphrase of some length"), COSTS[0])
    store.keep_key_file(file)
    store.keep_encrypted("plain", seal_secret(OTHER.encode()), key)
    watched.look()
    assert "no terminal" in watched.failure()[0]
    assert asked == []
    opened = follow(world, clock, ref("store:plain"))
    store.keep_encrypted("plain", seal_secret(VALUE.encode()), key)
    opened.look()
    assert opened.change() == VALUE
    assert asked == [False]


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def lasting(note: Path, life: int, then: str = "") -> SecretRef:
    """A command that prints a new secret each time, and how long it lives."""
    text = f'echo x >> {note}; {then} n=$(wc -l < {note}); printf "%s" '
    return shell(text + rf'"{{\"secret\":\"tok-0123456789-$n\",\"expires_in\":{life}}}"')


def test_what_a_command_printed_is_renewed_before_its_life_is_over(
    world: World, clock: list[float], tmp_path: Path
) -> None:
    note = tmp_path / "runs"
    watched = follow(world, clock, lasting(note, 3600))
    clock[0] += 3600 - FRESH - 1
    watched.look()
    assert watched.silent
    clock[0] += 1
    watched.look()
    assert watched.change() == "tok-0123456789-2"
    watched.look(5)
    assert note.read_text() == "x\nx\n"


def test_a_short_life_does_not_start_a_program_at_every_look(
    world: World, clock: list[float], tmp_path: Path
) -> None:
    """I9."""
    note = tmp_path / "runs"
    watched = follow(world, clock, lasting(note, 1))
    for _ in range(40):
        clock[0] += INTERVAL
        watched.look(1)
    assert len(note.read_text().splitlines()) <= 3


def test_a_command_without_a_life_is_not_run_again(
    world: World, clock: list[float], tmp_path: Path
) -> None:
    note = tmp_path / "runs"
    watched = follow(world, clock, shell(f"echo x >> {note}; echo 0123456789-abcdef"))
    clock[0] += 10_000_000
    watched.look(5)
    assert watched.silent
    assert note.read_text() == "x\n"


def test_a_command_that_fails_is_tried_again_with_patience(
    world: World, clock: list[float], tmp_path: Path
) -> None:
    """Said once while the old one serves, and once when its life is over; then it heals."""
    note, broken = tmp_path / "runs", tmp_path / "broken"
    watched = follow(world, clock, lasting(note, 600, f"test -e {broken} && exit 7;"))
    broken.touch()
    clock[0] += 300
    watched.look(5)
    why, over = watched.failure()
    assert "ended with 7" in why
    assert not over
    assert note.read_text() == "x\nx\n"
    clock[0] += PATIENCE
    watched.look(5)
    assert note.read_text() == "x\n" * 3
    assert watched.silent
    clock[0] += MAX_PATIENCE
    watched.look(5)
    why, over = watched.failure()
    assert "ended with 7" in why
    assert over
    broken.unlink()
    clock[0] += MAX_PATIENCE
    watched.look(2)
    assert watched.change() == "tok-0123456789-5"
    assert watched.silent


def test_one_command_is_not_run_twice_at_a_time(
    world: World, clock: list[float], tmp_path: Path
) -> None:
    note, gate = tmp_path / "runs", tmp_path / "gate"
    os.mkfifo(gate)
    gated = f"test $(wc -l < {note}) = 1 || cat {gate};"
    watched = follow(world, clock, lasting(note, 600, gated))
    clock[0] += 590
    watched.watch.look()
    with gate.open("w"):  # it runs by now, and waits
        for _ in range(5):
            watched.watch.look()
    assert watched.change() == "tok-0123456789-2"
    assert note.read_text() == "x\nx\n"


# ── the thread ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def running(world: World) -> Iterator[Watched]:
    world.write("home/key")
    vault, heard = world.vault(), Heard()
    watch = SecretWatcher(vault, vault.fetch_all([ref("file:~/key")]), heard.followers())
    watch.start()
    yield Watched(vault, watch, heard, [])
    watch.close()


@pytest.mark.alone
def test_a_change_reaches_its_followers_within_a_second(world: World, running: Watched) -> None:
    """By the real clock and the thread; the control is that nothing comes without a change."""
    assert running.silent
    began = time.monotonic()
    world.write("home/key", OTHER)
    assert running.change() == OTHER
    assert time.monotonic() - began < 1.0


def test_a_source_that_breaks_does_not_end_the_watch(
    world: World, running: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("keyhole.vault.file_source.FileSource.read", lambda *_: 1 / 0)
        world.write("home/key", VALUE + "-more")
        why, _ = running.failure()
    assert "ZeroDivisionError" in why
    world.write("home/key", OTHER)
    assert running.change() == OTHER


def test_after_its_end_nobody_is_told(world: World, running: Watched) -> None:
    running.watch.close()
    world.write("home/key", OTHER)
    running.look(3)
    assert running.heard.changes.empty()


def test_a_watch_that_was_not_started_can_be_closed(world: World, clock: list[float]) -> None:
    world.write("home/key")
    follow(world, clock, ref("file:~/key")).watch.close()


@pytest.mark.alone
def test_looking_is_cheap(world: World) -> None:
    """I9: 100 secrets, 4 looks a second, a few thousandths of a core."""
    refs = []
    for number in range(100):
        world.write(f"home/key{number}")
        refs.append(ref(f"file:~/key{number}"))
    vault = world.vault()
    watch = SecretWatcher(vault, vault.fetch_all(refs), Heard().followers())
    best = min(_timed(watch) for _ in range(20))
    assert best < 0.05 * watching.INTERVAL


def _timed(watch: SecretWatcher) -> float:
    began = time.perf_counter()
    watch.look()
    return time.perf_counter() - began


# ── logins ────────────────────────────────────────────────────────────────────────────────────────


def test_a_login_is_followed_in_its_file_and_read_again_before_it_ends(
    world: World, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client on the host does to its login arrives before the end of its life as well."""
    monkeypatch.setattr("keyhole.system.clock.now", lambda: clock[0])

    def log_in(token: str, left: float) -> None:
        ends = int((time.time() + left) * 1000)
        login = f'{{"claudeAiOauth": {{"accessToken": "{token}", "expiresAt": {ends}}}}}'
        world.write("home/.claude/.credentials.json", login)

    log_in(VALUE, 3600)
    watched = follow(world, clock, ref("login:claude"))
    watched.look()
    assert watched.silent
    log_in(OTHER, 3600)
    watched.look()
    assert watched.change() == OTHER
    watched.look(3)
    assert watched.silent
    clock[0] += 3600 - FRESH + 5
    watched.look(1)
    assert watched.change() == OTHER
    log_in(OTHER, -1)
    watched.look()
    assert "the login has ended" in watched.failure()[0]
