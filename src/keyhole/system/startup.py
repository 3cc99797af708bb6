"""Start-up tricks: all of them, with the milliseconds that each gains.

A trick makes a command start or end sooner and the code less plain, so it has to gain 3 ms or more.
`TRICKS` has those that change how a process begins or ends; the functions below do some of them.
`POSTPONED` has each module that is imported inside a function and not at a module's top.
`scripts/check_startup.py` compares it with the code (`make lint`), and measures it with
`--measure`. Every process imports this module first, so it imports next to nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import ModuleType

LEAST_MS = 3
"""Milliseconds that a trick has to gain."""

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""As many as the imports of a verb make. With Python's own number, 700, the collector goes over all
modules again and again while they are imported, and finds nothing."""

TRICKS = (
    (6, "collect_rarely", "the collector stays away from a verb's imports"),
    (20, "leave", "a verb ends without taking its modules apart"),
    (9, "import_msgspec", "where typing_extensions is installed, with which it takes 38 ms"),
    (17, "import_without", "docker without the collector and charset_normalizer"),
    (44, "cli/run.py", "the helper starts before the policy's modules are imported"),
    (30, "cli/run.py", "and so does the data plane"),
    (10, "app/run/early_start.py", "the helper is released before the event loop is imported"),
    (90, "app/run/data_plane.py", "the gateway is imported at a client's first connection"),
    (11, "app/run/run_endpoint.py", "the control API is imported in a thread, after 0.1 s"),
    (9, "sandbox/sandbox_init.py", "the first process inside does without enum, json and typing"),
    (6, "confine/seccomp.py", "libseccomp is loaded by its name, without a search"),
    (190, "cli/parser.py", "the module of the verb that was typed is imported, and no other"),
    (33, "host/presets.py", "a package manager's module is imported if a preset names it"),
)
"""Milliseconds, where, and what is done. `collect_rarely`, `leave`, data_plane.py: processor time
of `keyhole run -q -- true` with and without it, 30 turns each. msgspec, docker, sandbox_init.py and
seccomp.py: a fresh interpreter both ways.

On a loaded machine (two cores, load 12 to 18), processor time as the median of differences in
turns: run_endpoint.py 24 turns; parser.py 24 turns of `keyhole services`, against every verb with
its flags; presets.py 20 turns of a fresh interpreter; early_start.py, which moves work and should
save none, 29 and 10 ms in 24 and 30 turns, so that is uncertain.

The two of cli/run.py: the processor time of each process until it waits, lower quartile of 40
starts. It is spent beside the 60 ms in which run.py imports `run_sandboxed`, so with two idle cores
nothing of it is waited for, and with one 60 ms of the 74. By the wall clock nothing could be
measured: with a load of 8 on two cores, 40 turns with and without them differed by less than from
one try to the next."""

