"""A real git server on loopback: nginx with TLS and Basic authentication, fcgiwrap behind it, and
`git http-backend` as everybody has it.

It plays a forge: `.git` is optional, a repository that was renamed answers with a redirect, and who
does not know the token is told nothing. What it was asked is in its access log.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from tests.rigs.git.repositories import BARE_OF_SETTINGS, GIT, Bare
from tests.rigs.nginx import Nginx, start, write_chain
from tests.rigs.sandbox.projects import SEARCH
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = ("nginx", "fcgiwrap", "git")
BACKEND = Path("/usr/lib/git-core/git-http-backend")
USER = "x-access-token"
AT_ONCE = 8
"""Requests that are answered side by side: clients run in parallel, and each keeps one busy."""

_LOG = """
    log_format told escape=json '{{"method":"$request_method","path":"$uri","query":"$args",'
        '"status":$status,"user":"$remote_user","size":$request_length,'
        '"protocol":"$http_git_protocol","kind":"$content_type","host":"$host",'
        '"version":"$server_protocol"}}';
    access_log {directory}/access.log told;
"""

_SERVER = """
        auth_basic "git";
        auth_basic_user_file {directory}/users;
{large}
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
"""  # noqa: E501

_LARGE = """
        location ~ "/info/lfs/" {{
            auth_basic off;
            access_log off;
            proxy_buffering on;
            proxy_pass http://127.0.0.1:{port};
        }}
"""

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
    version: str

    @property
    def pushes(self) -> bool:
        """Whether it is the request that carries a push."""
        return self.method == "POST" and self.path.endswith("/git-receive-pack")


class GitServer:
    def __init__(
        self,
        directory: Path,
        *names: str,
        renamed: Mapping[str, str] | None = None,
        authority: trustme.CA | None = None,
        large: int = 0,
        http2: bool = False,
    ) -> None:
        """Serve under these names; `renamed` leads an old repository's name to its new one, and
        `large` is the port of a server of large files. With `http2`, offer that as well."""
        directory.mkdir()
        directory.chmod(0o755)
        self.directory = directory
        self.secret = "ghp_" + secrets.token_hex(18)
        self.authority = authority or trustme.CA()
        self.ca = self.authority.cert_pem.bytes().decode()
        (directory / "ca.pem").write_text(self.ca)
        self.root = directory / "repositories"
        self.root.mkdir()
        write_chain(directory / "leaf.pem", self.authority, "localhost", *names)
        (directory / "users").write_text(f"{USER}:{{PLAIN}}{self.secret}\n")
        self._log = directory / "access.log"
        self._log.touch()
        self._read = 0
        self._backends = self._start_backends()
        text = _SERVER.format(
            directory=directory,
            backend=BACKEND,
            root=self.root,
            large=_LARGE.format(port=large) if large else "",
            renamed="".join(_RENAMED.format(old=o, new=n) for o, n in (renamed or {}).items()),
        )
        log = _LOG.format(directory=directory)
        self._front = Nginx(directory, log, ("leaf",) if http2 else (), leaf=text)
        self.address = self._front.addresses["leaf"]
        """For `[upstream.connect]`."""
        self.port = int(self.address.partition(":")[2])
        self.settle()

    def _start_backends(self) -> list[subprocess.Popen[bytes]]:
        """fcgiwrap takes its listener as standard input, as FastCGI has it."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.directory / "backend.sock"))
            listener.listen(256)
            return [
                start("KILL", "fcgiwrap", stdin=listener.fileno(), env=BARE_OF_SETTINGS)
                for _ in range(AT_ONCE)
            ]

    def close(self) -> None:
        """End both programs, and what they started."""
        self._front.close()
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
        until(lambda: mark in self._log.read_text(), told=(self.directory / "error.log").read_text)

    def asked(self) -> list[Asked]:
        """What has arrived since this was last asked."""
        self.settle()
        text = self._log.read_text()
        lines, self._read = text[self._read :].splitlines(), len(text)
        found = [Asked(**json.loads(line)) for line in lines]
        return [each for each in found if each.path != "/settled"]


def missing() -> str | None:
    """What this host lacks for a server, in words."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if not lacking and not BACKEND.exists():
        lacking = [str(BACKEND)]
    return f"not installed: {', '.join(lacking)} (scripts/setup)" if lacking else None
