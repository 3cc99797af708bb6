"""The clients whose trust the doctor checks, and the command of each.

Read by `client_trust.py`. Each sends a request to two hosts and prints the result; its trust is
judged by the requests that arrived, not by its output. Nothing is run here. `INSIDE` is the
sandbox's command: it runs on a bare interpreter and imports nothing of Keyhole's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from keyhole.app.setup.client_setup import BUNDLE, CA

ABSENT = 77
"""The exit code of a client that lacks a part that it needs, as of a skipped test."""

NOTHING = "keyhole-doctor"
"""A package that no index has."""

JAVA_FILE = "Fetch.java"

JAVA = """\
class Fetch {
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


class ProbedUrl(Struct, frozen=True):
    """A host, and a path that identifies one client's requests."""

    host: str
    path: str

    @property
    def url(self) -> str:
        """The URL, for most clients."""
        return f"https://{self.host}{self.path}"

    @property
    def request(self) -> str:
        """The bytes to send, for a client that knows no HTTP."""
        return f"GET {self.path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n"


class ClientCommand(Struct, frozen=True):
    """One start of a client's program."""

    words: tuple[str, ...]
    said: str = ""
    """The standard input."""


Calls = Callable[[ProbedUrl, ProbedUrl], tuple[ClientCommand, ...]]
"""A client's commands for the service and for the untrusted server."""


class ClientProgram(Struct, frozen=True):
    """A program, its commands, and the setting that names its trusted roots."""

    name: str
    programs: tuple[str, ...]
    """The programs that must be installed; the first is called."""
    calls: Calls
    reads: str
    vital: bool = False
    """Whether Keyhole's set-up is broken if this client does not trust the CA. The others may have
    settings of their own."""


def _at_once(*words: str) -> Calls:
    """The calls of a client that accepts several URLs."""
    return lambda service, untrusted: (ClientCommand((*words, service.url, untrusted.url)),)


def _one_each(call: Callable[[ProbedUrl], ClientCommand]) -> Calls:
    return lambda service, untrusted: (call(service), call(untrusted))


def _pip(service: ProbedUrl, untrusted: ProbedUrl) -> tuple[ClientCommand, ...]:
    quick = ("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "0")
    indexes = ("--index-url", service.url, "--extra-index-url", untrusted.url)
    return (ClientCommand(("download", *quick, *indexes, NOTHING)),)


def _git(asked: ProbedUrl) -> ClientCommand:
    return ClientCommand(("-c", "credential.helper=", "ls-remote", asked.url))


def _cargo(asked: ProbedUrl) -> ClientCommand:
    # Otherwise it tries three more times, and waits longer each time.
    once = ("--config", "net.retry=0")
    return ClientCommand(("search", *once, "--index", f"sparse+{asked.url}", NOTHING))


def _openssl(asked: ProbedUrl) -> ClientCommand:
    verified = ("-verify_return_error", "-verify_hostname", asked.host)
    where = ("-connect", f"{asked.host}:443", "-servername", asked.host)
    return ClientCommand(("s_client", "-quiet", *where, *verified), asked.request)


_JVM = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a program that ends at once: a third less processor time."""

CLIENTS = (
    ClientProgram(
        "java",
        ("java", "javac"),
        _at_once(*_JVM, JAVA_FILE),
        "cacerts of its JVM, which is covered, or -Djavax.net.ssl.trustStore",
    ),
    ClientProgram(
        "pip",
        ("pip3",),
        _pip,
        f"REQUESTS_CA_BUNDLE={BUNDLE}, then PIP_CERT",
    ),
    ClientProgram(
        "requests",
        ("python3",),
        _at_once("-I", "-c", _REQUESTS),
        f"REQUESTS_CA_BUNDLE={BUNDLE}",
    ),
    ClientProgram(
        "python",
        ("python3",),
        _at_once("-I", "-c", _URLLIB),
        f"SSL_CERT_FILE={BUNDLE}",
        vital=True,
    ),
    ClientProgram("node", ("node",), _at_once("-e", _NODE), f"NODE_EXTRA_CA_CERTS={CA}"),
    ClientProgram("git", ("git",), _one_each(_git), f"GIT_SSL_CAINFO={BUNDLE}"),
    ClientProgram("cargo", ("cargo",), _one_each(_cargo), f"CARGO_HTTP_CAINFO={BUNDLE}"),
    ClientProgram(
        "curl",
        ("curl",),
        _at_once("-sS", "--max-time", "10"),
        f"CURL_CA_BUNDLE={BUNDLE}, unless --cacert or a .curlrc says otherwise",
        vital=True,
    ),
    ClientProgram(
        "wget",
        ("wget",),
        _at_once("-q", "-O", "-", "--tries=1", "--timeout=10"),
        "the system's bundle, which is covered, unless a wgetrc says otherwise",
    ),
    ClientProgram("openssl", ("openssl",), _one_each(_openssl), f"SSL_CERT_FILE={BUNDLE}"),
)
"""The clients, the slowest first: they are started in this order, all at once."""

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
"""Runs every client that is found, all at once, and prints the results and output of each."""
