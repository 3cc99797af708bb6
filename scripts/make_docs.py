"""Writes the generated parts of the documents; with `--check`, only says which are stale.

Two kinds of parts are generated. Between `<!-- NAME:begin -->` and `<!-- NAME:end -->` stands what
`PARTS` makes from the code. And a `sh` block that begins with `keyhole `, or with an `echo` to it,
is run with the installed command, line by line; a `text` or `json` block right below it is replaced
by what was printed. So commands are written by hand and their output never is. `# exit 1` says how
a line ends if not by 0.

What differs from run to run (times, session ids, digests, process numbers) is printed as one
stand-in. Where the rest differs from host to host, or is long, the block is a `text excerpt`: its
lines are written by hand and must be found in the output in their order; `…` stands for anything.
A `toml NAME` or `ini NAME` block is a file that the commands after it find beside the policy, or in
the home, where its name begins with `~/`. A guide's commands run as a new user's (`as_new_user`).

Called by `make docs` and by tests/system/docs, which holds that nothing is stale (I10).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.run import finding_store
from keyhole.app.setup import client_setup
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.audit import log as audit_log
from keyhole.cli.parser import GROUPS, TopParser, build_parser
from keyhole.cli.verb_help import describe_verbs
from keyhole.gateway import body_memory, gateway, refusal_reports
from keyhole.gateway.door import connection, handle, synthetic
from keyhole.gateway.git import batch, lfs, quarantine
from keyhole.gateway.http import patience
from keyhole.gateway.upstream import reach
from keyhole.http import field as httpfield
from keyhole.inject import encoded_scanner, sigv4, stub_files
from keyhole.inject.slots import GLOBAL_SLOTS, SlotLocation
from keyhole.inject.table_values import describe_knowledge
from keyhole.inject.token_usage import UsageFormat
from keyhole.judge import judge, judge_pool
from keyhole.model.decision import Reason
from keyhole.model.reasons import REASONS
from keyhole.policy.reference import key_table, user_table
from keyhole.policy.schema import KEYS
from keyhole.sandbox import empty_network, environment, handover, launch
from keyhole.sandbox.files import (
    comparison,
    credential_files,
    dangerous_paths,
    digests,
    executable_finder,
    mount_planning,
    overlay,
    system_trees,
    tree_walk,
    triggers,
)
from keyhole.sandbox.homes import tree_size
from keyhole.system import child, dialler, resolver
from keyhole.vault import custody
from keyhole.wire import client_hello, dns, pack, receive_pack, upload_pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyhole.inject.catalogue import ServiceTemplate

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "src" / "keyhole" / "app" / "example.toml"

WIDTH = 80
"""Columns of a usage line, whatever the terminal is."""

MAX_LINE = 120
"""Columns of a line that a command printed; the rest is cut and marked."""

MAX_HOSTS_SHOWN = 3
"""Hosts of a catalogue entry in the table; `keyhole services show` has them all."""

HTTP_ERROR = 400
"""The first status that is a refusal."""

COMMAND_SECONDS = 60
"""No documented command waits for anything; one that does is a mistake."""


_BY_IDENTITY = "compared by number, size and time of change"


class Stale(Exception):
    """A document that cannot be renewed: a marker is missing, a command ended as it should not."""


# ── parts made from the code ────────────────────────────────────────────────────────────────────


def example_policy() -> str:
    """The example that ships with Keyhole, byte for byte."""
    return f"```toml\n{EXAMPLE.read_text('utf-8')}```"


def reason_table() -> str:
    """Every reason code, as `model.reasons` has it, in the order of the codes."""
    rows = ["| code | verdict | meaning |", "|---|---|---|"]
    for reason in Reason:
        info = REASONS[reason]
        verdict = "failed" if info.failed else info.verdict.name.lower()
        if info.status >= HTTP_ERROR:
            verdict += f" {info.status}, {info.grpc.name}"
        hint = info.hint.replace("{limit}", "the limit").replace(" in {file}", "")
        hint = hint.replace("{pattern}", "HOST")
        hint = hint.replace("{host}", "HOST").replace("{port}", "PORT")
        rows.append(f"| `{reason}` | {verdict} | {info.say()}{f'; {hint}' if hint else ''} |")
    return "\n".join(rows)


_WHEN_REACHED = {
    "connections": "further connections wait in the kernel's queue",
    "connections_per_second": "they wait",
    "dns_per_second": "they wait",
    "upload": "the connection is cut, and so is each one after it",
    "download": "the same",
    "memory": "an allocation of one process fails; in a control group, a process is killed when "
    "all together are over it",
    "processes": "no further process or thread starts",
    "home": "the run is ended, and the next is refused until `keyhole home reset`",
    "cpus": "processes wait; needs a control group, and a line says where there is none",
    "ttl": "everything inside is killed, exit 124",
    "idle": "the door is closed; the command goes on without a network",
    "requests_per_second": "429 with `Retry-After`",
    "body": "413, or the connection is cut where the answer has begun",
    "body_time": "the connection is cut; a request that the origin does not take fails",
    "concurrent_requests": "429 with `Retry-After`",
    "audit_per_second": "events are counted, and the count is written",
    "on_decoy": "with `freeze`, connections are cut and refused until `keyhole resume`",
}


def keys_but_limits() -> str:
    """The table of keys without those that the table of limits has."""
    rows = key_table().splitlines()
    return "\n".join(row for row in rows if not row.startswith("| `limits."))


def limit_table() -> str:
    """Every limit of a policy: default, and what happens when it is reached."""
    rows = ["| limit | default | bounds | when it is reached |", "|---|---|---|---|"]
    for key in KEYS:
        if key.path[0] != "limits":
            continue
        name = key.path[1]
        rows.append(f"| `{name}` | {key.shown} | {key.meaning} | {_WHEN_REACHED[name]} |")
    return "\n".join(rows)


def token_table() -> str:
    """Which services say their tokens, by how they do."""
    found: dict[str, list[str]] = {form: [] for form in UsageFormat}
    for name, template in FileCatalogue().items():
        for form in dict.fromkeys(form for host in template.hosts for form in host.usage):
            found[form].append(f"`{name}`")
    rows = ["| as | by services of the catalogue |", "|---|---|"]
    rows += [f"| {form} | {', '.join(sorted(names))} |" for form, names in found.items()]
    return "\n".join(rows)


def bound_table() -> str:
    """Bounds that no policy changes, by their constants."""
    audit = audit_log.LogBounds()
    rows = [
        ("a connection without a byte", _seconds(gateway.IDLE_TIMEOUT), "cut"),
        ("a client's hello or request head", _seconds(connection.HELLO_TIMEOUT), "cut"),
        ("resolving and dialling an origin", _seconds(dialler.CONNECT_TIMEOUT), "failed"),
        ("origins dialled at once by a sandbox", f"{handle.DIALS_AT_ONCE}", "wait"),
        ("names looked up at once for a sandbox", f"{resolver.PLACES.each}", "wait"),
        ("waiting for one of them", _seconds(resolver.PLACE_WAIT), "`over-share`"),
        ("names a session may learn", f"{synthetic.MAX_NAMES:,}", "SERVFAIL"),
        ("a DNS question", _size(dns.MAX_MESSAGE), "refused"),
        ("a TLS hello", _size(client_hello.MAX_HELLO), "refused"),
        ("the head of a plain HTTP request", _size(httpfield.MAX_HEAD), "refused"),
        ("header fields of it", f"{httpfield.MAX_FIELDS}", "refused"),
        ("the head of a request to a service", _size(httpfield.MAX_HEAD), "400"),
        ("header fields of it", f"{httpfield.MAX_FIELDS}", "400"),
        ("a whole head after its first byte", _seconds(patience.HEAD_TIMEOUT), "cut"),
        ("between two requests of a connection", _seconds(patience.KEEP_ALIVE), "cut"),
        ("TLS with an origin", _seconds(reach.HANDSHAKE_TIMEOUT), "502"),
        ("a body that must be whole to be signed", _size(sigv4.MAX_HASHED_BODY), "413"),
        ("such bodies of a session at once", _size(body_memory.MAX_GATHERED), "413"),
        ("such bodies of all sessions at once", _size(body_memory.MAX_OF_ALL), "`over-share`"),
        ("long bodies of a session on disk at once", f"{quarantine.MAX_SPOOLS}", "`over-share`"),
        ("the list of a push's commands", _size(receive_pack.MAX_LIST), "400"),
        ("commands in it", f"{receive_pack.MAX_COMMANDS}", "400"),
        ("what a fetch asks for", _size(upload_pack.MAX_REQUEST), "413"),
        (
            "judging a push, with what the origin is asked",
            _seconds(judge_pool.MAX_SECONDS),
            "refused",
        ),
        ("processor time of a judge", _seconds(judge.MAX_CPU_SECONDS), "refused"),
        ("memory of a judge", _size(judge.MAX_MEMORY), "refused"),
        ("judges at work", f"{judge_pool.PLACES.total}", "wait"),
        ("of them for one sandbox", f"{judge_pool.PLACES.each}", "wait"),
        ("pushes of a sandbox that wait for one", f"{judge_pool.PLACES.waiting}", "`over-share`"),
        ("waiting for one", _seconds(judge_pool.PLACE_WAIT), "`over-share`"),
        ("objects of a pushed pack", f"{pack.PackBounds().objects:,}", "refused"),
        ("room that bodies leave on the disk", _size(quarantine.KEEP_FREE), "507"),
        ("addresses of large files in a session", f"{lfs.MAX_ADDRESSES:,}", "oldest forgotten"),
        ("life of such an address", _seconds(batch.MAX_LIFETIME), "asked for again"),
        ("a secret", _size(custody.MAX_SIZE), "the run is refused"),
        ("a command that prints one", _seconds(child.MAX_SECONDS), "the run is refused"),
        ("what a compressed answer may grow by", f"{encoded_scanner.MAX_RATIO} times", "cut"),
        (
            "lines on your terminal about refusals",
            f"{refusal_reports.MAX_REPORTS}",
            "in the log alone",
        ),
        (
            "open files of a process inside",
            f"{launch.ResourceLimits(0, 0).open_files:,}",
            "open fails",
        ),
        ("the empty home", _size(mount_planning.HOME_BYTES), "disk full"),
        ("entries of a kept home", f"{tree_size.MAX_ENTRIES:,}", "the run is ended"),
        ("directories in directories there", f"{tree_size.MAX_DEPTH}", "the run is ended"),
        ("`/var/tmp` inside", _size(system_trees.VAR_TMP_BYTES), "disk full"),
        ("entries of the bound trees", f"{tree_walk.MAX_ENTRIES:,}", "the run is refused"),
        ("looking through them", _seconds(tree_walk.MAX_SECONDS), "the run is refused"),
        ("masks and protected files", f"{overlay.MAX_MOUNTS:,}", "the run is refused"),
        ("findings named after a run", f"{comparison.MAX_LINES}", "counted"),
        ("findings kept for a project", f"{finding_store.MAX_OPEN}", "counted"),
        ("a file that is compared by content", _size(digests.MAX_DIGEST), _BY_IDENTITY),
        ("files that are read for that", _size(digests.HASH_BYTES), _BY_IDENTITY),
        ("reading them", _seconds(digests.HASH_SECONDS), _BY_IDENTITY),
        ("links to directories looked through", f"{executable_finder.MAX_DETOURS:,}", "said"),
        ("setting a sandbox up", _seconds(handover.SETUP_SECONDS), "the run is refused"),
        ("audit lines of a session", _size(audit.session), "counted"),
        ("the whole audit log", _size(audit.total), "oldest files are removed"),
    ]
    lines = ["| what | bound | beyond it |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {a} | {b} | {c} |" for a, b, c in rows)])


def _seconds(value: float) -> str:
    return f"{value / 60:g} min" if value >= 60 else f"{value:g} s"


def _size(value: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value} bytes"


def ruleset() -> str:
    """The ruleset of every sandbox, byte for byte."""
    return f"```text\n{empty_network.RULESET}```"


def etc_table() -> str:
    """What is shown of /etc."""
    return _two_columns(
        ("of `/etc`", "entries"),
        (
            ("shown as they are", system_trees._PLAIN),
            ("shown unless a credential is in them", system_trees._CHECKED),
            (
                "written for the sandbox",
                "passwd group nsswitch.conf resolv.conf hosts hostname".split(),
            ),
        ),
    )


def slot_table() -> str:
    """What is emptied on every inspected host."""
    return _two_columns(
        ("emptied", "names"),
        tuple(
            (said, [slot.name for slot in GLOBAL_SLOTS if slot.place is place])
            for said, place in (
                ("headers", SlotLocation.HEADER),
                ("fields of the query", SlotLocation.QUERY),
            )
        ),
    )


def certificate_table() -> str:
    """Variables by which clients find the session's CA."""
    return _two_columns(
        ("names", "variables"),
        (
            (f"`{client_setup.BUNDLE}`", client_setup.BUNDLE_VARIABLES),
            (f"`{client_setup.CA}`", client_setup.CA_VARIABLES),
        ),
    )


