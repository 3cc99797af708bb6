"""Keyhole's own store: the user's alone, encrypted or called plain, replaced whole (I1, I8)."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import ResourceUnusable
from keyhole.model.secret import Secret
from keyhole.vault.custody import MAX_SIZE, seal_secret
from keyhole.vault.envelope import COST, COSTS, StoreKey, make_key, open_key
from keyhole.vault.interface import SecretReading, SecretUnavailable
from keyhole.vault.store import MAX_NAME, Store
from keyhole.vault.store_file import StorageForm, StoredSecret
from keyhole.vault.store_source import MAX_TRIES, StoreSource, unlock
from tests.rigs.vault.rig import VALUE, forms, ref, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PASSPHRASE = "a passphrase of some length"
CHEAP = COSTS[0]
READING = seal_secret(VALUE.encode())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state" / "secrets")


@pytest.fixture
def key(store: Store) -> StoreKey:
    made, file = make_key(Secret(PASSPHRASE), CHEAP)
    store.keep_key_file(file)
    return made


def revealed(reading: SecretReading) -> str:
    assert reading.secret is not None, reading.flaw
    return reading.secret.reveal()


class Person:
    """Answers the question for the passphrase, and counts."""

    def __init__(self, *answers: str | None) -> None:
        self._answers = list(answers)
        self.asked: list[bool] = []

    def __call__(self, again: bool) -> Secret | None:
        self.asked.append(again)
        answer = self._answers.pop(0)
        return None if answer is None else Secret(answer)


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────


def test_a_plain_secret_is_kept_and_called_plain(store: Store) -> None:
    store.keep_plain("github", READING)
    assert revealed(store.load("github", None)) == VALUE
    assert [(e.name, e.kept) for e in store.entries()] == [("github", StorageForm.PLAIN)]


def test_an_encrypted_secret_is_kept_and_lies_nowhere_in_plain(store: Store, key: StoreKey) -> None:
    """I1: the control is the plain one beside it."""
    store.keep_encrypted("github", READING, key)
    assert revealed(store.load("github", key)) == VALUE
    assert [(e.name, e.kept) for e in store.entries()] == [("github", StorageForm.ENCRYPTED)]
    disk = "".join(p.read_text() for p in store.path.iterdir())
    assert not any(form in disk for form in forms(VALUE))
    assert PASSPHRASE not in disk
    store.keep_plain("other", READING)
    assert VALUE in "".join(p.read_text() for p in store.path.iterdir())


def test_secrets_of_several_lines_are_kept_as_they_are(store: Store, key: StoreKey) -> None:
    text = "first-0123456789abcdef\nsecond-0123456789abcdef"
    store.keep_plain("a", seal_secret(text.encode()))
    store.keep_encrypted("b", seal_secret(text.encode()), key)
    assert revealed(store.load("a", None)) == revealed(store.load("b", key)) == text


def test_the_largest_secret_is_kept(store: Store, key: StoreKey) -> None:
    """I9: the control of the bound on a file."""
    store.keep_encrypted("a", seal_secret(b"x" * MAX_SIZE), key)
    assert len(revealed(store.load("a", key))) == MAX_SIZE


def test_directory_and_files_are_the_users_alone(store: Store, key: StoreKey) -> None:
    before = os.umask(0)
    try:
        store.keep_plain("a", READING)
        store.keep_encrypted("b", READING, key)
    finally:
        os.umask(before)
    assert store.path.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in store.path.iterdir()} == {0o600}


def test_setting_again_replaces_whichever_way_it_was_kept(store: Store, key: StoreKey) -> None:
    store.keep_plain("a", READING)
    store.keep_encrypted("a", seal_secret(b"another-0123456789"), key)
    assert [e.kept for e in store.entries()] == [StorageForm.ENCRYPTED]
    assert revealed(store.load("a", key)) == "another-0123456789"
    assert VALUE not in "".join(p.read_text() for p in store.path.iterdir())


def test_whoever_reads_while_it_is_replaced_has_the_old_or_the_new(store: Store) -> None:
    values = ["old-" + "o" * 40_000, "new-" + "n" * 40_000]
    store.keep_plain("a", seal_secret(values[0].encode()))
    over = threading.Event()

    def replace() -> None:
        for number in range(40):
            store.keep_plain("a", seal_secret(values[number % 2].encode()))
        over.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not over.is_set():
        assert revealed(store.load("a", None)) in values
    thread.join()
    assert len(list(store.path.iterdir())) == 1


def test_a_write_that_fails_leaves_what_was_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep_plain("a", READING)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keyhole.vault.store.os.fsync", full)
    with pytest.raises(ResourceUnusable, match="no space left") as error:
        store.keep_plain("a", seal_secret(b"another-0123456789"))
    assert "another-0123456789" not in told(error.value)
    assert revealed(store.load("a", None)) == VALUE
    assert len(list(store.path.iterdir())) == 1


@pytest.mark.parametrize("kept", list(StorageForm))
def test_a_short_secret_is_refused_when_it_is_stored_unless_one_insists(
    store: Store, key: StoreKey, kept: StorageForm
) -> None:
    """I7: and who insisted once is warned each time."""
    short = seal_secret(b"hunter2")

    def keep(*, unsafe_short: bool) -> None:
        if kept is StorageForm.PLAIN:
            store.keep_plain("a", short, unsafe_short=unsafe_short)
        else:
            store.keep_encrypted("a", short, key, unsafe_short=unsafe_short)

    with pytest.raises(SecretUnavailable, match="shorter than 16") as error:
        keep(unsafe_short=False)
    assert "hunter2" not in told(error.value)
    assert store.entries() == ()
    keep(unsafe_short=True)
    found = store.load("a", key)
    assert (found.short, found.insisted) == (True, True)
    store.keep_plain("b", READING, unsafe_short=True)
    assert not store.load("b", None).insisted


def test_what_is_no_secret_is_not_kept(store: Store) -> None:
    with pytest.raises(SecretUnavailable, match="control"):
        store.keep_plain("a", seal_secret(f"{VALUE}\r".encode()))
    assert not store.path.exists()


@pytest.mark.parametrize(
    "name", ["", "a/b", "../a", "a b", "é", "a\n", "a\0b", "x" * (MAX_NAME + 1)]
)
def test_a_name_that_is_none_leads_nowhere(store: Store, key: StoreKey, name: str) -> None:
    with pytest.raises(ResourceUnusable, match="letters, digits"):
        store.keep_plain(name, READING)
    assert store.find(name) is None
    assert store.load(name, key).secret is None
    assert store.remove(name) is False


@pytest.mark.parametrize("name", [".", "..", "-", ".hidden", "passphrase.key", "x" * MAX_NAME])
def test_a_strange_name_is_a_file_of_its_own(store: Store, key: StoreKey, name: str) -> None:
    store.keep_encrypted(name, READING, key)
    assert [e.name for e in store.entries()] == [name]
    assert open_key(store.key_file or b"", Secret(PASSPHRASE)) is not None
    assert store.remove(name)


def test_removal_forgets_one_and_with_the_last_encrypted_one_the_passphrase(
    store: Store, key: StoreKey
) -> None:
    store.keep_encrypted("a", READING, key)
    store.keep_encrypted("b", READING, key)
    store.keep_plain("c", READING)
    assert store.remove("a")
    assert not store.remove("a")
    assert (store.path / "passphrase.key").exists()
    assert store.remove("b")
    assert not (store.path / "passphrase.key").exists()
    assert [e.name for e in store.entries()] == ["c"]


def test_an_empty_store_is_no_error(store: Store) -> None:
    assert (store.entries(), store.find("a"), store.key_file) == ((), None, None)
    assert store.load("a", None).secret is None
    assert not store.remove("a")


def test_a_key_file_is_never_written_over(store: Store, key: StoreKey) -> None:
    """Else two first secrets at the same time would lock one of them away."""
    before = store.key_file
    with pytest.raises(ResourceUnusable, match="meanwhile"):
        store.keep_key_file(make_key(Secret(PASSPHRASE), CHEAP)[1])
    assert store.key_file == before


# ── whom it belongs to ────────────────────────────────────────────────────────────────────────────


def acts(store: Store) -> tuple[Callable[[], object], ...]:
    return (store.entries, lambda: store.load("a", None), lambda: store.keep_plain("a", READING))


def test_a_store_that_others_can_reach_is_refused_with_what_to_type(store: Store) -> None:
    store.keep_plain("a", READING)
    for mode in (0o770, 0o705, 0o711):
        store.path.chmod(mode)
        for act in acts(store):
            with pytest.raises(ResourceUnusable, match=f"chmod 700 {store.path}") as error:
                act()
            assert VALUE not in told(error.value)
    store.path.chmod(0o700)
    for act in acts(store):
        act()


def test_a_file_that_others_can_reach_is_refused_with_what_to_type(store: Store) -> None:
    store.keep_plain("a", READING)
    path = store.path / "a.secret"
    path.chmod(0o640)
    for act in acts(store)[:2]:
        with pytest.raises(ResourceUnusable, match=f"chmod 600 {path}"):
            act()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_belongs_to_another_user_is_refused(store: Store) -> None:
    store.keep_plain("a", READING)
    os.chown(store.path / "a.secret", 12345, 12345)
    with pytest.raises(ResourceUnusable, match="belongs to uid 12345"):
        store.load("a", None)
    os.chown(store.path, 12345, 12345)
    for act in acts(store):
        with pytest.raises(ResourceUnusable, match="belongs to uid 12345"):
            act()


def test_links_and_pipes_in_the_place_of_files_are_refused(store: Store, tmp_path: Path) -> None:
    """I11: nothing is read or written through a link."""
    store.keep_plain("a", READING)
    real = store.path / "a.secret"
    real.rename(tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResourceUnusable, match="symbolic links"):
        store.load("a", None)
    store.keep_plain("a", seal_secret(b"another-0123456789"))
    assert VALUE in (tmp_path / "elsewhere").read_text()
    assert not real.is_symlink()
    real.unlink()
    os.mkfifo(real, 0o600)
    with pytest.raises(ResourceUnusable, match="no regular file"):
        store.load("a", None)


def test_a_link_in_the_place_of_the_directory_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    store.path.parent.mkdir()
    store.path.symlink_to(tmp_path / "real")
    for act in acts(store):
        with pytest.raises(ResourceUnusable):
            act()
    assert list((tmp_path / "real").iterdir()) == []


# ── what is damaged, moved or forged ──────────────────────────────────────────────────────────────


def test_a_file_under_another_name_does_not_open(store: Store, key: StoreKey) -> None:
    """I4: else whoever swaps two files sends one service's key to another's host."""
    store.keep_encrypted("a", READING, key)
    store.keep_encrypted("b", seal_secret(b"another-0123456789"), key)
    (store.path / "a.secret").rename(store.path / "b.secret")
    assert store.find("b") is None
    assert "damaged" in store.load("b", key).flaw


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"name": "a"', b'"name": "b"'),
        (b'"unsafe_short": false', b'"unsafe_short": true'),
        (b'"since": 1', b'"since": 2'),
        (b'"kept": "encrypted"', b'"kept":  "encrypted"'),
    ],
)
def test_the_header_is_part_of_what_is_sealed(
    store: Store, key: StoreKey, old: bytes, new: bytes
) -> None:
    store.keep_encrypted("a", READING, key)
    data = (store.path / "a.secret").read_bytes()
    assert old in data
    name = "b" if b'"b"' in new else "a"
    target = store.path / f"{name}.secret"
    target.touch(0o600)
    target.write_bytes(data.replace(old, new))
    assert store.find(name) is not None
    assert "does not open" in store.load(name, key).flaw


def test_another_key_opens_nothing(store: Store, key: StoreKey) -> None:
    store.keep_encrypted("a", READING, key)
    other, _ = make_key(Secret(PASSPHRASE), CHEAP)
    for wrong in (other, None):
        assert "does not open" in store.load("a", wrong).flaw


def test_one_changed_bit_opens_nothing(store: Store, key: StoreKey) -> None:
    store.keep_encrypted("a", READING, key)
    path = store.path / "a.secret"
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    for at in range(start, len(data) - 1, 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert store.load("a", key).secret is None
    path.write_bytes(data)
    assert revealed(store.load("a", key)) == VALUE


@pytest.mark.parametrize(
    "header",
    [
        "", "{", "[]", "null", "1", '"x"', "{}", "x" * 600,
        '{"version": 2, "name": "a", "kept": "plain", "since": 1, "unsafe_short": false}',
        '{"version": 1, "name": "b", "kept": "plain", "since": 1, "unsafe_short": false}',
        '{"version": 1, "name": "a", "kept": "open", "since": 1, "unsafe_short": false}',
        '{"version": 1, "name": "a", "kept": "plain", "since": "1", "unsafe_short": false}',
        '{"version": 1, "name": "a", "kept": "plain", "since": Infinity, "unsafe_short": false}',
        '{"version": 1, "name": "a", "kept": "plain", "since": -1, "unsafe_short": false}',
        '{"version": 1, "name": "a", "kept": "plain", "since": 1}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_of_and_not_quoted(store: Store, header: str) -> None:
    """I8: and it is in no listing."""
    store.keep_plain("a", READING)
    (store.path / "a.secret").write_text(f"{header}\n{VALUE}")
    assert store.entries() == ()
    reading = store.load("a", None)
    assert "damaged" in reading.flaw
    assert VALUE not in repr(reading)


def test_a_file_that_grew_is_damaged(store: Store) -> None:
    """I9."""
    store.keep_plain("a", READING)
    with (store.path / "a.secret").open("ab") as file:
        file.write(b"x" * 3 * MAX_SIZE)
    assert "damaged" in store.load("a", None).flaw


# ── the passphrase ────────────────────────────────────────────────────────────────────────────────


def test_the_right_passphrase_opens_and_another_does_not() -> None:
    key, file = make_key(Secret(PASSPHRASE), CHEAP)
    again = open_key(file, Secret(PASSPHRASE))
    assert again is not None
    assert again.decrypt(key.encrypt(Secret(VALUE), b"h"), b"h") == VALUE.encode()
    for wrong in ("", PASSPHRASE + " ", PASSPHRASE.upper(), "\udcff"):
        assert open_key(file, Secret(wrong)) is None


def test_one_passphrase_has_one_spelling() -> None:
    """An accent that one keyboard composes and another does not."""
    _, file = make_key(Secret("caf\u00e9-passphrase"), CHEAP)
    assert open_key(file, Secret("cafe\u0301-passphrase")) is not None


def test_two_encryptions_of_one_secret_have_nothing_in_common() -> None:
    key, file = make_key(Secret(PASSPHRASE), CHEAP)
    assert key.encrypt(Secret(VALUE), b"h") != key.encrypt(Secret(VALUE), b"h")
    assert file != make_key(Secret(PASSPHRASE), CHEAP)[1]


def test_a_guess_is_as_expensive_as_the_documents_say() -> None:
    """Half a second with 128 MiB; and the passphrase opens what it made."""
    assert COST == 17
    _, file = make_key(Secret(PASSPHRASE))
    assert json.loads(file)["cost"] == COST
    assert open_key(file, Secret(PASSPHRASE)) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2), ("kdf", "md5"), ("cost", 40), ("cost", 1), ("cost", "17"), ("cost", True),
        ("salt", 1), ("salt", "é"), ("nonce", ""), ("key", None), ("key", "***"),
    ],
)  # fmt: skip
def test_a_key_file_that_says_anything_else_is_damaged(name: str, value: object) -> None:
    """I9: a cost of 40 would take all memory."""
    _, file = make_key(Secret(PASSPHRASE), CHEAP)
    with pytest.raises(ResourceUnusable) as error:
        open_key(json.dumps(json.loads(file) | {name: value}).encode(), Secret(PASSPHRASE))
    assert PASSPHRASE not in told(error.value)


@pytest.mark.parametrize("file", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_key_file_that_is_none_is_damaged(file: bytes) -> None:
    with pytest.raises(ResourceUnusable):
        open_key(file, Secret(PASSPHRASE))


def test_a_store_is_opened_by_asking_a_person_who_may_mistype(store: Store, key: StoreKey) -> None:
    store.keep_encrypted("a", READING, key)
    person = Person("wrong", PASSPHRASE)
    assert revealed(store.load("a", unlock(store, person))) == VALUE
    assert person.asked == [False, True]


def test_guessing_at_the_prompt_ends(store: Store, key: StoreKey) -> None:
    """I9."""
    person = Person(*["wrong"] * 9)
    with pytest.raises(ResourceUnusable, match="not the store's passphrase"):
        unlock(store, person)
    assert len(person.asked) == MAX_TRIES


def test_without_an_answer_nothing_is_opened(store: Store, key: StoreKey) -> None:
    for person, why in ((Person(None), "no passphrase was given"), (None, "no terminal")):
        with pytest.raises(ResourceUnusable, match=why):
            unlock(store, person)


def test_a_lost_or_damaged_key_is_said(store: Store) -> None:
    with pytest.raises(ResourceUnusable, match="lost its key"):
        unlock(store, Person())
    store.keep_key_file(b"{}")
    with pytest.raises(ResourceUnusable, match="damaged"):
        unlock(store, Person(PASSPHRASE))


# ── as a source ───────────────────────────────────────────────────────────────────────────────────


def test_a_run_asks_for_the_passphrase_once_and_only_if_something_is_encrypted(
    store: Store, key: StoreKey
) -> None:
    store.keep_plain("p", READING)
    store.keep_encrypted("a", READING, key)
    store.keep_encrypted("b", READING, key)
    person = Person(PASSPHRASE)
    source = StoreSource(store, person)
    assert revealed(source.read(ref("store:p"))) == VALUE
    assert person.asked == []
    for name in ("a", "b", "a"):
        assert revealed(source.read(ref(f"store:{name}"))) == VALUE
    assert person.asked == [False]


def test_a_replaced_secret_is_read_anew(store: Store) -> None:
    source = StoreSource(store, None)
    store.keep_plain("a", READING)
    source.read(ref("store:a"))
    store.keep_plain("a", seal_secret(b"another-0123456789"))
    assert revealed(source.read(ref("store:a"))) == "another-0123456789"


def test_what_the_store_cannot_give_is_said_with_what_to_type(store: Store, key: StoreKey) -> None:
    store.keep_encrypted("a", READING, key)
    source = StoreSource(store, None)
    with pytest.raises(SecretUnavailable, match=r"store:b: .* `keyhole secret set b`"):
        source.read(ref("store:b"))
    with pytest.raises(
        SecretUnavailable, match=r"store:a: it is encrypted, and there is no terminal"
    ):
        source.read(ref("store:a"))
    store.path.chmod(0o755)
    with pytest.raises(SecretUnavailable, match="chmod 700"):
        source.read(ref("store:a"))


def test_what_holds_a_key_or_a_passphrase_shows_none(store: Store, key: StoreKey) -> None:
    """I8."""
    source = StoreSource(store, Person(PASSPHRASE))
    store.keep_encrypted("a", READING, key)
    source.read(ref("store:a"))
    shown = f"{key!r}{key!s}{source!r}{vars(source)}{store!r}{vars(store)}"
    assert PASSPHRASE not in shown
    assert VALUE not in shown
    assert not hasattr(key, "__dict__")


def test_an_entry_tells_neither_value_nor_length(store: Store) -> None:
    assert set(StoredSecret.__struct_fields__) == {"name", "kept", "since"}
