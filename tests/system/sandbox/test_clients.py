"""Unmodified clients reach an allowed host without a proxy variable, and no other."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.origin import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.origin import GitAndWeb
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

JAVA = """
import java.io.*; import java.net.*; import java.security.*; import java.security.cert.*;
import javax.net.ssl.*;
class Fetch {
    public static void main(String[] words) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = new FileInputStream("ca.pem")) {
            store.setCertificateEntry(
                "ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        for (String word : words) {
            try {
                var opened = (HttpsURLConnection) new URL(word).openConnection();
                opened.setSSLSocketFactory(context.getSocketFactory());
                System.out.println(new String(opened.getInputStream().readAllBytes()));
            } catch (IOException error) {
                System.out.println("failed");
            }
        }
    }
}
"""

PYTHON = """
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile="ca.pem")
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, context=context).read().decode())
    except OSError:
        print("failed")
"""

NODE = """
(async () => {
  for (const url of process.argv.slice(2)) {
    try { console.log(await (await fetch(url)).text()) } catch { console.log("failed") }
  }
})()
"""

GOOD, EVIL = "https://origin.example/x", "https://evil.example/x"
REMOTE = f"https://origin.example{REPOSITORY}"

CLIENTS = {
    "curl": f"curl -s --cacert ca.pem {GOOD}; echo; curl -s --cacert ca.pem {EVIL} || echo failed",
    "wget": f"wget -qO- --ca-certificate=ca.pem {GOOD}; echo; "
    f"wget -qO- --tries=1 --ca-certificate=ca.pem {EVIL} || echo failed",
    "python3": f"python3 -I -S client.py {GOOD} {EVIL}",
    "node": f"NODE_EXTRA_CA_CERTS=ca.pem node client.js {GOOD} {EVIL}",
    "java": f"java -Xshare:auto -XX:TieredStopAtLevel=1 Fetch.java {GOOD} {EVIL}",
}

GIT = f"""
export GIT_SSL_CAINFO=$PWD/ca.pem GIT_TERMINAL_PROMPT=0
git clone --quiet {REMOTE} copy && cat copy/readme
git ls-remote {REMOTE} main | cut -f2
git ls-remote https://evil.example/widgets.git 2>/dev/null || echo failed
"""

# curl is told to go elsewhere than the name says; openssl to ask for another name.
FRONTING = """
curl -s --cacert ca.pem --connect-to second.example:443:origin.example:443 https://second.example/x
echo "fronted: $?"
curl -s --cacert ca.pem --connect-to origin.example:443:origin.example:443 https://origin.example/x
echo " direct: $?"
curl -sk --resolve second.example:443:192.0.2.7 https://second.example/x
echo "literal: $?"
"""

OPENSSL = """
for name in second.example origin.example; do
  openssl s_client -connect origin.example:443 -servername $name -CAfile ca.pem \
    -verify_return_error </dev/null >/dev/null 2>&1
  echo $name $?
done
"""


@pytest.fixture(scope="module")
def said(open_project: Callable[..., Project]) -> dict[str, list[str]]:
    """What every installed client printed, all in one run."""
    project = open_project()
    project.write("client.py", PYTHON)
    project.write("client.js", NODE)
    project.write("Fetch.java", JAVA)
    scripts = CLIENTS | {"git": GIT, "fronting": FRONTING, "openssl": OPENSSL}
    project.write("scripts.json", json.dumps(scripts))
    runner = """
import json, os, subprocess, sys
assert not [n for n in os.environ if "proxy" in n.lower()]
def run(script):
    return subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
started = {name: run(script) for name, script in json.load(open("scripts.json")).items()}
print(json.dumps({name: p.communicate(timeout=50)[0].splitlines() for name, p in started.items()}))
"""
    found: dict[str, list[str]] = project.python(runner)
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reaches_the_allowed_host_and_no_other(
    said: dict[str, list[str]], client: str
) -> None:
    """I3; the origin's own certificate is what it verifies, so the tunnel is not decrypted."""
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    assert said[client] == ["hello /x", "failed"]


def test_git_clones_from_the_allowed_host_and_no_other(
    said: dict[str, list[str]], origin: GitAndWeb
) -> None:
    """I3."""
    if not origin.has_git:
        pytest.skip("git http-backend is not installed")
    assert said["git"] == ["from the origin", "refs/heads/main", "failed"]


def test_clients_that_name_one_host_and_go_to_another_are_refused(
    said: dict[str, list[str]],
) -> None:
    """I4: domain fronting between two allowed names. Control: the same option, the same name."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    fronted, direct, literal = said["fronting"]
    assert fronted == "fronted: 35"
    assert direct == "hello /x direct: 0"
    assert literal in ("literal: 7", "literal: 35")  # cut while connecting, or just after


def test_openssl_that_asks_for_another_name_is_refused(said: dict[str, list[str]]) -> None:
    """I4. Control: the right name passes and verifies."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    assert said["openssl"] == ["second.example 1", "origin.example 0"]