def stub_table() -> str:
    """Logins that are put into the home."""
    made = {name: stub_files.stub_files({name: "x"}, "2026-07-01") for name in FileCatalogue()}
    rows = ["| service | file in the home |", "|---|---|"]
    rows += [f"| `{name}` | `~/{file.path}` |" for name, files in made.items() for file in files]
    return "\n".join(rows)


def variable_list() -> str:
    """Variables that pass without being asked for."""
    names = sorted(environment._PASSED)
    return f"{_code(names)} and those that begin with `LC_`."


def danger_table() -> str:
    """Paths below a home that are refused when named, and masked where they lie in a bound tree."""
    return _two_columns(
        ("below any home", "paths"),
        (
            ("hold credentials", dangerous_paths._CREDENTIALS),
            ("hold a person's sessions and passwords", dangerous_paths._BROWSERS),
            ("hold an agent's credentials", dangerous_paths._AGENTS),
            ("are executed by the host: not writable", dangerous_paths._STARTUP),
        ),
    )


def mask_table() -> str:
    """Names of files that are masked in bound trees."""
    return _two_columns(
        ("masked", "names"),
        (
            ("always", [*sorted(credential_files._BY_NAME), ".env.*"]),
            ("always, in their directory", sorted("/".join(p) for p in credential_files._BY_PLACE)),
            ("always, by suffix", [f"*.{s}" for s in sorted(credential_files._BY_SUFFIX)]),
            (
                "when a private key is in them",
                [*sorted(credential_files._KEY_NAMES)]
                + [f"*.{s}" for s in sorted(credential_files._KEY_SUFFIX)],
            ),
            (
                "when a credential is in them",
                [
                    *sorted(credential_files._BY_CONTENT),
                    *sorted("/".join(p) for p in credential_files._BY_PLACE_AND_CONTENT),
                ],
            ),
        ),
    )


