"""AWS's SDK in a bidirectional stream of Bedrock, by `keyhole run` (I1, I4, I6).

The origin is a stand-in that verifies the signatures of the head and of each event by itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.rigs.clients.services import PROGRAMS
from tests.rigs.lacking import give_up
from tests.rigs.nginx import write_chain
from tests.rigs.sandbox.projects import SEARCH, line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.attack]

HOST = "bedrock-runtime.eu-west-1.amazonaws.com"
KEY = ("AKIAREALREALREALREAL", "real/secret+key0123456789abcdefghijklmno")
PACKAGES = (
    "@aws-sdk/client-bedrock-runtime@3.1162.0",
    "@smithy/eventstream-codec@4.5.2",
    "@smithy/util-utf8@4.5.2",
)
EVENTS = 40
BUILDING = 300
"""Seconds for the packages to come."""

POLICY = """
[services.bedrock]
hosts = ["{host}"]
secret = "file:{secret}"
[sandbox.env]
AWS_REGION = "eu-west-1"
[upstream]
ca_file = "{authority}"
[upstream.connect]
"{host}:443" = "127.0.0.1:{port}"
"""


def test_events_go_both_ways_and_are_signed_anew(
    ground: Path, new_project: Callable[[], Project]
) -> None:
    """Each waits for the answer to the one before it, whatever its checksum ends with."""
    npm, node = (shutil.which(name, path=SEARCH) for name in ("npm", "node"))
    if npm is None or node is None:
        give_up("node is not installed")
    project, directory = new_project(), ground / "bedrock"
    directory.mkdir(mode=0o755)
    words = ("install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES)
    subprocess.run([npm, *words], cwd=project.directory, check=True, timeout=BUILDING)
    authority = trustme.CA()
    write_chain(directory / "chain.pem", authority, HOST)
    (directory / "authority.pem").write_bytes(authority.cert_pem.bytes())
    (directory / "secret").write_text("\n".join(KEY))
    (directory / "secret").chmod(0o600)
    for name in ("bedrock_origin.mjs", "bedrock_client.mjs"):
        project.write(name, (PROGRAMS / name).read_text())
    origin = project.directory / "bedrock_origin.mjs"
    with subprocess.Popen(
        [node, origin, directory / "chain.pem", *KEY], stdout=subprocess.PIPE
    ) as server:
        try:
            policy = POLICY.format(
                host=HOST,
                secret=directory / "secret",
                authority=directory / "authority.pem",
                port=line_of(server.stdout),
            )
            project.policy(policy)
            done = project.run("node", "bedrock_client.mjs")
            assert done.code == 0, done
        finally:
            server.kill()
        out, _ = server.communicate(timeout=PATIENCE)
    assert json.loads(done.out) == [f"heard event {number}" for number in range(EVENTS)]
    got = [json.loads(line) for line in out.splitlines()]
    assert got == [[f"event {number}", True] for number in range(EVENTS)] + [["", True]]
    assert KEY[1] not in done.out + done.err
