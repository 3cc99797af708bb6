"""Start-up stays quick: what each command imports is held by lists."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from keyhole.cli.parser import VERBS, build_parser, parser_for

VERSION_MODULES = {"keyhole", "keyhole.cli", "keyhole.cli.exit_codes", "keyhole.cli.main",
                   "keyhole.system", "keyhole.system.faults", "keyhole.system.startup"}  # fmt: skip
"""All of Keyhole's own that `--version` may import; of others, only what Python itself brings."""

HEAVY = {"asyncio", "ssl", "socket", "subprocess", "cryptography", "idna", "shtab", "argparse",
         "dataclasses", "tomllib", "http.client", "urllib.request", "email", "xml", "logging",
         "publicsuffixlist", "pip", "rich"}  # fmt: skip


def imported(*words: str) -> set[str]:
    """The modules that a command imports beyond those of a bare interpreter."""
    program = (
        "import sys; before = set(sys.modules); sys.argv = ['keyhole', *sys.argv[1:]]\n"
        # msgspec imports it if it is there, which it is for these tests alone: see runtime.lock.
        "sys.modules['typing_extensions'] = None\n"
        "from keyhole.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rstrip("\n").rsplit("\n", 1)[1].split())


OBSERVED = """\
#!/bin/sh
exec {python} -X importtime "$@" 2> {directory}/$$
"""
"""In place of the interpreter of a run's other processes: it writes what each of them imports."""

RUN = """\
import os, sys
observed, spawn = sys.argv[1], os.posix_spawn
os.posix_spawn = lambda path, *words, **more: spawn(
    observed if path == sys.executable else path, *words, **more)
sys.argv = ["keyhole", "run", "-q", "--trust", "--own-gateway", "--", "true"]
from keyhole.cli.main import main
code = main()
print(*sys.modules)
sys.exit(code)
"""

NEVER_WITHOUT_SERVICES = {"cryptography", "keyring", "docker", "requests", "rich", "hyperscan",
                          "prometheus_client", "http.client", "email", "xml", "dataclasses",
                          "keyhole.gateway", "keyhole.judge", "keyhole.vault.vault",
                          "keyhole.sandbox.containers.engine", "keyhole.certs"}  # fmt: skip
"""What no process of a run imports whose policy has no services and whose command connects to
nothing."""

NEVER_BESIDE = {"asyncio", "uvloop", "ssl", "logging", "inspect", "subprocess", "pathlib",
                "hashlib", "argparse", "tomllib", "keyhole.policy", "keyhole.audit",
                "keyhole.inject", "keyhole.app.setup"}  # fmt: skip
"""What only the main process of such a run imports."""


def processes_of_a_run(project: Path, directory: Path) -> dict[str, set[str]]:
    """The modules of each process of one run, by what the process is."""
    directory.mkdir()
    interpreter = directory.parent / "python"
    interpreter.write_text(OBSERVED.format(python=sys.executable, directory=directory))
    interpreter.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN, interpreter],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(directory.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {"main": set(done.stdout.split())}
    kinds = {"helper": "keyhole.sandbox.bwrap.helper_main", "plane": "keyhole.app.run.data_plane"}
    for file in directory.iterdir():
        lines = file.read_text().splitlines()
        names = [line.rpartition("|")[2].strip() for line in lines]
        for kind, module in kinds.items():
            if module in names:
                # A module's line follows those of its imports. What a process imports later hangs
                # on time: a data plane loads the gateway when a command lasts.
                found[kind] = set(names[: names.index(module) + 1])
    return found


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    # The first run tries the walls, for which it needs the gateway; the second one is as usual.
    ground = Path(tempfile.mkdtemp(prefix="keyhole-startup-", dir="/var/tmp"))
    try:
        project = ground / "project"
        project.mkdir()
        (project / "keyhole.toml").write_text("version = 1\n")
        processes_of_a_run(project, ground / "first")
        return processes_of_a_run(project, ground / "second")
    finally:
        shutil.rmtree(ground)


def test_a_run_without_services_imports_nothing_for_them(processes: dict[str, set[str]]) -> None:
    assert set(processes) == {"main", "helper", "plane"}
    for modules in processes.values():
        assert modules & NEVER_WITHOUT_SERVICES == set()
    assert {"asyncio", "keyhole.app.run.run", "keyhole.policy.policy"} <= processes["main"]


@pytest.mark.parametrize("name", ["helper", "plane"])
def test_the_processes_beside_a_run_import_little(
    processes: dict[str, set[str]], name: str
) -> None:
    modules = processes[name]
    assert modules & NEVER_BESIDE == set()
    assert {"socket", "ctypes", "keyhole.system.startup"} <= modules  # the control
    assert ("msgspec._core" in modules) == (name == "helper")


def test_help_imports_neither_values_nor_the_network() -> None:
    found = imported("--help")
    assert "keyhole.cli.parser" in found
    assert found & {"msgspec", "asyncio", "socket", "ssl", "subprocess", "pathlib", "inspect",
                    "keyhole.app", "keyhole.policy", "keyhole.sandbox"} == set()  # fmt: skip


def test_version_imports_next_to_nothing() -> None:
    found = imported("--version")
    assert {m for m in found if m.startswith("keyhole")} == VERSION_MODULES
    assert found & HEAVY == set()


@pytest.mark.parametrize("name", ["keyhole.toml"])
def test_check_leaves_the_network_and_the_heavy_alone(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    policy = tmp_path_factory.mktemp("p") / name
    policy.write_text("version = 1\n[egress]\nallow = ['example.org']\npresets = ['node']\n")
    found = imported("check", str(policy))
    assert "keyhole.policy.load" in found
    unwanted = {"asyncio", "ssl", "socket", "subprocess", "http.client", "urllib.request", "email",
                "xml", "shtab", "pip", "logging"}  # fmt: skip
    assert found & unwanted == set()


def test_a_run_that_is_refused_imports_neither_loop_nor_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """They are imported while bubblewrap works, and not before."""
    policy = tmp_path_factory.mktemp("p") / "keyhole.toml"
    policy.write_text("version = 2\n")
    found = imported("run", "--policy", str(policy), "--", "true")
    assert "keyhole.sandbox.bwrap.helper" in found
    unwanted = {"asyncio", "uvloop", "ssl", "dns", "logging", "dataclasses", "inspect",
                "cryptography", "keyring", "keyhole.gateway", "rich",
                "keyhole.app.run.run"}  # fmt: skip
    assert found & unwanted == set()


def test_a_gateway_is_asked_without_a_loop_and_a_table_in_a_pipe_without_rich() -> None:
    found = imported("status")
    assert "keyhole.control.client" in found
    unwanted = {"asyncio", "uvloop", "ssl", "subprocess", "logging", "dataclasses", "rich",
                "keyhole.gateway", "keyhole.control.server"}  # fmt: skip
    assert found & unwanted == set()


def test_what_holds_secrets_is_imported_without_large_libraries() -> None:
    """Those of keyrings and of the search; they are imported when a keyring is asked, and when the
    first answer is searched."""
    program = (
        "import sys, keyhole.app.session.interception, keyhole.app.setup.provision_reader\n"
        "print(' '.join(m for m in sys.modules if m.partition('.')[0] in"
        " ('keyring', 'jeepney', 'secretstorage', 'hyperscan', 'keyhole')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert "keyhole.vault.keyrings" in done.stdout.split()  # the control
    assert {module.partition(".")[0] for module in done.stdout.split()} == {"keyhole"}


def test_the_parser_of_one_verb_reads_what_the_parser_of_all_reads() -> None:
    every = build_parser()
    words = ["run", "-q", "--policy", "p.toml", "--", "make", "-j2"]
    one = parser_for(words)
    assert one.parse_args(words) == every.parse_args(words)
    with pytest.raises(SystemExit):
        one.parse_args(["check"])
    assert parser_for(["nonsense"]).format_help() == every.format_help()


def test_only_the_verb_that_is_typed_is_imported() -> None:
    def verbs(*words: str) -> set[str]:
        modules = imported(*words)
        return {verb for verb in VERBS if f"keyhole.cli.{verb}" in modules}

    assert verbs("run") == {"run"}
    assert verbs("why", "--help") == {"why"}
    assert verbs("--help") == verbs("nonsense") == set()
    assert verbs("--nonsense", "services") == {"services"}


def test_a_command_line_is_parsed_without_starting_a_process() -> None:
    program = (
        "import sys\n"
        "from keyhole.cli.parser import VERBS, parser_for\n"
        "seen = []\n"
        "sys.addaudithook(lambda name, _: seen.append(name))\n"
        "words = ['run', '--', 'true']\n"
        "assert parser_for(words).parse_args(words).verb == 'run'\n"
        "started = {'os.fork', 'os.forkpty', 'os.posix_spawn', 'subprocess.Popen', 'os.exec'}\n"
        "assert 'import' in seen  # the control\n"
        "assert not started & {*seen}\n"
        "assert 'keyhole.sandbox.bwrap.helper' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
