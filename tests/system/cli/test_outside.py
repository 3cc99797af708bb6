"""The verbs, run as a user types them."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyhole.cli.parser import GROUPS, VERBS
from tests.rigs.cli.terminals import PROGRAM, on_terminal
from tests.rigs.lacking import give_up

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

POLICY = """
[egress]
allow = ["example.org"]
[services.anthropic]
secret = "store:anthropic"
[services.github]
secret = "exec:gh auth token"
repos = ["acme/widgets"]
push = ["agent/*"]
"""


def test_version_is_printed(keyhole: Keyhole) -> None:
    assert keyhole("--version").out.startswith("keyhole 0.")
    assert keyhole("-V").code == 0


@pytest.mark.parametrize("words", [("nonsense",), ("check", "--nonsense"), ("policy",)])
def test_a_wrong_command_line_exits_2_with_usage(keyhole: Keyhole, words: tuple[str, ...]) -> None:
    ran = keyhole(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "usage: keyhole" in ran.err


@pytest.mark.parametrize(
    "verb", ["", "check", "why", "init", "services", "policy", "completion", "demo"]
)
def test_every_verb_has_help(keyhole: Keyhole, verb: str) -> None:
    ran = keyhole(*([verb] if verb else []), "--help")
    assert ran.code == 0
    assert "usage: keyhole" in ran.out


def test_help_lists_every_verb_in_groups_also_without_a_word(keyhole: Keyhole) -> None:
    bare, asked, flag = keyhole(), keyhole("help"), keyhole("--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == asked.out == flag.out
    heads = [line for line in bare.out.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads == [f"{title}:" for title in GROUPS] + ["examples:"]
    for verb in VERBS:
        assert re.search(rf"^  {verb}  ", bare.out, re.MULTILINE), verb
    assert max(map(len, bare.out.partition("examples:")[0].splitlines())) <= 80


def test_help_fits_a_narrow_terminal(keyhole: Keyhole) -> None:
    _, said = on_terminal([PROGRAM], keyhole.env, keyhole.project, size=(24, 50))
    listed = said.partition("examples:")[0].splitlines()
    assert len(listed) > len(VERBS)
    assert max(map(len, listed)) <= 50


@pytest.mark.parametrize("words", [("check",), ("secret", "set"), ("log", "verify")])
def test_help_of_a_verb_is_its_own_help(keyhole: Keyhole, words: tuple[str, ...]) -> None:
    asked = keyhole("help", *words)
    assert (asked.code, asked.err) == (0, "")
    assert asked.out == keyhole(*words, "--help").out
    assert asked.out.startswith(f"usage: keyhole {' '.join(words)} ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chekc",), "did you mean `keyhole check`?"),
        (("help", "chekc"), "did you mean `keyhole check`?"),
        (("secret", "lst"), "did you mean `keyhole secret list`?"),
        (("policy", "zzzz"), "keyhole policy has schema, trust"),
        (("./my agent",), "`keyhole run -- './my agent'` runs a command"),
    ],
)
def test_a_mistyped_verb_gets_a_suggestion(
    keyhole: Keyhole, words: tuple[str, ...], said: str
) -> None:
    ran = keyhole(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "\x1b" not in keyhole("\x1b[2J").err


def test_version_is_a_verb_too(keyhole: Keyhole) -> None:
    assert keyhole("version").out == keyhole("--version").out
    assert json.loads(keyhole("version", "--json").out)["version"] in keyhole("version").out


@pytest.mark.parametrize(
    "words",
    [
        ("check",), ("policy", "trust", "--trust"), ("why", "example.org"), ("secret", "list"),
        ("run", "--trust", "--", "true"), ("findings",),
    ],
)  # fmt: skip
def test_policy_is_named_the_same_wherever_one_is_read(
    keyhole: Keyhole, words: tuple[str, ...]
) -> None:
    (keyhole.project / "other.toml").write_text('version = 1\negress.allow = ["example.org"]\n')
    at = words.index("--") if "--" in words else len(words)
    ran = keyhole(*words[:at], "--policy", "other.toml", *words[at:])
    assert ran.code == 0, ran.err


def test_two_policies_are_one_too_many(keyhole: Keyhole) -> None:
    ran = keyhole("check", "a.toml", "--policy", "b.toml")
    assert (ran.code, ran.err) == (2, "keyhole: name one policy: FILE, or --policy FILE\n")


# check


def test_check_says_what_a_policy_grants(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    ran = keyhole("check")
    assert (ran.code, ran.err) == (0, "")
    assert "keyhole.toml: valid" in ran.out
    assert "runs a command of this host" in ran.out
    assert "pushes agent/* (forward, create)" in ran.out


def test_check_tells_all_faults_with_places_and_exits_2(keyhole: Keyhole) -> None:
    keyhole.policy("[egress]\nalow = []\nallow = ['*.co.uk', '*.github.io', '*.com']\n")
    ran = keyhole("check")
    assert (ran.code, ran.out) == (2, "")
    assert "keyhole.toml:3:1: unknown key 'alow'" in ran.err
    assert "hint: did you mean 'allow'?" in ran.err
    for suffix in ("co.uk", "github.io", "com"):
        assert f"covers the public suffix '{suffix}'" in ran.err
    assert "4 faults" in ran.err
    keyhole.policy("[egress]\nallow = ['*.example.co.uk']\n")
    assert keyhole("check").code == 0


def test_check_takes_a_file_and_says_when_there_is_none(keyhole: Keyhole) -> None:
    ran = keyhole("check")
    assert ran.code == 2
    assert "no policy at keyhole.toml; `keyhole init` writes one" in ran.err
    other = keyhole.project / "other.toml"
    other.write_text("version = 1\n")
    assert keyhole("check", "other.toml").code == 0
    assert keyhole("check", str(keyhole.project)).code == 2


def test_check_json_is_for_machines(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    good = json.loads(keyhole("check", "--json", "--show").out)
    assert good["ok"] is True
    assert good["digest"].startswith("sha256:")
    assert {"id": "egress.allow", "value": "[example.org]", "source": "keyhole.toml:4"} in (
        good["values"]
    )
    keyhole.policy("[egres]")
    ran = keyhole("check", "--json")
    bad = json.loads(ran.out)
    assert (ran.code, bad["ok"]) == (2, False)
    assert bad["faults"][0]["line"] == 2


OPENING = """
[services.github]
secret = "store:gh"
repos = ["acme/widgets"]
allow = ["POST /user/keys", "GET /emojis"]
[services.wide]
hosts = ["*.corp.example"]
secret = "store:x"
inject = { header = "Authorization", value = "Bearer {secret}" }
allow = ["GET /**"]
"""
OPENED = "! opens a guarded endpoint, which can mint, list or move credentials or data"
WIDE = "! any *.corp.example host gets it"
SEES_ALL = (("check",), ("check", "--show"), ("policy", "trust"))


@pytest.mark.parametrize("words", SEES_ALL)
def test_a_person_is_shown_what_a_git_service_allows_and_what_that_opens(
    keyhole: Keyhole, words: tuple[str, ...]
) -> None:
    """I10: piped and on a terminal, each. Control: `why` allows the same request."""
    keyhole.policy(OPENING)
    asked = keyhole("why", "https://api.github.com/user/keys", "--method", "POST")
    assert asked.code == 0
    typed = [("accept this policy", "n\n")] if words == ("policy", "trust") else []

    def on(width: int) -> str:
        shown = on_terminal(
            [PROGRAM, *words], keyhole.env, keyhole.project, typed, size=(24, width)
        )[1]
        return re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")

    narrow = on(80)
    rows = [line for line in narrow.splitlines() if line.startswith("  ")]
    assert [row for row in rows if len(row) > 80 and len(row.split()) > 2] == []
    assert re.search(rf"allows POST /user/keys [^!]*{re.escape(OPENED)}", " ".join(narrow.split()))
    for text in (keyhole(*words).out, on(200)):
        lines = [line.strip() for line in text.splitlines()]
        assert [x for x in lines if x.startswith("allows POST /user/keys") and x.endswith(OPENED)]
        assert [x for x in lines if x.startswith("allows GET /emojis") and "!" not in x]
        assert f"secret for *.corp.example  {WIDE}" in lines


@pytest.mark.parametrize("words", SEES_ALL)
def test_a_machine_is_shown_the_same(keyhole: Keyhole, words: tuple[str, ...]) -> None:
    keyhole.policy(OPENING)
    ran = keyhole(*words, "--json")
    told = {grant["id"]: grant["alarm"] for grant in json.loads(ran.out)["grants"]}
    assert [alarm for name, alarm in told.items() if "POST /user/keys" in name] == [OPENED[2:]]
    assert told["wide: secret for *.corp.example"] == WIDE[2:]


def test_trust_in_json_asks_nobody_and_accepts_by_its_flag(keyhole: Keyhole) -> None:
    keyhole.policy(OPENING)
    asked = keyhole("policy", "trust", "--json")
    told = json.loads(asked.out)
    assert (asked.code, told["accepted"]) == (1, False)
    ran = keyhole("policy", "trust", "--json", f"--trust={told['digest']}")
    assert (ran.code, json.loads(ran.out)["accepted"]) == (0, True)


def test_check_show_says_where_each_value_is_from(keyhole: Keyhole) -> None:
    keyhole.policy("[services.anthropic]\n")
    config = keyhole.home / ".config" / "keyhole" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[services.anthropic]\nsecret = 'store:mine'\n[limits]\nttl = '2h'\n")
    out = keyhole("check", "--show").out
    assert f"store:mine  {config}:2" in out
    assert f"2h  {config}:4" in out
    assert "catalogue anthropic" in out


def test_the_users_config_is_found_by_xdg(keyhole: Keyhole, tmp_path: Path) -> None:
    config = tmp_path / "xdg" / "keyhole" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[limits]\nttl = '5 days'\n")
    keyhole.policy("")
    assert keyhole("check").code == 0
    keyhole.env["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert f"{config}:2:7" in keyhole("check").err
    keyhole.env["XDG_CONFIG_HOME"] = "relative"
    assert keyhole("check").code == 0


def test_check_show_reads_presets_from_this_hosts_package_managers(keyhole: Keyhole) -> None:
    """I1: the index's credential is found and shown nowhere."""
    keyhole.env["PIP_INDEX_URL"] = "https://me:hunter2-hunter2@pip.corp.example/simple"
    keyhole.policy("[egress]\npresets = ['python']\n")
    ran = keyhole("check", "--show")
    assert "pip.corp.example" in ran.out
    assert "hunter2" not in ran.out + ran.err
    why = keyhole("why", "https://pip.corp.example/simple/x")
    assert why.code == 0
    assert "header Authorization: Basic me:{secret}" in why.out
    assert keyhole("why", "-X", "POST", "https://pip.corp.example/legacy").code == 1


