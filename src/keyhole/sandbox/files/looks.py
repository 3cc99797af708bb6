"""What looks like a credential: a name, a value, the text of a settings file. Pure.

Used for the environment, for git settings and for the files of /etc (I1). It finds what is
careless, not what is hidden: a secret without a known shape under a plain name passes.
"""

from __future__ import annotations

import re
from functools import cache

_TOKEN = r"""(?<![A-Za-z0-9])(?:
      gh[pousr]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{20,}
    | gl(?:pat|rt|dt|ptt|cbt|soat)-[\w-]{10,}
    | sk-[A-Za-z0-9_-]{16,} | (?:sk|rk|pk)_live_[A-Za-z0-9]{10,} | whsec_[A-Za-z0-9]{16,}
    | xox[abceoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
    | AIza[\w-]{35} | ya29\.[\w-]{20,} | GOCSPX-[\w-]{20,}
    | npm_[A-Za-z0-9]{36} | pypi-[A-Za-z0-9_-]{16,} | rubygems_[a-f0-9]{32,} | cio[A-Za-z0-9]{32}
    | hf_[A-Za-z0-9]{20,} | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{30,}
    | nvapi-[\w-]{20,} | do[op]_v1_[a-f0-9]{32,} | dckr_(?:pat|oat)_[\w-]{16,}
    | hv[sbr]\.[\w-]{20,} | tskey-[\w-]{16,} | shp(?:at|ca|pa|ss)_[a-fA-F0-9]{16,}
    | SG\.[\w-]{16,}\.[\w-]{16,} | ATATT[\w-]{20,} | lin_api_[A-Za-z0-9]{20,} | sbp_[a-f0-9]{20,}
    | AGE-SECRET-KEY-1[A-Z0-9]{20,} | PuTTY-User-Key-File
    | eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*
    )"""  # noqa: S105 - the shapes of tokens
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
_XML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_XML_SECRET = re.compile(r"<(?:password|passphrase|privateKey)>\s*[^<\s${]", re.IGNORECASE)

_ANYWHERE = frozenset("PASSPHRASE CREDENTIAL CREDENTIALS APIKEY PASSWD".split())
_LAST = frozenset("TOKEN KEY KEYS PAT PASS PWD AUTHTOKEN ACCESSKEY PRIVATEKEY".split())
_HARMLESS_AWS = frozenset(
    "AWS_REGION AWS_DEFAULT_REGION AWS_DEFAULT_OUTPUT AWS_PAGER AWS_RETRY_MODE".split()
)
_HARMLESS = frozenset({"PWD", "OLDPWD"})
_NPM_AUTH = re.compile(r"(?:^|[:_])_auth", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@cache
def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """When first asked: the longest of them takes 2 ms, and most runs ask for none."""
    return re.compile(pattern, flags)


def name_looks_secret(name: str) -> bool:
    """Whether a variable or setting of this name holds a credential, by custom.

    By words: `API_KEY` and `apiKey` do, `KEYBOARD`, `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` not.
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
    """What in this value looks like a credential; None if nothing does."""
    if _PRIVATE_KEY.search(value):
        return "a private key"
    if _compiled(_USERINFO).search(value):
        return "a URL with a password"
    return "a token" if _compiled(_TOKEN, re.VERBOSE).search(value) else None


def text_looks_secret(text: str) -> str | None:
    """The same for a settings file, where a telling name with a value is enough."""
    if text.lstrip().startswith("<"):
        text = _XML_COMMENT.sub("", text)  # the samples that Maven ships are in comments
    if found := value_looks_secret(text):
        return found
    if _XML_SECRET.search(text):
        return "a password"
    if any(name_looks_secret(name) for name in _compiled(_SETTING, re.MULTILINE).findall(text)):
        return "a credential by its name"
    return None
