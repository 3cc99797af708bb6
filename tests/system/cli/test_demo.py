"""The demo proves what it says: a real run holds every claim, and each can fail."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyhole.app.proofs import demo
from keyhole.app.proofs.demo import DemoRun, new_key, run_client
from keyhole.app.proofs.demo_claims import check_claims
from keyhole.app.proofs.demo_client import (
    CLONE,
    COMMIT,
    DECODED,
    DENIED_CALL,
    DENIED_PATH,
    GRANTED,
    POISONED,
    PUSH,
    REFUSED,
    VARIABLE,
)
from keyhole.app.proofs.demo_repository import (
    HOST,
    MAIN,
    USER,
    DemoRepository,
    RepositoryState,
    make_repository,
)
from keyhole.app.proofs.demo_repository import NAME as REPOSITORY
from keyhole.app.proofs.demo_service import (
    ASK,
    CALL,
    ECHO,
    NAME,
    RIGHT,
    WRONG,
    DemoService,
    ReceivedRequest,
    serve_demo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "hello-5b1d2c7e9f3a4860b1d2c7e9f3a48605"

NOTHING = DemoRun("", KEY, "hello-keyhole" + "x" * 25, 0, "", (), (), (), log_whole=False)
"""A run of which nothing was seen, on a host without git."""
NO_STATE = RepositoryState({}, frozenset())
POST_BUFFER = 1 << 17
"""Bytes of a push; beyond, git sends it in chunks."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    return run_client(tmp_path_factory.mktemp("demo").resolve(), KEY)


def failing(shown: DemoRun) -> list[str]:
    return [claim.text for claim in check_claims(shown) if not claim.held]


# ── a real run ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.outside
def test_every_claim_of_a_real_run_holds(shown: DemoRun) -> None:
    """I1, I7: looked at here without the demo's own eyes, too."""
    assert failing(shown) == []
    assert [one.path for one in shown.received[:3]] == [ASK, ECHO, CALL]
    assert all(one.real_key for one in shown.received)
    assert all(one.path.startswith(f"/{REPOSITORY}/") for one in shown.received[3:])
    for written in (KEY, base64.b64encode(KEY.encode()).decode(), KEY.encode().hex()):
        assert written not in shown.transcript
        assert not any(written.encode() in entry.data for entry in shown.entries)
    assert shown.transcript.count(shown.placeholder) == 3


@pytest.mark.outside
def test_one_branch_was_pushed_and_the_others_left_nothing_behind(shown: DemoRun) -> None:
    """I3: what the repository has is one commit more, with its tree and its one file."""
    assert shown.before is not None
    assert shown.after is not None
    assert dict(shown.before.refs) == {MAIN: shown.after.refs[MAIN]}
    assert set(shown.after.refs) == {MAIN, f"refs/heads/{GRANTED}"}
    assert len(shown.after.objects - shown.before.objects) == 3


