"""The desktop's keyring: which one is asked, what it may say, and the real one (I1, I8, I11)."""

from __future__ import annotations

import sys
import threading
import types
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import Secret
from keyhole.vault import keyrings
from keyhole.vault.custody import seal_secret
from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.keyrings import BACKENDS, Keyrings, find_backend
from keyhole.vault.store import SERVICE, Store
from keyhole.vault.store_file import StorageForm
from tests.rigs.vault.desktop import FakeKeyring, secret_service
from tests.rigs.vault.rig import VALUE, World, forms, ref, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake() -> FakeKeyring:
    return FakeKeyring()


@pytest.fixture
def world(tmp_path: Path, fake: FakeKeyring) -> World:
    return World(tmp_path, keyrings=Keyrings(lambda: fake))


# ── keyring:SERVICE/NAME ──────────────────────────────────────────────────────────────────────────


def test_an_entry_is_read_by_service_and_name(world: World, fake: FakeKeyring) -> None:
    fake.entries["gh:github.com", "ann/b"] = VALUE
    assert world.vault().fetch(ref("keyring:gh:github.com/ann/b")).secret.reveal() == VALUE


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (None, "the keyring has none of this name"),
        ("", "the secret is empty"),
        (VALUE + "\0", "control or invisible"),
        ("hunter2", "shorter than 16"),
        (VALUE + "\ud800", "not UTF-8"),
    ],
)
def test_what_cannot_be_used_is_refused_and_not_quoted(
    world: World, fake: FakeKeyring, entry: str | None, why: str
) -> None:
    """I3, I8."""
    if entry is not None:
        fake.entries["a", "b"] = entry
    with pytest.raises(SecretUnavailable, match=why) as error:
        world.vault().fetch(ref("keyring:a/b"))
    if entry:
        assert not any(form in told(error.value) for form in forms(entry.strip("\0\ud800")))


def test_a_foreign_error_is_named_and_not_quoted(world: World, fake: FakeKeyring) -> None:
    """I8: what a backend raises may hold what it was given."""
    fake.failing = ValueError(VALUE)
    with pytest.raises(
        SecretUnavailable, match=r"keyring:a/b: the keyring failed \(ValueError\)"
    ) as error:
        world.vault().fetch(ref("keyring:a/b"))
    assert VALUE not in told(error.value)
    with pytest.raises(ResourceUnusable) as kept:
        world.keyrings.keep("a", "b", Secret(VALUE))
    assert VALUE not in told(kept.value)


def test_a_locked_keyring_is_called_so(world: World, fake: FakeKeyring) -> None:
    fake.failing = type("KeyringLocked", (Exception,), {})()
    with pytest.raises(SecretUnavailable, match="locked, and was not unlocked"):
        world.vault().fetch(ref("keyring:a/b"))


def test_a_keyring_that_asks_nobody_is_not_waited_for(fake: FakeKeyring) -> None:
    """I9."""
    release = threading.Event()

    class Asking(FakeKeyring):
        def get_password(self, service: str, username: str) -> str | None:
            release.wait()
            return VALUE

    asked = Keyrings(Asking, seconds=0.05)
    assert "did not answer" in asked.read("a", "b").flaw
    release.set()
    assert "did not answer" not in asked.read("a", "b").flaw  # the control

    def no_bus() -> None:
        release.clear()
        release.wait()

    assert not Keyrings(no_bus, seconds=0.05).usable
    release.set()


# ── which one ─────────────────────────────────────────────────────────────────────────────────────


def test_where_there_is_none_it_is_said(tmp_path: Path) -> None:
    world = World(tmp_path, keyrings=Keyrings(lambda: None))
    with pytest.raises(SecretUnavailable, match="no Secret Service or KWallet answers"):
        world.vault().fetch(ref("keyring:a/b"))


def test_where_the_package_is_missing_what_to_type_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is an extra: `keyhole[keyring]`."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for module, _ in BACKENDS:
        monkeypatch.setitem(sys.modules, module, None)
    world = World(tmp_path, keyrings=Keyrings())
    with pytest.raises(SecretUnavailable, match=r"pip install 'keyhole\[keyring\]'"):
        world.vault().fetch(ref("keyring:a/b"))


