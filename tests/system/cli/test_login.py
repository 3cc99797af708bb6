"""`keyhole login`: tokens are got outside, for one service, from nobody else (I1, I4, I6)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from keyhole.vault.login_providers import PROVIDERS
from tests.rigs.cli.terminals import PROGRAM
from tests.rigs.vault.authserver import ISSUER, ISSUER_URL, RESOURCE, SERVICE, AuthServer
from tests.rigs.vault.tokenserver import TokenServer, answer, posted, unsigned
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

LINK = re.compile(r"https://auth\.tracker\.example/authorize\?\S+")


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[AuthServer]:
    made = AuthServer(authority)
    yield made
    made.close()


@dataclass
class Typed:
    """A `keyhole login` that runs, and what it printed so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._came:
                    self.lines.append(line)
                    self._came.notify_all()

    def until(self, pattern: re.Pattern[str]) -> str:
        """The first text that matches, as soon as it is printed."""
        with self._came:
            ended = time.monotonic() + PATIENCE
            while not (found := pattern.search("".join(self.lines))):
                assert self.process.poll() is None, "".join(self.lines)
                self._came.wait(0.2)
                assert time.monotonic() < ended, "".join(self.lines)
            return found.group(0)

    def end(self) -> tuple[int, str]:
        code = self.process.wait(PATIENCE)
        self._thread.join()
        return code, "".join(self.lines)


