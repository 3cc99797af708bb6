"""A login that a person made in a real browser, used and renewed while a sandbox runs (I1, I7).

The authorization server and the MCP server are real and on loopback; the clients inside are the
official SDKs. The server tells every token that it knows, and none of them comes in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import socket
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.rigs.chromium import chromium
from tests.rigs.clients.agents import AGENTS
from tests.rigs.clients.services import PROGRAMS, keep
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.projects import SEARCH, Project, line_of
from tests.rigs.vault.authserver import ISSUER, SERVICE, AuthServer
from tests.rigs.waiting import PATIENCE, until
from tests.system.clients.test_mcp import SDKS, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.chromium import Chromium, Page
    from tests.system.clients.conftest import Inside

pytestmark = pytest.mark.outside

POLICY = """
[services.tracker]
use = "mcp"
hosts = ["{service}"]
secret = "login:tracker"
tools = ["tell_tokens"]
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"{service}:443" = "127.0.0.1:{at}"
"{issuer}:443" = "127.0.0.1:{port}"
"""
LINK = re.compile(rf"https://{re.escape(ISSUER)}/authorize\?\S+")
DONE = "You are logged in. Close this page and return to the terminal."


@pytest.fixture
def issuer(authority: trustme.CA, tmp_path: Path) -> Iterator[AuthServer]:
    made = AuthServer(authority, ledger=tmp_path / "issued")
    yield made
    made.close()


@pytest.fixture
def browser(issuer: AuthServer, tmp_path: Path) -> Iterator[Chromium]:
    """A browser for which the issuer, and a stranger's name, are on loopback."""
    rules = f"MAP {ISSUER}:443 127.0.0.1:{issuer.port}, MAP stranger.example 127.0.0.1"
    flags = (
        f"--host-resolver-rules={rules}",
        f"--ignore-certificate-errors-spki-list={pin_of(issuer.port, issuer.trusting())}",
    )
    with chromium(tmp_path / "profile", *flags) as made:
        yield made


def pin_of(port: int, trusting: Any) -> str:  # noqa: ANN401 - an SSL context
    """The digest of the issuer's key, which the browser is told to trust."""
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
        trusting.wrap_socket(plain, server_hostname=ISSUER) as secured,
    ):
        data = secured.getpeercert(binary_form=True)
    key = x509.load_der_x509_certificate(data).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(spki).digest()).decode()


def policy(project: Project, issuer: AuthServer, at: int) -> str:
    keep(project, "ca.pem", issuer.authority.cert_pem.bytes().decode())
    return POLICY.format(service=SERVICE, issuer=ISSUER, at=at, port=issuer.port)


def text_of(page: Page) -> str:
    return str(page.run("document.body ? document.body.innerText : ''"))


def log_in(project: Project, issuer: AuthServer, agree: Callable[[str], None]) -> str:
    """`keyhole login` as a person types it; `agree` opens the link. Returns what was printed."""
    project.policy(policy(project, issuer, issuer.port))
    process = project.start("login", "tracker", "--no-browser", "--trust")
    try:
        said = ""
        while not (link := LINK.search(said)):
            said += line_of(process.stdout) + "\n"
        agree(link.group(0))
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    return said + out.decode()


def test_a_person_agrees_in_a_real_browser_and_other_pages_cannot_end_the_login(
    issuer: AuthServer, browser: Chromium, new_project: Callable[[], Project]
) -> None:
    """PKCE with a loopback callback in Chromium. I6: a page that guesses the port, and one whose
    name leads to loopback, do not bring in a code of an attacker's account."""
    project = new_project()

    def agree(link: str) -> None:
        page = browser.open(link)
        until(lambda: page.run("document.title") == "consent")
        port = re.search(r"127\.0\.0\.1%3A(\d+)", link)
        assert port is not None
        at = f"{port.group(1)}/callback?code=of-an-attacker&state=guessed"
        tried = browser.open(f"http://stranger.example:{at}")
        assert "This is not the login that Keyhole waits for." in text_of(tried)
        page.run(f"fetch('http://127.0.0.1:{at}', {{mode: 'no-cors'}}).catch(() => 0)")
        page.run("document.querySelector('#agree').click()")
        until(lambda: text_of(page) == DONE, pause=0.05)

    said = log_in(project, issuer, agree)
    assert "logged in to tracker; Keyhole renews the token" in said
    asked = [m for m in issuer.asked if m.method == "POST" and m.target == "/token"]
    assert len(asked) == 1
    [client] = issuer.clients.values()
    assert client["redirect_uris"][0].startswith("http://127.0.0.1:")
    tokens = issuer.ledger.read_text().split() if issuer.ledger else []
    assert not [token for token in tokens if token in said]


