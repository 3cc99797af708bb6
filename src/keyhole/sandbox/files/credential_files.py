"""Decides which files of a project hold a credential: by name, or by name and content (I1).

Called for every file of a bound tree, so names are looked up before anything is read. Not here:
settings files of any name, in which `settings_files.py` finds tokens by their shape;
`terraform.tfstate`, which often holds secrets but is the project's data (an empty state makes the
next `apply` build everything again); and sources such as `settings.py`.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from keyhole.sandbox.files.credential_patterns import text_looks_secret

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = 4096
"""Bytes in which a key file declares its type."""
_SETTINGS = 65536
"""Bytes of a settings file that are read; a longer one is judged by its beginning."""

DEPENDENCIES = frozenset({"node_modules", "site-packages", "dist-packages"})
"""Directories of published packages. Keys in there are test keys that everyone has, and a mask
would keep `npm ci` from removing the directory."""

_BY_NAME = frozenset(
    """
    .env .pypirc .netrc _netrc .git-credentials .pgpass .vault-token .dockercfg .s3cfg .boto
    .databrickscfg .clasprc.json .credentials.json oauth_creds.json credentials.tfrc.json
    application_default_credentials.json .htpasswd .rclone.conf
    """.split()
)
_BY_PLACE = frozenset(
    {
        (".aws", "credentials"), (".cargo", "credentials"), (".cargo", "credentials.toml"),
        (".codex", "auth.json"), (".gem", "credentials"), (".m2", "settings-security.xml"),
        ("opencode", "auth.json"),
    }
)  # fmt: skip
_BY_SUFFIX = frozenset({"p12", "pfx", "kdbx", "agekey"})
_HARMLESS_ENV = frozenset({"example", "sample", "template", "dist", "tpl", "defaults", "schema"})
_KEY_SUFFIX = frozenset({"pem", "key", "p8", "pk8", "ppk", "rsa", "asc", "gpg"})
_KEY_NAMES = frozenset(
    {"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"}
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File|AGE-SECRET-KEY-1")


def _matches(pattern: bytes) -> Callable[[bytes], bool]:
    # Compiled, and kept by `re`, when a file of the name is met.
    return lambda data: re.search(pattern, data, re.IGNORECASE) is not None


def _tells(data: bytes) -> bool:
    return text_looks_secret(data.decode("utf-8", "replace")) is not None


_NPM = _matches(rb"_auth|_password|npmAuth(?:Token|Ident)|://[^/\s]*@")
_PRIVATE_JSON = _matches(rb'"(?:private_key|client_secret|refresh_token)"\s*:\s*"[^"]')
_DOCKER = _matches(rb'"(?:auth|identitytoken|registrytoken|password)"\s*:\s*"[^"]')
_COMPOSER = _matches(
    rb'"(?:http-basic|github-oauth|gitlab-token|gitlab-oauth|bearer)"\s*:\s*\{\s*"'
)
_KUBE = _matches(rb"\b(?:token|client-key-data|password)\s*:\s*[^\s]")
_NUGET = _matches(rb"(?:ClearTextPassword|<add\s+key=\"Password\"|<apikeys>)")

_BY_CONTENT: dict[str, Callable[[bytes], bool]] = {
    ".npmrc": _NPM, ".yarnrc": _NPM, ".yarnrc.yml": _NPM, "credentials.json": _PRIVATE_JSON,
    "client_secret.json": _PRIVATE_JSON, "client_secrets.json": _PRIVATE_JSON,
    "service-account.json": _PRIVATE_JSON, "service_account.json": _PRIVATE_JSON,
    "serviceaccount.json": _PRIVATE_JSON, "serviceaccountkey.json": _PRIVATE_JSON,
    ".dockerconfigjson": _DOCKER, "auth.json": _COMPOSER, "kubeconfig": _KUBE,
    "nuget.config": _NUGET, "pip.conf": _tells, "pip.ini": _tells, ".envrc": _tells,
    "gradle.properties": _tells, ".my.cnf": _tells, ".terraformrc": _tells, ".curlrc": _tells,
    ".wgetrc": _tells, ".gitconfig": _tells, ".condarc": _tells, "uv.toml": _tells,
    ".aider.conf.yml": _tells, "secrets.toml": _tells, ".dev.vars": _tells,
}  # fmt: skip
_BY_PLACE_AND_CONTENT: dict[tuple[str, str], Callable[[bytes], bool]] = {
    (".docker", "config.json"): _DOCKER, (".kube", "config"): _KUBE,
    (".m2", "settings.xml"): _tells, (".aws", "config"): _tells,
    (".bundle", "config"): _matches(rb"(?m)^[ \t]*BUNDLE_\w+[ \t]*:[ \t]*\"?[^\s\"]+:[^\s\"/]"),
    (".cargo", "config.toml"): _tells, ("pip", "pip.conf"): _tells,
}  # fmt: skip


def holds_credential(directory: str, name: str, path: str | None = None) -> bool:
    """Whether the file holds a credential, or has a suspicious name and cannot be read.

    `path` is where it is read instead, when the name is a link's.
    """
    place = (os.path.basename(directory), name)
    if name in _BY_NAME or place in _BY_PLACE or _is_env(name):
        return True
    lower = name.lower()
    suffix = lower.rpartition(".")[2]
    if suffix in _BY_SUFFIX:
        return True
    path = path or f"{directory}/{name}"
    if suffix in _KEY_SUFFIX or name in _KEY_NAMES:
        return _content(path, HEAD, _is_private_key)
    check = _BY_PLACE_AND_CONTENT.get(place) or _BY_CONTENT.get(lower)
    return check is not None and _content(path, _SETTINGS, check)


def _is_private_key(data: bytes) -> bool:
    return _PRIVATE_KEY.search(data) is not None


def _is_env(name: str) -> bool:
    """`.env.local`, but not `.env.example`, which is made to be read."""
    return name.startswith(".env.") and name.rpartition(".")[2].lower() not in _HARMLESS_ENV


def _content(path: str, limit: int, check: Callable[[bytes], bool]) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return True
            return check(os.read(file, limit))
        finally:
            os.close(file)
    except FileNotFoundError:
        return False
    except OSError:
        # The sandbox runs as its owner and could make it readable.
        return True