POSTPONED: dict[str, tuple[float, str]] = {
    # A run: what is not needed before its helper is released, or not at all without services.
    "keyhole.cli.run_sandboxed": (75, "imported while the helper and the data plane start"),
    "keyhole.cli.early_start": (19, "`keyhole run --help` starts nothing"),
    "keyhole.cli.desktop_start": (4, "the same"),
    "keyhole.cli.unisolated": (36, "only with --unsafe-no-isolation"),
    "keyhole.sandbox.bwrap.bwrap_runtime": (11, "brings asyncio; the helper is released before"),
    "keyhole.app.run.run": (14, "brings asyncio and uvloop"),
    "keyhole.app.run.own_gateway": (12, "brings asyncio"),
    "keyhole.app.run.run_endpoint": (12, "brings asyncio"),
    "keyhole.app.run.run_operations": (37, "imported in a thread while the command runs"),
    "keyhole.control.server": (21, "imported in a thread while the command runs"),
    "keyhole.app.session.commit_signer": (39, "imported at the first signature"),
    "keyhole.app.session.approval_command": (39, "imported at the first question"),
    "keyhole.app.run.exec_endpoint": (5, "imported at the first `keyhole exec`"),
    "keyhole.app.run.daemon_gateway": (26, "only where `keyhole up` serves"),
    "keyhole.app.selftest.selftest": (145, "brings the gateway; walls are tried once"),
    "keyhole.app.selftest.container_selftest": (154, "the same for containers"),
    "keyhole.app.session.source_watcher": (41, "imported while the command runs"),
    "keyhole.app.setup.provision_reader": (39, "brings the vault"),
    "keyhole.judge.judge_process": (8, "only for a push"),
    "keyhole.app.setup.root_reader": (7, "brings TLS; only with services"),
    "keyhole.certs.roots": (7, "brings TLS; only with services"),
    "keyhole.certs.truststore": (7, "brings TLS; only where a JVM is installed"),
    "keyhole.sandbox.containers.container_target": (20, "only for containers"),
    "keyhole.sandbox.containers.container_start": (18, "imported while the engine starts"),
    "asyncio": (26, "in `registration`, imported while the engine starts"),
    "json": (7, "in a container's entry point, only for a home that is kept"),
    # A run's data plane.
    "keyhole.app.run.data_plane_opening": (40, "imported at the first connection"),
    "keyhole.app.run.data_plane_service": (164, "imported at the first connection"),
    "keyhole.app.session.interception": (97, "only with services"),
    "keyhole.app.session.session_trust": (53, "brings cryptography; only with services"),
    "keyhole.policy.graphql.judge": (200, "brings graphql-core; imported at the first document"),
    "keyhole.policy.graphql.root_fields": (180, "brings graphql-core, at the first one"),
    # Other verbs.
    "keyhole.cli.verb_help": (4, "only for `keyhole --help` and for a verb that does not exist"),
    "keyhole.cli.parser": (5, "with cli.faults: `keyhole --version` needs neither"),
    "keyhole.cli.faults": (5, "with cli.parser"),
    "keyhole.cli.verb_context": (14, "brings msgspec; only a fault report needs it"),
    "keyhole.cli.drawing": (33, "brings rich; output to a pipe is not drawn"),
    "rich.console": (31, "only while an image is pulled on a terminal"),
    "rich.progress": (40, "only while an image is pulled on a terminal"),
    "keyhole.cli.secret_check": (78, "brings the gateway; only `secret test`"),
    "keyhole.cli.secret_list": (22, "brings the policy; only `secret list`"),
    "keyhole.cli.secret_rotate": (15, "brings the control client; only `secret rotate`"),
    "keyhole.cli.up_foreground": (35, "only `up --foreground`"),
    "keyhole.app.containers.supervisor": (53, "imported in the process that stays"),
    "keyhole.cli.exec_bubblewrap": (29, "only `exec` into a sandbox of bubblewrap"),
    "keyhole.cli.exec_container": (57, "brings engines; only `exec` into a container"),
    "keyhole.app.containers.named_sandbox": (10, "only `exec` into a sandbox with a name"),
    "keyhole.model.host": (3, "in the table of operations; brings idna and ipaddress"),
    "keyhole.control.endpoints": (6, "only for verbs that ask every run"),
    "keyhole.host.program_output": (5, "brings subprocess; only for a preset that asks a program"),
    "keyhole.vault.github_app": (60, "brings ciphers; only for a GitHub App"),
    "keyhole.vault.envelope": (7, "brings ciphers; only for a store with a passphrase"),
    "keyhole.vault.token_endpoint": (
        41,
        "brings asyncio and TLS; only to ask for a token",
    ),
    "prometheus_client": (49, "brings an HTTP server; only when metrics are asked for"),
    # Not for time.
    "keyhole.inject.prefilter": (2, "not for time: a process with secrets loads it to search"),
    "requests": (0, "not for time: it comes with an extra"),
    "keyhole.app.screen.watch_app": (250, "not for time: it comes with an extra; only `watch`"),
    "keyhole.app.screen.watch_source": (30, "brings the log's columns; only `watch`'s full screen"),
    "keyhole.app.desktop.desktop_watch": (60, "not for time: it comes with an extra"),
    "keyhole.cli.desktop_questions": (30, "brings the policy's reader; only `watch --desktop`"),
    "keyhole.app.kube.cluster_status": (300, "not for time: it comes with an extra; only `kube`"),
    "keyhole.app.kube.otlp_export": (300, "not for time: it comes with an extra; only `kube`"),
    "keyhole.app.kube.reports_server": (200, "not for time: it comes with an extra; only `kube`"),
    "keyhole.cli.kube_status": (5, "brings the tables; only `kube status`"),
    "keyhole.app.kube.admission_server": (400, "not for time: it comes with an extra; only `kube`"),
    "keyhole.app.web.web_server": (150, "not for time: it comes with an extra; only `web`"),
}
"""Each module that is imported inside a function: the milliseconds that its import takes after that
of the importing module (in a run: after all that is imported by then), and why it can wait."""


def collect_rarely() -> None:
    """Let the garbage collector wait until a verb has imported its modules."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def import_msgspec() -> None:
    """Import msgspec without an extension of `typing` that it uses if it is installed, and that it
    does not need since Python 3.11."""
    import_without("msgspec", "typing_extensions")


def import_without(name: str, hidden: str) -> ModuleType:
    """Import a module without another one that it looks for and does not need, and without the
    collector. Where it does need that one, it is imported as usual. Raises ModuleNotFoundError."""
    if (found := sys.modules.get(name)) is not None:
        return found
    collects, hides = gc.isenabled(), hidden not in sys.modules
    gc.disable()
    try:
        if hides:
            sys.modules[hidden] = None  # type: ignore[assignment] # the documented way to hide one
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    finally:
        if hides:
            sys.modules.pop(hidden, None)
        if collects:
            gc.enable()
    return importlib.import_module(name)


def leave(code: int) -> NoReturn:
    """End this process without taking its modules apart, which takes longer than many verbs do."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or it is closed
            stream.flush()
    os._exit(code)