def trigger_table() -> str:
    """Files that the host executes: what is read-only inside, and what is only reported."""
    inside = {
        triggers.TriggerGuard.READ_ONLY: "read-only",
        triggers.TriggerGuard.ENTRIES: "what is in it is read-only, new files can be made",
        triggers.TriggerGuard.REPORTED: "writable",
    }
    rows: dict[tuple[str, str], list[str]] = {}
    for trigger in (*triggers.TRIGGERS, triggers.WORKSPACE):
        name = f"{trigger.parent}/{trigger.name}" if trigger.parent else trigger.name
        slash = "/" if trigger.kind == "dir" else ""
        rows.setdefault((trigger.why, inside[trigger.guard]), []).append(f"`{name}{slash}`")
    lines = ["| because | inside | files |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {why} | {how} | {', '.join(names)} |" for (why, how), names in rows.items())]
    )


def _two_columns(head: tuple[str, str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {_code(names)} |" for what, names in rows)])


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def service_table() -> str:
    """The catalogue, one row an entry, by how well its facts are known."""
    catalogue = FileCatalogue()
    groups: dict[str, list[str]] = {}
    for name in catalogue:
        entry = catalogue[name]
        row = f"| `{name}` | {entry.title} | {_hosts(entry)} |"
        groups.setdefault(describe_knowledge(entry.sure, entry.looked_at), []).append(row)
    head = "| name | service | hosts |\n|---|---|---|\n"
    return "\n\n".join(
        f"**{group.capitalize()}**\n\n{head}" + "\n".join(groups[group]) for group in sorted(groups)
    )


def agent_table() -> str:
    """The agent profiles, one row each."""
    profiles = FileProfiles()
    rows = [
        f"| `{name}` | {profile.title} | {_code([a.service for a in profile.access])} | "
        f"`{profile.install}` | {describe_knowledge(profile.sure, profile.looked_at)} |"
        for name, profile in profiles.items()
    ]
    head = "| name | agent | services | to install | how sure |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows)


def _hosts(entry: ServiceTemplate) -> str:
    if entry.needs_hosts:
        return f"yours, as `{entry.hosts[0].example}`"
    names = [str(pattern) for part in entry.hosts for pattern in part.hosts]
    shown = ", ".join(f"`{name}`" for name in names[:MAX_HOSTS_SHOWN])
    more = len(names) - MAX_HOSTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


# ── the command line: argparse's own layout differs between Python 3.11, 3.12 and 3.13 ──────────


def verbs() -> str:
    """The help of every verb that takes anything, in one layout for every Python."""
    return "\n\n".join(
        f"### {parser.prog}\n\n```text\n{_help(parser)}\n```"
        for parser in _parsers(build_parser())
        if len(parser._actions) > 1  # every parser has --help
    )


COMMON = {
    "--json": "machine-readable output",
    "--policy": "default: ./keyhole.toml",
    "--trust": "accept without asking; with a digest, only that policy",
}
"""Flags that mean the same in every verb; the page says it once."""


def common_flags() -> str:
    """What those flags mean."""
    return "\n".join(
        ["| flag | meaning |", "|---|---|", *(f"| `{a}` | {b} |" for a, b in COMMON.items())]
    )


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in subparsers_of(parser):
        for inner in action.choices.values():
            yield from _parsers(inner)


def subparsers_of(
    parser: argparse.ArgumentParser,
) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    """The lists of verbs or actions below a parser."""
    return [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]


def _help(parser: argparse.ArgumentParser) -> str:
    if isinstance(parser, TopParser):
        return describe_verbs(GROUPS, MAX_LINE).strip("\n")
    hidden = (argparse.SUPPRESS, "show this help message and exit")
    named = [a for a in parser._actions if a.option_strings and a.help not in hidden]
    common = [a for a in named if COMMON.get(a.option_strings[0]) == a.help]
    flags = [a for a in named if a not in common]
    words = [a for a in parser._actions if not a.option_strings]
    usage = ["[OPTION…]"] if flags else []
    usage += [f"[{flag_text(a, a.option_strings[:1])}]" for a in common]
    usage += [word_text(a) for a in words]
    paragraphs = [_wrapped(f"usage: {parser.prog}", usage)]
    if parser.description and parser.prog.count(" ") < 2:  # a verb's list has it of its actions
        paragraphs.append(parser.description.strip())
    groups: list[list[tuple[str, str | None]]] = [
        [(_metavar(a), a.help) for a in words if a.help],
        [(c.dest, c.help) for a in subparsers_of(parser) for c in a._choices_actions],
        [(flag_text(a, a.option_strings), a.help) for a in flags],
    ]
    paragraphs += [_columns(group) for group in groups if group]
    if parser.epilog:
        paragraphs.append(parser.epilog.strip("\n"))
    return "\n\n".join(paragraphs)


def flag_text(action: argparse.Action, names: Sequence[str]) -> str:
    """A flag under these names, with its value."""
    text = ", ".join(names)
    if action.nargs == 0:
        return text
    value = _metavar(action)
    return f"{text} [{value}]" if action.nargs == argparse.OPTIONAL else f"{text} {value}"


def word_text(action: argparse.Action) -> str:
    """An argument as a usage line has it."""
    name = _metavar(action)
    if isinstance(action, argparse._SubParsersAction):
        return f"{name} ..." if action.required else f"[{name} ...]"
    if action.nargs == argparse.OPTIONAL:
        return f"[{name}]"
    if action.nargs == argparse.ZERO_OR_MORE:
        return f"[{name} ...]"
    return f"{name} [{name} ...]" if action.nargs == argparse.ONE_OR_MORE else name


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices and not isinstance(action, argparse._SubParsersAction):
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _wrapped(start: str, words: list[str]) -> str:
    lines, line = [], start
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = " " * len(start)
        line += f" {word}"
    return "\n".join([*lines, line])


def _columns(rows: list[tuple[str, str | None]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}  {text or ''}".rstrip() for name, text in rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"example": example_policy},
    "docs/guides/claude-code.md": {},
    "docs/guides/codex.md": {},
    "docs/guides/private-packages.md": {},
    "docs/guides/signed-commits.md": {},
    "docs/guides/ci.md": {},
    "docs/guides/dev-server.md": {},
    "docs/guides/review.md": {},
    "docs/guides/learn.md": {},
    "docs/tour.md": {},
    "docs/ARCHITECTURE.md": {"ruleset": ruleset},
    "docs/THREATS.md": {},
    "docs/troubleshooting.md": {},
    "docs/reasons.md": {"reasons": reason_table},
    "docs/git.md": {},
    "docs/mcp.md": {},
    "docs/policy.md": {"certificates": certificate_table, "stubs": stub_table},
    "docs/policy-reference.md": {
        "slots": slot_table,
        "etc": etc_table,
        "variables": variable_list,
        "masks": mask_table,
        "dangers": danger_table,
        "triggers": trigger_table,
        "limits": limit_table,
        "gateway-limits": user_table,
        "token-forms": token_table,
        "bounds": bound_table,
        "keys": keys_but_limits,
    },
    "docs/cli.md": {"common": common_flags, "verbs": verbs},
    "docs/services.md": {"services": service_table},
    "docs/agents.md": {"agents": agent_table},
}
"""The documents, and what stands between their markers."""


# ── commands and what they print ────────────────────────────────────────────────────────────────

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"# exit ([0-9]+)$")
_COMMAND = re.compile(r"(?:echo [^|]+ \| )?keyhole ")
"""A secret comes from standard input, so a page that stores one has to bring it."""
_OUTPUTS = ("text", "json")
_FILES = ("toml", "ini")
_EXCERPT = "excerpt"

_STAND_INS = (
    (r"\bsession [0-9a-f]{12}\b", "session 5e55104d0123"),
    (r"\b[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?=  )", "2026-07-01 09:30:00"),
    (r"(?<=09:30:00  )[0-9a-f]{8}\b", "5e55104d"),
    (r'(?<="ts":")[^"]+', "2026-07-01T09:30:00.000000Z"),
    (r'(?<="session":")[0-9a-f]{12}(?=")', "5e55104d0123"),
    (r"\b[0-9]{8}T[0-9]{6}Z-[0-9]+-[0-9a-f]{8}\b", "20260701T093000Z-4242-5e55104d"),
    (r'(?:(?<="pid":)|(?<=\bpid=))[0-9]+', "4242"),
)
"""What differs from run to run, and what stands for it on the pages."""

_LINE_DIGEST = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")
"""Digests of audit lines; those of policies do not differ and are written `sha256:…`."""


_GUIDES = "docs/guides/"
_REPOSITORY = {
    "HEAD": "ref: refs/heads/main\n",
    "refs/heads/.keep": "",
    "config": '[remote "origin"]\n\turl = https://github.com/acme/widgets\n',
}
_AGENTS = {"claude": "CLAUDE_CODE_OAUTH_TOKEN", "codex": "CODEX_HOME"}
"""Programs, and the text by which Keyhole tells each from others of its name."""
_MADE_UP = "made-up-for-this-page-0123456789"
_LOGINS = {
    "~/.claude/.credentials.json": json.dumps(
        {
            "claudeAiOauth": {
                "accessToken": f"sk-ant-oat01-{_MADE_UP}",
                "refreshToken": f"sk-ant-ort01-{_MADE_UP}",
                "expiresAt": 4102444800000,  # the year 2100
            }
        }
    ),
    "~/.codex/auth.json": json.dumps(
        {
            "tokens": {
                "access_token": _MADE_UP,
                "refresh_token": f"rt-{_MADE_UP}",
                "account_id": f"account-{_MADE_UP}",
            },
            "last_refresh": "2099-12-31T00:00:00Z",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    output: str


class Bench:
    """A directory where documented commands are run: the example as policy, an empty home."""

    def __init__(self, directory: Path) -> None:
        self._place = directory.resolve()
        self.project = self._place / "project"
        self.env = {
            "PATH": str(self._place / "bin"),
            "HOME": str(self._place / "home"),
            "LANG": "C.UTF-8",
            "COLUMNS": str(WIDTH),
        }
        for name in ("project", "home", "bin"):
            (self._place / name).mkdir()
        # PATH has this one program, so that what is installed here changes no output.
        (self._place / "bin" / "keyhole").symlink_to(Path(sys.executable).with_name("keyhole"))
        self.write("keyhole.toml", EXAMPLE.read_text("utf-8"))

    def write(self, name: str, text: str) -> None:
        """Place a file beside the policy, or in the home."""
        below = name.removeprefix("~/")
        file = (self.project if below == name else self._place / "home") / below
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        file.chmod(0o600)

    def as_new_user(self) -> None:
        """Start over: a repository without a policy, and agents that are installed and logged in.

        The agents are stand-ins that print their words; the logins are made up.
        """
        (self.project / "keyhole.toml").unlink()
        for name, text in _REPOSITORY.items():
            self.write(f".git/{name}", text)
        (self.project / ".git" / "objects").mkdir()
        for name, text in _LOGINS.items():
            self.write(name, text)
        for name, mark in _AGENTS.items():
            self.write(f"~/.local/bin/{name}", f'#!/bin/sh\n# {mark}\necho {name} "$@"\n')
            (self._place / "home" / ".local" / "bin" / name).chmod(0o755)
        self.env["PATH"] += f":{self.env['HOME']}/.local/bin"

    def run(self, line: str) -> Ran:
        """Run one line of a document, with both streams in one output."""
        done = subprocess.run(  # noqa: S603 - the commands of our own documents
            ["/bin/sh", "-c", line],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        output = done.stdout.decode("utf-8")
        output = output.replace(str(self.project), "/home/you/widgets")
        output = output.replace(str(self._place / "home"), "/home/you")
        return Ran(done.returncode, steady(output))

    def take_file(self, info: str, body: str) -> None:
        """Place a block that is a file, if it is one."""
        kind, _, name = info.partition(" ")
        if kind in _FILES and name:
            self.write(name, body)


def steady(output: str) -> str:
    """The output with a stand-in for all that differs from run to run."""
    for pattern, stand_in in _STAND_INS:
        output = re.sub(pattern, stand_in, output)
    # One for each, so that the page still shows which line names which.
    numbers: dict[str, int] = {}
    return _LINE_DIGEST.sub(
        lambda m: f"{numbers.setdefault(m[0], len(numbers) + 1):02x}" * 32, output
    )


def missing_line(excerpt: str, output: str) -> str | None:
    """The first line of an excerpt that is not in the output after the lines before it."""
    left = iter(output.splitlines())
    for line in excerpt.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if line.strip() != "…" and not any(pattern.fullmatch(seen.rstrip()) for seen in left):
            return line
    return None


def is_command(info: str, body: str) -> bool:
    """Whether a block is to be run."""
    return info == "sh" and _COMMAND.match(body) is not None


def verb(line: str) -> str:
    """Which verb of Keyhole's a command's line is about."""
    found = _COMMAND.match(line)
    return line[found.end() :].split()[0] if found else ""


def expected_exit(line: str) -> int:
    """The code that a command's line says it ends with."""
    found = _EXIT.search(line)
    return int(found[1]) if found else 0


def _renew_outputs(name: str, text: str, bench: Bench) -> str:
    pieces, at = [], 0
    printed: str | None = None
    for block in _FENCE.finditer(text):
        between = text[at : block.start()]
        info, body = block["info"].strip(), block["body"]
        kind, _, word = info.partition(" ")
        bench.take_file(info, body)
        if is_command(info, body):
            printed = "".join(_printed(name, line, bench) for line in body.splitlines())
        elif kind in _OUTPUTS and printed is not None and not between.strip():
            if word == _EXCERPT:
                _compare(name, body, printed)
            else:
                body = _cut(printed) if kind == "text" else printed
            printed = None
        elif word == _EXCERPT:
            raise Stale(f"{name}: an excerpt of nothing: {body.partition(chr(10))[0]}")
        else:
            printed = None
        pieces.append(f"{between}```{block['info']}\n{body}```")
        at = block.end()
    return "".join(pieces) + text[at:]


def _printed(name: str, line: str, bench: Bench) -> str:
    ran = bench.run(line)
    if ran.code != expected_exit(line):
        raise Stale(f"{name}: `{line}` ended with {ran.code}:\n{ran.output}")
    return ran.output


def _compare(name: str, excerpt: str, printed: str) -> None:
    line = missing_line(excerpt, printed)
    if line is not None:
        raise Stale(f"{name}: this line of an excerpt was not printed:\n{line}\nbut\n{printed}")


def _cut(output: str) -> str:
    lines = (
        line if len(line) <= MAX_LINE else line[: MAX_LINE - 1].rstrip() + "…"
        for line in output.splitlines()
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


# ── documents ───────────────────────────────────────────────────────────────────────────────────


def renewed(name: str) -> str:
    """A document's text with every generated part made anew."""
    text = (ROOT / name).read_text("utf-8")
    for part, make in PARTS[name].items():
        begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise Stale(f"{name}: wants one {begin} and one {end}")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{make()}\n{end}{rest.split(end)[1]}"
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        if name.startswith(_GUIDES):
            bench.as_new_user()
        return _renew_outputs(name, text, bench)


def main() -> int:
    """Write, or with `--check` compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    options = parser.parse_args()
    code = 0
    for name in PARTS:
        try:
            text = renewed(name)
        except Stale as error:
            print(error, file=sys.stderr)
            code = 1
            continue
        file = ROOT / name
        if text == file.read_text("utf-8"):
            continue
        if options.check:
            print(f"{name} is stale: `make docs` renews it", file=sys.stderr)
            code = 1
        else:
            _replace(file, text)
            print(f"wrote {name}")
    return code


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    os.replace(new, file)


if __name__ == "__main__":
    sys.exit(main())
