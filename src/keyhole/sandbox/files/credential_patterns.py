"""Patterns of credentials: by name, by value, in the text of a settings file. Pure.

Used for the environment, for git settings, for the files of /etc and of projects (I1). It finds
careless credentials, not hidden ones: a secret without a known shape under a plain name passes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from keyhole.inject.placeholder import MARKS
from keyhole.sandbox.files.command_passwords import finds_password

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHAPES = (
    ("ghp_ gho_ ghu_ ghs_ ghr_", "[A-Za-z0-9]{16,}"),
    ("github_pat_", "[A-Za-z0-9_]{20,}"),
    ("glpat- glrt- gldt- glptt- glcbt- glsoat-", r"[\w-]{10,}"),
    ("sk-", "[A-Za-z0-9_-]{16,}"),
    ("sk_live_ rk_live_ pk_live_", "[A-Za-z0-9]{10,}"),
    ("whsec_", "[A-Za-z0-9]{16,}"),
    ("xoxa- xoxb- xoxc- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", "[A-Za-z0-9-]{10,}"),
    ("AKIA ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("AIza", r"[\w-]{35}"),
    ("ya29.", r"[\w-]{20,}"),
    ("GOCSPX-", r"[\w-]{20,}"),
    ("npm_", "[A-Za-z0-9]{36}"),
    ("pypi-", "[A-Za-z0-9_-]{16,}"),
    ("rubygems_", "[a-f0-9]{32,}"),
    ("cio", "[A-Za-z0-9]{32}"),
    ("hf_ gsk_ xai-", "[A-Za-z0-9]{20,}"),
    ("r8_", "[A-Za-z0-9]{30,}"),
    ("nvapi-", r"[\w-]{20,}"),
    ("doo_v1_ dop_v1_", "[a-f0-9]{32,}"),
    ("dckr_pat_ dckr_oat_", r"[\w-]{16,}"),
    ("hvs. hvb. hvr.", r"[\w-]{20,}"),
    ("tskey-", r"[\w-]{16,}"),
    ("shpat_ shpca_ shppa_ shpss_", "[a-fA-F0-9]{16,}"),
    ("SG.", r"[\w-]{16,}\.[\w-]{16,}"),
    ("ATATT", r"[\w-]{20,}"),
    ("lin_api_", "[A-Za-z0-9]{20,}"),
    ("sbp_", "[a-f0-9]{20,}"),
    ("AGE-SECRET-KEY-1", "[A-Z0-9]{20,}"),
    ("PuTTY-User-Key-File", ""),
    # Matches that begin inside another are not tried: each would read to the same end.
    ("eyJ", r"(?<![\w-]eyJ)[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*"),
)
"""How tokens begin, and what follows. A text is searched for the beginnings only, so that the cost
is linear in its size."""
_BEGINNINGS = {
    beginning.encode(): rest.encode() for listed, rest in _SHAPES for beginning in listed.split()
}
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
# A password, or any userinfo at all over HTTP, where a user alone may be the token. A reference to
# a variable (`https://$USER:$PASS@`) holds no secret.
_USERINFO = (
    r"""://(?:[^/?#\s"'@:]*:|(?<=[Hh][Tt][Tt][Pp]://)|(?<=[Hh][Tt][Tt][Pp][Ss]://))"""
    r"""(?![${<%])[^/?#\s"'@]+@"""
)
_SETTING = (
    r"""^[ \t]*(?:export[ \t]+)?["']?([A-Za-z_/][\w./:-]*)["']?[ \t]*[=:][ \t]*["']?[^\s"'$#;<{]"""
)
# A flag or a name with its value: `--token x`, `PGPASSWORD=x`, `"Authorization": "Bearer x`.
_GIVEN = (
    r"""(?<![\w.-])(?:--([\w-]+)[= ]|-{0,2}([A-Za-z_][\w.-]*)["']?(?:=|:[ \t]?))["']?"""
    r"""(?:(?:bearer|basic|token) )?(?![*<{%])(?=([^\s"'$]{4,200}))"""
)
_CARRIERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_ALL_SORTS = frozenset({"key", "keys"})
"""Names that settings have for things of any kind: `key: language` in a recipe."""
_KINDS = frozenset(
    "true false null none string boolean integer required bearer basic token".split()
)
"""Values that say what is expected, and the beginning of one that is a variable's."""
_XML_SECRET = re.compile(r"<(?:password|passphrase|privateKey)>\s*[^<\s${]", re.IGNORECASE)

