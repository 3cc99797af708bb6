"""Real services on loopback: nginx with TLS, and behind it `programs/upstream.py`."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import socket
import ssl
import string
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sandbox.origin import git
from tests.sandbox.people import PATIENCE
from tests.sandbox.projects import SEARCH, line_of

if TYPE_CHECKING:
    import trustme

    from tests.sandbox.projects import Project

CLIENTS = Path(__file__).parents[2] / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"

BUCKET = "widgets.s3.eu-west-1.amazonaws.com"
TRUSTED = (
    "api.anthropic.com",
    "api.openai.com",
    "billing.example",
    "pinned.example",
    "plain.example",
    "git.example",
    BUCKET,
    "bedrock-runtime.eu-west-1.amazonaws.com",
)
UNTRUSTED = "untrusted.example"
"""Its certificate is of an authority that nobody named."""

CLOCK_GRAIN = 1.0
"""Seconds by which a file system's clock may be behind."""

_CONFIG = """
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_set_header Host $http_host;
    proxy_set_header Connection "";
    server {{
        listen {trusted} ssl;
        ssl_certificate {directory}/trusted.pem;
        ssl_certificate_key {directory}/trusted.pem;
        location / {{ proxy_pass http://127.0.0.1:{http}; }}
        location /v1/talk {{
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_pass http://127.0.0.1:{sockets};
        }}
    }}
    server {{
        listen {untrusted} ssl;
        ssl_certificate {directory}/untrusted.pem;
        ssl_certificate_key {directory}/untrusted.pem;
        location / {{ proxy_pass http://127.0.0.1:{http}; }}
    }}
}}
"""


def random_text(prefix: str, size: int = 48) -> str:
    """A secret that nothing on this host can hold by chance."""
    letters = string.ascii_letters + string.digits
    return prefix + "".join(secrets.choice(letters) for _ in range(size))


@dataclass(frozen=True)
class Keys:
    """The real ones, which must never be seen inside."""

    anthropic: str
    openai: str
    billing: str
    git: str
    aws_id: str
    aws_secret: str

    @classmethod
    def make(cls) -> Keys:
        """Others in each run of the suite: a file from before it cannot hold them."""
        return cls(
            anthropic=random_text("sk-ant-api03-real"),
            openai=random_text("sk-proj-real"),
            billing=random_text("bill-real-"),
            git=random_text("git-real-"),
            aws_id="AKIA" + base64.b32encode(secrets.token_bytes(10)).decode(),
            aws_secret=base64.b64encode(secrets.token_bytes(30)).decode(),
        )

    def all(self) -> tuple[str, ...]:
        """Whatever must stay outside; an access key's id is a name."""
        return (self.anthropic, self.openai, self.billing, self.git, self.aws_secret)


