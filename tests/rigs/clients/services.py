"""Real services on loopback: nginx with TLS, and behind it `programs/upstream.py`."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
import string
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.rigs.gateway.origins import Origin, Service, tls_for
from tests.rigs.gateway.talk import ok
from tests.rigs.git.backend import answer_git
from tests.rigs.git.repositories import Bare
from tests.rigs.nginx import Nginx, write_chain
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import trustme

    from tests.rigs.gateway.talk import Message
    from tests.rigs.sandbox.projects import Project

CLIENTS = Path(__file__).parents[3] / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"

GIT = "git.example"
BUCKET = "widgets.s3.eu-west-1.amazonaws.com"
TRUSTED = (
    "api.anthropic.com",
    "api.openai.com",
    "billing.example",
    "pinned.example",
    "plain.example",
    BUCKET,
    "bedrock-runtime.eu-west-1.amazonaws.com",
    "sqs.eu-west-1.amazonaws.com",
    "sns.eu-west-1.amazonaws.com",
    "slack.com",
    "kube.example",
)
UNTRUSTED = "untrusted.example"
"""Its certificate is of an authority that nobody named."""

CLOCK_GRAIN = 1.0
"""Seconds by which a file system's clock may be behind."""

_PROXY = "location / {{ proxy_pass http://127.0.0.1:{http}; }}"
_TALK = """
        location /v1/talk {{
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_pass http://127.0.0.1:{sockets};
        }}
        location ~ /exec$ {{
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_pass http://127.0.0.1:{sockets};
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
    slack: str
    kube: str

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
            slack=random_text("xoxb-real-"),
            kube=random_text("kube-real-"),
        )

    def all(self) -> tuple[str, ...]:
        """Whatever must stay outside; an access key's id is a name."""
        own = (self.anthropic, self.openai, self.billing, self.git, self.aws_secret)
        return (*own, self.slack, self.kube)


class Services:
    """All that clients call, while the tests last."""

    def __init__(self, directory: Path, authority: trustme.CA, stranger: trustme.CA) -> None:
        directory.mkdir()
        self.keys = Keys.make()
        self.since = time.time() - CLOCK_GRAIN
        self.ca = authority.cert_pem.bytes().decode()
        self._requests = directory / "requests"
        self._requests.touch()
        write_chain(directory / "trusted.pem", authority, *TRUSTED)
        write_chain(directory / "untrusted.pem", stranger, UNTRUSTED)
        # acme/widgets, which policies grant, and acme/vault, which none does.
        self._repositories = directory / "git"
        for name in ("acme/widgets.git", "acme/vault.git"):
            made = Bare.make(self._repositories / name)
            made.commit("main", {"readme": f"of {name}\n".encode()})
        self._git = Service(self._answer_git)
        self._git_origin = Origin(self._git, tls_for(authority, GIT))
        self._upstream = self._start_upstream(directory)
        http, sockets = line_of(self._upstream.stdout).split()
        proxy = _PROXY.format(http=http)
        self._nginx = Nginx(
            directory, trusted=proxy + _TALK.format(sockets=sockets), untrusted=proxy
        )
        trusted, untrusted = self._nginx.addresses.values()
        self._addresses = dict.fromkeys(TRUSTED, trusted) | {UNTRUSTED: untrusted}
        self._addresses[GIT] = self._git_origin.address

    def _answer_git(self, message: Message) -> bytes:
        """To anybody that has the key."""
        given = base64.b64encode(f"robot:{self.keys.git}".encode()).decode()
        if message.one("authorization") != f"Basic {given}":
            challenge = b'WWW-Authenticate: Basic realm="git"'
            return ok(b"", challenge, status=b"401 Unauthorized")
        return answer_git(message, self._repositories)

    def _start_upstream(self, directory: Path) -> subprocess.Popen[bytes]:
        keys = self.keys
        spec = directory / "spec.json"
        spec.write_text(
            json.dumps(
                {
                    "keys": {
                        "anthropic": keys.anthropic,
                        "openai": keys.openai,
                        "aws-id": keys.aws_id,
                        "aws-secret": keys.aws_secret,
                        "slack": keys.slack,
                        "kube": keys.kube,
                    },
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
        self._nginx.close()
        self._git_origin.close()
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

    @property
    def git_requests(self) -> list[Message]:
        """What was asked of git."""
        return self._git.seen

    def until_left(self, path: str) -> None:
        """Wait until the reader of an endless answer has gone, which its writer notices."""
        until(lambda: any(entry["path"] == path for entry in self.requests("left")))

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
