"""What running sessions stand on may change: nothing counts that was not accepted (I11)."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest
import trustme

from keyhole.app.session.source_watcher import SourceListener, SourceWatcher
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.app.setup.host_paths import HostPaths
from keyhole.app.setup.policy_acceptance import AcceptanceStore, examine_policy
from keyhole.app.setup.policy_file import open_policy
from keyhole.app.setup.provision_reader import ProvisionReader, ProvisionRequest
from keyhole.model.errors import Refused
from keyhole.vault.interface import SecretUnavailable
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.app.setup.provision import Provision
    from keyhole.model.secret import Secret, SecretRef

POLICY = """
version = 1
[services.{name}]
hosts = ["api.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
{secret}
allow = ["GET /v1/**"]
"""


class Estate:
    """A home with policies, and what a session of one of them was told."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.places = HostPaths(home, home / "config", home / "state", home / "run")
        self.provider = ProvisionReader(self.places, {}, FileCatalogue(), None)
        self.reloaded: list[Provision] = []
        self.kept: list[str] = []
        self.rotated: list[str] = []

    def keep(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def policy(self, project: str, text: str, *, accept: bool = True) -> Path:
        path = self.keep(f"{project}/keyhole.toml", text)
        if accept:
            self.accept(path)
        return path

    def accept(self, path: Path) -> None:
        file = open_policy(path, self.places, FileCatalogue())
        AcceptanceStore(self.places.trust).accept(examine_policy(file, self.home, ""))

    def follow(self, path: Path) -> SourceWatcher:
        wanted = ProvisionRequest(path, "", ())

        def rotated(_: SecretRef, secret: Secret, __: tuple[Secret, ...]) -> None:
            self.rotated.append(secret.reveal())

        told = SourceListener(rotated, self.reloaded.append, self.kept.append)
        return SourceWatcher(self.provider, wanted, self.provider.provide(wanted), told)


@pytest.fixture
def estate(tmp_path: Path) -> Estate:
    return Estate(tmp_path)


def service(secret: str = "", name: str = "api") -> str:
    return POLICY.format(name=name, secret=f'secret = "{secret}"' if secret else "")


def test_a_link_to_another_accepted_policy_is_not_taken_for_this_one(estate: Estate) -> None:
    """I11: a project that is pulled, and whose policy is now a link to a wider one next door, has
    not been given that one. Control: a policy of its own that was accepted holds."""
    estate.keep("key", "0123456789abcdefghij-wide")
    wide = estate.policy("wide", service("file:~/key"))
    narrow = estate.policy("narrow", "version = 1\n")
    following = estate.follow(narrow)
    narrow.unlink()
    narrow.symlink_to(wide)
    changed, why = following.reload()
    assert (changed, "leads elsewhere" in why) == (False, True), why
    assert (estate.reloaded, estate.kept) == ([], [why])
    narrow.unlink()
    estate.policy("narrow", service("file:~/key"))
    assert following.reload() == (True, "")


def test_a_program_that_was_changed_is_not_run_again_before_it_is_accepted(estate: Estate) -> None:
    """I11: a secret is renewed by the program that the person accepted. Control: it renews."""
    ran = estate.home / "ran"
    script = f"#!/bin/sh\necho x >> {ran}\necho {{}}\n"
    old, new = ("0123456789abcdefghij-old", "0123456789abcdefghij-new")
    estate.keep("bin/token", script.format(old), 0o700)
    policy = estate.policy("project", service("exec:~/bin/token"))
    stock = estate.provider.provide(ProvisionRequest(policy, "", ()))
    (ref,) = stock.given
    assert ran.read_text() == "x\n"
    estate.keep("bin/token", script.format(new), 0o700)
    with pytest.raises(SecretUnavailable, match="has changed since it was accepted"):
        stock.vault.fetch(ref)
    assert ran.read_text() == "x\n"
    estate.keep("bin/token", script.format(old), 0o700)
    assert stock.vault.fetch(ref).secret.reveal() == old
    assert ran.read_text() == "x\nx\n"


def test_a_word_that_no_file_could_be_named_is_no_file(estate: Estate) -> None:
    """Such as a whole program, given by `-c`."""
    key = "0123456789abcdefghij-key"
    program = estate.keep("bin/say", f"#!/bin/sh\necho {key}\n", 0o700)
    for word in ("x" * 300, "/" + "x" * 300):
        policy = estate.policy("project", service(f"exec:{program} {word}"))
        (given,) = estate.provider.provide(ProvisionRequest(policy, "", ())).given.values()
        assert given.secret.reveal() == key


def test_another_default_secret_of_the_users_reaches_running_sessions(estate: Estate) -> None:
    """Who points a service at another secret in config.toml has taken the old one away."""
    estate.keep("one", "0123456789abcdefghij-one")
    estate.keep("two", "0123456789abcdefghij-two")
    estate.keep("config/config.toml", 'version = 1\n[services.openai]\nsecret = "file:~/one"\n')
    policy = estate.policy("project", "version = 1\n[services.openai]\n")
    following = estate.follow(policy)
    assert following.reload() == (False, "")
    estate.keep("config/config.toml", 'version = 1\n[services.openai]\nsecret = "file:~/two"\n')
    assert following.reload() == (True, "")
    (provision,) = estate.reloaded
    assert provision.secrets["openai"].reveal().endswith("-two")


def test_of_a_file_that_nobody_accepted_not_a_word_is_told(estate: Estate) -> None:
    """I1: a gateway that was taken over asks for files that are no policies. Control: of a policy
    that was accepted before and is broken now, what is wrong is told."""
    other = estate.keep("credentials.toml", "[registry]\nhunter2 = 1\n")
    with pytest.raises(Refused, match="not accepted") as caught:
        estate.provider.provide(ProvisionRequest(other, "", ()))
    assert "registry" not in str(caught.value)
    policy = estate.policy("project", "version = 1\n")
    following = estate.follow(policy)
    estate.policy("project", "version = 1\n[registry]\n", accept=False)
    assert "unknown key 'registry'" in following.reload()[1]


def test_a_policy_whose_way_is_gone_is_told_in_words(estate: Estate) -> None:
    """Whatever stands in its place: the old one holds, and nobody else is harmed (I9)."""
    policy = estate.policy("project", "version = 1\n")
    following = estate.follow(policy)
    policy.unlink()
    makes: tuple[Callable[[], None], ...] = (
        policy.mkdir,
        lambda: os.mkfifo(policy),
        lambda: policy.symlink_to(policy),
        lambda: policy.symlink_to("/dev/zero"),
        lambda: policy.symlink_to("x" * 300),
    )
    for make in makes:
        make()
        changed, why = following.reload()
        assert (changed, why[:41]) == (False, "the policy has changed, the old one holds"), why
        if stat.S_ISDIR(policy.lstat().st_mode):
            policy.rmdir()
        else:
            policy.unlink()


def test_a_look_that_finds_no_thread_is_looked_at_again(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: neither lost nor the end of who looks. Both a policy and a secret."""
    estate.keep("key", "0123456789abcdefghij-one")
    policy = estate.policy("project", service("file:~/key"))
    following = estate.follow(policy)
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    estate.keep("key", "0123456789abcdefghij-two")
    estate.policy("project", service("file:~/key") + "# another")
    for _ in range(3):
        following.look()
    assert (estate.rotated, estate.reloaded) == ([], [])
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(1000):
        following.look()
        if estate.reloaded:
            break
        threading.Event().wait(0.01)
    assert estate.reloaded
    following.close()


def test_a_policy_whose_new_secret_was_away_for_a_moment_holds_when_it_is_there(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once while it is away; nobody has to touch the policy again."""
    monkeypatch.setattr("keyhole.app.session.source_watcher.PATIENCE", 0.0)
    policy = estate.policy("project", "version = 1\n")
    following = estate.follow(policy)
    estate.policy("project", service("file:~/key"))
    settle(following, lambda: len(estate.kept) == 1)
    settle(following, lambda: not following._busy)
    assert estate.reloaded == []
    estate.keep("key", "0123456789abcdefghij-key")
    settle(following, lambda: bool(estate.reloaded))
    (why,) = estate.kept
    assert "~/key" in why
    # Control: it is not read for ever.
    settle(following, lambda: not following._busy)
    assert following._again is None


def settle(following: SourceWatcher, done: Callable[[], bool]) -> None:
    """Look until it is so."""

    def looked() -> bool:
        following.look()
        return done()

    until(looked)


def test_a_service_whose_secret_was_missing_opens_when_it_is_there(estate: Estate) -> None:
    """The session begins without it, and nobody has to start it again."""
    policy = estate.policy("project", service("file:~/key"))
    wanted = ProvisionRequest(policy, "", ())
    stock = estate.provider.provide(wanted)
    assert (stock.provision.secrets, stock.provision.closed) == ({}, ("api",))
    (note,) = stock.provision.notes
    assert note.startswith("services.api: closed, as its secret cannot be read. file:~/key: ")
    following = estate.follow(policy)
    assert following.reload() == (False, "")
    assert following.touch("file:~/key")
    settle(following, lambda: not following._busy)
    assert (estate.rotated, estate.kept) == ([], [])
    estate.keep("key", "0123456789abcdefghij-key")
    settle(following, lambda: bool(estate.rotated))
    assert estate.rotated == ["0123456789abcdefghij-key"]
    assert (estate.reloaded, estate.kept) == ([], [])
    # From now on it is watched as any other.
    estate.keep("key", "0123456789abcdefghij-new")
    settle(following, lambda: len(estate.rotated) == 2)
    following.close()


def test_a_change_between_reading_and_watching_is_not_missed(estate: Estate) -> None:
    """A policy that is changed and accepted while a run still starts holds without another change.
    Control: files that stay as they were read are not read again."""
    ca = estate.keep("project/ca.pem", trustme.CA().cert_pem.bytes().decode())
    upstream = '[upstream]\nca_file = "ca.pem"\n'
    policy = estate.policy("project", f"version = 1\n{upstream}")
    wanted = ProvisionRequest(policy, "", ())
    stock = estate.provider.provide(wanted)
    told = SourceListener(lambda *_: None, estate.reloaded.append, estate.kept.append)
    still = SourceWatcher(estate.provider, wanted, stock, told)
    assert not still._is_due(still._marks())
    still.close()
    estate.policy("project", f"{service()}{upstream}")
    following = SourceWatcher(estate.provider, wanted, stock, told)
    settle(following, lambda: bool(estate.reloaded))
    assert [each.name for each in estate.reloaded[0].policy.services] == ["api"]
    settle(following, lambda: not following._busy)
    following.close()
    # The same for a file that the policy refers to, of which nobody accepted the change.
    stock = estate.provider.provide(wanted)
    ca.write_text("another")
    following = SourceWatcher(estate.provider, wanted, stock, told)
    settle(following, lambda: bool(estate.kept))
    assert "not accepted" in estate.kept[0]
    following.close()