def test_no_setting_chooses_a_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """I11: it would be code of someone else's, or one that keeps nothing or plain text."""
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    (tmp_path / "python_keyring").mkdir()
    settings = "[backend]\ndefault-keyring=foreign.Keyring\n"
    (tmp_path / "python_keyring" / "keyringrc.cfg").write_text(settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("foreign.Keyring", "keyring.backends.null.Keyring"):
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", name)
        assert find_backend() is None
    import keyring.core

    assert "null" in type(keyring.core.get_keyring()).__module__  # the control: it would be taken


def backend(priority: object) -> type[FakeKeyring]:
    """A class of the library's, with this priority."""
    return type("Keyring", (FakeKeyring,), {"priority": priority})


def test_the_highest_priority_is_taken_and_a_low_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("backends_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = {"none": 0, "alternative": 0.5, "good": 4.9, "best": 5, "odd": "5 or so"}
    for name, priority in found.items():
        setattr(module, name, backend(priority))
    names = [(module.__name__, name) for name in (*found, "missing")]
    monkeypatch.setattr(keyrings, "BACKENDS", (*names, ("no_such_module", "Keyring")))
    assert type(find_backend()) is module.best
    monkeypatch.setattr(keyrings, "BACKENDS", tuple(names[:2]))
    assert find_backend() is None


def test_only_keyrings_of_desktops_are_asked() -> None:
    assert {module for module, _ in BACKENDS} == {
        "keyring.backends.SecretService",
        "keyring.backends.kwallet",
        "keyring.backends.libsecret",
    }


# ── store:NAME in a keyring ───────────────────────────────────────────────────────────────────────


def test_the_store_keeps_a_secret_in_the_keyring(world: World, fake: FakeKeyring) -> None:
    """I1: the file tells of it, and does not hold it."""
    store = Store(world.store, world.keyrings)
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    assert fake.entries == {(SERVICE, "a"): VALUE}
    assert [entry.kept for entry in store.entries()] == [StorageForm.KEYRING]
    assert VALUE not in (world.store / "a.secret").read_text()
    assert world.vault().fetch(ref("store:a")).secret.reveal() == VALUE
    assert store.remove("a")
    assert fake.entries == {}
    assert not store.remove("a")


def test_a_short_one_is_remembered_as_insisted_on(world: World) -> None:
    """I7."""
    store = Store(world.store, world.keyrings)
    with pytest.raises(SecretUnavailable, match="shorter than 16"):
        store.keep_in_keyring("a", seal_secret(b"hunter2"))
    store.keep_in_keyring("a", seal_secret(b"hunter2"), unsafe_short=True)
    assert world.vault().fetch(ref("store:a")).unscrubbed


def test_a_secret_that_moves_is_not_left_in_the_keyring(world: World, fake: FakeKeyring) -> None:
    store = Store(world.store, world.keyrings)
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    store.keep_plain("a", seal_secret(b"another-0123456789"))
    assert fake.entries == {}
    assert store.entries()[0].kept is StorageForm.PLAIN
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    assert "another" not in (world.store / "a.secret").read_text()


def test_what_the_keyring_refuses_is_neither_kept_nor_forgotten(
    world: World, fake: FakeKeyring
) -> None:
    store = Store(world.store, world.keyrings)
    fake.failing = ValueError(VALUE)
    with pytest.raises(ResourceUnusable, match="the keyring failed") as error:
        store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    assert VALUE not in told(error.value)
    assert store.entries() == ()
    fake.failing = None
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    fake.failing = ValueError(VALUE)
    with pytest.raises(ResourceUnusable, match="a is still in the keyring"):
        store.remove("a")
    assert [entry.name for entry in store.entries()] == ["a"]


def test_an_entry_that_the_keyring_lost_is_said(world: World, fake: FakeKeyring) -> None:
    store = Store(world.store, world.keyrings)
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    fake.entries.clear()
    with pytest.raises(SecretUnavailable, match="store:a: the keyring has none of this name"):
        world.vault().fetch(ref("store:a"))


# ── the real one ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with secret_service(tmp_path_factory.mktemp("desktop")) as found:
        yield found


def test_the_secret_service_of_a_desktop_keeps_and_gives(
    bus: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library, the bus and GNOME's keyring as they are."""
    for name, value in bus.items():
        monkeypatch.setenv(name, value)
    world = World(tmp_path, keyrings=Keyrings())
    assert world.keyrings.usable
    store = Store(world.store, world.keyrings)
    store.keep_in_keyring("a", seal_secret(VALUE.encode()))
    assert world.vault().fetch(ref("store:a")).secret.reveal() == VALUE
    assert world.vault().fetch(ref(f"keyring:{SERVICE}/a")).secret.reveal() == VALUE
    assert store.remove("a")
    with pytest.raises(SecretUnavailable, match="none of this name"):
        world.vault().fetch(ref(f"keyring:{SERVICE}/a"))
    world.keyrings.forget(SERVICE, "a")