@contextlib.contextmanager
def logging_in(keyhole: Keyhole, *words: str) -> Iterator[Typed]:
    process = subprocess.Popen(
        [PROGRAM, "login", *words, "--trust"],
        cwd=keyhole.project,
        env=keyhole.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    typed = Typed(process)
    try:
        yield typed
    finally:
        process.kill()
        typed.end()


def visit(url: str, host: str | None = None) -> str:
    """What a browser would get."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 80), PATIENCE) as sock:
        named = host or where.netloc
        target = f"{where.path}?{where.query}" if where.query else where.path
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {named}\r\n\r\n".encode())
        data = b""
        while piece := sock.recv(65536):
            data += piece
    return data.decode()


def kept(keyhole: Keyhole, name: str = "tracker") -> dict[str, Any]:
    path = keyhole.home / ".local" / "state" / "keyhole" / "logins" / f"{name}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    return dict(json.loads(path.read_text()))


def is_kept(keyhole: Keyhole) -> bool:
    path = keyhole.home / ".local" / "state" / "keyhole" / "logins" / "tracker.json"
    return path.exists()


def log_in(keyhole: Keyhole, server: AuthServer) -> str:
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        link = typed.until(LINK)
        assert "200 OK" in visit(server.agree(link))
        code, said = typed.end()
    assert code == 0, said
    return said


# ── a browser ─────────────────────────────────────────────────────────────────────────────────────


def test_a_person_logs_in_by_browser_and_the_tokens_are_kept_for_these_hosts(
    keyhole: Keyhole, server: AuthServer
) -> None:
    """Discovery, registration, PKCE, `resource`, and a file that only its owner reads (I1)."""
    keyhole.policy(server.policy(keyhole.project))
    said = log_in(keyhole, server)
    login = kept(keyhole)
    assert login["access_token"] in server.access
    assert login["hosts"] == [SERVICE]
    assert (login["resource"], login["issuer"]) == (RESOURCE, ISSUER_URL)
    assert f"{ISSUER_URL} issues the token for {RESOURCE}" in said
    assert 'secret = "login:tracker"' in said
    assert login["access_token"] not in said
    assert login["refresh_token"] not in said
    [client] = server.clients.values()
    assert client["token_endpoint_auth_method"] == "none"
    assert all(uri.startswith("http://127.0.0.1:") for uri in client["redirect_uris"])
    listed = keyhole("login", "--list", "--json")
    [row] = json.loads(listed.out)
    assert (row["id"], row["for"], row["renewable"]) == ("tracker", RESOURCE, True)
    assert login["access_token"] not in listed.out
    assert "good for" in keyhole("login", "--list").out
    secrets = json.loads(keyhole("secret", "list", "--json").out)
    assert [(one["reference"], one["kept"]) for one in secrets] == [("login:tracker", "login")]


def test_json_is_the_result_alone_and_the_link_is_beside_it(
    keyhole: Keyhole, server: AuthServer
) -> None:
    keyhole.policy(server.policy(keyhole.project))
    process = subprocess.Popen(
        [PROGRAM, "login", "tracker", "--no-browser", "--json", "--trust"],
        cwd=keyhole.project,
        env=keyhole.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    while not (link := LINK.search(said)):
        said += process.stderr.readline()
    visit(server.agree(link.group(0)))
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(out)["reference"] == "login:tracker"


def test_logout_revokes_at_the_issuer_and_forgets(keyhole: Keyhole, server: AuthServer) -> None:
    """RFC 7009: both tokens are no longer good there."""
    keyhole.policy(server.policy(keyhole.project))
    log_in(keyhole, server)
    assert server.refresh
    ran = keyhole("logout", "tracker")
    assert (ran.code, ran.out) == (0, "logged out of tracker; its tokens are revoked\n")
    assert not server.refresh
    assert not server.access
    assert not is_kept(keyhole)
    again = keyhole("logout", "tracker")
    assert again.code == 2
    assert "there is no login tracker" in again.err
    assert keyhole("login", "--list").out.startswith("there is no login yet")


def test_a_login_is_forgotten_although_its_issuer_is_gone(
    keyhole: Keyhole, authority: trustme.CA
) -> None:
    server = AuthServer(authority)
    keyhole.policy(server.policy(keyhole.project))
    try:
        log_in(keyhole, server)
    finally:
        server.close()
    ran = keyhole("logout", "tracker")
    assert ran.code == 0
    assert "the issuer was not told" in ran.err
    assert not is_kept(keyhole)


def test_what_a_browser_elsewhere_ends_at_can_be_pasted(
    keyhole: Keyhole, server: AuthServer
) -> None:
    """On a terminal, with the browser on another machine; what is not this login's is refused."""
    keyhole.policy(server.policy(keyhole.project))
    words = [PROGRAM, "login", "tracker", "--no-browser", "--trust"]

    def paste(text: str) -> tuple[int, str]:
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(keyhole.project)
            os.execve(words[0], words, {"TERM": "xterm", "COLUMNS": "1000"} | keyhole.env)  # noqa: S606
        said = ""
        with contextlib.suppress(OSError):
            while "paste that here" not in said:
                said += os.read(master, 65536).decode()
            link = LINK.search(said)
            assert link is not None
            os.write(master, f"{text or server.agree(link.group(0))}\n".encode())
            while data := os.read(master, 65536):
                said += data.decode()
        os.close(master)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said

    code, said = paste("http://127.0.0.1:1/callback?code=x&state=y")
    assert code == 2
    assert "not the address that this login ends at" in said
    assert not is_kept(keyhole)
    code, said = paste("")
    assert code == 0, said
    assert kept(keyhole)["access_token"] in server.access


def test_without_a_terminal_it_says_what_to_type(keyhole: Keyhole, server: AuthServer) -> None:
    keyhole.policy(server.policy(keyhole.project))
    ran = keyhole("login", "tracker", "--trust")
    assert ran.code == 2
    assert "`keyhole login tracker --no-browser`" in ran.err
    assert "--device" in ran.err
    assert not server.asked


def test_an_interrupted_login_ends_at_once_and_leaves_nothing(
    keyhole: Keyhole, server: AuthServer
) -> None:
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        typed.until(re.compile("waiting for the browser"))
        typed.process.send_signal(signal.SIGINT)
        code, said = typed.end()
    assert code == 130
    assert "Traceback" not in said
    assert not is_kept(keyhole)
    left = [p for p in keyhole.home.rglob("*") if p.name.endswith((".html", ".lock"))]
    assert left == []


# ── a code ────────────────────────────────────────────────────────────────────────────────────────


def test_a_person_logs_in_by_a_code_on_another_device(keyhole: Keyhole, server: AuthServer) -> None:
    """RFC 8628: pending until they agree."""
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--device") as typed:
        typed.until(re.compile("WDJB-MJHT"))
        deadline = time.monotonic() + PATIENCE
        while "POST /token" not in server.paths() and time.monotonic() < deadline:
            time.sleep(0.05)
        for device in server.devices:
            server.devices[device] = True
        code, said = typed.end()
    assert code == 0, said
    assert f"open {ISSUER_URL}/activate on any device" in said
    assert kept(keyhole)["access_token"] in server.access


# ── a client that the person registered ───────────────────────────────────────────────────────────


def test_a_configured_client_is_used_and_nobody_registers(
    keyhole: Keyhole, server: AuthServer
) -> None:
    server.registers = False
    ran_without = server.policy(keyhole.project)
    keyhole.policy(ran_without)
    refused = keyhole("login", "tracker", "--no-browser", "--trust")
    assert refused.code == 2
    assert "registers no clients by itself" in refused.err
    assert 'services.tracker.login.client = "ID"' in refused.err
    more = '[services.tracker.login]\nclient = "mine"\nclient_secret = "store:mine"\n'
    keyhole.policy(server.policy(keyhole.project, more + 'scopes = ["read"]\n'))
    keyhole("secret", "set", "mine", "--plain", stdin="a-client-secret-of-some-length")
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        link = typed.until(LINK)
        port = re.search(r"127\.0\.0\.1%3A(\d+)", link)
        assert port is not None
        server.clients["mine"] = {"redirect_uris": [f"http://127.0.0.1:{port.group(1)}/callback"]}
        visit(server.agree(link))
        code, said = typed.end()
    assert code == 0, said
    assert "scope=read&" in link + "&"
    assert kept(keyhole)["client"]["proof"] == "client_secret_basic"
    assert "POST /register" not in server.paths()


# ── the callback ──────────────────────────────────────────────────────────────────────────────────


def test_only_this_logins_return_ends_it_and_only_once(
    keyhole: Keyhole, server: AuthServer
) -> None:
    """Login CSRF, a foreign page, another host's name, and a replay; I6: not an attacker's
    account."""
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        link = typed.until(LINK)
        good = server.agree(link)
        foreign = (
            server.agree(link, state="of-an-attacker"),
            server.agree(link, state=""),
            good.replace("/callback", "/other"),
            good + "&state=twice",
            good.partition("?")[0],
            good.replace("state=", "state=" + "x" * 9000),
        )
        for url in foreign:
            assert " 200 OK" not in visit(url)
        assert " 200 OK" not in visit(good, host="evil.example")
        assert typed.process.poll() is None
        assert " 200 OK" in visit(good)
        with contextlib.suppress(OSError):
            assert " 200 OK" not in visit(good)
        code, said = typed.end()
    assert code == 0, said
    with pytest.raises(OSError, match=r"refused"):
        visit(good)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_another_user_of_this_host_is_not_listened_to(keyhole: Keyhole, server: AuthServer) -> None:
    """Even with the right `state`. Control: this user is."""
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        good = server.agree(typed.until(LINK))
        where = urlsplit(good)
        script = (
            "import socket, sys\n"
            f"s = socket.create_connection(('127.0.0.1', {where.port}))\n"
            f"s.sendall(b'GET {where.path}?{where.query} HTTP/1.1\\r\\n"
            f"Host: {where.netloc}\\r\\n\\r\\n')\n"
            "sys.stdout.write(s.recv(9999).decode())\n"
        )
        foreign = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", script],
            user=65534,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "200 OK" not in foreign.stdout
        assert typed.process.poll() is None
        assert "200 OK" in visit(good)
        assert typed.end()[0] == 0


def test_two_logins_at_once_do_not_disturb_one_another(
    keyhole: Keyhole, server: AuthServer
) -> None:
    keyhole.policy(server.policy(keyhole.project))
    with (
        logging_in(keyhole, "tracker", "--no-browser") as one,
        logging_in(keyhole, "tracker", "--no-browser") as other,
    ):
        first, second = server.agree(one.until(LINK)), server.agree(other.until(LINK))
        crossed = second.partition("?")[0] + "?" + first.partition("?")[2]
        assert "200 OK" not in visit(crossed)
        assert "200 OK" in visit(first)
        assert one.end()[0] == 0
        assert "200 OK" in visit(second)
        assert other.end()[0] == 0
    assert kept(keyhole)["access_token"] in server.access


# ── hostile servers ───────────────────────────────────────────────────────────────────────────────


def refused(keyhole: Keyhole, server: AuthServer) -> str:
    """Why a login fails before the person is shown a link; nothing of a server reaches the
    terminal."""
    keyhole.policy(server.policy(keyhole.project))
    ran = keyhole("login", "tracker", "--no-browser", "--trust")
    assert ran.code == 2, ran.out
    assert not is_kept(keyhole)
    assert "\x1b" not in ran.out + ran.err
    assert not LINK.search(ran.out)
    return ran.err


def bend_server(server: AuthServer, **changes: object) -> None:
    """Change the issuer's description."""
    server.bend = lambda path, document: (
        document | changes if "authorization-server" in path else document
    )


def bend_resource(server: AuthServer, **changes: object) -> None:
    """Change the service's description."""
    server.bend = lambda path, document: (
        document | changes if "protected-resource" in path else document
    )


def test_a_service_that_describes_itself_as_another_gets_no_token(
    keyhole: Keyhole, server: AuthServer
) -> None:
    """I1: its token would be the other service's."""
    bend_resource(server, resource="https://mcp.bank.example/mcp")
    assert "describes itself as another service" in refused(keyhole, server)


def test_an_issuer_that_is_not_the_one_that_was_asked_is_refused(
    keyhole: Keyhole, server: AuthServer
) -> None:
    """The mix-up attack, RFC 8414 §3.3."""
    bend_server(server, issuer="https://auth.bank.example")
    assert "is that of another issuer" in refused(keyhole, server)


@pytest.mark.attack
@pytest.mark.parametrize(
    "issuer",
    [
        "https://metadata.attacker.example",
        "https://localhost",
        "https://127.0.0.1",
        "http://auth.tracker.example",
        "https://user@auth.tracker.example",
        "https://auth.tracker.example#x",
        "file:///etc/passwd",
        "https://[::1]/",
        "\x1b[2Jhttps://evil.example",
        7,
    ],
)
def test_descriptions_do_not_lead_into_this_host_or_out_of_https(
    keyhole: Keyhole, server: AuthServer, issuer: object
) -> None:
    """I4: SSRF by metadata. Control: the login of the first test, with the same server."""
    bend_resource(server, authorization_servers=[issuer])
    keyhole.env["HOSTALIASES"] = "/dev/null"
    said = refused(keyhole, server)
    assert "cannot be reached" in said or "names nobody who issues tokens" in said
    assert "POST /token" not in server.paths()


@pytest.mark.attack
@pytest.mark.parametrize(
    "endpoint",
    ["http://auth.tracker.example/token", "https://169.254.169.254/token", "javascript:alert(1)"],
)
def test_an_endpoint_for_tokens_is_https_and_a_name(
    keyhole: Keyhole, server: AuthServer, endpoint: str
) -> None:
    """I4."""
    bend_server(server, token_endpoint=endpoint)
    assert "no https endpoint for tokens" in refused(keyhole, server)


HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"[" * 100_000
DEEP = answer(200, b'{"issuer":' + b"[" * 30_000)[0]
ELSEWHERE = answer(302, {}, f"Location: {ISSUER_URL}/elsewhere")[0]


@pytest.mark.attack
@pytest.mark.parametrize("sent", [HUGE, DEEP, ELSEWHERE, b"\x00\xff", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_description_that_is_none_is_no_description(
    keyhole: Keyhole, server: AuthServer, sent: bytes
) -> None:
    """I9: too large, too deep, elsewhere, malformed, cut."""
    server.bend = lambda path, document: sent if "authorization-server" in path else document
    refused(keyhole, server)
    assert not any("elsewhere" in path for path in server.paths())


@pytest.mark.attack
@pytest.mark.parametrize("path", ["/register", "/token"])
def test_an_endpoint_that_leads_elsewhere_is_not_followed(
    keyhole: Keyhole, server: AuthServer, path: str
) -> None:
    """An open redirect at the issuer would hand the code and its verifier, or a registration, to
    another server. Control: the login of the first test."""
    server.bend = lambda asked, document: ELSEWHERE if asked == path else document
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        if path == "/token":
            visit(server.agree(typed.until(LINK)))
        code, said = typed.end()
    assert code == 2
    assert "it answered 302" in said
    assert not any("elsewhere" in asked for asked in server.paths())
    assert not is_kept(keyhole)


@pytest.mark.attack
def test_a_code_of_another_login_cannot_be_brought_in(keyhole: Keyhole, server: AuthServer) -> None:
    """Code injection: even with the right `state`, a code of an attacker's account was not made
    for this verifier (RFC 7636). A code that was sent to another port is of no use there, either:
    whoever listens there has no verifier."""
    keyhole.policy(server.policy(keyhole.project))
    with (
        logging_in(keyhole, "tracker", "--no-browser") as theirs,
        logging_in(keyhole, "tracker", "--no-browser") as ours,
    ):
        stolen = dict(parse_qsl(urlsplit(server.agree(theirs.until(LINK))).query))["code"]
        assert "200 OK" in visit(server.agree(ours.until(LINK), code=stolen))
        code, said = ours.end()
    assert code == 2
    assert "the code or token is no longer good" in said
    assert not is_kept(keyhole)
    client = next(iter(server.clients))
    link = f"{ISSUER_URL}/authorize?response_type=code&client_id={client}&state=s"
    with pytest.raises(AssertionError):  # the issuer's own rule: no port but the registered one
        server.agree(f"{link}&code_challenge_method=S256&redirect_uri=http://127.0.0.1:1/callback")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"access_token": "at-with-\r\nInjected: header"}, "characters that no token has"),
        ({"access_token": "at-\x1b[2J-with-an-escape"}, "characters that no token has"),
        ({"access_token": ""}, "characters that no token has"),
        ({"access_token": "short"}, "shorter than 16"),
        ({"access_token": "x" * 40_000}, "characters that no token has"),
        ({"token_type": "mac"}, "not a bearer token"),
    ],
)
def test_a_token_that_cannot_be_used_is_not_kept(
    keyhole: Keyhole, server: AuthServer, changes: dict[str, str], why: str
) -> None:
    """I4, I7."""
    server.bend = lambda path, document: document | changes if path == "/token" else document
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        visit(server.agree(typed.until(LINK)))
        code, said = typed.end()
    assert code == 2
    assert why in said
    assert "\x1b" not in said
    assert not is_kept(keyhole)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("bent", "why"),
    [
        ({"iss": "https://auth.bank.example"}, "another issuer answered"),
        ({"iss": ""}, "another issuer answered"),
        ({"code": "", "error": "access_denied"}, "access was denied"),
        ({"code": "", "error": "\x1b]0;owned\x07"}, "a reason that is not known here"),
        ({"code": "a-code-of-nobody"}, "the code or token is no longer good"),
        ({"code": ""}, "without a code"),
    ],
)
def test_a_return_that_is_wrong_ends_the_login_in_our_own_words(
    keyhole: Keyhole, server: AuthServer, bent: dict[str, str], why: str
) -> None:
    """RFC 9207, and errors with terminal escapes (I8)."""
    keyhole.policy(server.policy(keyhole.project))
    with logging_in(keyhole, "tracker", "--no-browser") as typed:
        visit(server.agree(typed.until(LINK), **bent))
        code, said = typed.end()
    assert code == 2
    assert why in said
    assert "\x1b" not in said
    assert "owned" not in said
    assert not is_kept(keyhole)


