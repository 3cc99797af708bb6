"""What every agent profile must hold, whoever adds it (I1), and how mistakes in one are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import keyhole.inject
from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.inject.agent_profile import NEVER_COPIED, SettingsFormat, parse_profile
from keyhole.inject.table_values import Confidence
from keyhole.model.errors import Unparsable
from tests.rigs.inject.shelf import NAMES as SERVICES

DIRECTORY = Path(keyhole.inject.__file__).parent / "agents"
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.toml"))
PROFILES = FileProfiles()
CATALOGUE = FileCatalogue()

each_agent = pytest.mark.parametrize("name", NAMES)

LEAST = """
title = "Agent"
sure = "tested"
looked_at = "2026-11-17"
install = "npm install -g agent"
marks = ["/node_modules/agent/"]
"""


def test_the_agents_that_people_ask_for_have_a_profile() -> None:
    wanted = "aider claude cline codex copilot gemini goose opencode qwen vibe".split()
    assert set(wanted) <= set(NAMES)
    assert list(PROFILES) == NAMES
    assert len(PROFILES) == len(NAMES)
    assert "claude" in PROFILES
    assert "sh" not in PROFILES
    assert "../services/github" not in PROFILES
    with pytest.raises(KeyError):
        PROFILES["sh"]
    assert PROFILES["claude"] is PROFILES["claude"]


@each_agent
def test_a_profile_that_was_tested_has_the_day_and_each_can_be_asked(name: str) -> None:
    profile = PROFILES[name]
    assert profile.trial
    assert profile.looked_at or profile.sure is not Confidence.TESTED


@each_agent
def test_its_services_are_in_the_catalogue_and_say_how_they_are_set_up(name: str) -> None:
    profile = PROFILES[name]
    assert name in profile.programs
    assert profile.access
    assert {access.service for access in profile.access} <= set(SERVICES)
    assert all(access.fix for access in profile.access)


@each_agent
def test_no_file_that_comes_along_is_a_credential(name: str) -> None:
    profile = PROFILES[name]
    paths = [*profile.copies, *(each.path for each in profile.settings if each.keys)]
    for word in ("auth.json", "credentials", "oauth", "secrets", "providers.json", ".env", "hosts"):
        assert not [path for path in paths if word in path]
    # Nothing but instructions lies below a directory that is copied as a whole.
    tails = {path.rpartition("/")[2] for path in profile.copies}
    assert not tails & {".claude", ".codex", ".gemini", ".config", "plugins", "hooks", "extensions"}


@each_agent
def test_no_key_that_comes_along_holds_a_credential_or_a_program(name: str) -> None:
    for settings in PROFILES[name].settings:
        words = {word.lower() for key in settings.keys for word in key.replace("_", ".").split(".")}
        assert not words & NEVER_COPIED


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("color = 1", "unknown key 'color'"),
        ('programs = ["bin/agent"]', r"programs\[0\]: the name of a program"),
        ('copies = ["/etc/passwd"]', r"copies\[0\]: a hidden file below the home"),
        ('copies = [".x/../../y"]', "a hidden file below the home"),
        ('copies = [".x//y"]', "a hidden file below the home"),
        ('quiet = ["https://x.example"]', r"quiet\[0\]: a host pattern has no scheme"),
        ('[[access]]\nservice = "x"\nsecret = "abc"\nfix = "y"', r"access\[0\]: a secret is named"),
        ('[[access]]\nservice = "x"\nname = 1', r"access\[0\]: access: unknown key 'name'"),
        ('[[settings]]\nfile = ".x"\nformat = "xml"', r"settings\[0\]: .*not a valid"),
        ('[[settings]]\nfile = ".x"\nlanguage = "json"', "unknown key 'language'"),
        ('[[settings]]\nfile = ".x"\nformat = "json"\nkeys = ["env"]', "never copied"),
        ('[[settings]]\nfile = ".x"\nformat = "json"\nkeys = ["apiKeyHelper"]', "never copied"),
        ('[[settings]]\nfile = ".x"\nformat = "json"\nkeys = ["mcpServers"]', "never copied"),
        (
            '[[settings]]\nfile = ".x"\nformat = "json"\nswitches = [{ key = "a" }]',
            r"settings\[0\]: switches\[0\]: 'feature' is missing",
        ),
        (
            '[[settings]]\nfile = ".x"\nformat = "json"\nswitches = [{ name = "a" }]',
            "switch: unknown key 'name'",
        ),
        ('[servers]\nfile = ".x"\nreference = "$VAR"', "'reference' has NAME in the place"),
        ('[servers]\nfile = "/x"', "servers: a hidden file below the home"),
        ('[servers]\nfile = ".x"\ntable = 1', "servers: unknown key 'table'"),
        ('[env]\n"A B" = "1"', "the name of a variable"),
        ("[env]\nA = 1", "env.A: a text is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(more: str, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        parse_profile("agent", f"{LEAST}{more}")


@each_agent
def test_its_servers_are_in_one_of_its_settings_files(name: str) -> None:
    profile = PROFILES[name]
    if profile.servers is not None:
        assert profile.servers.path in {each.path for each in profile.settings}
        assert profile.servers.keys
        assert "." not in profile.servers.keys[0]


@each_agent
def test_its_switches_follow_features_that_its_services_know(name: str) -> None:
    """I10: a misspelt feature would keep the setting off for ever."""
    profile = PROFILES[name]
    hosts = (host for each in profile.access for host in CATALOGUE[each.service].hosts)
    apis = (judged.api for host in hosts for judged in host.judged)
    known = {word for api in apis if api is not None for word in api.features}
    assert known.issuperset(each.feature for file in profile.settings for each in file.switches)


def test_a_profile_without_a_mark_would_take_other_programs_of_its_name_for_the_agent() -> None:
    with pytest.raises(Unparsable, match="'marks' or 'contents'"):
        parse_profile("agent", LEAST.replace("marks", "notes"))


def test_a_small_profile_is_enough() -> None:
    more = 'quiet = ["t.example", "x.example POST /log/**"]\n[[settings]]\nfile = ".x"\n'
    profile = parse_profile("agent", f'{LEAST}{more}format = "toml"\nkeys = ["coAuthored", "a.b"]')
    assert profile.programs == ("agent",)
    assert profile.settings[0].format is SettingsFormat.TOML
    assert profile.quiet == ("t.example", "x.example POST /log/**")