@pytest.mark.outside
def test_without_a_git_that_serves_all_else_is_shown_and_pushes_are_not_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the control is the run above, by the same code, with git."""
    monkeypatch.setattr(demo, "make_repository", lambda git, root: None)
    shown = run_client(tmp_path.resolve(), KEY)
    assert failing(shown) == []
    assert len(check_claims(shown)) == 9
    assert "git push" not in shown.transcript
    assert "services.forge" not in shown.policy


def without(*words: str) -> Callable[[DemoRun], DemoRun]:
    """The same run, whose client did not print lines with these words."""

    def change(shown: DemoRun) -> DemoRun:
        lines = shown.transcript.splitlines()
        kept = [line for line in lines if not any(word in line for word in words)]
        return msgspec.structs.replace(shown, transcript="\n".join(kept))

    return change


def printing(line: str) -> Callable[[DemoRun], DemoRun]:
    """The same run, whose client printed one more line."""
    return lambda shown: msgspec.structs.replace(shown, transcript=f"{shown.transcript}{line}\n")


def receiving(*more: ReceivedRequest) -> Callable[[DemoRun], DemoRun]:
    """The same run, whose service received more."""
    return lambda shown: msgspec.structs.replace(shown, received=(*shown.received, *more))


def logging(reason: str) -> Callable[[DemoRun], DemoRun]:
    """The same run, whose log lacks the events of that reason."""

    def change(shown: DemoRun) -> DemoRun:
        kept = tuple(e for e in shown.entries if e.record and e.record.reason != reason)
        return msgspec.structs.replace(shown, entries=kept)

    return change


def ending(after: Callable[[RepositoryState], RepositoryState]) -> Callable[[DemoRun], DemoRun]:
    """The same run, whose repository has something else afterwards."""

    def change(shown: DemoRun) -> DemoRun:
        assert shown.after is not None
        return msgspec.structs.replace(shown, after=after(shown.after))

    return change


def ref(name: str, oid: str | None) -> Callable[[DemoRun], DemoRun]:
    """The same run, which left this ref there, or not."""

    def change(state: RepositoryState) -> RepositoryState:
        refs = {**state.refs, name: oid or ""}
        return msgspec.structs.replace(state, refs={n: o for n, o in refs.items() if o})

    return ending(change)


def bringing_all(shown: DemoRun) -> DemoRun:
    """The same run, whose repository has every commit that the client made."""
    lines = [line.split("\t") for line in shown.transcript.splitlines()]
    made = {said for what, said in lines if what.startswith(COMMIT)}
    grow = ending(lambda state: msgspec.structs.replace(state, objects=state.objects | made))
    return grow(shown)


SPOILT: dict[str, tuple[Callable[[DemoRun], DemoRun], str]] = {
    "the client failed": (lambda s: msgspec.structs.replace(s, code=1), "ran to its end"),
    "it has an interface": (printing("network interfaces\tlo eth0"), "no interface but lo"),
    "the key is in its environment": (printing(f"env {VARIABLE}\t{KEY}"), "environment held"),
    "the key is printed anywhere": (printing(f"found {KEY}"), "nothing that the client printed"),
    **{
        f"the key is printed in base64 after {before or 'nothing'}": (
            printing(base64.b64encode(f"{before}{KEY}.".encode()).decode()),
            "nothing that the client printed",
        )
        for before in ("", "a", "ab", "Bearer ")
    },
    "the key is printed in hex": (printing(KEY.encode().hex()), "nothing that the client printed"),
    "the service got a placeholder": (
        receiving(ReceivedRequest(ASK, False, False)),
        "the real key",
    ),
    "the service got nothing": (lambda s: msgspec.structs.replace(s, received=()), "the real key"),
    "the service denies that it knows the key": (
        printing(f"GET https://{NAME}{ASK}\t401 {WRONG}"),
        "the real key",
    ),
    "the echo reaches the client": (
        printing(f"GET https://{NAME}{ECHO}\t200 Bearer {KEY}"),
        "the client saw the placeholder",
    ),
    "the encoded echo reaches the client": (
        printing(f"{DECODED}\tBearer {KEY}"),
        "the client saw the placeholder",
    ),
    "the service never tried to give the key away": (
        lambda s: msgspec.structs.replace(
            s, received=tuple(msgspec.structs.replace(r, key_sent_back=False) for r in s.received)
        ),
        "sent the key back",
    ),
    "the denied path reaches the service": (
        receiving(ReceivedRequest(DENIED_PATH, True, False)),
        "never reached the service",
    ),
    "the denied path is answered": (
        printing(f"GET https://{NAME}{DENIED_PATH}\t200 keys"),
        "never reached the service",
    ),
    "the denied call reaches the service": (
        receiving(ReceivedRequest(DENIED_CALL, True, False)),
        "a gRPC call",
    ),
    "the denied call succeeds": (
        printing(f"GRPC {DENIED_CALL[1:]}\tstatus 0 gone"),
        "a gRPC call",
    ),
    "no call works at all": (printing(f"GRPC {CALL[1:]}\tstatus 7 keyhole: no"), "a gRPC call"),
    "the calls were not tried": (without("GRPC "), "a gRPC call"),
    "the denied host answers": (printing("GET https://evil.example/\t200"), "out of reach"),
    "the denied address was not tried": (without("192.0.2.1"), "out of reach"),
    "git does not clone": (printing(f"{CLONE}\texit 128: fatal:"), "git cloned"),
    "git does not push": (printing(f"{PUSH}{GRANTED}\texit 1: !"), "git cloned"),
    "the service lacks the branch": (ref(f"refs/heads/{GRANTED}", None), "git cloned"),
    "the branch has another commit": (ref(f"refs/heads/{GRANTED}", "1" * 40), "git cloned"),
    "a push came with a placeholder": (
        receiving(ReceivedRequest(f"/{REPOSITORY}/git-receive-pack", False, False)),
        "git cloned",
    ),
    "the refused branch was not tried": (without(f"{PUSH}{REFUSED}\t"), "did not move"),
    "it was not refused": (printing(f"{PUSH}{REFUSED}\texit 0: HEAD -> main"), "did not move"),
    "git lost its way": (printing(f"{PUSH}{REFUSED}\texit 128: fatal:"), "did not move"),
    "main moved": (ref(MAIN, "1" * 40), "did not move"),
    "main is gone": (ref(MAIN, None), "did not move"),
    "no push works at all": (printing(f"{PUSH}{GRANTED}\texit 1: !"), "did not move"),
    "the workflow was not tried": (without(f"{PUSH}{POISONED}"), "nothing of it"),
    "it was refused for something else": (
        printing(f"{PUSH}{POISONED}\texit 1: ! [remote rejected] HEAD -> {POISONED} (keyhole: x)"),
        "nothing of it",
    ),
    "the workflow's branch is there": (ref(f"refs/heads/{POISONED}", "1" * 40), "nothing of it"),
    "the workflow's commit is there": (bringing_all, "nothing of it"),
    "a refused push was sent on": (
        receiving(ReceivedRequest(f"/{REPOSITORY}/git-receive-pack", True, False)),
        "nothing of it",
    ),
    "the log lacks a refused push": (logging("denied-path"), "the audit log"),
    "the log lacks a refusal": (logging("literal-address"), "the audit log"),
    "the log does not say that the key was replaced": (logging("secret-scrubbed"), "the audit log"),
    "the log was cut": (lambda s: msgspec.structs.replace(s, log_whole=False), "the audit log"),
    "the log has the key": (
        lambda s: msgspec.structs.replace(
            s, entries=(*s.entries, msgspec.structs.replace(s.entries[0], data=KEY.encode()))
        ),
        "the audit log",
    ),
}


@pytest.mark.outside
@pytest.mark.parametrize("how", SPOILT)
def test_a_claim_that_is_not_so_fails(shown: DemoRun, how: str) -> None:
    """I10. Its control is the test above: the same run, not spoilt, fails nowhere."""
    spoil, claim = SPOILT[how]
    assert any(claim in text for text in failing(spoil(shown)))


def test_a_run_of_which_nothing_was_seen_proves_nothing() -> None:
    """I3: no claim holds by silence."""
    assert len(failing(NOTHING)) == len(check_claims(NOTHING)) == 9
    with_git = msgspec.structs.replace(NOTHING, before=NO_STATE, after=NO_STATE)
    assert len(failing(with_git)) == len(check_claims(with_git)) == 12


# ── the service, without a gateway ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("given", "status", "said"), [(KEY, 200, RIGHT), ("no", 401, WRONG)])
def test_the_service_knows_the_right_key_from_another(given: str, status: int, said: str) -> None:
    with serve_demo(KEY) as service:
        assert _get(service.port, service.ca_pem, ASK, given) == (status, {"said": said})
    assert service.received == [ReceivedRequest(ASK, status == 200, False)]


def test_the_service_gives_the_key_away_to_whoever_asks_it_directly() -> None:
    """The control of what the sandboxed client sees (I7)."""
    with serve_demo(KEY) as service:
        status, answer = _get(service.port, service.ca_pem, ECHO, KEY)
    assert (status, answer["authorization"]) == (200, f"Bearer {KEY}")
    assert base64.b64decode(answer["base64"]).decode() == f"Bearer {KEY}"
    assert service.received == [ReceivedRequest(ECHO, True, True)]


# ── the repository, without a gateway ───────────────────────────────────────────────────────────


@pytest.fixture
def repository(tmp_path: Path) -> DemoRepository:
    made = make_repository(Path(str(shutil.which("git"))), tmp_path / "repositories")
    assert made is not None
    return made


def test_git_pushes_whatever_it_likes_to_whoever_asks_it_directly(
    repository: DemoRepository, tmp_path: Path
) -> None:
    """The control of what the sandboxed git is refused (I3); a large push comes in chunks."""
    before = repository.state()
    with serve_demo(KEY, repository) as service:
        git = Git(service, tmp_path, KEY)
        assert git("clone", "--quiet", git.url, "copy").returncode == 0
        workflow = tmp_path / "copy" / ".github" / "workflows" / "x.yml"
        workflow.parent.mkdir(parents=True)
        workflow.write_bytes(os.urandom(2 * POST_BUFFER))
        git("-C", "copy", "add", ".")
        git("-C", "copy", "commit", "--quiet", "-m", "workflow")
        pushed = git("-C", "copy", "push", "--quiet", "origin", "HEAD:main")
    assert (pushed.returncode, pushed.stderr) == (0, "")
    after = repository.state()
    assert before.refs[MAIN] != after.refs[MAIN] in after.objects - before.objects
    assert all(one.real_key for one in service.received)


def test_a_git_that_does_not_know_the_key_is_told_nothing(
    repository: DemoRepository, tmp_path: Path
) -> None:
    with serve_demo(KEY, repository) as service:
        git = Git(service, tmp_path, "no")
        refused = git("clone", "--quiet", git.url, "copy")
    assert refused.returncode == 128
    assert "Authentication failed" in refused.stderr or "could not read" in refused.stderr
    assert {one.real_key for one in service.received} == {False}


def test_a_host_without_a_git_that_serves_has_no_repository(tmp_path: Path) -> None:
    """Its control is every test above."""
    assert make_repository(None, tmp_path / "none") is None
    poor = tmp_path / "git"
    poor.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    poor.chmod(0o755)
    assert make_repository(poor, tmp_path / "poor") is None
    poor.write_text("#!/bin/sh\nexit 129\n")
    assert make_repository(poor, tmp_path / "old") is None


class Git:
    """The system's git beside the service, with a key of its own."""

    def __init__(self, service: DemoService, directory: Path, key: str) -> None:
        self._directory = directory
        (directory / "ca.pem").write_bytes(service.ca_pem)
        self.url = f"https://{HOST}:{service.port}/{REPOSITORY}"
        pair = base64.b64encode(f"{USER}:{key}".encode()).decode()
        self._settings = {
            "http.extraHeader": f"Authorization: Basic {pair}",
            "http.curloptResolve": f"{HOST}:{service.port}:127.0.0.1",
            "http.postBuffer": str(POST_BUFFER),
            "user.name": "Somebody",
            "user.email": "somebody@keyhole.example",
        }

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        settings = [word for pair in self._settings.items() for word in ("-c", "=".join(pair))]
        return subprocess.run(
            [str(shutil.which("git")), *settings, *words],
            cwd=self._directory,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._directory),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_SSL_CAINFO": str(self._directory / "ca.pem"),
                "GIT_TERMINAL_PROMPT": "0",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


def test_two_runs_have_two_keys_in_the_shape_of_the_placeholder() -> None:
    assert new_key() != new_key()
    assert len(new_key()) == len(KEY) == len(NOTHING.placeholder)


def _get(port: int, ca_pem: bytes, path: str, key: str) -> tuple[int, dict[str, str]]:
    class Connection(http.client.HTTPSConnection):
        def connect(self) -> None:
            # By the service's name, whose address only [upstream.connect] knows.
            super(http.client.HTTPSConnection, self).connect()
            self.sock = context.wrap_socket(self.sock, server_hostname=NAME)

    context = ssl.create_default_context(cadata=ca_pem.decode())
    connection = Connection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
