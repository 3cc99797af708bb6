"""The sandbox's environment (I1)."""

from __future__ import annotations

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.environment import PATH, build_environment
from tests.rigs.sandbox.worlds import a_sandbox

OUTER = {
    "TERM": "xterm",
    "LANG": "C.UTF-8",
    "LC_TIME": "de_DE.UTF-8",
    "HOME": "/home/other",
    "PATH": "/home/dev/code/.venv/bin:/usr/bin",
    "GITHUB_TOKEN": "ghp_" + "a" * 36,
    "EDITOR": "vi",
    "LD_PRELOAD": "/x.so",
    "SSH_AUTH_SOCK": "/run/agent",
}


def built(
    env: tuple[tuple[str, str], ...] = (), pass_env: tuple[str, ...] = (), **outer: str
) -> dict[str, str]:
    sandbox = a_sandbox(env=env, pass_env=pass_env)
    return build_environment(sandbox, OUTER | outer, "/home/dev", "dev")


def test_only_what_is_listed_comes_in() -> None:
    assert built() == {
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "LC_TIME": "de_DE.UTF-8",
        "HOME": "/home/dev",
        "USER": "dev",
        "LOGNAME": "dev",
        "SHELL": "/bin/sh",
        "PATH": PATH,
    }


def test_the_policy_adds_and_passes_variables() -> None:
    found = built(env=(("NODE_ENV", "test"),), pass_env=("EDITOR", "NOT_SET"))
    assert found["NODE_ENV"] == "test"
    assert found["EDITOR"] == "vi"
    assert "NOT_SET" not in found


@pytest.mark.parametrize("name", ["GITHUB_TOKEN", "MY_API_KEY", "DB_PASSWORD", "AWS_PROFILE"])
def test_a_name_that_looks_like_a_credential_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="by its name"):
        built(env=((name, "harmless"),))
    with pytest.raises(Refused, match="by its name"):
        built(pass_env=("AWS_PROFILE",), AWS_PROFILE="harmless")


def test_a_name_that_only_resembles_one_passes() -> None:
    assert built(env=(("KEYBOARD", "de"),))["KEYBOARD"] == "de"


def test_a_value_that_looks_like_a_credential_is_refused_and_not_shown() -> None:
    with pytest.raises(Refused) as caught:
        built(env=(("DATABASE_URL", "postgres://u:hunter2@db/x"),))
    assert "hunter2" not in str(caught.value)
    assert "[services]" in str(caught.value)
    with pytest.raises(Refused, match="a token"):
        built(pass_env=("HARMLESS",), HARMLESS="glpat-" + "a" * 20)
    assert built(env=(("DATABASE_URL", "postgres://db/x"),))["DATABASE_URL"] == "postgres://db/x"


def test_a_credential_in_a_listed_variable_is_left_out() -> None:
    assert "LC_ALL" not in built(LC_ALL="ghp_" + "a" * 36)
    assert "TERM" not in built(TERM="x" * 300)


def test_who_one_is_cannot_be_chosen_but_the_path_can() -> None:
    found = built(env=(("HOME", "/elsewhere"), ("PATH", "/opt/tool/bin:/usr/bin")))
    assert found["HOME"] == "/home/dev"
    assert found["PATH"] == "/opt/tool/bin:/usr/bin"
