"""Clients of an image trust the session's CA, each by the means it has; nobody else's (I1, I4).

All ask the same service, which answers only to the credential that the gateway writes: who got an
answer took the gateway's certificate. The control is a tunnelled host whose certificate nobody
vouches for. That git clones and pushes is seen in the demo.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from keyhole.app.proofs.client_programs import JAVA, JAVA_FILE
from tests.rigs.containers.engines import CURL, ROOTS, TOOLS, OwnEngine, make_image
from tests.rigs.gateway.origins import Origin, tls_for
from tests.system.sandbox.test_packages import INDEX, PASSWORD, Index

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

PIP = Path("/usr/lib/python3/dist-packages/pip")
STDLIB = "/usr/lib/python3.11"
JAVA_STORE = "/etc/ssl/certs/java/cacerts"
STRANGER = "stranger.example"
PAGE = f"https://{INDEX}/private/simple/keyholetest/"

POLICY = """
[services.index]
hosts  = ["{index}"]
inject = {{ basic_user = "reader" }}
secret = "file:~/key"
allow  = ["GET /**"]
[egress]
allow = ["{stranger}"]
[upstream]
ca_file = "~/ca.pem"
[upstream.connect]
"{index}:443" = "{address}"
"{stranger}:443" = "{unvouched}"
"""

NODE = """
(async () => { for (const url of process.argv.slice(1)) {
  try { console.log((await fetch(url)).status) } catch (error) { console.log(error.cause.code) } }
})()
"""


@pytest.fixture
def origins(authority: trustme.CA) -> Iterator[tuple[str, str]]:
    """An index that wants a login, and one whose certificate nobody vouches for."""
    made = []
    for ca, name in ((authority, INDEX), (trustme.CA(), STRANGER)):
        context = tls_for(ca, name)
        made.append(Origin(_serve, context))
    yield made[0].address, made[1].address
    for each in made:
        each.close()


def _serve(sock: socket.socket) -> None:
    Index(sock, ("127.0.0.1", 0), None)  # type: ignore[arg-type]


def test_clients_of_an_image_trust_the_session_and_nobody_else(
    new_project: Callable[..., Boxed],
    dockerd: OwnEngine,
    authority: trustme.CA,
    origins: tuple[str, str],
) -> None:
    """I1, I4: by variable, by the system's list, by the JVM's own store."""
    node, java = shutil.which("node"), shutil.which("java")
    if os.environ.get("CI") == "true":
        assert node, "no node"
        assert PIP.is_dir(), "no pip"
    jvm = Path(os.path.realpath(java)).parents[1] if java else None
    settings = [str(path) for path in Path("/etc").glob("java-*-openjdk")]
    name = make_image(
        dockerd.engine,
        "clients:1",
        [*TOOLS, *CURL, "/usr/bin/python3", *([node] if node else []), *([java] if java else [])],
        {ROOTS: "", JAVA_STORE: ""},
        trees=[STDLIB, *([str(PIP)] if PIP.is_dir() else []), *settings],
    )
    shown = f"readable = [{json.dumps(str(jvm))}]" if jvm else ""
    address, unvouched = origins
    policy = POLICY.format(index=INDEX, stranger=STRANGER, address=address, unvouched=unvouched)
    project = new_project(policy, image=name, more=shown)
    project.write("../home/key", PASSWORD).chmod(0o600)
    project.write("../home/ca.pem", authority.cert_pem.bytes().decode())
    project.write(JAVA_FILE, JAVA)
    pages = f"{PAGE} https://{STRANGER}/"
    wanted = {"curl": f"curl -sS {pages}"}
    if PIP.is_dir():
        quick = "--no-cache-dir --disable-pip-version-check --retries 0 --no-compile"
        indexes = (
            f"--index-url https://{INDEX}/private/simple/ --extra-index-url https://{STRANGER}/"
        )
        wanted["pip"] = (
            f"python3 -m pip install {quick} {indexes} --target $HOME/t keyholetest && "
            "cat $HOME/t/keyholetest.py"
        )
    if node:
        wanted["node"] = f"node -e '{NODE}' {pages}"
    if jvm:
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
        wanted["java"] = f"{jvm}/bin/java {quick} {JAVA_FILE} {pages} && echo asked"
    # All at once, since most of the time is the longest one's.
    asked = "\n".join(f"( {words} ) >$HOME/{name} 2>&1 &" for name, words in wanted.items())
    told = "\n".join(f"echo '== {name}'; cat $HOME/{name}" for name in wanted)
    done = project.shell(f"{asked}\nwait\n{told}", flags=("-q",))
    said = dict(part.split("\n", 1) for part in done.out.split("== ")[1:])
    assert said.keys() == wanted.keys(), done
    assert "keyholetest" in said["curl"], done
    assert "certificate" in said["curl"], "control: a stranger is nobody's"
    if "pip" in said:
        assert "WORKS = True" in said["pip"], done
        assert "CERTIFICATE_VERIFY_FAILED" in said["pip"], done
    if "node" in said:
        assert said["node"].split() == ["200", "UNABLE_TO_VERIFY_LEAF_SIGNATURE"], done
    if "java" in said:
        # It says what it was refused: the stranger alone, whose certificate it could not verify.
        assert said["java"].count("PKIX") == 1, done
        assert "401" not in said["java"]
        assert "asked" in said["java"]
    assert PASSWORD not in done.out + done.err
