"""Logins of the host: one owner, renewed once, written back whole, never shown (I1, I6, I11)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import stat
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from msgspec.structs import replace

from keyhole.model.secret import LOGINS
from keyhole.system import dialler
from keyhole.system.clock import now
from keyhole.vault import login_file, login_lock, login_source
from keyhole.vault.interface import SecretUnavailable
from keyhole.vault.login_providers import PROVIDERS
from keyhole.vault.login_source import OLD, RenewalFailures
from keyhole.vault.secret_lifetime import FRESH
from keyhole.vault.vault import Vault
from tests.rigs.policies import book
from tests.rigs.vault.rig import Programs, World, forms, ref, told
from tests.rigs.vault.tokenserver import TokenServer, answer, posted, unsigned
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyhole.vault.interface import FetchedSecret
    from keyhole.vault.login_provider import EndpointAccess
    from tests.rigs.gateway.talk import Message

HOUR = 3600
ACCESS, REFRESH = "sk-ant-oat01-old-access-token", "sk-ant-ort01-old-refresh-token"
NEW, NEXT = "sk-ant-oat01-new-access-token", "sk-ant-ort01-new-refresh-token"
GRANT = {"access_token": NEW, "refresh_token": NEXT, "expires_in": 8 * HOUR}
PLACES = {
    "claude": "home/.claude/.credentials.json",
    "codex": "home/.codex/auth.json",
    "google": "home/.gemini/oauth_creds.json",
}


def claude(left: float, access: str = ACCESS, refresh: str = REFRESH) -> dict[str, Any]:
    """Claude Code's file, with a field that nobody here knows."""
    login = {
        "accessToken": access,
        "refreshToken": refresh,
        "expiresAt": int((time.time() + left) * 1000),
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    return {"claudeAiOauth": login, "mcpOAuth": {"kept": "as it is"}}


def codex(left: float, **tokens: str) -> dict[str, Any]:
    access = unsigned(exp=int(time.time() + left))
    login = {
        "id_token": unsigned(email="a@b.example"),
        "access_token": access,
        "refresh_token": "rt_old-refresh-token",
        "account_id": "2a6f0d2e-0000-4000-8000-9b1c2d3e4f50",
    }
    return {
        "OPENAI_API_KEY": None,
        "tokens": login | tokens,
        "last_refresh": "2026-01-01T00:00:00Z",
    }


def google(left: float) -> dict[str, Any]:
    return {
        "access_token": "ya29.old-access-token",
        "refresh_token": "1//old-refresh-token",
        "id_token": unsigned(sub="1"),
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "token_type": "Bearer",
        "expiry_date": int((time.time() + left) * 1000),
    }


@dataclass
class Host:
    """A home with logins, and the endpoint that renews them."""

    world: World
    server: TokenServer
    failures: RenewalFailures

    def log_in(self, document: dict[str, Any], name: str = "claude", mode: int = 0o600) -> Path:
        """As the client would: its directory, its file."""
        path = self.world.write(PLACES[name], json.dumps(document), mode)
        path.parent.chmod(0o700)
        return path

    def vault(self, reach: EndpointAccess | None = None) -> Vault:
        ground = self.world.ground(Programs({}))
        reach = reach or self.server.reach()
        return Vault(replace_ground(ground, reach=reach, failures=self.failures))

    def fetch(self, name: str = "claude", reach: EndpointAccess | None = None) -> FetchedSecret:
        return self.vault(reach).fetch(ref(f"login:{name}"))

    def refused(self, name: str = "claude", reach: EndpointAccess | None = None) -> str:
        """Why it cannot be had; and nothing of it is in the error (I8)."""
        with pytest.raises(SecretUnavailable) as caught:
            self.fetch(name, reach)
        said = told(caught.value)
        assert not any(form in said for text in (ACCESS, REFRESH, NEW) for form in forms(text))
        return str(caught.value)


def replace_ground(ground: Any, **more: Any) -> Any:  # noqa: ANN401 - a frozen value of the vault's
    return replace(ground, **more)


@pytest.fixture
def host(tmp_path: Path, authority: trustme.CA) -> Iterator[Host]:
    server = TokenServer(authority, reply=lambda _: answer(200, GRANT))
    yield Host(World(tmp_path), server, RenewalFailures())
    server.close()


def shown(given: FetchedSecret) -> str:
    return given.secret.reveal()


def login_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())["claudeAiOauth"])


