"""`keyhole secret`: values come from a prompt or standard input, and are never shown (I1, I8)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.vault.store import MAX_NAME, Store
from keyhole.vault.store_file import StorageForm
from tests.rigs.cli.terminals import PROGRAM, on_terminal
from tests.rigs.vault.desktop import secret_service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.cli.conftest import Keyhole, Ran

pytestmark = pytest.mark.outside

VALUE = "tok-5f2c9d417ab0-correct-horse"
PASSPHRASE = "a passphrase of some length"


def store_of(keyhole: Keyhole) -> Store:
    return Store(keyhole.home / ".local" / "state" / "keyhole" / "secrets")


def shown(ran: Ran) -> str:
    return ran.out + ran.err


def without_terminal(keyhole: Keyhole, *words: str, stdin: str) -> tuple[int, str]:
    """In a session of its own, where /dev/tty leads nowhere."""
    done = subprocess.run(
        [PROGRAM, *words],
        cwd=keyhole.project,
        env=keyhole.env,
        input=stdin,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def on_a_terminal(keyhole: Keyhole, *words: str, answers: tuple[str, ...]) -> tuple[int, str]:
    """Run on a pty, and type an answer at each prompt."""
    typed = [(": ", f"{answer}\n") for answer in answers]
    return on_terminal([PROGRAM, *words], keyhole.env, keyhole.project, typed)


# set


def test_a_plain_secret_comes_from_standard_input(keyhole: Keyhole) -> None:
    ran = keyhole("secret", "set", "github", "--plain", stdin=f"{VALUE}\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == 'kept github (plain); a policy names it by secret = "store:github"\n'
    again = keyhole("secret", "set", "github", "--plain", stdin="another-0123456789")
    assert again.out.startswith("replaced github")
    reading = store_of(keyhole).load("github", None)
    assert reading.secret is not None
    assert reading.secret.reveal() == "another-0123456789"


def test_an_encrypted_secret_wants_a_terminal_for_its_passphrase(keyhole: Keyhole) -> None:
    """And it is never kept plain because there is none."""
    code, said = without_terminal(keyhole, "secret", "set", "github", stdin=VALUE)
    assert code == 2
    assert "--plain" in said
    assert VALUE not in said
    assert store_of(keyhole).entries() == ()


def test_on_a_terminal_nothing_that_is_typed_is_echoed(keyhole: Keyhole) -> None:
    """I8: neither the value nor the passphrase; the prompts are."""
    answers = (PASSPHRASE, PASSPHRASE, VALUE)
    code, said = on_a_terminal(keyhole, "secret", "set", "github", answers=answers)
    assert code == 0, said
    assert said.index("a passphrase for Keyhole's store") < said.index(
        "value of github (not shown)"
    )
    assert "kept github (encrypted)" in said
    assert VALUE not in said
    assert PASSPHRASE not in said
    code, said = on_a_terminal(keyhole, "secret", "set", "b", answers=("no", PASSPHRASE, VALUE))
    assert code == 0, said
    assert "that is not it; once more: " in said
    kept = store_of(keyhole).entries()
    assert [(e.name, e.kept) for e in kept] == [
        ("b", StorageForm.ENCRYPTED),
        ("github", StorageForm.ENCRYPTED),
    ]
    disk = "".join(p.read_text() for p in store_of(keyhole).path.iterdir())
    assert VALUE not in disk


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ((PASSPHRASE, PASSPHRASE, ""), "nothing was typed"),
        (("short",), "12 characters or more; nothing is kept"),
        ((PASSPHRASE, PASSPHRASE + "x"), "the two differ; nothing is kept"),
        ((PASSPHRASE, PASSPHRASE, VALUE + "\x01"), "control"),
    ],
)
def test_what_cannot_be_kept_leaves_nothing(
    keyhole: Keyhole, answers: tuple[str, ...], why: str
) -> None:
    code, said = on_a_terminal(keyhole, "secret", "set", "github", answers=answers)
    assert code == 2
    assert why in said
    assert not store_of(keyhole).path.exists()


def test_a_value_as_an_argument_is_refused_and_not_repeated(keyhole: Keyhole) -> None:
    """I8: a CI log would keep it."""
    for words in ((VALUE,), (VALUE, "more"), ("--plain", VALUE), (f"--value={VALUE}",)):
        ran = keyhole("secret", "set", "github", *words, stdin="")
        assert ran.code == 2
        assert "never an argument" in ran.err
        assert VALUE not in shown(ran)
    assert store_of(keyhole).entries() == ()


@pytest.mark.parametrize("name", ["sk-ant/" + VALUE, VALUE * 3, "a b", "é", "x" * (MAX_NAME + 1)])
@pytest.mark.parametrize("action", ["set", "rm"])
def test_a_name_that_is_none_may_be_the_secret_and_is_not_repeated(
    keyhole: Keyhole, action: str, name: str
) -> None:
    ran = keyhole("secret", action, name, stdin=VALUE)
    assert ran.code == 2
    assert "letters, digits" in ran.err
    assert name not in shown(ran)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("hunter2", "shorter than 16"),
        (f"{VALUE}\x1b[2J", "control"),
        ("x" * 70_000, "larger than"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(
    keyhole: Keyhole, value: str, why: str
) -> None:
    """I7, I8."""
    ran = keyhole("secret", "set", "a", "--plain", stdin=value)
    assert ran.code == 2
    assert why in ran.err
    assert not value or value not in shown(ran)
    assert store_of(keyhole).entries() == ()


def test_who_insists_on_a_short_secret_is_told_what_that_means(keyhole: Keyhole) -> None:
    """I7."""
    ran = keyhole("secret", "set", "a", "--plain", "--unsafe-short", stdin="hunter2")
    assert ran.code == 0
    assert "too short to be removed from responses" in ran.err
    assert store_of(keyhole).load("a", None).insisted


# the desktop's keyring


def test_where_there_is_a_keyring_it_has_the_secret(tmp_path: Path, keyhole: Keyhole) -> None:
    """Without a question, and unless another place is asked for; I1: no file holds it."""
    with secret_service(tmp_path / "desktop") as bus:
        keyhole.env.update(bus)
        ran = keyhole("secret", "set", "github", stdin=VALUE)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("kept github (keyring)")
        [path] = store_of(keyhole).path.iterdir()
        assert VALUE not in path.read_text()
        assert "keyring" in keyhole("secret", "list").out
        ran = keyhole("secret", "set", "github", "--plain", stdin=VALUE)
        assert ran.out.startswith("replaced github (plain)")
        keyhole("secret", "set", "github", stdin=VALUE)
        assert keyhole("secret", "rm", "github").out == "removed github\n"
    both = keyhole("secret", "set", "github", "--plain", "--encrypted", stdin=VALUE)
    assert both.code == 2


def test_encrypted_is_kept_by_a_passphrase_where_there_is_a_keyring(
    tmp_path: Path, keyhole: Keyhole
) -> None:
    with secret_service(tmp_path / "desktop") as bus:
        keyhole.env.update(bus)
        answers = (PASSPHRASE, PASSPHRASE, VALUE)
        code, said = on_a_terminal(keyhole, "secret", "set", "a", "--encrypted", answers=answers)
    assert code == 0, said
    assert "kept a (encrypted)" in said


# list and rm


def test_a_listing_has_names_and_neither_values_nor_lengths(keyhole: Keyhole) -> None:
    assert "nothing is stored yet" in keyhole("secret", "list").out
    assert json.loads(keyhole("secret", "list", "--json").out) == []
    keyhole("secret", "set", "long", "--plain", stdin=VALUE * 9)
    keyhole("secret", "set", "brief", "--plain", "--unsafe-short", stdin="hunter2")
    plain = keyhole("secret", "list")
    rows = [line.split() for line in plain.out.splitlines()]
    assert [row[:3] for row in rows] == [
        ["SECRET", "KEPT", "AGE"],
        ["store:brief", "plain", "new"],
        ["store:long", "plain", "new"],
    ]
    found = json.loads(keyhole("secret", "list", "--json").out)
    assert [row["id"] for row in found] == ["brief", "long"]
    told = {"id", "reference", "source", "kept", "since", "used"}
    assert all(set(row) == told for row in found)
    assert VALUE not in plain.out + json.dumps(found)


POLICY = """
[services.anthropic]
[services.github]
secret = "exec:gh auth token"
repos = ["a/b"]
[services.billing]
hosts = ["billing.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "file:key"
allow = ["GET /**"]
[services.openai]
secret = "store:gone"
"""


def test_a_listing_says_where_each_is_used_and_how_old_it_is(keyhole: Keyhole) -> None:
    """By the policy in this directory, by your defaults through it, and by those alone."""
    keyhole("secret", "set", "anthropic", "--plain", stdin=VALUE)
    keyhole("secret", "set", "idle", "--plain", stdin=VALUE)
    keyhole.policy(POLICY)
    key = keyhole.project / "key"
    key.write_text(VALUE)
    os.utime(key, (0, time.time() - 3 * 86400 - 60))
    defaults = keyhole.home / ".config" / "keyhole" / "config.toml"
    defaults.parent.mkdir(parents=True)
    defaults.write_text(
        "[services.anthropic]\nsecret = 'store:anthropic'\n"
        "[services.groq]\nsecret = 'keyring:groq/me'\n"
    )
    ran = keyhole("secret", "list")
    assert ran.err == ""
    found = {row["id"]: row for row in json.loads(keyhole("secret", "list", "--json").out)}
    assert list(found) == [
        "anthropic", "idle", "exec:gh auth token", "file:key", "gone", "keyring:groq/me",
    ]  # fmt: skip
    assert [row["kept"] for row in found.values()] == [
        "plain", "plain", "command", "file", "missing", "keyring",
    ]  # fmt: skip
    project, user = str(keyhole.project / "keyhole.toml"), str(defaults)
    assert found["anthropic"]["used"] == [{"service": "anthropic", "file": user}]
    assert found["idle"]["used"] == []
    assert found["gone"]["used"] == [{"service": "openai", "file": project}]
    assert found["keyring:groq/me"]["used"] == [{"service": "groq", "file": user}]
    lines = {line.split("  ")[0]: line for line in ran.out.splitlines()}
    assert "3 days" in lines["file:key"]
    assert lines["file:key"].endswith("services.billing (keyhole.toml)")
    assert lines["store:idle"].endswith("nothing here")
    assert VALUE not in shown(ran)


def test_a_listing_under_a_policy_that_is_not_valid_lists_what_there_is(keyhole: Keyhole) -> None:
    keyhole("secret", "set", "a", "--plain", stdin=VALUE)
    keyhole.policy("nonsense = 1\n")
    ran = keyhole("secret", "list")
    assert ran.code == 0
    assert "is not valid" in ran.err
    assert "store:a" in ran.out


def test_a_listing_cannot_move_the_cursor(keyhole: Keyhole) -> None:
    """I8: a reference is a cloned policy's text."""
    keyhole.policy(POLICY.replace("file:key", "file:\u202eyek"))
    ran = keyhole("secret", "list")
    assert "\u202e" not in ran.out
    assert r"file:\u202eyek" in ran.out


def test_a_secret_is_forgotten(keyhole: Keyhole) -> None:
    keyhole("secret", "set", "a", "--plain", stdin=VALUE)
    assert keyhole("secret", "rm", "a").out == "removed a\n"
    ran = keyhole("secret", "rm", "a")
    assert (ran.code, ran.out) == (2, "")
    assert "the store has no a" in ran.err
    assert list(store_of(keyhole).path.iterdir()) == []


def test_a_store_that_others_can_reach_is_said_with_what_to_type(keyhole: Keyhole) -> None:
    keyhole("secret", "set", "a", "--plain", stdin=VALUE)
    store_of(keyhole).path.chmod(0o755)
    for words in (("list",), ("rm", "a"), ("set", "a", "--plain")):
        ran = keyhole("secret", *words, stdin=VALUE)
        assert ran.code == 2
        assert f"chmod 700 {store_of(keyhole).path}" in ran.err
        assert VALUE not in shown(ran)
