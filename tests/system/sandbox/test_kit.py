"""Unmodified clients trust this session's CA inside, by variable and without, and nobody else's."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.rigs.sandbox import kitted
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

POLICY = """
[services.claude]
secret = "store:claude"
[services.codex]
secret = "store:codex"
[services.github]
secret = "exec:gh auth token"
repos = ["acme/widgets"]
"""

JAVA = """
import java.net.*;
class Fetch {
    public static void main(String[] words) throws Exception {
        var opened = (HttpURLConnection) new URL(words[0]).openConnection();
        System.out.print(new String(opened.getInputStream().readAllBytes()));
    }
}
"""
"""It says nothing of trust stores: what the JVM finds by itself is meant."""

PYTHON = "import sys,urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end='')"
NODE = "fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))"

CLIENTS = {
    "curl": ["curl", "-s"],
    "wget": ["wget", "-qO-", "--tries=1"],
    "python3": ["/usr/bin/python3", "-I", "-S", "-c", PYTHON],
    "node": ["node", "-e", NODE],
}
JVM = ["-XX:TieredStopAtLevel=1", "Fetch.java"]

INSIDE = """
import glob, http.server, json, os, ssl, subprocess, threading, urllib.request
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        git = self.path.partition("?")[0].endswith("info/refs")
        body = (b"%040d\\trefs/heads/main\\n" % 1) if git else b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
server.handle_error = lambda *words: None
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.chain")
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_address[1]
url = f"https://localhost:{port}/"
bare = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}