_ANYWHERE = frozenset("PASSPHRASE CREDENTIAL CREDENTIALS APIKEY PASSWD".split())
_LAST = frozenset("TOKEN KEY KEYS PAT PASS PWD AUTHTOKEN ACCESSKEY PRIVATEKEY".split())
_HARMLESS_AWS = frozenset(
    "AWS_REGION AWS_DEFAULT_REGION AWS_DEFAULT_OUTPUT AWS_PAGER AWS_RETRY_MODE".split()
)
_HARMLESS = frozenset({"PWD", "OLDPWD"})
_NPM_AUTH = re.compile(r"(?:^|[:_])_auth", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


_PASSWORD = rb"""://([^/?#\s"'@:]*):([^/?#\s"'@]+)@([^/?#\s"'@:]+)"""
_NO_PASSWORD = frozenset(
    b"password passwd pass secret postgres mysql mariadb mongo redis rabbitmq root admin user "
    b"guest test app dev example changeme changeit minio minioadmin sa x".split()
)
"""Passwords of databases that only this machine reaches, as tutorials write them."""
_LOCAL_NAMES = (
    b".local", b".localhost", b".internal", b".test", b".example", b".invalid",
    b"example.com", b"example.org", b"example.net", b"0.0.0.0",
)  # fmt: skip
_SAMPLE = re.compile(
    rb"xxxx|example|placeholder|your|change-?me|dummy|fake|redacted|insert|0123456|1234567|abcdefg|"
    + "|".join(MARKS).lower().encode()
)
_VARIABLE = re.compile(rb"[$<%{]")
_RUN = re.compile(rb"[A-Za-z0-9]{8,}")
_NOT_A_WORD = re.compile(rb"[0-9A-Z]")
_UNSIGNED = b"eyJhbGciOiJub25l"  # a JWT with alg: none, as in a placeholder
_DISTINCT = 8
"""Characters that a random token has at least; `ghp_aaaa…` is a sample."""


@cache
def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern when it is first used: most runs use none."""
    return re.compile(pattern, flags)


@cache
def _shape(beginning: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![A-Za-z0-9])" + re.escape(beginning) + _BEGINNINGS[beginning])


@cache
def _password() -> re.Pattern[bytes]:
    return re.compile(_PASSWORD)


def _tokens(data: bytes) -> Iterator[bytes]:
    for beginning in _BEGINNINGS:
        at = data.find(beginning)
        while at >= 0:
            found = _shape(beginning).match(data, at)
            if found:
                yield found[0]
            # Continue after the match; a search from within it would read to its end again.
            at = data.find(beginning, max(found.end() if found else 0, at + 1))


def _without_comments(text: str) -> str:
    """Remove comments by hand: a pattern would search for the end again after each unclosed
    beginning."""
    kept, at = [], 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[at:start])
        at = end + len("-->")
    return "".join([*kept, text[at:]])


def name_looks_secret(name: str) -> bool:
    """Whether a variable or setting of this name usually holds a credential.

    By words: `API_KEY` and `apiKey` do, `KEYBOARD`, `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` do
    not.
    """
    upper = name.upper()
    if upper in _HARMLESS or upper in _HARMLESS_AWS:
        return False
    if (
        upper.startswith("AWS_")
        or "SECRET" in upper
        or "PASSWORD" in upper
        or _NPM_AUTH.search(name)
    ):
        return True
    words = [word.upper() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words or "PUBLIC" in words:
        return False
    return words[-1] in _LAST or not _ANYWHERE.isdisjoint(words)


def value_looks_secret(value: str) -> str | None:
    """The part of this value that looks like a credential, described; None if nothing does."""
    if _PRIVATE_KEY.search(value):
        return "a private key"
    if _compiled(_USERINFO).search(value):
        return "a URL with a password"
    data = value.encode("utf-8", "replace")
    return "a token" if next(_tokens(data), None) is not None else None


def credential_by_shape(data: bytes) -> str | None:
    """The credential in a project's own file, described, found by its shape alone; None if there is
    none.

    Files of a project hold samples, references to variables, and passwords of databases that run
    beside the tests. None of these counts, nor does a placeholder of ours.
    """
    if b"PRIVATE KEY" in data and _PRIVATE_KEY.search(data.decode("utf-8", "replace")):
        return "a private key"
    if any(_is_plausible(token) for token in _tokens(data)):
        return "a token"
    if b"://" in data and any(_is_real(*found) for found in _password().findall(data)):
        return "a URL with a password"
    return None


def _is_plausible(token: bytes) -> bool:
    if _SAMPLE.search(token.lower()) or token.startswith(_UNSIGNED) or len(set(token)) < _DISTINCT:
        return False
    return any(_NOT_A_WORD.search(run) for run in _RUN.findall(token))


def _is_real(user: bytes, password: bytes, host: bytes) -> bool:
    lower, name = password.lower(), host.lower()
    if lower in _NO_PASSWORD or lower == user.lower() or _SAMPLE.search(lower):
        return False
    if _VARIABLE.search(password) or set(password) <= set(b"*.x-"):
        return False
    # A name without a dot is a container's or this machine's.
    return b"." in name and not name.startswith(b"127.") and not name.endswith(_LOCAL_NAMES)


def gives_secret(text: str) -> bool:
    """Whether a command or a line of settings has a value for a name that credentials have, such as
    `PGPASSWORD=hunter2 psql`, `--token x` or `Authorization: Bearer x`, or a password behind a
    short flag. A reference to a variable is none, and neither is a sample."""
    if finds_password(text):
        return True
    found = _compiled(_GIVEN, re.IGNORECASE).findall(text)
    return any(_names_secret(flag or name) and _is_value(value) for flag, name, value in found)


def _names_secret(name: str) -> bool:
    lower = name.lower()
    return lower in _CARRIERS or (lower not in _ALL_SORTS and name_looks_secret(name))


def _is_value(text: str) -> bool:
    lower = text.lower().rstrip(",;)")
    return lower not in _KINDS and not _SAMPLE.search(lower.encode("utf-8", "replace"))


def text_looks_secret(text: str) -> str | None:
    """The same for a settings file, in which a telling name with a value is enough."""
    if text.lstrip().startswith("<"):
        text = _without_comments(text)  # the samples that Maven ships are in comments
    if found := value_looks_secret(text):
        return found
    if _XML_SECRET.search(text):
        return "a password"
    if any(name_looks_secret(name) for name in _compiled(_SETTING, re.MULTILINE).findall(text)):
        return "a credential by its name"
    return None
