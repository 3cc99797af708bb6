"""Programs that run inside: each prints what it saw. Errors are printed by their name."""

from __future__ import annotations

HTTPS_GET = """
import http.client, ssl, sys
name, ca = sys.argv[1:3]
context = ssl.create_default_context(cafile=ca)
client = http.client.HTTPSConnection(name, int(sys.argv[3]) if len(sys.argv) > 3 else 443,
                                     context=context, timeout=20)
try:
    client.request("GET", "/")
    print(client.getresponse().read().decode())
except Exception as error:
    print(type(error).__name__, getattr(error, "reason", ""))
client.close()
"""

TLS_HELLO = """
import socket, ssl, sys
name, port, sni, ca = sys.argv[1:5]
context = ssl.create_default_context(cafile=ca)
context.check_hostname = False
with socket.create_connection((name, int(port)), timeout=20) as plain:
    try:
        with context.wrap_socket(plain, server_hostname=sni or None) as client:
            print("connected", client.version())
    except Exception as error:
        print(type(error).__name__, getattr(error, "reason", ""))
"""

ECHO_BULK = """
import hashlib, os, socket, sys, threading
name, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = os.urandom(1 << 20)
sent, received = hashlib.sha256(), hashlib.sha256()
with socket.create_connection((name, port), timeout=50) as client:
    def send():
        for index in range(size >> 20):
            piece = block[index:] + block[:index]
            sent.update(piece)
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
    thread = threading.Thread(target=send)
    thread.start()
    while data := client.recv(1 << 18):
        received.update(data)
    thread.join()
print(sent.hexdigest(), received.hexdigest())
"""

SEND_BULK = """
import socket, sys
name, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.create_connection((name, port), timeout=50) as client:
    client.sendall(bytes(size))
    client.shutdown(socket.SHUT_WR)
    client.recv(1)
print(size)
"""

# Waits for a line before it reads.
READ_BULK_SLOWLY = """
import socket, sys
name, port = sys.argv[1], int(sys.argv[2])
total = 0
with socket.create_connection((name, port), timeout=50) as client:
    sys.stdin.readline()
    while data := client.recv(1 << 18):
        total += len(data)
print(total)
"""

# Steps: read (one read), rest (to the end), send:TEXT, hex:BYTES, eof, close
CONVERSE = """
import socket, sys
name, port, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3]
said = []
try:
    client = socket.create_connection((name, port), timeout=20)
except Exception as error:
    print(type(error).__name__)
    sys.exit()
with client:
    try:
        for step in steps.split(","):
            verb, _, text = step.partition(":")
            if verb == "read":
                said.append(repr(client.recv(65536)))
            elif verb == "rest":
                got = b""
                try:
                    while data := client.recv(65536):
                        got += data
                finally:
                    if got:
                        said.append(repr(got))
            elif verb == "send":
                client.sendall(text.encode().decode("unicode_escape").encode("latin-1"))
            elif verb == "hex":
                client.sendall(bytes.fromhex(text))
            elif verb == "eof":
                client.shutdown(socket.SHUT_WR)
    except Exception as error:
        said.append(type(error).__name__)
print(*said)
"""

# Sends one datagram or length-prefixed messages to a server's port 53 and prints replies as hex.
ASK_DNS = """
import socket, sys
how, server, *messages = sys.argv[1:]
if how == "udp":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect((server, 53))
        for message in messages:
            client.send(bytes.fromhex(message))
            print(client.recv(4096).hex())
else:
    with socket.create_connection((server, 53), timeout=20) as client:
        packed = b"".join((len(m) // 2).to_bytes(2, "big") + bytes.fromhex(m) for m in messages)
        client.sendall(packed)
        stream = client.makefile("rb")
        for _ in messages:
            size = stream.read(2)
            print(stream.read(int.from_bytes(size, "big")).hex())
        stream.close()
"""
