"""nginx on loopback, with TLS: what stands before the real services of tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from tests.rigs.sandbox.projects import SEARCH
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import trustme

_CONFIG = """
{user}
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
    {temporary}
    client_max_body_size 0;
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_set_header Host $http_host;
    proxy_set_header Connection "";
    {log}
    {servers}
}}
"""

_SERVER = """
    server {{
        listen {address} ssl{http2};
        ssl_certificate {directory}/{name}.pem;
        ssl_certificate_key {directory}/{name}.pem;
        {text}
    }}
"""


class Nginx:
    """A running one: a server for each text of directives, by the name of its certificate."""

    def __init__(
        self,
        directory: Path,
        log: str = "access_log off;",
        http2: Collection[str] = (),
        **servers: str,
    ) -> None:
        """Of the servers, those in `http2` offer that as well."""
        config = directory / "nginx.conf"
        # It is handed its listeners, so nobody can take a port that was chosen for it.
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in servers]
        addresses = ["{}:{}".format(*each.getsockname()) for each in listeners]
        self.addresses = dict(zip(servers, addresses, strict=True))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        config.write_text(
            _CONFIG.format(
                user="user root root;" if os.geteuid() == 0 else "",
                directory=directory,
                temporary=" ".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds),
                log=log,
                servers="".join(
                    _SERVER.format(
                        address=at,
                        http2=" http2" if name in http2 else "",
                        directory=directory,
                        name=name,
                        text=servers[name],
                    )
                    for name, at in self.addresses.items()
                ),
            )
        )
        words = ("-c", config, "-p", directory, "-e", directory / "error.log")
        handed = [each.fileno() for each in listeners]
        env = {"NGINX": "".join(f"{number};" for number in handed)}
        self._process = start("TERM", "nginx", *map(str, words), env=env, pass_fds=handed)
        for each in listeners:
            each.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


def write_chain(path: Path, authority: trustme.CA, *names: str) -> None:
    """A key and its certificate for these names, as nginx reads them."""
    leaf = authority.issue_cert(*names)
    chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
    path.write_bytes(leaf.private_key_pem.bytes() + chain)


def start(sign: str, name: str, *words: str, **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
    """Start a program that ends with us, however we end."""
    program = str(shutil.which(name, path=SEARCH))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    command = ["/usr/bin/setpriv", "--pdeathsig", sign, program, *words]
    return subprocess.Popen(command, **{**quiet, "stderr": subprocess.DEVNULL, **more})