# ── used as it is ─────────────────────────────────────────────────────────────────────────────────


def test_a_login_that_is_good_is_used_and_nobody_is_asked(host: Host) -> None:
    path = host.log_in(claude(HOUR))
    before = path.stat()
    given = host.fetch()
    assert shown(given) == ACCESS
    assert given.life
    assert given.life.ends - now() == pytest.approx(HOUR, abs=5)
    assert not host.server.asked
    assert path.stat() == before
    assert os.listdir(path.parent) == [path.name]


def test_the_refresh_token_is_hidden_beside_the_secret_and_in_no_repr(host: Host) -> None:
    """I1, I7: it is searched for in answers; it is no part of what is written into requests."""
    host.log_in(claude(HOUR))
    host.log_in(codex(HOUR), "codex")
    given = host.fetch()
    assert [one.reveal() for one in given.hidden] == [REFRESH]
    assert REFRESH not in shown(given) + repr(given)
    identity = codex(HOUR)["tokens"]["id_token"]
    assert [one.reveal() for one in host.fetch("codex").hidden] == [
        "rt_old-refresh-token",
        identity,
    ]


def test_codex_has_two_lines_and_takes_the_account_from_the_claims_if_need_be(host: Host) -> None:
    document = codex(HOUR)
    host.log_in(document, "codex")
    tokens = document["tokens"]
    assert shown(host.fetch("codex")) == f"{tokens['access_token']}\n{tokens['account_id']}"
    owner = {"https://api.openai.com/auth": {"chatgpt_account_id": "acct-0123456789abcdef"}}
    claimed = unsigned(exp=int(time.time()) + HOUR, **owner)
    host.log_in(codex(HOUR, account_id="", access_token=claimed), "codex")
    assert shown(host.fetch("codex")) == f"{claimed}\nacct-0123456789abcdef"


@pytest.mark.parametrize("name", LOGINS)
def test_a_login_that_is_not_there_says_how_to_log_in(host: Host, name: str) -> None:
    assert PROVIDERS[name].again in host.refused(name)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("claude", "CLAUDE_CONFIG_DIR"),
        ("claude", "CLAUDE_SECURESTORAGE_CONFIG_DIR"),
        ("codex", "CODEX_HOME"),
        ("google", "GEMINI_CLI_HOME"),
    ],
)
def test_clients_are_told_by_a_variable_where_their_login_is(
    host: Host, name: str, variable: str
) -> None:
    document = {"claude": claude(HOUR), "codex": codex(HOUR), "google": google(HOUR)}[name]
    folder = ".gemini/" if name == "google" else ""
    moved = host.world.write(
        f"elsewhere/{folder}{PLACES[name].split('/')[-1]}", json.dumps(document)
    )
    host.refused(name)
    host.world.env[variable] = str(host.world.root / "elsewhere")
    assert shown(host.fetch(name))
    assert moved.exists()
    host.world.env[variable] = "elsewhere"  # a relative one is nobody's
    host.refused(name)


def test_an_api_key_is_no_login(host: Host) -> None:
    host.log_in({"OPENAI_API_KEY": "sk-proj-0123456789abcdef"}, "codex")
    assert "API key" in host.refused("codex")


# ── renewed ───────────────────────────────────────────────────────────────────────────────────────


def test_a_login_about_to_end_is_renewed_and_written_back_with_all_that_it_had(host: Host) -> None:
    before = claude(FRESH)
    path = host.log_in(before)
    given = host.fetch()
    assert shown(given) == NEW
    assert given.life
    assert given.life.ends - now() == pytest.approx(8 * HOUR, abs=5)
    after = json.loads(path.read_text())
    assert after["mcpOAuth"] == before["mcpOAuth"]
    assert after["claudeAiOauth"] == before["claudeAiOauth"] | {
        "accessToken": NEW,
        "refreshToken": NEXT,
        "expiresAt": after["claudeAiOauth"]["expiresAt"],
    }
    assert after["claudeAiOauth"]["expiresAt"] / 1000 == pytest.approx(
        time.time() + 8 * HOUR, abs=5
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]
    assert sorted(os.listdir(host.world.home)) == [".claude"]  # no lock is left


