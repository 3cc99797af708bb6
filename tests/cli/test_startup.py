"""Start-up stays quick: what each command imports is held by lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keyhole.cli.parser import build_parser

VERSION_MODULES = {"keyhole", "keyhole.cli", "keyhole.cli.main"}
"""All of Keyhole's own that `--version` may import; of others, only what Python itself brings."""

HEAVY = {"asyncio", "ssl", "socket", "subprocess", "cryptography", "idna", "shtab", "argparse",
         "dataclasses", "tomllib", "http.client", "urllib.request", "email", "xml", "logging",
         "publicsuffixlist", "pip", "rich"}  # fmt: skip


def imported(*words: str) -> set[str]:
    """The modules that a command imports beyond those of a bare interpreter."""
    program = (
        "import sys; before = set(sys.modules); sys.argv = ['keyhole', *sys.argv[1:]]\n"
        "from keyhole.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rstrip("\n").rsplit("\n", 1)[1].split())


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
                "xml", "publicsuffixlist", "shtab", "pip", "logging"}  # fmt: skip
    assert found & unwanted == set()


def test_a_run_that_is_refused_imports_neither_loop_nor_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """They are imported while bubblewrap works, and not before."""
    policy = tmp_path_factory.mktemp("p") / "keyhole.toml"
    policy.write_text("version = 2\n")
    found = imported("run", "--policy", str(policy), "--", "true")
    assert "keyhole.sandbox.helper" in found
    unwanted = {"asyncio", "uvloop", "ssl", "dns", "logging", "dataclasses", "inspect",
                "subprocess", "cryptography", "keyring", "keyhole.gateway", "rich",
                "keyhole.app.run"}  # fmt: skip
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
        "import sys, keyhole.app.interception, keyhole.app.provider\n"
        "print(' '.join(m for m in sys.modules if m.partition('.')[0] in"
        " ('keyring', 'jeepney', 'secretstorage', 'hyperscan', 'keyhole')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert "keyhole.vault.keyrings" in done.stdout.split()  # the control
    assert {module.partition(".")[0] for module in done.stdout.split()} == {"keyhole"}


def test_one_verb_s_parser_is_that_of_all() -> None:
    every, one = build_parser(), build_parser("run")
    words = ["run", "-q", "--policy", "p.toml", "--", "make", "-j2"]
    assert one.parse_args(words) == every.parse_args(words)
    with pytest.raises(SystemExit):
        one.parse_args(["check"])
    assert build_parser("nonsense").format_help() == every.format_help()
