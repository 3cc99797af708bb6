"""Chromium without a screen, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.rigs.lacking import give_up
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Descriptors 3 and 4 are the browser's end of the pipe.
_WITH_PIPE = """
import fcntl, os, sys
there, back = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(there, 3)
os.dup2(back, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Chromium:
    """One browser, with a profile of its own."""

    def __init__(self, profile: Path, *flags: str) -> None:
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            give_up("no chromium")
        there, ours_out = os.pipe()
        ours_in, back = os.pipe()
        command = [sys.executable, "-I", "-c", _WITH_PIPE, str(there), str(back), str(program)]
        command += ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        command += ["--disable-background-networking", "--no-proxy-server", *flags, "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(there, back),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(profile)},
        )
        os.close(there)
        os.close(back)
        self._out, self._in = ours_out, ours_in
        self._held = b""
        self._numbers = itertools.count(1)

    def call(self, method: str, session: str | None = None, **given: Any) -> Any:  # noqa: ANN401
        """Ask, and wait for the answer; events are dropped."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _message(self) -> bytes:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._held += more
        message, _, self._held = self._held.partition(b"\0")
        return message

    def open(self, address: str) -> Page:
        """Open a page in a tab of its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.go(address)
        return page

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        for each in (self._in, self._out):
            os.close(each)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    def go(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._browser.call("Page.navigate", self._session, url=address)
        until(lambda: self.run("document.readyState") == "complete", pause=0.05)

    def run(self, code: str) -> Any:  # noqa: ANN401 - by the code
        """Run JavaScript in the page; a promise is awaited."""
        given = {"expression": code, "awaitPromise": True, "returnByValue": True}
        result = self._browser.call("Runtime.evaluate", self._session, **given)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def key(self, name: str) -> None:
        """Press a key and let it go."""
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "Tab": 9}
        given: dict[str, Any] = {"key": name}
        if name in codes:
            given["windowsVirtualKeyCode"] = codes[name]
        text = "\r" if name == "Enter" else name if len(name) == 1 else ""
        down = given | {"text": text} if text else given
        self._browser.call("Input.dispatchKeyEvent", self._session, type="keyDown", **down)
        self._browser.call("Input.dispatchKeyEvent", self._session, type="keyUp", **given)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page as a screen of this size does."""
        given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._browser.call("Emulation.setDeviceMetricsOverride", self._session, **given)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._browser.call("Emulation.setEmulatedMedia", self._session, features=[scheme])

    def picture(self) -> bytes:
        """The page as a PNG file."""
        found = self._browser.call("Page.captureScreenshot", self._session, format="png")
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Chromium]:
    """A browser that ends with the block."""
    made = Chromium(profile, *flags)
    try:
        yield made
    finally:
        made.close()
