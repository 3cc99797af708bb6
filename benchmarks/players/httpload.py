"""The client of intercepted traffic: load by wrk, and its own measurements with Python's TLS.

In an empty network namespace of its own, as a sandbox has one, or on the host. It trusts one
authority, the proxy's (or the origin's own, where there is no proxy), and verifies it; wrk, which
verifies nobody, is started only after that has been seen.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.players import duties, modelbodies
from benchmarks.players.client import door, resolve
from benchmarks.players.httporigin import BULK
from benchmarks.players.peer import serve
from benchmarks.players.program import dying_with_us
from keyhole.sandbox import empty_network
from keyhole.sandbox.programs import find_programs

MISSING = "wrk is not installed: apt-get install wrk"

AT_ONCE = 16
"""Connections that are open at once while new ones are counted: enough to keep a proxy busy."""

SKIPPED_EVENTS = 20
"""Events at the start of a stream that are not timed: the path is still warming up."""

_PIECE = bytes(1 << 20)

# wrk gives a script the request's bytes and asks `wrk.resolve` where to connect; the name in the
# URL stays the one in the hello. A head is a format, in which each %08d gets a new number.
SCRIPT = """\
local format, numbers, varied = [[{head}]], {numbers}, {varied}
local resources = {{ {resources} }}
local count = 0

function wrk.resolve(host, service)
  wrk.addrs = wrk.lookup("{address}", "{port}")
end

local function head(target, number)
  local list = {{}}
  for i = 1, numbers do list[i] = number end
  return (string.gsub(string.format(format, target, unpack(list)), "\\n", "\\r\\n"))
end

local steady = head("{target}", 1)

function request()
  if not varied then return steady end
  count = count + 1
  local resource = resources[count % #resources + 1]
  return head("/v1/" .. resource .. "/w" .. count .. "?page=" .. count % 97, count)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{{"failed": %d, "median": %f}}\\n',
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50) / 1e6
  ))
end
"""


def program() -> str | None:
    """Where wrk is, if it is."""
    return shutil.which("wrk")


def load_script(host: str, port: int, *, varied: bool) -> str:
    """What wrk is to do."""
    text = duties.head("%s").replace("\r\n", "\n")
    return SCRIPT.format(
        # Lua drops the first newline after [[ and keeps all others.
        head=text,
        numbers=text.count("%08d"),
        varied=str(varied).lower(),
        resources=", ".join(f'"{name}"' for name in duties.RESOURCES),
        address=host,
        port=port,
        target=duties.SMALL,
    )


def load_words(connections: int) -> list[str]:
    """wrk's arguments; the place of its script is yet to be said."""
    words = f"-t1 -c{connections} -d600s --timeout 60s -s {{script}} https://{duties.HOST}/"
    return words.split()


def load_result(said: str) -> float:
    """The median of its latencies in seconds, from its last line."""
    told = json.loads(said)
    if told["failed"]:
        raise RuntimeError(f"{told['failed']} requests of the load failed")
    return float(told["median"])


