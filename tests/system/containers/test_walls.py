"""What holds in a container: the network, the identity, the files, the credentials (I1 to I5)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

from keyhole.app.selftest.selftest import _targets
from keyhole.sandbox import probe
from tests.rigs.containers.engines import CURL, ROOTS, TOOLS, OwnEngine, make_image
from tests.rigs.sandbox.projects import line_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import trustme

    from tests.rigs.containers.billing import Billing
    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

_FEDORA = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
LAYOUTS = {
    "alpine": ({ROOTS: ""}, {"/etc/ssl/cert.pem": "certs/ca-certificates.crt"}, "ssl/cert.pem"),
    "fedora": (
        {_FEDORA: ""},
        {"/etc/pki/tls/certs/ca-bundle.crt": _FEDORA, "/etc/ssl/certs": "../pki/tls/certs"},
        "ssl/certs/ca-bundle.crt",
    ),
    "nothing": ({}, {}, "ssl/certs/ca-certificates.crt"),
}
"""Files, links, and a name of the list that programs read; Debian's is the last, and the image of
the other tests is laid out as Debian does it."""


def test_every_known_way_out_is_closed(new_project: Callable[..., Boxed]) -> None:
    """I2, by the same probe as for bubblewrap; its controls must succeed."""
    project = new_project('[egress]\nallow = ["allowed.example"]\n')
    with ExitStack() as stack:
        targets = _targets(stack) | {"allowed": "allowed.example", "contained": True}
        code = Path(probe.__file__).read_text("utf-8")
        rows = project.python(code, json.dumps(targets))
    assert len(rows) > 80
    assert {row["id"]: row["seen"] for row in rows if not row["held"]} == {}


def test_a_credential_is_written_outside_and_its_clients_trust_the_session(
    new_project: Callable[..., Boxed], dockerd: OwnEngine, authority: trustme.CA, service: Billing
) -> None:
    """I1: curl, by variable and by the system's own list, in images of each layout."""
    script = """
curl -sS https://origin.example/one && echo
env -u SSL_CERT_FILE -u CURL_CA_BUNDLE curl -sS --cacert /etc/$0 https://origin.example/two && echo
curl -sS --cacert /etc/passwd https://origin.example/three
echo $THE_KEY; cat /etc/keyhole/policy.json
"""
    for layout, (texts, links, listed) in LAYOUTS.items():
        name = make_image(dockerd.engine, f"layout:{layout}", (*TOOLS, *CURL), texts, links)
        project = new_project(service.policy, image=name)
        project.write("../home/key", "s3cr3t-of-the-service").chmod(0o600)
        project.write("../home/ca.pem", authority.cert_pem.bytes().decode())
        done = project.run("sh", "-c", script, listed, flags=("-q",))
        assert done.lines[:2] == ["hello /one", "hello /two"], (layout, done)
        assert "certificate" in done.err, "with a list that is none, nobody is trusted"
        assert done.lines[2].startswith("keyhole-")
        assert "s3cr3t-of-the-service" not in done.out + done.err
    assert set(service.seen) == {"Bearer s3cr3t-of-the-service"}


CITIZEN = """
import json, socket, sys
def ask(name):
    try:
        with socket.create_connection((name, 443), 20) as client:
            return client.getpeername()[0]
    except OSError as error:
        return type(error).__name__
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps([ask(name) for name in json.loads(line)]), flush=True)
"""


def test_two_containers_under_one_gateway_have_each_their_own_policy(
    new_project: Callable[..., Boxed], origin: GitAndWeb
) -> None:
    """I5: who asks is which door it came by. Both reach their own name and not the other's."""
    names = ("origin.example", "second.example")
    first, second = (new_project(origin.policy(name)) for name in names)
    shared = {"XDG_RUNTIME_DIR": str(first.home), "XDG_STATE_HOME": str(first.home / "state")}
    assert first("up", env=shared).code == 0
    try:
        answers = []
        words = ("python3", "-I", "-S", "-c", CITIZEN)
        with (
            first.running(*words, env=shared, stdin=PIPE) as one,
            second.running(*words, env=shared, stdin=PIPE) as two,
        ):
            for each in (one, two):
                assert line_of(each.stdout) == "ready"
            for each in (one, two):
                assert each.stdin is not None
                each.stdin.write(json.dumps(names).encode() + b"\n")
                each.stdin.flush()
                answers.append(json.loads(line_of(each.stdout)))
        assert answers == [["198.18.0.1", "gaierror"], ["gaierror", "198.18.0.1"]]
    finally:
        assert first("down", env=shared).code == 0


def test_git_clones_through_the_door(
    new_project: Callable[..., Boxed], origin: GitAndWeb, authority: trustme.CA
) -> None:
    project = new_project(origin.policy("origin.example"))
    project.write("ca.pem", authority.cert_pem.bytes().decode())
    done = project.shell(
        "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q https://origin.example/widgets.git && ls widgets"
    )
    assert done.code == 0, done
    assert done.lines