def test_why_names_the_preset_that_has_a_host(keyhole: Keyhole) -> None:
    """Control: a host that no preset has is one for `allow`; and the advice works as pasted."""
    keyhole.env["PIP_INDEX_URL"] = "https://pip.corp.example/simple"
    keyhole.policy("")
    target = ("why", "https://pip.corp.example/simple/x")
    ran = keyhole(*target)
    assert ran.code == 1
    advice, _, command = ran.out.partition("to allow it, add:\n")[2].partition("  or let")
    assert "keyhole allow https://pip.corp.example/simple/x --save" in command
    assert advice == '    [egress]\n    presets = ["python"]\n'
    keyhole.policy(advice)
    assert keyhole(*target).code == 0
    other = keyhole("why", "other.corp.example")
    assert 'add to [egress]:\n    allow = ["other.corp.example"]\n' in other.out


# a policy that is wrong


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("why", "example.org"), "the policy is not valid; `keyhole check` says the same"),
        (("policy", "trust"), "the policy is not valid, so it cannot be accepted"),
        (("secret", "test", "anthropic"), "nothing was asked: the policy is not valid"),
    ],
)
def test_a_verb_says_what_a_faulty_policy_means_for_it(
    keyhole: Keyhole, words: tuple[str, ...], line: str
) -> None:
    keyhole.policy("[egres]\n")
    ran = keyhole(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "hint: did you mean 'egress'?" in ran.err
    assert ran.err.endswith(f"\nkeyhole: {line}\n")


# why


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("example.org",), 0, "tunnelled"),
        (("https://example.org/x",), 0, "egress.allow[0]  keyhole.toml:4"),
        (("evil.example",), 1, "no rule names it (no-rule)"),
        (("https://192.0.2.1/",), 1, "literal-address"),
        (("198.18.0.1",), 1, "hosts are reached by name: use the name, and allow that"),
        (("-X", "POST", "https://api.anthropic.com/v1/messages"), 0, "x-api-key: {secret}"),
        (("--method", "POST", "https://api.anthropic.com/v1/files"), 1, "guarded-endpoint"),
        (("git", "push", "https://github.com/acme/widgets", "agent/x"), 0, "x-access-token"),
        (("git push https://github.com/acme/widgets main",), 1, "ref-not-granted"),
        (("git", "push", "--force", "https://github.com/acme/widgets", "agent/x"), 1, "force"),
        (("git", "push", "https://github.com/Acme/Widgets.git", "agent/x"), 0, "services.github"),
        (("git", "push", "https://github.com/acme/other", "agent/x"), 1, "does not exist"),
        (("https://exa mple.org",), 2, "one URL or host"),
        (("git", "push", "origin", "main"), 2, "git remote get-url"),
    ],
)
def test_why_explains_by_rule_and_exit_code(
    keyhole: Keyhole, words: tuple[str, ...], code: int, said: str
) -> None:
    keyhole.policy(POLICY)
    ran = keyhole("why", *words)
    assert ran.code == code
    assert said in ran.out + ran.err