def test_a_device_code_with_escapes_is_not_shown(keyhole: Keyhole, server: AuthServer) -> None:
    """I8."""
    server.bend = lambda path, document: (
        document | {"user_code": "\x1b[2JABCD"} if path == "/device" else document
    )
    keyhole.policy(server.policy(keyhole.project))
    ran = keyhole("login", "tracker", "--device", "--trust")
    assert ran.code == 2
    assert "no code that a person could type" in ran.err
    assert "\x1b" not in ran.out + ran.err


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_missing_in_the_policy_is_said_with_what_to_write(
    keyhole: Keyhole, server: AuthServer
) -> None:
    assert "no policy here" in keyhole("login", "tracker", "--no-browser").err
    keyhole.policy(server.policy(keyhole.project).replace("login:tracker", "store:tracker"))
    stored = keyhole("login", "tracker", "--no-browser", "--trust")
    assert 'write secret = "login:tracker"' in stored.err
    keyhole.policy(server.policy(keyhole.project))
    unknown = keyhole("login", "trakcer", "--no-browser", "--trust")
    assert "it has logins for tracker" in unknown.err
    untrusted = keyhole("login", "tracker", "--no-browser")
    assert "not accepted, so no login was begun" in untrusted.err
    assert not server.asked
    assert ISSUER not in keyhole("login").err


