"""Package managers work through the presets, from an index that the host's settings name."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest

from tests.rigs.gateway.origins import Origin, tls_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    import trustme

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

INDEX = "index.corp.example"
WHEEL = "keyholetest-1.0-py3-none-any.whl"
PASSWORD = "feed-0123456789abcdefghij"
LOGIN = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()


def make_wheel() -> bytes:
    """A wheel with one module and nothing else."""
    info = "keyholetest-1.0.dist-info"
    files = {
        "keyholetest.py": "WORKS = True\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: keyholetest\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(name, text)
    return made.getvalue()


def make_tarball() -> bytes:
    """An npm package with one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in {
            "package/package.json": '{"name": "@corp/keyholetest", "version": "1.0.0"}',
            "package/index.js": "module.exports = 'works';\n",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


WHEEL_BYTES, TARBALL = make_wheel(), make_tarball()
PAGES = {
    "/simple/keyholetest/": f'<a href="../../files/{WHEEL}">{WHEEL}</a>'.encode(),
    f"/files/{WHEEL}": WHEEL_BYTES,
    "/npm/@corp%2fkeyholetest": json.dumps(
        {
            "name": "@corp/keyholetest",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {
                "1.0.0": {
                    "name": "@corp/keyholetest",
                    "version": "1.0.0",
                    "dist": {
                        "tarball": f"https://{INDEX}/npm/t.tgz",
                        "integrity": "sha512-"
                        + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode(),
                    },
                }
            },
        }
    ).encode(),
    "/npm/t.tgz": TARBALL,
}


class Index(BaseHTTPRequestHandler):
    """Serves the pages, and nothing else."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        login = self.headers.get("Authorization", "")
        if self.path.startswith("/private/") and login != LOGIN:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.path = self.path.removeprefix("/private")
        body = PAGES.get(self.path.replace("%2F", "%2f"))
        self.send_response(404 if body is None else 200)
        kind = "text/html" if self.path.startswith("/simple") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args: object) -> None:
        """Be quiet."""


@pytest.fixture(scope="module")
def index(authority: trustme.CA) -> Iterator[Origin]:
    context = tls_for(authority, INDEX)

    def serve(sock: socket.socket) -> None:
        Index(sock, ("127.0.0.1", 0), None)  # type: ignore[arg-type]

    origin = Origin(serve, context)
    yield origin
    origin.close()


def project_with(
    new_project: Callable[..., Project], index: Origin, authority: trustme.CA, preset: str
) -> Project:
    project = new_project(
        f"[egress]\npresets = ['{preset}']\n[upstream]\nca_file = '~/ca.pem'\n"
        f"[upstream.connect]\n'{INDEX}:443' = '{index.address}'\n"
    )
    (project.home / "ca.pem").write_bytes(authority.cert_pem.bytes())
    return project


def test_pip_installs_from_the_index_that_the_hosts_settings_name(
    new_project: Callable[..., Project], index: Origin, authority: trustme.CA
) -> None:
    """I3: the index is reached because the preset names it; the same host is denied without."""
    project = project_with(new_project, index, authority, "python")
    settings = project.home / ".config" / "pip"
    settings.mkdir(parents=True)
    (settings / "pip.conf").write_text(f"[global]\nindex-url = https://{INDEX}/simple\n")
    for path in (settings.parent, settings, settings / "pip.conf"):
        project.person.own(path)
    python = shutil.which("python3", path=project.env["PATH"])
    if python is None or project.run(python, "-m", "pip", "--version").code != 0:
        pytest.skip("no pip in the system's trees")
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", "/tmp/t"]  # noqa: S108
    command = " ".join([*install, "keyholetest"])
    check = f"PYTHONPATH=/tmp/t {python} -c 'import keyholetest; print(keyholetest.WORKS)'"
    ran = project.run("sh", "-c", f"{command} && {check}", env={"XDG_CONFIG_HOME": ""})
    assert (ran.code, ran.lines) == (0, ["True"]), ran.err
    project.policy(f"[upstream.connect]\n'{INDEX}:443' = '{index.address}'\n")
    denied = project.run("sh", "-c", f"PIP_RETRIES=0 {command} -i https://{INDEX}/simple")
    assert denied.code != 0
    assert f"denied {INDEX}:443 (no rule names it)" in denied.err


def test_the_login_of_a_private_index_is_added_outside_and_is_not_inside(
    new_project: Callable[..., Project], index: Origin, authority: trustme.CA
) -> None:
    """I1: pip installs from an index that wants a login, and nothing inside holds it."""
    project = project_with(new_project, index, authority, "python")
    settings = project.home / ".config" / "pip"
    settings.mkdir(parents=True)
    address = f"https://reader:{PASSWORD}@{INDEX}/private/simple"
    (settings / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
    for path in (settings.parent, settings, settings / "pip.conf"):
        project.person.own(path)
    python = shutil.which("python3", path=project.env["PATH"])
    if python is None or project.run(python, "-m", "pip", "--version").code != 0:
        pytest.skip("no pip in the system's trees")
    install = f"{python} -m pip install -q --no-deps --target /tmp/t keyholetest && echo installed"
    search = f"env; cat /proc/self/environ; grep -r {PASSWORD} / 2>/dev/null --include='*pip*'"
    ran = project.run("sh", "-c", f"{install}; {search}", env={"XDG_CONFIG_HOME": ""})
    assert ran.lines[0] == "installed", ran.err
    assert PASSWORD not in ran.out
    assert LOGIN.split()[1] not in ran.out


def test_npm_installs_a_scoped_package_from_the_registry_that_npmrc_names(
    new_project: Callable[..., Project], index: Origin, authority: trustme.CA
) -> None:
    project = project_with(new_project, index, authority, "node")
    if shutil.which("npm", path=project.env["PATH"]) is None:
        pytest.skip("no npm in the system's trees")
    npmrc = project.home / ".npmrc"
    npmrc.write_text(f"registry=https://{INDEX}/npm/\n")
    project.person.own(npmrc)
    script = (
        "mkdir /tmp/n && cd /tmp/n && npm install --no-audit --no-fund -s @corp/keyholetest"
        " && node -p \"require('@corp/keyholetest')\""
    )
    ran = project.run("sh", "-c", script)
    assert (ran.code, ran.lines) == (0, ["works"]), ran.err
