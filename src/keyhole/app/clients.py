"""The clients whose trust the doctor tries, and how each is made to ask.

Read by `clienttrial.py`. Each asks two hosts under its own name and says what it met; whether it
trusts whom it should is judged by what arrived, not by its words. Nothing is run here. `INSIDE` is
the sandbox's command: it runs on a bare interpreter and imports nothing of Keyhole's.
"""

from __future__ import annotations

from collections.abc import Callable

from keyhole.app.kit import BUNDLE, CA
from keyhole.model.value import dataclass

ABSENT = 77
"""How a client ends that is installed without what it needs to ask, as a skipped test does."""

NOTHING = "keyhole-doctor"
"""A package that no index has."""

JAVA_FILE = "Ask.java"

JAVA = """\
class Ask {
    public static void main(String[] words) throws Exception {
        for (String word : words) {
            try {
                java.net.URI.create(word).toURL().openStream().readAllBytes();
            } catch (java.io.IOException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
"""

_URLLIB = f"""
import sys
try:
    import ssl, urllib.request
except ImportError:
    sys.exit({ABSENT})
for url in sys.argv[1:]:
    try:
        urllib.request.urlopen(url, timeout=10).read()
    except OSError as error:
        print(error)
"""

_REQUESTS = f"""
import sys
try:
    import requests
except ImportError:
    sys.exit({ABSENT})
for url in sys.argv[1:]:
    try:
        requests.get(url, timeout=10)
    except OSError as error:
        print(error)
"""

_NODE = """
for (const url of process.argv.slice(1))
  require("https").get(url, answer => answer.resume())
    .on("error", error => console.log(error.code, error.message))
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A host, and the path there by which one client's requests are told from the others'."""

    host: str
    path: str

    @property
    def url(self) -> str:
        """What most clients take."""
        return f"https://{self.host}{self.path}"

    @property
    def request(self) -> str:
        """What a client that knows no HTTP is given to send."""
        return f"GET {self.path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Call:
    """One start of a client's program."""

    words: tuple[str, ...]
    said: str = ""
    """On its standard input."""


Calls = Callable[[Asked, Asked], tuple[Call, ...]]
"""How a client is made to ask a service, and a stranger whom nobody vouches for."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program, how it is called, and what says whom it trusts."""

    name: str
    programs: tuple[str, ...]
    """What must be installed; the first is called."""
    calls: Calls
    reads: str
    vital: bool = False
    """Whether the kit is broken if this one does not trust the CA. The others may have settings of
    their own."""


def _at_once(*words: str) -> Calls:
    """For a client that takes any number of addresses."""
    return lambda service, stranger: (Call((*words, service.url, stranger.url)),)


def _one_each(call: Callable[[Asked], Call]) -> Calls:
    return lambda service, stranger: (call(service), call(stranger))


def _pip(service: Asked, stranger: Asked) -> tuple[Call, ...]:
    quick = ("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "0")
    indexes = ("--index-url", service.url, "--extra-index-url", stranger.url)
    return (Call(("download", *quick, *indexes, NOTHING)),)


def _git(asked: Asked) -> Call:
    return Call(("-c", "credential.helper=", "ls-remote", asked.url))


def _cargo(asked: Asked) -> Call:
    # Else it tries three times more and waits longer each time.
    once = ("--config", "net.retry=0")
    return Call(("search", *once, "--index", f"sparse+{asked.url}", NOTHING))


def _openssl(asked: Asked) -> Call:
    verified = ("-verify_return_error", "-verify_hostname", asked.host)
    where = ("-connect", f"{asked.host}:443", "-servername", asked.host)
    return Call(("s_client", "-quiet", *where, *verified), asked.request)


_JVM = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a program that ends at once: a third less of a core."""

CLIENTS = (
    Client(
        "java",
        ("java", "javac"),
        _at_once(*_JVM, JAVA_FILE),
        "cacerts of its JVM, which is covered, or -Djavax.net.ssl.trustStore",
    ),
    Client(
        "pip",
        ("pip3",),
        _pip,
        f"REQUESTS_CA_BUNDLE={BUNDLE}, then PIP_CERT",
    ),
    Client(
        "requests",
        ("python3",),
        _at_once("-I", "-c", _REQUESTS),
        f"REQUESTS_CA_BUNDLE={BUNDLE}",
    ),
    Client(
        "python",
        ("python3",),
        _at_once("-I", "-c", _URLLIB),
        f"SSL_CERT_FILE={BUNDLE}",
        vital=True,
    ),
    Client("node", ("node",), _at_once("-e", _NODE), f"NODE_EXTRA_CA_CERTS={CA}"),
    Client("git", ("git",), _one_each(_git), f"GIT_SSL_CAINFO={BUNDLE}"),
    Client("cargo", ("cargo",), _one_each(_cargo), f"CARGO_HTTP_CAINFO={BUNDLE}"),
    Client(
        "curl",
        ("curl",),
        _at_once("-sS", "--max-time", "10"),
        f"CURL_CA_BUNDLE={BUNDLE}, unless --cacert or a .curlrc says otherwise",
        vital=True,
    ),
    Client(
        "wget",
        ("wget",),
        _at_once("-q", "-O", "-", "--tries=1", "--timeout=10"),
        "the system's bundle, which is covered, unless a wgetrc says otherwise",
    ),
    Client("openssl", ("openssl",), _one_each(_openssl), f"SSL_CERT_FILE={BUNDLE}"),
)
"""Those that take longest first: they are started in this order, all at once."""

INSIDE = """
import contextlib, json, os, signal, subprocess, sys, time
clients, seconds, own = json.loads(sys.argv[1])
os.environ["GIT_TERMINAL_PROMPT"] = "0"

def find(program):
    for directory in os.environ.get("PATH", "").split(":"):
        path = os.path.join(directory, program)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return sys.executable if own and program == "python3" else None

def start(words, said):
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    with contextlib.suppress(BrokenPipeError), process.stdin as sink:
        sink.write(said.encode())
    process.stdin = None
    return process

started = {}
for name, (programs, calls) in clients.items():
    found = [find(program) for program in programs]
    if all(found):
        started[name] = found[0], [start([found[0], *words], said) for words, said in calls]
ended, deadline = {}, time.monotonic() + seconds
for name, (program, processes) in started.items():
    said, codes = b"", []
    for process in processes:
        try:
            said += process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            # With its children, who hold the same output.
            os.killpg(process.pid, signal.SIGKILL)
            said += process.communicate()[0]
        codes.append(process.returncode)
    ended[name] = {"program": program, "codes": codes, "said": said.decode("utf-8", "replace")}
print(json.dumps(ended))
"""
"""Calls every client that is there, all at once, and prints how each ended and what it said."""
