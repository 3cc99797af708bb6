"""Types what a new user types, and nothing that was not printed before: `new_user.py PORT AGENT…`.

Runs in the clean root file system, with the system's Python. For each agent: `keyhole run AGENT` in
a project without a policy says what to type; each further command is taken from the output of the
one before. The provider's address is the one thing that is added by hand. Then the agent does a
task in a terminal and through a pipe.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ANSWER = "the-answer-of-the-provider"
KEYS = {
    "anthropic": "sk-ant-api03-", "openai": "sk-proj-", "gemini": "AIza", "mistral": "",
    "github-copilot": "gho_",
}  # fmt: skip
HOSTS = (
    "api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "api.mistral.ai",
    "api.githubcopilot.com", "api.github.com",
)  # fmt: skip
TASKS = {
    "aider": ["--no-git", "--yes-always", "--message", "say hi"],
    "claude": ["-p", "say hi"],
    "cline": ["say hi"],
    "codex": ["exec", "--skip-git-repo-check", "say hi"],
    "copilot": ["-p", "say hi"],
    "gemini": ["-p", "say hi"],
    "goose": [
        "run", "--no-session", "--provider", "anthropic", "--model", "claude-sonnet-4-5",
        "--text", "say hi",
    ],
    "opencode": ["run", "say hi"],
    "qwen": ["-m", "gpt-5", "-p", "say hi"],
    "vibe": ["-p", "say hi"],
}  # fmt: skip
MOST_COMMANDS = 5
"""From the installation, which is one, to the first answer."""
PASSPHRASE = "a passphrase for this trial"
SECONDS = 180
QUOTED = re.compile(r"`(keyhole [^`]+)`")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Commands typed in a terminal, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.typed: list[str] = []
        self.seen = ""

    def type(self, command: str, answers: dict[str, str]) -> int:
        """Type a command, answer its questions, and wait for its end."""
        print(f"  $ {command}", flush=True)
        self.typed.append(command)
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.execvp("sh", ["sh", "-c", command])
        self.seen, asked = "", 0
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data.decode(errors="replace")
            for question, answer in answers.items():
                if re.search(question, self.seen[asked:]):
                    asked = len(self.seen)
                    os.write(master, answer.encode())
        else:
            os.kill(pid, 9)
        os.close(master)
        self.seen = ESCAPES.sub("", self.seen)
        print("".join(f"    {line}\n" for line in self.seen.splitlines() if line.strip()), end="")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def printed(self, beginning: str) -> str:
        """The command with this beginning that the last output says to type."""
        found = [each for each in QUOTED.findall(self.seen) if each.startswith(beginning)]
        if not found:
            raise SystemExit(f"trial: nothing says to type `{beginning} …` after this")
        return found[0]


def add_provider(policy: Path, port: str) -> None:
    """Lead the services' hosts to the provider on loopback."""
    connect = "".join(f'"{host}:443" = "127.0.0.1:{port}"\n' for host in HOSTS)
    with policy.open("a") as file:
        file.write(f'[upstream]\nca_file = "/srv/trial/ca.pem"\n[upstream.connect]\n{connect}')


def begin(agent: str, port: str) -> list[str]:
    """From nothing to the first answer. Returns what is wrong."""
    wrong = []
    project = Path(tempfile.mkdtemp(prefix=f"{agent}-", dir=Path.home()))
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    screen = Terminal(project)
    screen.type(f"keyhole run {agent}", {})
    first = screen.printed("keyhole init")
    answers = {r"does this project use.*\] $": f"{agent}\r", r"\[[yYnN/]+\] ?$": "y\r"}
    if screen.type(first, answers):
        wrong.append("init failed")
    if "keyhole secret set" in screen.seen:
        told = screen.seen
        command = screen.printed("keyhole secret set")
        service = command.split()[3]
        key = KEYS[service] + os.urandom(24).hex()
        passphrase = {r"(?i)(passphrase|once more)[^\n]*: ?$": f"{PASSPHRASE}\r"}
        screen.type(command, passphrase | {r"value of [^\n]*: ?$": f"{key}\r"})
        again = next((each for each in QUOTED.findall(told) if "init --force" in each), "")
        if again:
            screen.type(again, answers)
    add_provider(project / "keyhole.toml", port)
    command = f"{screen.printed('keyhole run')} {' '.join(map(quoted, TASKS[agent]))}"
    begun = time.monotonic()
    asked = {
        r"accept[^\n]*\?[^\n]*$": "y\r",
        r"(?i)passphrase[^\n]*: ?$": f"{PASSPHRASE}\r",
    }
    code = screen.type(command, asked)
    took = time.monotonic() - begun
    if code or ANSWER not in screen.seen:
        wrong.append(f"no answer in a terminal (exit {code})")
    # The first one was refused; the installation takes its place in the count.
    commands = len(screen.typed)
    if commands > MOST_COMMANDS:
        wrong.append(f"{commands} commands")
    screen.type(f"{command} </dev/null | cat", asked)
    if ANSWER not in screen.seen:
        wrong.append("no answer through a pipe")
    print(f"  {agent}: {commands} commands, answer after {took:.1f} s", flush=True)
    return [f"{agent}: {each}" for each in wrong]


def quoted(word: str) -> str:
    """The word as a shell takes it."""
    return f"'{word}'" if " " in word else word


def main() -> int:
    """Try each agent."""
    port, *agents = sys.argv[1:]
    print(f"── as {os.environ.get('USER') or os.getuid()}", flush=True)
    wrong = [each for agent in agents for each in begin(agent, port)]
    for line in wrong:
        print(f"trial: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