def start(words, env):
    return subprocess.Popen(words, env=env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

clients = json.load(open("clients.json"))
clients = {name: [*words, url] for name, words in clients.items()}
for path in {os.path.realpath(path) for path in glob.glob("/usr/lib/jvm/*/bin/java")}:
    clients[path] = [path, *json.load(open("jvm.json")), url]
clients["git"] = ["git", "ls-remote", url + "widgets.git"]
clients["openssl"] = ["openssl", "s_client", "-connect", f"localhost:{port}", "-servername",
                      "localhost", "-verify_return_error", "-verify_hostname", "localhost"]
careless = ssl._create_unverified_context()
said = {"served": urllib.request.urlopen(url, context=careless).read().decode()}
kinds = {"variables": dict(os.environ)}
if "SSL_CERT_FILE" in os.environ:  # else there is nothing to do without
    kinds["bare"] = bare
for kind, env in kinds.items():
    started = {}
    for name, words in clients.items():
        try:
            started[name] = start(words, env)
        except FileNotFoundError:
            pass
    said[kind] = {}
    for name, process in started.items():
        out = process.communicate(timeout=50)[0]
        good = process.returncode == 0 and ("hello" in out or "refs/heads" in out
                                            or "Verification: OK" in out)
        said[kind][name] = good
print(json.dumps(said))
"""

LOOK = """
import json, os, stat
def read(path):
    with open(path) as file: return file.read()
def attempt(work):
    try:
        work()
    except OSError as error:
        return error.strerror
    return "done"
home = os.environ["HOME"]
codex, claude = f"{home}/.codex/auth.json", f"{home}/.claude.json"
def rewrite():
    with open(codex, "a") as file: file.write(" ")
def replace():
    with open(claude + ".new", "w") as file: file.write("{}")
    os.rename(claude + ".new", claude)
found = {
    "environment": dict(os.environ),
    "policy": json.loads(read("/etc/keyhole/policy.json")),
    "ca": read("/etc/keyhole/ca.pem"),
    "bundle": read("/etc/keyhole/bundle.pem"),
    "codex": json.loads(read(codex)),
    "claude": json.loads(read(claude)),
    "modes": [stat.S_IMODE(os.stat(p).st_mode) for p in (codex, "/etc/keyhole/ca.pem")],
    "owned": os.stat(codex).st_uid == os.getuid(),
    "rewritten": attempt(rewrite),
    "replaced": attempt(replace),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "forged": [attempt(lambda: open(p, "w").close()) for p in
               ("/etc/keyhole/ca.pem", "/etc/keyhole/bundle.pem", "/etc/keyhole/policy.json")],
}
print(json.dumps(found))
"""


class Rig:
    """A project with a server's certificate, and the two ways to start a sandbox in it."""

    def __init__(self, project: Project, authority: trustme.CA) -> None:
        self.project = project
        self.ca = authority.cert_pem.bytes().decode()
        leaf = authority.issue_cert("localhost")
        chain = leaf.private_key_pem.bytes() + b"".join(c.bytes() for c in leaf.cert_chain_pems)
        project.write("server.chain", chain.decode())
        project.write("Fetch.java", JAVA)
        project.write("clients.json", json.dumps(CLIENTS))
        project.write("jvm.json", json.dumps(JVM))
        self.driver = project.home / "kitted.py"
        shutil.copy(kitted.__file__, self.driver)
        project.person.own(self.driver)

    def run(self, script: str, *, kit: bool) -> tuple[Any, str]:
        """What the script printed as JSON, and what the kit had to say."""
        spec = self.project.home / "spec.json"
        spec.write_text(json.dumps({"ca": self.ca, "script": script, "kit": kit, "noise": "5a"}))
        self.project.person.own(spec)
        done = subprocess.run(
            [self.project.person.program.with_name("python"), "-I", self.driver, spec],
            cwd=self.project.directory,
            env=self.project.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
            check=False,
            **self.project.person.become(),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def rig(new_project: Callable[..., Project]) -> Rig:
    """A sandbox whose policy inspects."""
    return Rig(new_project(POLICY), trustme.CA())


@pytest.fixture(scope="module")
def fetched(rig: Rig) -> dict[str, Any]:
    """Which clients accepted the server's certificate where there is a kit."""
    found: dict[str, Any] = rig.run(INSIDE, kit=True)[0]
    return found


@pytest.fixture(scope="module")
def looked(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = rig.run(LOOK, kit=True)[0]
    return found


def test_every_client_accepts_a_certificate_of_this_sessions_ca(fetched: dict[str, Any]) -> None:
    assert fetched["variables"]
    assert all(fetched["variables"].values()), fetched


def test_clients_that_read_no_variable_accept_it_by_the_systems_own_places(
    fetched: dict[str, Any],
) -> None:
    """But for Node, which has roots of its own and only a variable to add to them."""
    refused = {name for name, accepted in fetched["bare"].items() if not accepted}
    assert refused <= {"node"}


def test_without_the_kit_every_client_refuses_it(rig: Rig) -> None:
    """The control: it is the kit that they trust. And the server is there for who does not ask."""
    said = rig.run(INSIDE, kit=False)[0]
    assert said["served"] == "hello"
    assert said["variables"]
    assert not any(said["variables"].values()), said


def test_no_private_key_and_no_reference_to_a_secret_comes_in(looked: dict[str, Any]) -> None:
    """I1. Control: what should be there is."""
    everything = json.dumps(looked)
    assert "PRIVATE KEY" not in everything
    assert "gh auth token" not in everything
    assert "store:" not in everything
    assert looked["ca"] in looked["bundle"]
    assert looked["environment"]["GH_TOKEN"].startswith("github_pat_")
    assert [s["name"] for s in looked["policy"]["services"]] == ["claude", "codex", "github"]


def test_a_stand_in_login_is_the_sandboxs_own_and_can_be_rewritten_and_replaced(
    looked: dict[str, Any],
) -> None:
    """Clients write such files anew, some by renaming, which a mount would not let them."""
    assert looked["codex"]["tokens"]["refresh_token"].startswith("keyhole-")
    assert looked["claude"] == {"hasCompletedOnboarding": True}
    assert looked["modes"] == [0o600, 0o444]
    assert looked["owned"]
    assert (looked["rewritten"], looked["replaced"]) == ("done", "done")


def test_what_the_kit_says_cannot_be_changed_inside(looked: dict[str, Any]) -> None:
    """I1. Control: the files of the sandbox's own, above."""
    assert looked["forged"] == ["Read-only file system"] * 3


def test_the_descriptors_that_the_files_came_by_are_closed(looked: dict[str, Any]) -> None:
    assert looked["descriptors"] == ["0", "1", "2", "3"]  # the last one lists them


def test_a_tree_that_the_policy_shows_is_not_written_to(
    new_project: Callable[..., Project],
) -> None:
    """I11: a stand-in must never land in a file of the host. Control: a masked login is covered."""
    project = new_project()
    login = project.home / ".codex/auth.json"
    login.parent.mkdir()
    project.person.own(login.parent)
    login.write_text('{"OPENAI_API_KEY": "of the host"}')
    project.person.own(login)
    shown = '[sandbox]\nwritable = [".", "~/.codex"]\n' + POLICY
    project.policy(shown)
    rig = Rig(project, trustme.CA())
    script = """
import json, os
with open(os.environ["HOME"] + "/.codex/auth.json") as file: print(file.read())
"""
    said, notices = rig.run(script, kit=True)
    assert said["tokens"]["refresh_token"].startswith("keyhole-")
    assert not notices
    login.unlink()
    there = """
import os
print(int(os.path.exists(os.environ["HOME"] + "/.codex/auth.json")))
"""
    said, notices = rig.run(there, kit=True)
    assert said == 0
    assert "~/.codex/auth.json" in notices
    assert not login.exists()