def test_what_claude_is_asked(host: Host) -> None:
    """Facts A7: JSON with the client's id and scopes, and an agent that is let in."""
    host.log_in(claude(0))
    host.fetch()
    (asked,) = host.server.asked
    assert asked.start == "POST /v1/oauth/token HTTP/1.1"
    assert asked.headers["host"] == "platform.claude.com"
    assert asked.headers["user-agent"].startswith("claude-cli/")
    assert posted(asked)["refresh_token"] == REFRESH
    assert posted(asked)["scope"] == "user:inference user:profile"
    assert set(posted(asked)) == {"grant_type", "refresh_token", "client_id", "scope"}


def test_what_codex_is_asked_and_given(host: Host) -> None:
    path = host.log_in(codex(60), "codex")
    fresh = unsigned(exp=int(time.time()) + 10 * 24 * HOUR)
    host.server.reply = lambda _: answer(
        200, {"access_token": fresh, "refresh_token": "rt_next-one"}
    )
    before = json.loads(path.read_text())
    assert shown(host.fetch("codex")).startswith(fresh + "\n")
    (asked,) = host.server.asked
    assert asked.start == "POST /oauth/token HTTP/1.1"
    assert asked.headers["host"] == "auth.openai.com"
    assert set(posted(asked)) == {"client_id", "grant_type", "refresh_token"}
    after = json.loads(path.read_text())
    new = {"access_token": fresh, "refresh_token": "rt_next-one"}
    assert after["tokens"] == before["tokens"] | new
    assert after["last_refresh"] > "2026-01-01"
    assert after["last_refresh"].endswith("Z")


def test_what_google_is_asked_and_given(host: Host) -> None:
    path = host.log_in(google(60), "google")
    grant = {"access_token": "ya29.new-access-token", "expires_in": 3599, "token_type": "Bearer"}
    host.server.reply = lambda _: answer(200, grant)
    assert shown(host.fetch("google")) == "ya29.new-access-token"
    (asked,) = host.server.asked
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert posted(asked)["refresh_token"] == "1//old-refresh-token"
    after = json.loads(path.read_text())
    assert after["refresh_token"] == "1//old-refresh-token"  # Google's stay
    assert after["expiry_date"] / 1000 == pytest.approx(time.time() + 3599, abs=5)


