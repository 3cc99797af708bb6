"""A real git server on loopback: nginx with TLS and Basic authentication, fcgiwrap behind it, and
`git http-backend` as everybody has it.

It plays a forge: `.git` is optional, a repository that was renamed answers with a redirect, and who
does not know the token is told nothing. What it was asked is in its access log.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trustme

from tests.git.repositories import BARE_OF_SETTINGS, GIT, Bare

if TYPE_CHECKING:
    from collections.abc import Mapping

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("nginx", "fcgiwrap", "git")
BACKEND = Path("/usr/lib/git-core/git-http-backend")
USER = "x-access-token"
PATIENCE = 30.0
AT_ONCE = 8
"""Requests that are answered side by side: clients run in parallel, and each keeps one busy."""

_CONFIG = """
{user}
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
    log_format told escape=json '{{"method":"$request_method","path":"$uri","query":"$args",'
        '"status":$status,"user":"$remote_user","size":$request_length,'
        '"protocol":"$http_git_protocol","kind":"$content_type","host":"$host"}}';
    access_log {directory}/access.log told;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    server {{
        listen {address} ssl;
        ssl_certificate {directory}/leaf.pem;
        ssl_certificate_key {directory}/leaf.pem;
        auth_basic "git";
        auth_basic_user_file {directory}/users;
{renamed}
        location ~ "^/(?<repo>.+?)(?:\\.git)?/(?<rest>info/refs|git-upload-pack|git-receive-pack|HEAD|objects/.+)$" {{
            fastcgi_pass unix:{directory}/backend.sock;
            fastcgi_param SCRIPT_FILENAME {backend};
            fastcgi_param GIT_PROJECT_ROOT {root};
            fastcgi_param GIT_HTTP_EXPORT_ALL "";
            fastcgi_param PATH_INFO /$repo.git/$rest;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
            fastcgi_param REMOTE_USER $remote_user;
            fastcgi_param REMOTE_ADDR $remote_addr;
            fastcgi_param GIT_PROTOCOL $http_git_protocol;
            fastcgi_request_buffering off;
            fastcgi_buffers 16 64k;
            fastcgi_buffer_size 64k;
            fastcgi_max_temp_file_size 0;
            fastcgi_read_timeout 300;
        }}
        location = /settled {{ auth_basic off; return 204; }}
        location / {{ return 404; }}
    }}
}}
"""  # noqa: E501

_RENAMED = """
        location ~ "^/{old}(?:\\.git)?/(?<rest>.+)$" {{
            return 301 https://$http_host/{new}.git/$rest$is_args$args;
        }}
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A line of the access log: one request that arrived, and how it was answered."""

    method: str
    path: str
    query: str
    status: int
    user: str
    size: int
    protocol: str
    kind: str
    host: str

    @property
    def pushes(self) -> bool:
        """Whether it is the request that carries a push."""
        return self.method == "POST" and self.path.endswith("/git-receive-pack")


class GitServer:
    """A running one."""

    def __init__(
        self,
        directory: Path,
        *names: str,
        renamed: Mapping[str, str] | None = None,
        authority: trustme.CA | None = None,
    ) -> None:
        """Serve under these names; `renamed` leads an old repository's name to its new one."""
        directory.mkdir()
        directory.chmod(0o755)
        self.directory = directory
        self.secret = "ghp_" + secrets.token_hex(18)
        self.authority = authority or trustme.CA()
        self.ca = self.authority.cert_pem.bytes().decode()
        (directory / "ca.pem").write_text(self.ca)
        self.root = directory / "repositories"
        self.root.mkdir()
        leaf = self.authority.issue_cert("localhost", *names)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        (directory / "leaf.pem").write_bytes(leaf.private_key_pem.bytes() + chain)
        (directory / "users").write_text(f"{USER}:{{PLAIN}}{self.secret}\n")
        self._log = directory / "access.log"
        self._log.touch()
        self._read = 0
        self._backends = self._start_backends()
        self._front = self._start_front(renamed or {})
        self.settle()

    def _start_backends(self) -> list[subprocess.Popen[bytes]]:
        """fcgiwrap takes its listener as standard input, as FastCGI has it."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.directory / "backend.sock"))
            listener.listen(256)
            return [
                _start("KILL", "fcgiwrap", stdin=listener.fileno(), env=BARE_OF_SETTINGS)
                for _ in range(AT_ONCE)
            ]

    def _start_front(self, renamed: Mapping[str, str]) -> subprocess.Popen[bytes]:
        config = self.directory / "nginx.conf"
        # nginx is handed its listener, so nobody can take a port that was chosen for it.
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self.port: int = listener.getsockname()[1]
            config.write_text(
                _CONFIG.format(
                    user="user root root;" if os.geteuid() == 0 else "",
                    directory=self.directory,
                    address=self.address,
                    backend=BACKEND,
                    root=self.root,
                    renamed="".join(_RENAMED.format(old=o, new=n) for o, n in renamed.items()),
                )
            )
            words = ("-c", config, "-p", self.directory, "-e", self.directory / "error.log")
            return _start(
                "TERM",
                "nginx",
                *map(str, words),
                env={"NGINX": f"{listener.fileno()};"},
                pass_fds=[listener.fileno()],
            )

    @property
    def address(self) -> str:
        """For `[upstream.connect]`."""
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """End both programs, and what they started."""
        self._front.terminate()
        self._front.wait(PATIENCE)
        for each in self._backends:
            each.kill()
            each.wait(PATIENCE)

    def create(self, name: str, *, filters: bool = True, object_format: str = "sha1") -> Bare:
        """An empty repository `owner/name`; one of this name that was there is gone."""
        path = self.root / f"{name}.git"
        if path.exists():
            shutil.rmtree(path)
        return Bare.make(path, filters=filters, object_format=object_format)

    def also(self, other: str, name: str) -> None:
        """Answer under another spelling too, as forges do that fold the case of names."""
        path = self.root / f"{other}.git"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(self.root / f"{name}.git")

    def url(self, name: str) -> str:
        """Where a repository is for a client that stands beside the server."""
        return f"https://localhost:{self.port}/{name}.git"

    def client(self, *, known: bool = True) -> dict[str, str]:
        """The environment of a git that asks directly; one that is known says so at once."""
        env = {**BARE_OF_SETTINGS, "GIT_SSL_CAINFO": str(self.directory / "ca.pem")}
        if known:
            word = base64.b64encode(f"{USER}:{self.secret}".encode()).decode()
            env |= {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "http.extraHeader",
                "GIT_CONFIG_VALUE_0": f"Authorization: Basic {word}",
            }
        return env

    def directly(
        self, where: Path, *words: str, known: bool = True, git: str = GIT
    ) -> subprocess.CompletedProcess[str]:
        """Run git without Keyhole between; for controls."""
        return subprocess.run(
            [git, *words],
            cwd=where,
            env=self.client(known=known),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def settle(self) -> None:
        """Come back when all that was answered so far is in the log, which is written after.

        There is one worker: what it logs of this question comes behind what it did before.
        """
        mark = secrets.token_hex(8)
        context = ssl.create_default_context(cadata=self.ca)
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            sock.sendall(f"GET /settled?{mark} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while sock.recv(4096):
                pass
        deadline = time.monotonic() + PATIENCE
        while mark not in self._log.read_text():
            if time.monotonic() > deadline:
                raise AssertionError((self.directory / "error.log").read_text())
            time.sleep(0.005)

    def asked(self) -> list[Asked]:
        """What has arrived since this was last asked."""
        self.settle()
        text = self._log.read_text()
        lines, self._read = text[self._read :].splitlines(), len(text)
        found = [Asked(**json.loads(line)) for line in lines]
        return [each for each in found if each.path != "/settled"]


def _start(sign: str, name: str, *words: str, **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start a program that ends with us, however we end."""
    program = str(shutil.which(name, path=SEARCH))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    command = ["/usr/bin/setpriv", "--pdeathsig", sign, program, *words]
    return subprocess.Popen(command, **{**quiet, "stderr": subprocess.DEVNULL, **more})


def missing() -> str | None:
    """What this host lacks for a server, in words."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if not lacking and not BACKEND.exists():
        lacking = [str(BACKEND)]
    return f"not installed: {', '.join(lacking)} (scripts/setup)" if lacking else None