def test_a_token_is_renewed_while_the_python_sdk_asks_and_no_token_comes_in(
    ground: Path,
    issuer: AuthServer,
    browser: Chromium,
    new_project: Callable[[], Project],
    inside: Inside,
) -> None:
    """From the browser to the sandbox: I1, and I7 for tokens of before and after a renewal."""
    project = new_project()

    def agree(link: str) -> None:
        page = browser.open(link)
        until(lambda: page.run("document.title") == "consent")
        page.run("document.querySelector('#agree').click()")
        until(lambda: text_of(page) == DONE, pause=0.05)

    issuer.life = 14
    log_in(project, issuer, agree)
    project.write("client.py", (PROGRAMS / "mcp_waiting.py").read_text())
    use(ground, project, issuer, (inside.python, "-s", "client.py", SERVICE), inside.policy)


def test_a_token_is_renewed_while_the_typescript_sdk_asks_and_no_token_comes_in(
    ground: Path, issuer: AuthServer, new_project: Callable[[], Project]
) -> None:
    """The same with the other SDK."""
    node = shutil.which("node", path=SEARCH)
    if not node or not shutil.which("npm", path=SEARCH):
        pytest.skip("npm is not installed")
    if not SDKS.exists():
        give_up("the agents are not installed: make setup, and .agents/npm.log")
    project = new_project()
    issuer.life = 14
    log_in(project, issuer, lambda link: visit(issuer.agree(link)))
    project.write("client.mjs", (PROGRAMS / "mcp_waiting.mjs").read_text())
    words = (node, "client.mjs", SERVICE, str(SDKS))
    use(ground, project, issuer, words, f'[sandbox]\nreadable = ["{AGENTS}/node_modules"]\n')


def visit(url: str) -> None:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - loopback's
        assert answer.status == 200


def use(
    ground: Path, project: Project, issuer: AuthServer, command: tuple[str, ...], shown: str
) -> None:
    """Run a client inside until it was answered under three tokens: that of the start, and two
    later ones."""
    assert issuer.ledger is not None
    issuer.ledger.chmod(0o644)
    made = Path(tempfile.mkdtemp(dir=ground)) / "server"
    key = f"@{issuer.ledger}"
    with serving(made, issuer.authority, key=key, host=SERVICE) as server:
        project.policy(policy(project, issuer, server.port) + shown)
        ran = project.run(*command)
        assert ran.code == 0, ran
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    found = json.loads(ran.out)
    used = list(dict.fromkeys(sent for _, body, sent in lines if "tools/call" in body))
    issued = [line.split() for line in issuer.ledger.read_text().splitlines()]
    # The control: the server was asked with one token after another, and told all of them.
    assert len(used) >= 2
    assert set(used) <= {access for access, _ in issued}
    assert len({text.split(":")[0] for text in found["told"]}) == 3
    assert all(text.startswith("generation ") for text in found["told"])
    # Neither an old nor a new one is anywhere inside, nor a refresh token (I1, I7).
    named = {each: f"{number}" for number, pair in enumerate(issued) for each in pair}
    leaked = [named[each] for each in named if each in ran.out + ran.err]
    assert leaked == []
    renewals = [m for m in issuer.asked if b"grant_type=refresh_token" in m.body]
    assert len(renewals) >= 2
    assert all(b"resource=" in m.body for m in renewals)