def test_why_json(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    found = json.loads(keyhole("why", "evil.example", "--json").out)
    assert (found["verdict"], found["reason"]) == ("deny", "no-rule")
    assert found["fix"] == '[egress]\nallow = ["evil.example"]'


def test_why_of_a_broken_policy_is_unusable(keyhole: Keyhole) -> None:
    keyhole.policy("[egres]")
    ran = keyhole("why", "example.org")
    assert ran.code == 2
    assert "unknown key" in ran.err
    assert keyhole("why", "example.org", "--policy", "missing.toml").code == 2


# services, schema, completion, demo


def test_services_lists_and_shows(keyhole: Keyhole) -> None:
    listed = json.loads(keyhole("services", "--json").out)
    assert len(listed) >= 40
    assert all({"id", "sure", "looked_at"} <= set(entry) for entry in listed)
    assert "documented" in keyhole("services").out
    shown = keyhole("services", "show", "github")
    assert shown.code == 0
    assert "Basic x-access-token:{secret}" in shown.out
    assert json.loads(keyhole("services", "show", "github", "--json").out)["id"] == "github"
    hub = json.loads(keyhole("services", "show", "huggingface", "--json").out)["hosts"][0]
    assert "header:x-xet-*" in hub["returned"]
    assert "returned       header:x-xet-*" in keyhole("services", "show", "huggingface").out
    assert json.loads(keyhole("services", "--json", "show", "github").out)["id"] == "github"
    wrong = keyhole("services", "show", "githb")
    assert wrong.code == 2
    assert "did you mean 'github'?" in wrong.err


@pytest.mark.parametrize("words", [("services",), ("secret", "list")])
@pytest.mark.parametrize("width", [40, 80])
def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe(
    keyhole: Keyhole, words: tuple[str, ...], width: int
) -> None:
    keyhole.policy(POLICY)
    env = keyhole.env | {"NO_COLOR": "1"}
    code, said = on_terminal([PROGRAM, *words], env, keyhole.project, size=(24, width))
    assert code == 0
    assert max(map(len, said.splitlines())) <= width
    assert "github" in said
    piped = keyhole(*words).out
    assert "…" not in piped
    assert any(len(line) > 40 for line in piped.splitlines())


def test_a_closed_pipe_is_no_error(keyhole: Keyhole) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{PROGRAM}' services --json | head -n 1"],
        env=keyhole.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_the_schema_is_json(keyhole: Keyhole) -> None:
    assert json.loads(keyhole("policy", "schema").out)["title"] == "keyhole.toml"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_knows_the_verbs(keyhole: Keyhole, shell: str) -> None:
    ran = keyhole("completion", shell)
    assert ran.code == 0
    assert "services" in ran.out


def test_bash_completes_a_verb(keyhole: Keyhole) -> None:
    script = keyhole("completion", "bash").out
    probe = 'COMP_WORDS=(keyhole ser); COMP_CWORD=1; _shtab_keyhole; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["/bin/bash", "-c", f"{script}\n{probe}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "services"


def test_the_demo_explains_and_ends_by_itself(keyhole: Keyhole) -> None:
    """I1, I2, I3, I7, I8: what the client sees, what it does not, and that it is written down."""
    ran = keyhole("demo")
    assert (ran.code, ran.err) == (0, "")
    explained, real = ran.out.split("4. Now for real")
    assert (explained.count("  denied "), explained.count("  allowed  ")) == (7, 4)
    seen, rest = real.split("5. The audit log")
    log, proven = rest.split("6. The claims of this demo")
    said = dict(re.findall(r"^ +(\S.*?) {2,}(\S.*)$", seen, re.MULTILINE))
    assert said["network interfaces"] == "lo"
    placeholder = said["env HELLO_API_KEY"]
    assert re.fullmatch(r"hello-keyhole[A-Za-z0-9]{25}", placeholder)
    service = "GET https://hello.keyhole.example"
    assert said[f"{service}/v1/whoami"] == "200 the service says: this is the real key"
    assert said[f"{service}/v1/echo"] == f"200 Bearer {placeholder}"
    assert said["the same, read from base64"] == f"Bearer {placeholder}"
    assert said[f"{service}/admin/keys"].startswith("403 no rule")
    assert said["GRPC hello.v1.Hello/Say"].startswith("status 0 ")
    assert said["GRPC hello.v1.Hello/Delete"].startswith("status 7 ")
    assert said["GET https://evil.example/"].startswith("refused: ")
    assert said["GET https://192.0.2.1/"].startswith("refused: ")
    rejected = "exit 1: ! [remote rejected] HEAD ->"
    push = "git push origin HEAD:"
    assert said[f"{push}agent/demo"] == "exit 0: * [new branch] HEAD -> agent/demo"
    assert said[f"{push}main"].startswith(f"{rejected} main (keyhole: push to main is not allowed;")
    assert ".github/workflows/x.yml, which deny_paths protects" in said[f"{push}agent/demo2"]
    for word in ("secret-scrubbed", "path=/admin/keys", "evil.example", "literal-address"):
        assert word in log
    assert re.search(r"allow  ref .* ref=refs/heads/agent/demo ", log)
    assert re.search(r"deny   ref .* ref-not-granted .* ref=refs/heads/main ", log)
    assert re.search(r"deny   ref .* denied-path .* ref=refs/heads/agent/demo2 ", log)
    assert (proven.count("  holds  "), proven.count("FAILS")) == (12, 0)
    assert "left out" not in proven


# trust


def test_without_a_terminal_an_unknown_policy_is_refused(keyhole: Keyhole) -> None:
    """I11: a cloned policy that runs commands is not accepted by silence."""
    keyhole.policy(POLICY)
    ran = keyhole("policy", "trust")
    assert ran.code == 1
    assert "would grant" in ran.out
    assert "runs a command of this host" in ran.out
    assert "no terminal to ask on" in ran.err
    assert json.loads(keyhole("check", "--json").out)["trusted"] is False


def test_trust_by_digest_accepts_that_policy_alone(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    digest = json.loads(keyhole("check", "--json").out)["digest"]
    wrong = keyhole("policy", "trust", "--trust=sha256:" + "0" * 64)
    assert wrong.code == 2
    assert digest in wrong.err
    assert keyhole("policy", "trust", f"--trust={digest}").code == 0
    assert json.loads(keyhole("check", "--json").out)["trusted"] is True
    keyhole.policy(POLICY + "# changed\n")
    assert keyhole("policy", "trust", f"--trust={digest}").code == 2
    changed = keyhole("policy", "trust")
    assert changed.code == 1
    assert "+# changed" in changed.out
    assert "has changed since it was accepted" in keyhole("check").out


@pytest.mark.parametrize("words", [("policy", "trust"), ("run", "--trust", "--", "true")])
def test_trust_that_cannot_be_kept_is_told_in_words(
    keyhole: Keyhole, words: tuple[str, ...]
) -> None:
    """A home that cannot be written; root writes to every directory, so a file is in the way."""
    keyhole.policy("")
    state = keyhole.home / ".local"
    state.write_text("in the way")
    flags = words if "--trust" in words else (*words, "--trust")
    ran = keyhole(*flags)
    assert ran.code == (125 if words[0] == "run" else 2)
    assert ran.err.startswith("keyhole: the acceptance of the policy cannot be stored: ")
    assert ran.err.endswith(": Not a directory\n")
    assert ran.err.count("\n") == 1


def test_trust_accepts_whatever_is_there(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    mistaken = keyhole("policy", "trust", "--trust", "keyhole.toml")
    assert mistaken.code == 2
    assert "FILE goes before --trust" in mistaken.err
    assert keyhole("policy", "trust", "--trust").code == 0
    assert keyhole("policy", "trust").code == 0
    keyhole.policy("[egres]")
    assert keyhole("policy", "trust", "--trust").code == 2


def on_a_terminal(keyhole: Keyhole, *words: str, answer: str) -> tuple[int, str]:
    """Run on a terminal and give every question this answer."""
    asked = ("]", f"{answer}\n")
    return on_terminal([PROGRAM, *words], keyhole.env, keyhole.project, whenever=asked)


def test_on_a_terminal_a_person_is_asked(keyhole: Keyhole) -> None:
    keyhole.policy(POLICY)
    assert on_a_terminal(keyhole, "policy", "trust", answer="n")[0] == 1
    code, shown = on_a_terminal(keyhole, "policy", "trust", answer="y")
    assert code == 0
    assert "accept this policy on this host? [y/N]" in shown
    assert json.loads(keyhole("check", "--json").out)["trusted"] is True


# init


def test_init_writes_a_policy_that_checks(keyhole: Keyhole) -> None:
    (keyhole.project / "pyproject.toml").write_text("")
    git = keyhole.project / ".git"
    git.mkdir()
    (git / "config").write_text('[remote "origin"]\n\turl = git@github.com:Acme/widgets.git\n')
    ran = keyhole("init", "--yes")
    assert ran.code == 0
    text = (keyhole.project / "keyhole.toml").read_text()
    assert 'repos  = ["acme/widgets"]' in text
    assert 'presets = ["python"]' in text
    assert keyhole("check").code == 0


def test_init_recommends_a_key_for_agents_and_uses_the_one_that_is_there(
    keyhole: Keyhole,
) -> None:
    """The line that makes the key works as it is pasted."""
    git = keyhole.project / ".git"
    git.mkdir()
    (git / "config").write_text('[remote "origin"]\n\turl = git@github.com:acme/widgets.git\n')
    (keyhole.home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@corp.example\n")
    said = keyhole("init", "--yes").out
    assert "commits are not signed: `ssh-keygen -t ed25519 -f ~/.ssh/agent_ed25519" in said
    command = said.partition("commits are not signed: `")[2].partition("`")[0]
    (keyhole.home / ".ssh").mkdir()
    subprocess.run(["/bin/sh", "-c", f"{command} -q -N ''"], check=True, env=keyhole.env)
    said = keyhole("init", "--yes", "--force").out
    assert "not signed" not in said
    text = (keyhole.project / "keyhole.toml").read_text()
    assert '\ngit_user = "Ada <ada@corp.example>"\n' in text
    assert '\nsign     = "ssh:~/.ssh/agent_ed25519.pub"\n' in text
    shown = json.loads(keyhole("check", "--json").out)
    assert [each for each in shown["grants"] if "signs commits with" in each["text"]]


def test_init_reads_a_token_only_in_memory_that_nobody_can_read(keyhole: Keyhole) -> None:
    """I1: it asks gh whether there is one."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        give_up("no core can be written here anyway")
    (keyhole.project / ".git").mkdir()
    url = "git@github.com:acme/widgets.git"
    (keyhole.project / ".git/config").write_text(f'[remote "origin"]\n\turl = {url}\n')
    gh = keyhole.home / "bin/gh"
    gh.parent.mkdir()
    gh.write_text('#!/bin/sh\nulimit -Hc > "$HOME/limit"; echo ghp_0123456789abcdefghij\n')
    gh.chmod(0o755)
    ready = replace(keyhole, env=keyhole.env | {"PATH": f"{gh.parent}:/usr/bin:/bin"})
    assert 'secret = "exec:gh auth token"' in ready("init", "--print").out
    assert (keyhole.home / "limit").read_text().strip() == "0"


def install_claude(keyhole: Keyhole, *, login: bool) -> Keyhole:
    """A home with Claude Code in it, as its installer puts it there."""
    version = keyhole.home / ".local/share/claude/versions/2.1.0"
    version.parent.mkdir(parents=True)
    version.write_text("#!/bin/sh\n")
    version.chmod(0o755)
    link = keyhole.home / ".local/bin/claude"
    link.parent.mkdir(parents=True)
    link.symlink_to(version)
    if login:
        file = keyhole.home / ".claude/.credentials.json"
        file.parent.mkdir()
        file.write_text("{}")
    return replace(keyhole, env=keyhole.env | {"PATH": f"{link.parent}:/usr/bin:/bin"})


def assert_schema_is_there(text: str, project: Path) -> None:
    """The first line of a policy names a file that editors can read, and not whose it is."""
    named = text.partition("\n")[0].removeprefix("#:schema ")
    assert named.startswith("../")
    schema = json.loads((project / named).read_text())
    assert "claude" in json.dumps(schema["properties"]["services"])


def test_the_schema_is_written_again_where_it_is_asked_for(keyhole: Keyhole) -> None:
    """A policy that came with a project is completed by the same line."""
    inside = replace(keyhole, project=keyhole.home / "work" / "widgets")
    inside.project.mkdir(parents=True)
    assert not ready_line(inside("init", "--print").out)
    said = inside("policy", "schema", "--save")
    assert (said.code, said.err) == (0, "")
    assert_schema_is_there(said.out, inside.project)
    assert ready_line(inside("init", "--print").out) == said.out.strip()


def test_a_policy_that_may_be_committed_tells_no_path_of_its_writer(keyhole: Keyhole) -> None:
    """Elsewhere than below the home the schema could only be named by the whole path."""
    assert keyhole("init", "--yes").code == 0
    assert str(keyhole.home) not in (keyhole.project / "keyhole.toml").read_text()
    said = keyhole("policy", "schema", "--save")
    assert said.out.startswith("#:schema file:///")  # the person's own terminal


def ready_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if line.startswith("#:schema ") else ""


def test_init_uses_the_login_of_the_agent_that_is_there(keyhole: Keyhole) -> None:
    ready = install_claude(keyhole, login=True)
    ran = ready("init", "--yes")
    assert (ran.code, ran.out) == (0, "wrote keyhole.toml\nnext: `keyhole run claude`\n")
    text = (keyhole.project / "keyhole.toml").read_text()
    assert '[services.claude]\nsecret = "login:claude"\n' in text
    assert "store:" not in text
    assert ready("check").code == 0


def test_init_names_no_secret_that_is_not_there(keyhole: Keyhole) -> None:
    """What is missing is said with the command that fixes it."""
    ready = install_claude(keyhole, login=False)
    git = keyhole.project / ".git"
    git.mkdir()
    (git / "config").write_text('[remote "origin"]\n\turl = git@github.com:Acme/widgets.git\n')
    ran = ready("init", "--yes")
    assert ran.code == 0
    assert (
        "services.claude has no secret yet: `claude auth login` or `keyhole secret set anthropic`, "
        "then `keyhole init --force --agent claude`\n" in ran.out
    )
    assert ran.out.endswith("\nand then: `keyhole run claude`\n")
    assert "services.github has no secret yet: `" in ran.out
    assert "then `keyhole init --force`\n" in ran.out
    shown = json.loads(ready("check", "--json").out)
    assert not [each for each in shown["grants"] if "secret" in each["text"]]
    assert ready("secret", "set", "github", "--plain", stdin="ghp_madeUp0123456789madeUp").code == 0
    assert ready("init", "--yes", "--force").code == 0
    text = (keyhole.project / "keyhole.toml").read_text()
    assert 'secret = "store:github"\nrepos' in text


def test_init_asks_which_agent_the_project_uses(keyhole: Keyhole) -> None:
    ready = install_claude(keyhole, login=True)
    for answer, has in (("", True), ("1", True), ("claude", True), ("none", False)):
        code, shown = on_terminal(
            [PROGRAM, "init", "--force"], ready.env, ready.project, [("[claude] ", answer + "\r")]
        )
        assert code == 0, shown
        assert "Claude Code  logged in" in shown
        assert ("[services.claude]" in (keyhole.project / "keyhole.toml").read_text()) is has
    assert ready("init", "--print", "--agent", "claude").code == 0
    wrong = ready("init", "--print", "--agent", "clade")
    assert wrong.code == 2
    assert "no profile of 'clade'" in wrong.err


def test_init_prints_without_writing(keyhole: Keyhole) -> None:
    ran = keyhole("init", "--print")
    assert "version = 1" in ran.out
    assert not (keyhole.project / "keyhole.toml").exists()


def test_init_never_overwrites_without_asking(keyhole: Keyhole) -> None:
    keyhole.policy("# mine\n")
    ran = keyhole("init", "--yes")
    assert ran.code == 1
    assert "--force" in ran.err
    assert "# mine" in (keyhole.project / "keyhole.toml").read_text()
    assert keyhole("init", "--yes", "--force").code == 0
    assert "# mine" not in (keyhole.project / "keyhole.toml").read_text()


def test_init_does_not_follow_a_link_left_in_its_place(keyhole: Keyhole, tmp_path: Path) -> None:
    """I11: a link that hostile code left behind is replaced, its target untouched."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (keyhole.project / "keyhole.toml").symlink_to(victim)
    assert keyhole("init", "--yes").code == 1
    assert keyhole("init", "--yes", "--force").code == 0
    assert victim.read_text() == "precious"


def test_init_asks_on_a_terminal_and_needs_one(keyhole: Keyhole) -> None:
    assert keyhole("init").code == 2
    (keyhole.project / "package.json").write_text("{}")
    code, shown = on_a_terminal(keyhole, "init", answer="n")
    assert code == 0
    assert "looks like a node project" in shown
    assert "presets = []" in (keyhole.project / "keyhole.toml").read_text()


def test_gh_shows_its_user_why_a_request_was_refused(keyhole: Keyhole) -> None:
    """It prints `message` of an error, and no other member."""
    if shutil.which("gh") is None:
        give_up("gh is not installed")
    keyhole("secret", "set", "gh", "--plain", stdin="made-up-for-this-test-0123456789")
    keyhole.policy('[services.github]\nsecret = "store:gh"\nrepos = ["acme/widgets"]\n')
    words = ("run", "-q", "--trust", "--", "gh", "api", "-X", "DELETE", "repos/acme/widgets")
    ran = keyhole(*words)
    assert ran.code == 1
    assert re.search(r"^gh: keyhole: .*`keyhole why .*` says which rule \(HTTP 403\)$", ran.err)


def test_why_judges_a_body_and_says_the_word_that_opens_it(keyhole: Keyhole) -> None:
    """I3, with its control: the word in the policy, and the same body passes."""
    keyhole.policy('[services.anthropic]\nsecret = "store:anthropic"\n')
    body = '{"model": "m", "max_tokens": 1, "tools": [{"type": "web_search_20250305"}]}'
    (keyhole.project / "body.json").write_text(body)
    url = "https://api.anthropic.com/v1/messages"
    for given in ("@body.json", body):
        asked = keyhole("why", url, "--data", given)
        assert asked.code == 1
        assert 'features = ["web-search"]' in asked.out
    assert "keeps closed" in keyhole("check").out
    assert "web-search" in keyhole("services", "show", "anthropic").out
    keyhole.policy('[services.anthropic]\nsecret = "store:anthropic"\nfeatures = ["web-search"]\n')
    assert keyhole("why", url, "--data", body).code == 0
    missing = keyhole("why", url, "--data", "@nowhere.json")
    assert (missing.code, "nowhere.json: No such file" in missing.err) == (2, True)
    assert keyhole("why", "api.anthropic.com", "--data", body).code == 2


def test_why_prints_all_that_a_new_service_needs_and_nothing_that_does_not_help(
    keyhole: Keyhole,
) -> None:
    keyhole.policy("")
    push = "git push https://github.com/acme/app agent/x"
    found = json.loads(keyhole("why", "--json", *push.split()).out)["fix"].splitlines()
    assert found[0] == "[services.github]"
    assert found[1].startswith("secret = ")
    assert found[2:] == ['repos = ["acme/app"]', 'push = ["agent/x"]']
    # What is printed is enough: with it the target is allowed.
    keyhole.policy("\n".join(found))
    assert keyhole("why", *push.split()).code == 0
    # A service of which only the name is there.
    keyhole.policy("\n".join(found[:2]))
    said = keyhole("why", *push.split()).out
    assert '[services.github]:\n    repos = ["acme/app"]\n    push = ["agent/x"]\n' in said
    # A page of the forge's web site: no rule of the service allows it.
    said = keyhole("why", "https://github.com/acme/app").out
    assert "denied" in said
    assert "to allow it" not in said