def test_renewers_at_once_ask_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second use of a refresh token would end the login. Vaults of their own: no lock in common
    but that of the file. Control: each of them has the new token."""
    host.log_in(claude(0))
    spent: list[str] = []
    waiting: set[int] = set()
    pause = login_lock._pause

    def pausing(over: threading.Event, deadline: float) -> None:
        waiting.add(threading.get_ident())
        pause(over, deadline)

    def reply(asked: Message) -> list[bytes]:
        spent.append(posted(asked)["refresh_token"])
        deadline = time.monotonic() + PATIENCE
        while len(waiting) < 5 and time.monotonic() < deadline:
            time.sleep(0.005)
        return answer(200, GRANT)

    monkeypatch.setattr(login_lock, "_pause", pausing)
    host.server.reply = reply
    got: list[str] = []
    vaults = [Host(host.world, host.server, RenewalFailures()).vault() for _ in range(6)]
    threads = [
        threading.Thread(target=lambda v=vault: got.append(shown(v.fetch(ref("login:claude")))))
        for vault in vaults
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert spent == [REFRESH]
    assert got == [NEW] * 6


def test_a_login_that_the_client_renewed_meanwhile_is_taken_as_it_is(host: Host) -> None:
    """The client holds its lock; when it lets go, the file is another."""
    path = host.log_in(claude(0))
    lock = path.parent / ".oauth_refresh.lock"
    lock.mkdir()
    renewing = threading.Thread(target=lambda: host.fetch())
    renewing.start()
    host.log_in(claude(HOUR, "sk-ant-oat01-by-the-client", "sk-ant-ort01-by-the-client"))
    lock.rmdir()
    renewing.join(PATIENCE)
    assert not host.server.asked
    assert login_of(path)["accessToken"] == "sk-ant-oat01-by-the-client"


@pytest.mark.parametrize("where", [".claude/.oauth_refresh.lock", ".claude.lock"])
def test_the_client_s_lock_is_respected_old_and_new(
    host: Host, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_lock, "WAIT", 0.3)
    host.log_in(claude(0))
    lock = host.world.home / where
    lock.mkdir()
    assert "another program is renewing it" in host.refused()
    assert not host.server.asked
    assert lock.exists()
    for shift in (-login_lock.STALE - 5, login_lock.STALE + 5):  # abandoned, or from the future
        os.utime(lock, (time.time() + shift, time.time() + shift))
        host.log_in(claude(0))
        assert shown(host.fetch()) == NEW
        assert not lock.exists()
        lock.mkdir()


def test_while_an_answer_is_waited_for_the_client_s_lock_is_held_and_touched(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_lock, "TOUCH", 0.01)
    path = host.log_in(claude(0))
    touched: list[float] = []

    def reply(_: Message) -> list[bytes]:
        lock = path.parent / ".oauth_refresh.lock"
        os.utime(lock, (1, 1))
        deadline = time.monotonic() + PATIENCE
        while lock.stat().st_mtime == 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        touched.append(lock.stat().st_mtime)
        return answer(200, GRANT)

    host.server.reply = reply
    assert shown(host.fetch()) == NEW
    assert touched[0] > 1


def test_a_lock_that_somebody_took_over_is_left_to_them(host: Host) -> None:
    """After a laptop slept for an hour, say."""
    path = host.log_in(claude(0))
    lock = path.parent / ".oauth_refresh.lock"

    def reply(_: Message) -> list[bytes]:
        lock.rename(path.parent / "taken")
        lock.mkdir()
        return answer(200, GRANT)

    host.server.reply = reply
    assert shown(host.fetch()) == NEW
    assert lock.exists()


def test_a_person_who_logged_in_meanwhile_keeps_that_login(host: Host) -> None:
    """No lock holds a browser: what was asked for with the old token is left."""
    path = host.log_in(claude(0))
    own = claude(HOUR, "sk-ant-oat01-of-another-account", "sk-ant-ort01-of-another-account")

    def reply(_: Message) -> list[bytes]:
        host.log_in(own)
        return answer(200, GRANT)

    host.server.reply = reply
    assert shown(host.fetch()) == "sk-ant-oat01-of-another-account"
    assert json.loads(path.read_text()) == own
    assert os.listdir(path.parent) == [path.name]


def test_a_person_who_logged_out_meanwhile_stays_logged_out(host: Host) -> None:
    path = host.log_in(claude(0))

    def reply(_: Message) -> list[bytes]:
        path.unlink()
        return answer(200, GRANT)

    host.server.reply = reply
    host.refused()
    assert os.listdir(path.parent) == []


def test_other_fields_that_a_client_wrote_meanwhile_are_kept(host: Host) -> None:
    path = host.log_in(claude(0))

    def reply(_: Message) -> list[bytes]:
        host.log_in(claude(0) | {"mcpOAuth": {"new": "server"}})
        return answer(200, GRANT)

    host.server.reply = reply
    host.fetch()
    after = json.loads(path.read_text())
    assert after["mcpOAuth"] == {"new": "server"}
    assert after["claudeAiOauth"]["refreshToken"] == NEXT


# ── the order of things ───────────────────────────────────────────────────────────────────────────


def test_a_renewer_that_dies_before_the_new_file_has_its_name_loses_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old token is spent by then. Whoever comes next finishes what was begun, and asks for
    nothing."""
    path = host.log_in(claude(0))

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as crash:
        crash.setattr(login_file, "_take_name", die)
        with pytest.raises(SystemExit):
            host.fetch()
    assert login_of(path)["refreshToken"] == REFRESH
    assert len(host.server.asked) == 1
    assert shown(host.fetch()) == NEW
    assert login_of(path)["refreshToken"] == NEXT
    assert len(host.server.asked) == 1
    assert os.listdir(path.parent) == [path.name]


