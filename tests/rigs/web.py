"""`keyhole web` as a person starts it, and ways to ask its server beside the page."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.chromium import Chromium, Page
    from tests.rigs.sandbox.projects import Project


@dataclass
class WebProcess:
    """One server, its address and the key of its first link."""

    process: subprocess.Popen[bytes]
    port: int
    key: str

    @classmethod
    @contextlib.contextmanager
    def start(cls, project: Project) -> Iterator[WebProcess]:
        """Serve while the block lasts."""
        process = project.start("web", "--no-open")
        try:
            said = line_of(process.stdout)
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#([\w-]{43})", said)
            assert found, said
            yield cls(process, int(found[1]), found[2])
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, (out, err)
        assert not err, err

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def link(self) -> str:
        return f"http://{self.authority}/#{self.key}"

    def open(self, browser: Chromium) -> Page:
        """Open the link, and wait until the page is told what happens."""
        page = browser.open(self.link)
        until(lambda: page.run("document.querySelector('#link-state').textContent") == "live")
        until(lambda: page.run("!!document.querySelector('h2')"))
        return page

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Ask as a program would; the status and the JSON of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, json.dumps(body) if body else None, named)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        is_json = (answer.getheader("content-type") or "").startswith("application/json")
        return answer.status, json.loads(data) if is_json and data else {}

    def token(self) -> str:
        """The token for the link."""
        origin = {"Origin": f"http://{self.authority}"}
        status, answer = self.ask("POST", "/api/login", {"key": self.key}, **origin)
        assert status == 200, answer
        return str(answer["token"])


@contextlib.contextmanager
def foreign_page() -> Iterator[str]:
    """A page on another port of the same host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>foreign</p>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