# ── clients that everybody knows ──────────────────────────────────────────────────────────────────

CLIENTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "claude": (
        "claude.com/cai/oauth/authorize",
        "platform.claude.com",
        ".claude/.credentials.json",
        {"access_token": "sk-ant-oat01-of-a-stand-in", "refresh_token": "r", "expires_in": 28800},
    ),
    "codex": (
        "auth.openai.com/oauth/authorize",
        "auth.openai.com",
        ".codex/auth.json",
        {
            "access_token": unsigned(exp=4102444800),
            "refresh_token": "r",
            "id_token": unsigned(
                **{"https://api.openai.com/auth": {"chatgpt_account_id": "an-account-of-ours"}}
            ),
        },
    ),
    "google": (
        "accounts.google.com/o/oauth2/v2/auth",
        "oauth2.googleapis.com",
        ".gemini/oauth_creds.json",
        {"access_token": "ya29.of-a-stand-in-server", "refresh_token": "r", "expires_in": 3600},
    ),
}


@pytest.mark.parametrize(
    ("name", "typed_name"),
    [("claude", "claude"), ("codex", "codex"), ("codex", "chatgpt"), ("google", "google")],
)
def test_a_clients_login_is_made_where_the_client_has_none(
    keyhole: Keyhole, authority: trustme.CA, name: str, typed_name: str
) -> None:
    """The facts of the clients' packages, against a stand-in: the file is one that the vault
    reads, and what else is in it stays."""
    link_at, host, place, grant = CLIENTS[name]
    server = TokenServer(authority, (host,), lambda _: answer(200, grant))
    (keyhole.project / "ca.pem").write_bytes(authority.cert_pem.bytes())
    keyhole.policy(f'[upstream]\nca_file = "ca.pem"\n{server.connect}')
    assert keyhole("policy", "trust", "--trust").code == 0
    path = keyhole.home / place
    path.parent.mkdir(mode=0o700)
    path.write_text('{"kept": "as it is"}')
    path.chmod(0o600)
    try:
        with logging_in(keyhole, typed_name, "--no-browser") as typed:
            link = typed.until(re.compile(rf"https://{re.escape(link_at)}\?\S+"))
            fields = dict(parse_qsl(urlsplit(link).query))
            back = f"{fields['redirect_uri']}?code=abc&state={fields['state']}"
            assert "200 OK" in visit(back)
            code, said = typed.end()
    finally:
        server.close()
    assert code == 0, said
    sent = posted(server.asked[0])
    digest = hashlib.sha256(sent["code_verifier"].encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert (sent["code"], challenge) == ("abc", fields["code_challenge"])
    document = json.loads(path.read_text())
    assert document["kept"] == "as it is"
    tokens = PROVIDERS[name].tokens(document)
    assert not isinstance(tokens, str)
    assert tokens.access.startswith(str(grant["access_token"]))
    assert tokens.refresh == "r"
    if name == "codex":
        assert document["tokens"]["account_id"] == "an-account-of-ours"
    by_code = keyhole("login", name, "--device", "--trust")
    assert "has no login by code" in by_code.err
    assert "belongs to its client" in keyhole("logout", name).err