def test_what_a_renewer_left_half_written_is_removed_and_an_old_whole_one_as_well(
    host: Host,
) -> None:
    """A login that is newer than what was left behind stays."""
    beside = host.world.root / "home/.claude/.credentials.json.keyhole"
    for left in (b"", b"\0" * 4000, json.dumps(claude(HOUR, NEW, NEXT)).encode()[:-9]):
        path = host.log_in(claude(0))
        host.world.write(str(beside.relative_to(host.world.root)), left)
        host.server.asked.clear()
        assert shown(host.fetch()) == NEW
        assert len(host.server.asked) == 1
        assert os.listdir(path.parent) == [path.name]
    host.world.write(str(beside.relative_to(host.world.root)), json.dumps(claude(HOUR, "x" * 20)))
    os.utime(beside, (1, 1))
    host.log_in(claude(0))
    host.server.asked.clear()
    assert shown(host.fetch()) == NEW
    assert len(host.server.asked) == 1


def test_what_was_left_behind_is_no_link(host: Host) -> None:
    """I11: neither followed nor written through."""
    path = host.log_in(claude(0))
    other = host.world.write("other", json.dumps(claude(HOUR, "sk-ant-oat01-planted-token")))
    beside = path.with_name(".credentials.json.keyhole")
    beside.symlink_to(other)
    assert "cannot be replaced: file exists" in host.refused()
    assert not host.server.asked
    assert "planted" in other.read_text()
    beside.unlink()
    assert shown(host.fetch()) == NEW