class Client:
    """What the measurement asks for."""

    def __init__(self) -> None:
        self._trust = ssl.create_default_context()
        self._where = ("127.0.0.1", duties.PORT)
        self._name = duties.HOST
        self._load: subprocess.Popen[str] | None = None
        self._held: list[ssl.SSLSocket] = []
        self._directory = tempfile.TemporaryDirectory()

    def capture(self) -> None:
        """Make this namespace a sandbox's, but leave the listener to the proxy."""
        empty_network.bring_up_loopback()
        empty_network.make_everything_local()
        empty_network.load_ruleset(str(find_programs().nft))

    def aim(self, host: str, port: int, authority: str, name: str = duties.HOST) -> None:
        """Go there from now on, and trust that authority alone, for that name."""
        self._name = name
        self._where = (host, port)
        self._trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._trust.load_verify_locations(cadata=authority)
        self._trust.set_alpn_protocols(["http/1.1"])

    def echo(self) -> str:
        """The head that the origin got."""
        with self._connect() as sock:
            return _ask(sock, duties.steady(duties.ECHO)).decode()

    def status(self, target: str) -> int:
        """How a request is answered."""
        with self._connect() as sock:
            sock.sendall(duties.steady(target))
            return int(sock.recv(65536).split(b" ", 2)[1])

    def begin(self, connections: int, varied: bool) -> None:
        """Start the load; it goes on until `end`."""
        script = Path(self._directory.name) / "script.lua"
        script.write_text(load_script(*self._where, varied=varied))
        words = [word.format(script=script) for word in load_words(connections)]
        self._load = subprocess.Popen(  # noqa: S603 - found on the path, as a person's own
            [*dying_with_us(), str(program()), *words], stdout=subprocess.PIPE, text=True
        )

    def end(self) -> float:
        """End the load, and give the median of its latencies in seconds."""
        assert self._load is not None  # noqa: S101 - for the type checker
        self._load.send_signal(signal.SIGINT)
        last = self._load.communicate()[0].splitlines()[-1]
        self._load = None
        return load_result(last)

    def download(self) -> float:
        """Seconds for a bulk transfer to the client."""
        sink = bytearray(1 << 18)
        with self._connect() as sock:
            start = time.perf_counter()
            sock.sendall(duties.steady(duties.DOWN))
            left = BULK - len(_read_head(sock)[1])
            while left and (got := sock.recv_into(sink)):
                left -= got
            took = time.perf_counter() - start
        if left:
            raise RuntimeError(f"{left} bytes did not come")
        return took

    def upload(self) -> float:
        """Seconds for a bulk transfer from the client."""
        with self._connect() as sock:
            start = time.perf_counter()
            sock.sendall(duties.steady(duties.UP, "POST", f"Content-Length: {BULK}"))
            for _ in range(BULK // len(_PIECE)):
                sock.sendall(_PIECE)
            _read_head(sock)
            return time.perf_counter() - start

    def fresh(self, count: int) -> float:
        """Seconds for so many connections: connect, handshake, request, reply, close."""

        def one(_: int) -> None:
            with self._connect() as sock:
                _ask(sock, duties.steady(duties.SMALL))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            start = time.perf_counter()
            for _ in pool.map(one, range(count)):
                pass
            return time.perf_counter() - start

    def requests(self, connections: int, rounds: int) -> float:
        """Seconds for so many rounds of a request on each connection, without wrk."""
        self.hold(connections)
        request = duties.steady(duties.SMALL)
        start = time.perf_counter()
        for _ in range(rounds):
            for sock in self._held:
                sock.sendall(request)
            for sock in self._held:
                _read_reply(sock)
        took = time.perf_counter() - start
        self.release()
        return took

    def post(self, target: str, shape: str, size: int, count: int) -> float:
        """Seconds for so many requests with a body, one after the other on one connection."""
        body = modelbodies.made(shape, size)
        lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        request = modelbodies.addressed(duties.steady(target, "POST", *lines)) + body
        sock = self._model_connection()
        start = time.perf_counter()
        for _ in range(count):
            _ask(sock, request)
        return time.perf_counter() - start

    def pace(self, count: int, interval: float) -> list[float]:
        """Seconds of so many small requests to a model's service, one in each interval."""
        took, sock = [], self._model_connection()
        request = modelbodies.addressed(duties.steady(modelbodies.SMALL))
        for _ in range(count):
            start = time.perf_counter()
            _ask(sock, request)
            took.append(time.perf_counter() - start)
            time.sleep(interval)
        return took

    def _model_connection(self) -> ssl.SSLSocket:
        if not self._held:
            self._held.append(self._connect())
        return self._held[0]

    def events(self, count: int) -> float:
        """The median of seconds from an event's leaving the origin to its arrival."""
        delays: list[int] = []
        with self._connect() as sock:
            sock.sendall(duties.steady(f"{duties.EVENTS}?count={count}"))
            pending = _read_head(sock)[1]
            while len(delays) < count:
                data = sock.recv(65536)
                now = time.monotonic_ns()
                if not data:
                    raise RuntimeError("the stream ended early")
                pending += data
                while (at := pending.find(b'"sent":')) >= 0 and b"\n\n" in pending[at:]:
                    delays.append(now - int(pending[at + 7 : at + 23]))
                    pending = pending[pending.index(b"\n\n", at) + 2 :]
        return statistics.median(delays[SKIPPED_EVENTS:]) / 1e9

    def hold(self, count: int) -> None:
        """Open so many connections, make one request on each, and leave them open."""
        for _ in range(count):
            sock = self._connect()
            _ask(sock, duties.steady(duties.SMALL))
            self._held.append(sock)

    def release(self) -> None:
        """Close them."""
        for sock in self._held:
            sock.close()
        self._held.clear()

    def _connect(self) -> ssl.SSLSocket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(self._where)
        return self._trust.wrap_socket(sock, server_hostname=self._name)


def _read_head(sock: ssl.SSLSocket) -> tuple[bytes, bytes]:
    """A reply's head, and what came of its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            raise RuntimeError("the connection was closed")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data.decode(errors="replace"))
    return head, body


def _ask(sock: ssl.SSLSocket, request: bytes) -> bytes:
    """The body of the reply, of which this origin says the length."""
    sock.sendall(request)
    return _read_reply(sock)


def _read_reply(sock: ssl.SSLSocket) -> bytes:
    head, body = _read_head(sock)
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return body


def raise_file_limit() -> None:
    """Let this process have as many connections as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Serve until the asker is gone."""
    raise_file_limit()
    client = Client()
    own = (
        client.capture,
        client.aim,
        client.echo,
        client.status,
        client.begin,
        client.end,
        client.download,
        client.upload,
        client.fresh,
        client.requests,
        client.post,
        client.pace,
        client.events,
        client.hold,
        client.release,
    )
    verbs = {f.__name__: f for f in (door, resolve, *own)}
    serve(socket.socket(fileno=int(sys.argv[1])), verbs)


if __name__ == "__main__":
    main()