class Services:
    """All that clients call, while the tests last."""

    def __init__(self, directory: Path, authority: trustme.CA, stranger: trustme.CA) -> None:
        directory.mkdir()
        self.keys = Keys.make()
        self.since = time.time() - CLOCK_GRAIN
        self.ca = authority.cert_pem.bytes().decode()
        self._requests = directory / "requests"
        self._requests.touch()
        (directory / "trusted.pem").write_bytes(_chain(authority, *TRUSTED))
        (directory / "untrusted.pem").write_bytes(_chain(stranger, UNTRUSTED))
        _make_repositories(directory / "git")
        self._upstream = self._start_upstream(directory)
        ports = line_of(self._upstream.stdout).split()
        # nginx is handed its listeners, so nobody can take a port that was chosen for it.
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(2)]
        trusted, untrusted = ("{}:{}".format(*each.getsockname()) for each in listeners)
        self._addresses = dict.fromkeys(TRUSTED, trusted) | {UNTRUSTED: untrusted}
        config = directory / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                directory=directory,
                http=ports[0],
                sockets=ports[1],
                trusted=trusted,
                untrusted=untrusted,
            )
        )
        handed = [each.fileno() for each in listeners]
        nginx = shutil.which("nginx", path=SEARCH)
        self._nginx = subprocess.Popen(
            [str(nginx), "-c", config, "-p", directory, "-e", directory / "error.log"],
            env={"NGINX": "".join(f"{number};" for number in handed)},
            pass_fds=handed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in listeners:
            each.close()

    def _start_upstream(self, directory: Path) -> subprocess.Popen[bytes]:
        keys = self.keys
        spec = directory / "spec.json"
        spec.write_text(
            json.dumps(
                {
                    "keys": {
                        "anthropic": keys.anthropic,
                        "openai": keys.openai,
                        "git": keys.git,
                        "aws-id": keys.aws_id,
                        "aws-secret": keys.aws_secret,
                    },
                    "git": str(directory / "git"),
                    "requests": str(self._requests),
                }
            )
        )
        return subprocess.Popen(
            [CLIENTS / "bin/python", PROGRAMS / "upstream.py", spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self) -> None:
        """End both programs."""
        self._nginx.terminate()
        self._nginx.wait(PATIENCE)
        self._upstream.communicate(timeout=PATIENCE)

    def sign_directly(self, key: str, secret: str) -> int:
        """What the bucket says to a request that somebody outside signs."""
        done = subprocess.run(
            [CLIENTS / "bin/python", PROGRAMS / "sign.py", self._addresses[BUCKET], BUCKET, key],
            input=secret,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return int(done.stdout)

    def ask_directly(self, host: str, header: str, value: str) -> int:
        """What a service says to a request without Keyhole between."""
        context = ssl.create_default_context(cadata=self.ca)
        address, _, port = self._addresses[host].partition(":")
        head = f"GET /v1/models/x HTTP/1.1\r\nHost: {host}\r\n{header}: {value}\r\n\r\n"
        plain = socket.create_connection((address, int(port)), PATIENCE)
        with context.wrap_socket(plain, server_hostname=host) as sock:
            sock.sendall(head.encode())
            return int(sock.recv(4096).split()[1])

    def requests(self, host: str) -> list[dict[str, Any]]:
        """What a host was asked so far, with the headers as it got them."""
        lines = self._requests.read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["host"] == host]

    def until_left(self, path: str) -> bool:
        """Whether the reader of an endless answer has gone, which its writer notices in time."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if any(entry["path"] == path for entry in self.requests("left")):
                return True
            time.sleep(0.01)
        return False

    def equip(self, project: Project, services: str, more: str = "") -> None:
        """Give a project a policy with these services, who lead here."""
        project.write("origin-ca.pem", self.ca)
        path = project.home / "origin-ca.pem"
        path.write_text(self.ca)
        project.person.own(path)
        connect = "".join(f'"{name}:443" = "{at}"\n' for name, at in self._addresses.items())
        project.policy(
            f'{more}\n{services}\n[upstream]\nca_file = "~/origin-ca.pem"\n'
            f"[upstream.connect]\n{connect}"
        )


def keep(project: Project, name: str, text: str) -> Path:
    """A file in the home of somebody who keeps a secret there."""
    path = project.home / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    path.chmod(0o600)
    project.person.own(path.parent, path)
    return path


def _chain(authority: trustme.CA, *names: str) -> bytes:
    leaf = authority.issue_cert(*names)
    return leaf.private_key_pem.bytes() + b"".join(each.bytes() for each in leaf.cert_chain_pems)


def _make_repositories(root: Path) -> None:
    """acme/widgets, which policies grant, and acme/vault, which none does."""
    for name in ("acme/widgets.git", "acme/vault.git"):
        bare = root / name
        bare.parent.mkdir(parents=True, exist_ok=True)
        git(root, "init", "--quiet", "--bare", "--initial-branch=main", str(bare))
        git(bare, "config", "http.receivepack", "true")
        work = root / "work" / name
        work.parent.mkdir(parents=True, exist_ok=True)
        git(root, "clone", "--quiet", str(bare), str(work))
        (work / "readme").write_text(f"of {name}\n")
        git(work, "add", "readme")
        git(work, "commit", "--quiet", "--message=first")
        git(work, "push", "--quiet", "origin", "HEAD:main")