@pytest.mark.parametrize("act", ["posix_fallocate", "fchmod"])
def test_no_token_is_spent_where_the_new_one_could_not_be_written(
    host: Host, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is known before the endpoint is asked. Control: with room it is renewed."""
    path = host.log_in(claude(60))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, act, full)
        assert "no space left on device" in host.refused()
    assert not host.server.asked
    assert os.listdir(path.parent) == [path.name]
    assert shown(host.fetch()) == NEW


def test_a_disk_that_breaks_after_the_token_was_spent_leaves_the_session_its_token(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.log_in(claude(0))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(login_file, "_take_name", broken)
    given = host.fetch()
    assert shown(given) == NEW
    assert "input/output error" in given.warning


def test_a_session_that_ends_waits_for_the_renewal_that_is_under_way(host: Host) -> None:
    path = host.log_in(claude(0))
    begun, go_on = threading.Event(), threading.Event()

    def reply(_: Message) -> list[bytes]:
        begun.set()
        go_on.wait(PATIENCE)
        return answer(200, GRANT)

    host.server.reply = reply
    vault = host.vault()
    renewing = threading.Thread(target=lambda: vault.fetch(ref("login:claude")), daemon=True)
    renewing.start()
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=vault.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go_on.set()
    closing.join(PATIENCE)
    assert login_of(path)["refreshToken"] == NEXT
    renewing.join(PATIENCE)
    host.log_in(claude(0))
    with pytest.raises(SecretUnavailable, match="the session is over"):
        vault.fetch(ref("login:claude"))


# ── files that are not to be trusted ──────────────────────────────────────────────────────────────


def test_a_login_that_others_can_read_is_refused(host: Host) -> None:
    path = host.log_in(claude(HOUR), mode=0o640)
    assert f"chmod 600 {path}" in host.refused()
    path.chmod(0o600)
    assert shown(host.fetch()) == ACCESS


def test_a_login_in_a_tree_that_the_sandbox_can_write_is_refused(host: Host) -> None:
    """I6, I11: hostile code would write a login of its own there, and have all it sees sent to an
    account of its own. Control: the same file without that tree."""
    host.log_in(claude(HOUR))
    host.world.writable = (host.world.home / ".claude",)
    assert "where the sandbox can write" in host.refused()
    host.world.writable = (host.world.project,)
    assert shown(host.fetch()) == ACCESS


def test_a_link_of_one_s_own_is_followed_and_what_it_leads_to_is_replaced(host: Host) -> None:
    """As people have it who keep their settings in a repository: the link stays."""
    path = host.log_in(claude(0))
    kept = host.world.root / "dotfiles"
    kept.mkdir(0o700)
    path.rename(kept / "login.json")
    path.symlink_to(kept / "login.json")
    locked: list[bool] = []

    def reply(_: Message) -> list[bytes]:
        locked.append((path.parent / ".oauth_refresh.lock").exists())
        return answer(200, GRANT)

    host.server.reply = reply
    assert shown(host.fetch()) == NEW
    assert locked == [True]  # the client's directory is where the client looks
    assert path.is_symlink()
    assert login_of(kept / "login.json")["refreshToken"] == NEXT
    assert os.listdir(kept) == ["login.json"]


def test_a_link_through_a_tree_that_the_sandbox_can_write_is_refused(host: Host) -> None:
    """I11: a leftover of an earlier run may not lead to another login, or have one replaced."""
    path = host.log_in(claude(0))
    path.rename(host.world.root / "login.json")
    (host.world.project / "hop").symlink_to(host.world.root / "login.json")
    path.symlink_to(host.world.project / "hop")
    host.world.writable = (host.world.project,)
    assert "a link in a tree that the sandbox can write" in host.refused()
    assert not host.server.asked
    host.world.writable = ()
    assert shown(host.fetch()) == NEW


def test_a_login_in_a_directory_that_everybody_can_write_is_refused(host: Host) -> None:
    path = host.log_in(claude(HOUR))
    path.parent.chmod(0o777)
    assert "everybody can write in" in host.refused()
    path.parent.chmod(0o700)
    assert shown(host.fetch()) == ACCESS


@pytest.mark.parametrize("content", ["", "[]", "nonsense", "{}", '{"claudeAiOauth": 7}', "1e999"])
def test_a_file_that_is_no_login_is_refused(
    host: Host, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_file, "_SETTLE", 0.0)
    host.world.write(PLACES["claude"], content)
    host.refused()


def test_a_file_that_is_being_written_is_read_when_it_is_whole(host: Host) -> None:
    """Codex empties its file before it writes it."""
    path = host.log_in(codex(HOUR), "codex")
    whole = path.read_text()
    path.write_text("")
    writing = threading.Timer(0.05, path.write_text, (whole,))
    writing.start()
    assert shown(host.fetch("codex"))
    writing.join()


# ── endpoints that are not to be trusted ──────────────────────────────────────────────────────────


def drip(_: Message) -> Iterator[bytes]:
    """An answer that never ends, a byte at a time."""
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"x"
        time.sleep(0.01)


def flood(_: Message) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"4000\r\n" + b"x" * 0x4000 + b"\r\n"


ELSEWHERE = "Location: https://evil.example/v1/oauth/token"
BAD_REPLIES: dict[str, tuple[Any, str]] = {
    "garbage": (lambda _: [b"\x00\xff" * 40 + b"\r\n\r\n"], "gave no answer"),
    "nothing": (lambda _: [], "gave no answer: it was cut off"),
    "no JSON": (lambda _: answer(200, b"<html>"), "answered 200 and no JSON"),
    "no token": (lambda _: answer(200, {"ok": True}), "gave no token"),
    "no life": (lambda _: answer(200, {"access_token": NEW}), "gave no token"),
    "a line end": (lambda _: answer(200, GRANT | {"access_token": "a\r\nb"}), "gave no token"),
    "endless life": (lambda _: answer(200, GRANT | {"expires_in": 1e300}), "gave no token"),
    "a redirect": (lambda _: answer(307, GRANT, ELSEWHERE), "answered 307"),
    "too long a head": (lambda _: [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 99999], "gave no answer"),
    "a huge body": (lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"], "too long"),
    "a flood": (flood, "too long"),
    "a drip": (drip, "it took too long"),
    "cut off": (lambda _: [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], "it was cut off"),
    "busy": (lambda _: answer(429, {"error": {"type": "rate_limit"}}), "answered 429"),
}


@pytest.mark.parametrize("case", BAD_REPLIES)
def test_an_endpoint_that_answers_badly_changes_nothing(host: Host, case: str) -> None:
    """Bounded in bytes and time (I9), nothing is followed (I4), nothing of it is repeated (I8).
    Control: the same file is renewed once the endpoint answers."""
    host.server.reply, words = BAD_REPLIES[case]
    path = host.log_in(claude(0))
    before = path.read_bytes()
    begun = time.monotonic()
    said = host.refused(reach=host.server.reach(patience=0.5))
    assert words in said
    assert time.monotonic() - begun < 5
    assert len(host.server.asked) == 1
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    host.server.reply = lambda _: answer(200, GRANT)
    assert shown(Host(host.world, host.server, RenewalFailures()).fetch()) == NEW


def test_an_answer_without_a_length_is_read_to_its_end(host: Host) -> None:
    host.log_in(claude(0))
    host.server.reply = lambda _: [b"HTTP/1.1 200 OK\r\n\r\n", json.dumps(GRANT).encode()]
    assert shown(host.fetch()) == NEW


def test_an_endpoint_with_another_certificate_gets_nothing(host: Host) -> None:
    """I4: the refresh token leaves after the certificate was verified, not before."""
    host.log_in(claude(0))
    other = TokenServer(trustme.CA(), reply=lambda _: answer(200, GRANT))
    reach = replace_ground(host.server.reach(), book=other.reach().book)
    assert "its certificate is not trusted" in host.refused(reach=reach)
    other.close()
    assert not other.asked


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "address-loopback"),
        ("::1", "address-loopback"),
        ("169.254.169.254", "address-metadata"),
        ("169.254.7.7", "address-link-local"),
        ("10.1.2.3", "address-private"),
        ("64:ff9b::7f00:1", "address-embedded-ipv4"),
    ],
)
def test_an_endpoint_whose_name_leads_inwards_is_not_dialled(
    host: Host, address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: whoever answers DNS cannot lead it to a neighbour. Control: `upstream.connect` can."""
    monkeypatch.setattr(socket, "getaddrinfo", answers({"platform.claude.com": address}))
    host.log_in(claude(0))
    reach = replace_ground(host.server.reach(), book=lambda: book(""))
    said = host.refused(reach=reach)
    assert "platform.claude.com cannot be reached: it resolves to" in said
    assert f"({reason})" in said
    assert not host.server.asked
    assert shown(Host(host.world, host.server, RenewalFailures()).fetch()) == NEW


def test_a_public_address_of_this_host_is_refused_as_loopback_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the data plane's own check, which a dialler of the vault's own once forgot."""
    monkeypatch.setattr(socket, "getaddrinfo", answers({"platform.claude.com": "203.0.113.9"}))
    monkeypatch.setattr(dialler, "is_own", lambda address: str(address) == "203.0.113.9")
    host.log_in(claude(0))
    reach = replace_ground(host.server.reach(), book=lambda: book(""))
    assert "address-loopback" in host.refused(reach=reach)


def test_a_name_that_does_not_resolve_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers({}))
    host.log_in(claude(0))
    reach = replace_ground(host.server.reach(), book=lambda: book(""))
    assert "(name-unresolved)" in host.refused(reach=reach)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("HTTP/1.1 200 OK\r\n\r\n", ""),
        ("HTTP/1.1 403 no\r\n\r\n", "the proxy answered 403"),
        ("", "the proxy's answer has no end"),
        ("HTTP/1.1 200 OK\r\n\r\nearly", "before it was asked"),
        ("x" * 99999, "the proxy's answer has no end"),
    ],
)
def test_a_policy_s_proxy_is_gone_through(
    host: Host, reply: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told the judged address, and TLS is for the endpoint's name: it sees none of it. The
    endpoint's address is private here, which `upstream.private` names."""
    table = {"platform.claude.com": "10.1.2.3", "proxy.example": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", answers(table))
    host.log_in(claude(0))
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []
    listener.settimeout(PATIENCE)
    proxy = threading.Thread(target=relay, args=(listener, host.server.port, reply, heard))
    proxy.start()
    text = f'upstream.proxy = "http://proxy.example:{listener.getsockname()[1]}"\n'
    text += 'upstream.private = ["*.claude.com"]'
    reach = replace_ground(host.server.reach(), book=lambda: book(text))
    if words:
        assert words in host.refused(reach=reach)
    else:
        assert shown(host.fetch(reach=reach)) == NEW
    proxy.join(PATIENCE)
    listener.close()
    assert heard[0].startswith(b"CONNECT 10.1.2.3:443 HTTP/1.1\r\n")
    assert REFRESH.encode() not in b"".join(heard)


def answers(table: dict[str, str]) -> Callable[..., list[Any]]:
    """DNS that knows these names."""

    def getaddrinfo(name: str, *_: object, **__: object) -> list[Any]:
        address = table.get(name.removesuffix("."))
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    return getaddrinfo


def relay(listener: socket.socket, port: int, reply: str, heard: list[bytes]) -> None:
    """A proxy for one connection, which leads to the endpoint if it says so."""
    with listener.accept()[0] as client, contextlib.suppress(OSError):
        heard.append(client.recv(65536))
        client.sendall(reply.encode())
        if " 200 " not in reply:
            return
        with socket.socket() as server:
            server.connect(("127.0.0.1", port))
            ends = {client: server, server: client}
            while True:
                for one in select.select(list(ends), [], [], PATIENCE)[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    heard.append(data)
                    ends[one].sendall(data)


def test_a_refresh_token_that_is_spent_is_not_sent_again(host: Host) -> None:
    """And what to do is said; the client's file is left, so that the client says the same."""
    path = host.log_in(claude(60))
    host.server.reply = lambda _: answer(400, {"error": "invalid_grant"})
    given = host.fetch()
    assert shown(given) == ACCESS  # while it lasts
    assert "invalid_grant; log in again on this host: `claude auth login`" in given.warning
    host.fetch()
    host.fetch()
    assert len(host.server.asked) == 1
    host.server.reply = lambda _: answer(200, GRANT)
    host.log_in(claude(60, refresh="sk-ant-ort01-after-a-new-login"))
    assert shown(host.fetch()) == NEW
    assert path.exists()


def test_sessions_of_one_process_do_not_each_ask_an_endpoint_that_is_down(host: Host) -> None:
    """I9. Control: after a while it is asked again."""
    host.log_in(claude(0))
    host.server.reply = lambda _: answer(503, {})
    for _ in range(5):
        assert "answered 503" in host.refused()
    assert len(host.server.asked) == 1
    moment = now() + login_source.PATIENCE + 1
    with pytest.MonkeyPatch.context() as later:
        later.setattr("keyhole.system.clock.now", lambda: moment)
        host.refused()
    assert len(host.server.asked) == 2


def test_the_code_of_openai_is_known_as_well(host: Host) -> None:
    host.log_in(codex(60), "codex")
    host.server.reply = lambda _: answer(401, {"error": {"code": "refresh_token_reused"}})
    assert "`codex login`" in host.fetch("codex").warning


def test_a_login_without_a_refresh_token_serves_while_it_lasts(host: Host) -> None:
    host.log_in(claude(60, refresh=""))
    assert shown(host.fetch()) == ACCESS
    host.log_in(claude(-1, refresh=""))
    assert "the login has ended; log in again" in host.refused()
    assert not host.server.asked


def test_without_a_way_to_the_endpoint_a_login_serves_while_it_lasts(host: Host) -> None:
    host.log_in(claude(60))
    vault = Vault(host.world.ground(Programs({})))
    assert shown(vault.fetch(ref("login:claude"))) == ACCESS
    host.log_in(claude(-1))
    with pytest.raises(SecretUnavailable, match="cannot be renewed here"):
        vault.fetch(ref("login:claude"))


def test_the_watch_s_moment_is_within_that_of_a_renewal(host: Host) -> None:
    """Else a read at that moment would bring the same token again."""
    host.log_in(claude(OLD - 1))
    assert shown(host.fetch()) == NEW
    host.log_in(claude(OLD + 5))
    given = host.fetch()
    assert given.life
    assert given.life.ends - given.life.renewal < OLD
