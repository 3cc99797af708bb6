"""Pages of a sandbox in a real browser, and real dev servers with hot reload (I1, I4, I12)."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from tests.rigs.chromium import Chromium, chromium
from tests.rigs.lacking import give_up
from tests.rigs.sandbox.ports import Publishing
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.rigs.sandbox.people import Person
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.attack, pytest.mark.outside]

INSTALL_SECONDS = 600


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


class _Page(http.server.BaseHTTPRequestHandler):
    """A page of the person's own, on localhost, with a cookie."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "own=secret-of-the-host; Path=/")
        self.end_headers()
        self.wfile.write(b"<p>own</p>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def own_page() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_a_page_of_a_sandbox_shares_no_cookie_and_no_storage_with_localhost(
    new_project: Callable[..., Project], browser: Chromium, own_page: int
) -> None:
    own = browser.open(f"http://localhost:{own_page}/")
    own.run("localStorage.setItem('own', 'secret-of-the-host')")
    assert own.run("document.cookie") == "own=secret-of-the-host"
    made, other = Publishing.start(new_project()), Publishing.start(new_project())
    try:
        page = browser.open(f"http://{made.name}/")
        assert page.run("document.body.innerText") == "inside /"
        assert page.run("document.cookie") == ""
        assert page.run("localStorage.getItem('own')") is None
        # A cookie for all of localhost would be sent to the person's own pages, and to other
        # sandboxes: the browser refuses it. Control: one of its own is kept.
        for domain in ("localhost", ".localhost"):
            page.run(f"document.cookie = 'planted=1; Domain={domain}; Path=/'")
        page.run("document.cookie = 'kept=1; Path=/'")
        assert page.run("document.cookie") == "kept=1"
        assert own.run("document.cookie") == "own=secret-of-the-host"
        assert browser.open(f"http://{other.name}/").run("document.cookie") == ""
        read = f"fetch('http://localhost:{own_page}/').then(() => 'read', () => 'refused')"
        assert page.run(read) == "refused"
    finally:
        made.end()
        other.end()


def test_a_rebound_name_reads_nothing_in_a_browser(
    new_project: Callable[..., Project], browser: Chromium
) -> None:
    """A foreign name that leads to this host; the browser itself is told so, as DNS would."""
    made = Publishing.start(new_project())
    try:
        page = browser.open(f"http://localhost:{made.port}/")
        assert f"http://{made.name}/" in page.run("document.body.innerText")
        # Every name under localhost leads here, so another one stands for the rebound name.
        page = browser.open(f"http://rebound.localhost:{made.port}/")
        said = page.run("document.body.innerText")
        assert "keyhole ports" in said
        assert made.session not in said
        asked = f"fetch('http://{made.name}/').then(r => r.text(), () => 'refused')"
        assert page.run(asked) == "refused"
        assert browser.open(f"http://{made.name}/").run("document.body.innerText") == "inside /"
    finally:
        made.end()


def test_a_thousand_silent_connections_keep_no_other_sandbox_out(
    new_project: Callable[..., Project],
) -> None:
    flooded, other = Publishing.start(new_project()), Publishing.start(new_project())
    held = []
    try:
        for _ in range(900):
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(("127.0.0.1", flooded.port))
            held.append(made)
        for _ in range(50):
            assert other.ask() == "200 inside /"
        for made in held:
            made.close()
        held.clear()
        assert flooded.ask() == "200 inside /"
    finally:
        for made in held:
            made.close()
        flooded.end()
        other.end()


def _install(directory: Path, person: Person, packages: dict[str, str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        give_up("no npm")
    manifest = {"name": "page", "private": True, "type": "module", "dependencies": packages}
    (directory / "package.json").write_text(json.dumps(manifest))
    command = [npm, "install", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_SECONDS
    )
    if done.returncode:
        give_up(f"npm cannot install: {done.stderr[-300:]}")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, person.uid, person.gid, follow_symlinks=False)


def _published(process: subprocess.Popen[bytes]) -> str:
    said = line_of(process.stderr)
    while not (found := re.search(r"http://[0-9a-f]{12}\.localhost:\d+/", said)):
        said = line_of(process.stderr)
    return found[0]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _hot_reload(
    project: Project,
    browser: Chromium,
    command: list[str],
    source: str,
    change: Callable[[str], str],
) -> None:
    port = int(command[-1])
    process = project.start("run", "--trust", "--publish", str(port), "--", *command)
    try:
        address = _published(process)
        threading.Thread(
            target=lambda: process.stdout and process.stdout.read(), daemon=True
        ).start()
        page = browser.open("about:blank")

        def shows(text: str) -> bool:
            if page.run("location.href") == "about:blank" or "nothing in" in _text():
                page.go(address)
            return text in _text()

        def _text() -> str:
            return str(page.run("document.body ? document.body.innerText : ''"))

        until(lambda: shows("first words"), 120, 0.5, _text)
        page.run("window.kept = 'still here'")
        path = project.directory / source
        path.write_text(change(path.read_text()))
        until(lambda: "other words" in _text(), 60, 0.2, _text)
        # The page was changed in place, and not loaded again.
        assert page.run("window.kept") == "still here"
    finally:
        process.terminate()
        process.wait(60)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def test_vite_is_seen_and_reloads_in_the_hosts_browser(
    new_project: Callable[..., Project], person: Person, browser: Chromium
) -> None:
    project = new_project()
    _install(project.directory, person, {"vite": "latest"})
    project.write(
        "index.html", '<div id="app"></div><script type="module" src="/main.js"></script>'
    )
    project.write("words.js", "export const words = 'first words'\n")
    project.write(
        "main.js",
        "import { words } from './words.js'\n"
        "const show = (text) => { document.getElementById('app').innerText = text }\n"
        "show(words)\n"
        "import.meta.hot.accept('./words.js', (fresh) => show(fresh.words))\n",
    )
    port = _free_port()
    command = ["node", "node_modules/vite/bin/vite.js", "--strictPort", "--port", str(port)]
    _hot_reload(project, browser, command, "words.js", lambda text: text.replace("first", "other"))


def test_next_is_seen_and_reloads_in_the_hosts_browser(
    new_project: Callable[..., Project], person: Person, browser: Chromium
) -> None:
    project = new_project('[sandbox]\nenv = { NEXT_TELEMETRY_DISABLED = "1" }')
    _install(
        project.directory, person, {"next": "latest", "react": "latest", "react-dom": "latest"}
    )
    project.write(
        "app/layout.js",
        "export default function Layout({ children }) {\n"
        "  return <html><body>{children}</body></html>\n}\n",
    )
    project.write("app/page.js", "export default function Page() { return <p>first words</p> }\n")
    port = _free_port()
    command = ["node", "node_modules/next/dist/bin/next", "dev", "--port", str(port)]
    _hot_reload(
        project, browser, command, "app/page.js", lambda text: text.replace("first", "other")
    )
